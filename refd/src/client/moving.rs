//! Bytes go up and come down: files, directories and pipes. What comes is verified here, and has its name only when it is whole.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{ContentId, Deadline};
use ron_storage::client::{Client, ClientError, PutOptions};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use super::{Target, say};
use crate::{
    progress::Progress,
    tree::{self, Entry, Seen, Tree},
};

/// Bytes read from a file at a time: a few groups, so that both sides stay busy.
const READ_BYTES: usize = 256 << 10;

/// What a transfer may take at most.
pub(super) const TRANSFER_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) async fn put(file: &Path, options: &PutOptions, target: &Target) -> Result<(), Box<dyn Error>> {
    let (source, len) = open(file).await?;
    let client = target.client()?;
    let source = Reading { source, progress: Progress::new("put", len) };
    let options = PutOptions { len, ..options.clone() };
    let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
    let mut json = json!({
        "id": stored.id.to_string(),
        "cid": stored.id.to_cid(),
        "size": stored.size,
        "durability": stored.durability,
        "existed": stored.existed,
    });
    if let (Some(policy), Some(acknowledged)) = (&stored.policy, stored.acknowledged) {
        json["policy"] = policy.as_str().into();
        json["acknowledged"] = acknowledged.into();
    }
    say(target, stored.id, json)
}

/// Every file first and the list last, so that whoever has its id can have the rest.
pub(super) async fn put_dir(dir: &Path, options: &PutOptions, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for Seen { below, path, meta } in tree::walk(dir)? {
        if meta.is_dir() {
            entries.push(Entry::new(below, None, false));
            continue;
        }
        let (source, len) = open(&path).await?;
        let source = Reading { source, progress: Progress::new("put", len) };
        let options = PutOptions { len, ..options.clone() };
        let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
        bytes += stored.size;
        entries.push(Entry::new(below, Some((stored.id, stored.size)), tree::is_executable(&meta)));
    }
    let files = entries.iter().filter(|entry| entry.is_file()).count();
    let list = tree::list(entries);
    let options = PutOptions { len: Some(list.len() as u64), ..options.clone() };
    let source: Source = Box::pin(io::Cursor::new(list));
    let source = Reading { source, progress: Progress::new("put", options.len) };
    let stored = client.put(source, options, Deadline::after(TRANSFER_MAX)).await?;
    let json =
        json!({"id": stored.id.to_string(), "cid": stored.id.to_cid(), "files": files, "bytes": bytes});
    say(target, stored.id, json)
}

pub(super) async fn get_dir(
    id: ContentId,
    tree: &Tree,
    client: &Client,
    output: &Path,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let (files, bytes) = tree::restore(tree, client, output, || target.deadline()).await?;
    let path = output.display().to_string();
    say(target, id, json!({"id": id.to_string(), "files": files, "bytes": bytes, "path": path}))
}

type Source = Pin<Box<dyn AsyncRead + Send>>;

async fn open(file: &Path) -> Result<(Source, Option<u64>), Box<dyn Error>> {
    if file == Path::new("-") {
        return Ok((Box::pin(tokio::io::stdin()), None));
    }
    let named = |error: io::Error| format!("{}: {error}", file.display());
    let open = tokio::fs::File::open(file).await.map_err(named)?;
    let meta = open.metadata().await.map_err(named)?;
    // A pipe or a device has no length to count on, nor has a file that the kernel makes up and calls empty.
    let len = Some(meta.len()).filter(|len| meta.is_file() && *len > 0);
    Ok((Box::pin(open), len))
}

/// A file as a stream, with its progress.
pub(crate) struct Reading {
    pub(crate) source: Source,
    pub(crate) progress: Progress,
}

impl Stream for Reading {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let this = &mut *self;
        let mut space = vec![0; READ_BYTES];
        let mut room = ReadBuf::new(&mut space);
        ready!(this.source.as_mut().poll_read(cx, &mut room))?;
        let read = room.filled().len();
        if read == 0 {
            this.progress.end();
            return Poll::Ready(None);
        }
        this.progress.moved(read as u64);
        space.truncate(read);
        Poll::Ready(Some(Ok(space.into())))
    }
}

