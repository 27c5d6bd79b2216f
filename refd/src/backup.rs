//! `refd backup` and `refd restore`: every object of a running node as a file that any tool can keep, and back.
//!
//! A backup is a directory: `objects/ab/ab…` with the 64 hex digits of the name as the name of the file and the first two
//! as its directory, and `pins`, a line for each id that is pinned. Files are whole when they have their names, so a backup
//! that was cut off is gone on with by doing it again; objects never change, so one that is there is not fetched again.
//! Everything is verified: on the way out of the node, and by name before it is put back; what is kept from before also then,
//! with `--verify`. An object that goes away or turns out damaged while the backup runs is passed over.

use std::{
    collections::BTreeSet,
    error::Error,
    io,
    path::{Path, PathBuf},
};

use ron_core::{ContentId, Deadline};
use ron_storage::client::{Client, ClientError, PutOptions, RemoteStat};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::{
    client::{Reading, Target, fetch_file, part_of},
    progress::Progress,
};

/// Objects asked for at once.
const PAGE: usize = 500;

/// What one object may take.
const OBJECT_MAX: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Writes what the node has into `directory`. What is there already is believed by its name and length, or read and checked
/// with `verify`.
pub(crate) async fn backup(directory: &Path, verify: bool, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let (mut fetched, mut kept, mut gone, mut bytes) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (mut pins, mut damaged) = (String::new(), Vec::new());
    let objects = directory.join("objects");
    // At once, so that a backup that is cut off leaves none of them behind that the next one takes for durable.
    for parent in make_dirs(&objects).await? {
        sync(&parent).await?;
    }
    // Names that are new, to be made durable together at the end.
    let mut unsynced = BTreeSet::from([directory.to_owned(), objects]);
    let mut after = None;
    loop {
        let page = client.list(after, PAGE, target.deadline()).await?;
        for object in page.objects {
            let path = place(directory, object.id);
            let got = if object.quarantined {
                Got::Damaged
            } else if is_there(&path, &object, verify).await? {
                Got::Kept
            } else {
                let parent = path.parent().unwrap_or(directory);
                tokio::fs::create_dir_all(parent).await.map_err(|error| named(parent, &error))?;
                got(&client, object.id, &path, target).await?
            };
            if matches!(got, Got::Fetched(_) | Got::Kept) {
                // Also of what was kept: the backup that fetched it may have been cut off before this.
                unsynced.extend(path.parent().map(Path::to_owned));
            }
            match got {
                Got::Fetched(len) => (fetched, bytes) = (fetched + 1, bytes + len),
                Got::Kept => kept += 1,
                Got::Damaged => damaged.push(object.id.to_string()),
                Got::Gone => {
                    gone += 1;
                    continue;
                }
            }
            if object.pinned {
                pins.push_str(&format!("{}\n", object.id));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    write_whole(&directory.join("pins"), &pins).await?;
    for directory in unsynced {
        sync(&directory).await?;
    }
    if target.is_json() {
        let told =
            json!({"fetched": fetched, "kept": kept, "bytes": bytes, "gone": gone, "damaged": damaged});
        println!("{told}");
    } else {
        println!("{fetched} objects fetched ({bytes} bytes), {kept} were there");
    }
    if damaged.is_empty() { Ok(()) } else { Err(Damaged { ids: damaged }.into()) }
}

/// Makes a directory with all that it is in, and returns the directories that got a new name by that.
async fn make_dirs(directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let parent =
        |path: &Path| path.parent().filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_owned);
    let changed = missing.map(|path| parent(path).unwrap_or_else(|| PathBuf::from("."))).collect();
    tokio::fs::create_dir_all(directory).await.map_err(|error| named(directory, &error))?;
    Ok(changed)
}

/// What became of one object.
enum Got {
    Fetched(u64),
    Kept,
    /// It was deleted since the node listed it.
    Gone,
    /// The node found it damaged, perhaps only now.
    Damaged,
}

async fn got(client: &Client, id: ContentId, path: &Path, target: &Target) -> Result<Got, Box<dyn Error>> {
    let error = match fetch_file(client, id, path, || target.deadline()).await {
        Ok(len) => return Ok(Got::Fetched(len)),
        Err(error) => error,
    };
    let got = match error.downcast_ref::<ClientError>() {
        Some(ClientError::NotFound { .. }) => Got::Gone,
        Some(ClientError::Lied { .. }) => Got::Damaged,
        Some(ClientError::Refused { code, .. }) if code == "damaged" => Got::Damaged,
        _ => return Err(error),
    };
    // Nothing is left to go on with.
    let _ = tokio::fs::remove_file(part_of(path)).await;
    Ok(got)
}

/// Whether an object was fetched before: it is whole if it has its name, and a file of another length was not written by us.
async fn is_there(path: &Path, object: &RemoteStat, verify: bool) -> Result<bool, Box<dyn Error>> {
    let is_so = tokio::fs::metadata(path).await.is_ok_and(|meta| meta.len() == object.size);
    if is_so && verify { is_named_right(path, object.id).await } else { Ok(is_so) }
}

/// Puts what is in `directory` into the node, what was pinned with its pin: a collection may come at any time.
pub(crate) async fn restore(directory: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let pins = directory.join("pins");
    let pins = tokio::fs::read_to_string(&pins).await.map_err(|error| named(&pins, &error))?;
    let pins: Result<BTreeSet<ContentId>, String> =
        pins.lines().map(|line| line.parse().map_err(|error| format!("pins: {line:?}: {error}"))).collect();
    let mut pins = pins?;
    let (mut stored, mut existed, mut pinned) = (0_u64, 0_u64, 0_u64);
    let mut damaged = Vec::new();
    for shelf in entries(&directory.join("objects")).await? {
        for path in entries(&shelf).await? {
            let Some(id) = name_of(&path) else { continue };
            let pin = pins.contains(&id);
            let is_there = client.stat(id, target.deadline()).await.is_ok_and(|stat| !stat.quarantined);
            // It may go between the two questions.
            if is_there && (!pin || is_pinned(&client, id, target).await?) {
                existed += 1;
                pinned += u64::from(pins.remove(&id));
                continue;
            }
            if !is_named_right(&path, id).await? {
                damaged.push(id.to_string());
                pins.remove(&id);
                continue;
            }
            put(&client, &path, id, pin).await?;
            stored += 1;
            pinned += u64::from(pins.remove(&id));
        }
    }
    // Pinned and not in the backup, because it was damaged then; the node may have it.
    let mut unpinned = Vec::new();
    for id in pins {
        if is_pinned(&client, id, target).await? {
            pinned += 1;
        } else {
            unpinned.push(id.to_string());
        }
    }
    if target.is_json() {
        let told = json!({
            "stored": stored, "existed": existed, "pinned": pinned, "unpinned": unpinned, "damaged": damaged,
        });
        println!("{told}");
    } else {
        println!("{stored} objects stored, {existed} were there, {pinned} pinned");
        unpinned.iter().for_each(|id| println!("not there to be pinned: {id}"));
    }
    if damaged.is_empty() { Ok(()) } else { Err(Damaged { ids: damaged }.into()) }
}

/// Pins an object, if it is there.
async fn is_pinned(client: &Client, id: ContentId, target: &Target) -> Result<bool, Box<dyn Error>> {
    match client.pin(id, target.deadline()).await {
        Ok(_) => Ok(true),
        Err(ClientError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Some objects are not what their names say. Everything else was done.
#[derive(Debug, thiserror::Error)]
#[error("damaged and left out: {}", ids.join(", "))]
pub(crate) struct Damaged {
    ids: Vec<String>,
}

fn place(directory: &Path, id: ContentId) -> PathBuf {
    let hex = &id.to_string()[3..];
    directory.join("objects").join(&hex[..2]).join(hex)
}

/// The object that a file is, if it has the name of one: what is unfinished or somebody else's is passed over.
fn name_of(path: &Path) -> Option<ContentId> {
    format!("b3:{}", path.file_name()?.to_str()?).parse().ok()
}

/// What is in a directory; nothing if it is none, or not there: somebody may keep files of his own beside ours.
async fn entries(directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let failed = |error: io::Error| named(directory, &error);
    let mut found = Vec::new();
    let mut reader = match tokio::fs::read_dir(directory).await {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {
            return Ok(found);
        }
        reader => reader.map_err(failed)?,
    };
    while let Some(entry) = reader.next_entry().await.map_err(failed)? {
        found.push(entry.path());
    }
    found.sort();
    Ok(found)
}

async fn is_named_right(path: &Path, id: ContentId) -> Result<bool, Box<dyn Error>> {
    let mut file = tokio::fs::File::open(path).await.map_err(|error| named(path, &error))?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = bytes::BytesMut::with_capacity(256 << 10);
    while file.read_buf(&mut piece).await.map_err(|error| named(path, &error))? > 0 {
        hasher.update(&piece);
        piece.clear();
    }
    Ok(ContentId::from_bytes(*hasher.finalize().as_bytes()) == id)
}

async fn put(client: &Client, path: &Path, id: ContentId, pin: bool) -> Result<(), Box<dyn Error>> {
    let file = tokio::fs::File::open(path).await.map_err(|error| named(path, &error))?;
    let len = file.metadata().await.map_err(|error| named(path, &error))?.len();
    let source = Reading { source: Box::pin(file), progress: Progress::new("put", Some(len)) };
    let options = PutOptions { len: Some(len), pin, ..PutOptions::default() };
    let stored = client.put(source, options, Deadline::after(OBJECT_MAX)).await?;
    if stored.id == id { Ok(()) } else { Err(format!("{} changed while it was read", path.display()).into()) }
}

async fn write_whole(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    let part = path.with_extension("part");
    tokio::fs::create_dir_all(path.parent().unwrap_or(path)).await.map_err(|error| named(path, &error))?;
    tokio::fs::write(&part, text).await.map_err(|error| named(&part, &error))?;
    sync(&part).await?;
    tokio::fs::rename(&part, path).await.map_err(|error| named(path, &error))
}

pub(crate) async fn sync(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = tokio::fs::File::open(path).await.map_err(|error| named(path, &error))?;
    file.sync_all().await.map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> Box<dyn Error> {
    format!("{}: {error}", path.display()).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use super::*;

    /// A backup into a directory that was not there made the names of the objects durable and not its own: after a crash all of
    /// it could be gone. Now every directory that gets a new name is known, and synced.
    #[tokio::test]
    async fn every_directory_that_gets_a_new_name_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let changed = make_dirs(&at("a/b/objects")).await.unwrap();
        assert_eq!(changed, [at("a/b"), at("a"), dir.path().to_owned()]);
        assert!(at("a/b/objects").is_dir());
        assert!(make_dirs(&at("a/b/objects")).await.unwrap().is_empty());
        assert_eq!(make_dirs(&at("a/b/c")).await.unwrap(), [at("a/b")]);
    }
}