/// Lets the node bring an object that it does not have. Whoever has no token there is not helped, and is told that it is
/// not there.
pub(super) async fn bring(id: ContentId, from: Option<&str>, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    match client.stat(id, target.deadline()).await {
        Err(ClientError::NotFound { .. }) => {}
        // Whatever else is wrong, getting it says.
        _ => return Ok(()),
    }
    match client.fetch(id, from, target.deadline()).await {
        Ok(_) | Err(ClientError::NotFound { .. }) => Ok(()),
        Err(ClientError::Refused { status: 401 | 403 | 404, .. }) if from.is_none() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn get(
    id: ContentId,
    range: Option<(u64, Option<u64>)>,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let (first, last) = range.unwrap_or((0, None));
    let end = last.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Included);
    let client = target.client()?;
    let mut fetch = client.get(id, (std::ops::Bound::Included(first), end), target.deadline()).await?;
    let total =
        fetch.size().map(|size| last.map_or(size, |last| size.min(last.saturating_add(1))) - first.min(size));
    let mut progress = Progress::new("get", total);
    let mut out = tokio::io::stdout();
    while let Some(bytes) = fetch.next().await? {
        out.write_all(&bytes).await?;
        progress.moved(bytes.len() as u64);
    }
    out.flush().await?;
    progress.end();
    Ok(())
}

/// Into a file that has its name only when it is whole and on disk.
pub(super) async fn get_file(id: ContentId, output: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let size = fetch_file(&client, id, output, || target.deadline()).await?;
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    crate::backup::sync(directory).await?;
    let path = output.display().to_string();
    say(target, id, json!({"id": id.to_string(), "size": size, "path": path}))
}

/// Fetches an object into `output` by way of `output.part`, going on behind what is there of it. Each question to the node has
/// a deadline of its own: what is there may take minutes to hash.
pub(crate) async fn fetch_file(
    client: &Client,
    id: ContentId,
    output: &Path,
    deadline: impl Fn() -> Deadline,
) -> Result<u64, Box<dyn Error>> {
    let part = part_of(output);
    let named = |error: io::Error| format!("{}: {error}", part.display());
    let mut options = tokio::fs::OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(&part).await.map_err(named)?;
    let kept = file.metadata().await.map_err(named)?.len();
    let size = if kept > 0 { Some(client.stat(id, deadline()).await?.size) } else { None };
    // There is more here than there is of it: it was something else.
    if size.is_some_and(|size| size < kept) {
        return Err(spoilt(&part, id).await.into());
    }
    // What is there is not believed: it is hashed again, and with the rest it must come to the name.
    let mut hasher = blake3::Hasher::new();
    let mut piece = BytesMut::with_capacity(READ_BYTES);
    while file.read_buf(&mut piece).await.map_err(named)? > 0 {
        hasher.update(&piece);
        piece.clear();
    }
    let begun = hasher.count();
    if size != Some(begun) {
        let mut fetch = client.get(id, begun.., deadline()).await?;
        let mut progress = Progress::new("get", fetch.size()).from(begun);
        while let Some(bytes) = fetch.next().await? {
            hasher.update(&bytes);
            file.write_all(&bytes).await.map_err(named)?;
            progress.moved(bytes.len() as u64);
        }
        progress.end();
    }
    let size = hasher.count();
    if ContentId::from_bytes(*hasher.finalize().as_bytes()) != id {
        return Err(spoilt(&part, id).await.into());
    }
    finish(file, &part, output).await?;
    Ok(size)
}

/// Makes what was written durable, and gives it its name.
async fn finish(mut file: tokio::fs::File, part: &Path, output: &Path) -> Result<(), Box<dyn Error>> {
    let named = |error: io::Error| format!("{}: {error}", part.display());
    // The last bytes are still on their way, and `sync_all` alone does not say that they failed.
    file.flush().await.map_err(named)?;
    file.sync_all().await.map_err(named)?;
    Ok(tokio::fs::rename(part, output).await.map_err(|error| format!("{}: {error}", output.display()))?)
}

/// Where an object is until it is whole.
pub(crate) fn part_of(output: &Path) -> PathBuf {
    let mut part = output.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// Removes a beginning that does not belong to the object.
async fn spoilt(part: &Path, id: ContentId) -> Spoilt {
    let _ = tokio::fs::remove_file(part).await;
    Spoilt { part: part.to_owned(), id }
}

/// What was kept of an object from before is not of it.
#[derive(Debug, thiserror::Error)]
#[error("{} was no beginning of {id} and is removed; ask again", part.display())]
pub(super) struct Spoilt {
    part: PathBuf,
    id: ContentId,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use super::*;

    /// When the last bytes did not get to the disk, as when it is full, nobody was told: the file got its name without them.
    #[tokio::test]
    async fn a_file_whose_last_bytes_are_lost_gets_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let (part, output) = (dir.path().join("x.part"), dir.path().join("x"));
        std::fs::write(&part, "").unwrap();
        // What is written to a file that is open for reading fails when the write is done, which is after it was taken.
        let mut file = tokio::fs::File::open(&part).await.unwrap();
        file.write_all(b"the last bytes").await.unwrap();
        let refused = finish(file, &part, &output).await.unwrap_err();
        assert!(refused.to_string().contains("x.part"), "{refused}");
        assert!(part.exists() && !output.exists());
    }
}
