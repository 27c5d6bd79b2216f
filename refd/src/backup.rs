//! `refd backup` and `refd restore`: every object of a running node as a file that any tool can keep, and back.
//!
//! A backup is a directory: `objects/ab/ab…` with the 64 hex digits of the name as the name of the file and the first two
//! as its directory, and `pins`, a line for each id that is pinned. Files are whole when they have their names, so a backup
//! that was cut off is gone on with by doing it again; objects never change, so one that is there is not fetched again.
//! Everything is verified: on the way out of the node, and by name before it is put back.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
};

use ron_core::{ContentId, Deadline};
use ron_storage::client::{Client, PutOptions};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::{
    client::{Reading, Target, fetch_file},
    progress::Progress,
};

/// Objects asked for at once.
const PAGE: usize = 500;

/// What one object may take.
const OBJECT_MAX: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Writes what the node has into `directory`.
pub(crate) async fn backup(directory: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let (mut fetched, mut kept, mut bytes, mut pins) = (0_u64, 0_u64, 0_u64, String::new());
    let mut damaged = Vec::new();
    let mut after = None;
    loop {
        let page = client.list(after, PAGE, target.deadline()).await?;
        for object in page.objects {
            if object.pinned {
                pins.push_str(&format!("{}\n", object.id));
            }
            if object.quarantined {
                damaged.push(object.id.to_string());
                continue;
            }
            let path = place(directory, object.id);
            // Whole if it has its name; a file of another length was not written by us.
            if tokio::fs::metadata(&path).await.is_ok_and(|meta| meta.len() == object.size) {
                kept += 1;
                continue;
            }
            let parent = path.parent().unwrap_or(directory);
            tokio::fs::create_dir_all(parent).await.map_err(|error| named(parent, &error))?;
            bytes += fetch_file(&client, object.id, &path, target.deadline()).await?;
            fetched += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    write_whole(&directory.join("pins"), &pins).await?;
    sync(directory).await?;
    if target.is_json() {
        println!("{}", json!({"fetched": fetched, "kept": kept, "bytes": bytes, "damaged": damaged}));
    } else {
        println!("{fetched} objects fetched ({bytes} bytes), {kept} were there");
    }
    if damaged.is_empty() { Ok(()) } else { Err(Damaged { ids: damaged }.into()) }
}

/// Puts what is in `directory` into the node.
pub(crate) async fn restore(directory: &Path, target: &Target) -> Result<(), Box<dyn Error>> {
    let client = target.client()?;
    let (mut stored, mut existed) = (0_u64, 0_u64);
    let mut damaged = Vec::new();
    let objects = directory.join("objects");
    for shelf in entries(&objects).await? {
        for path in entries(&shelf).await? {
            let Some(id) = name_of(&path) else { continue };
            if client.stat(id, target.deadline()).await.is_ok_and(|stat| !stat.quarantined) {
                existed += 1;
                continue;
            }
            if !is_named_right(&path, id).await? {
                damaged.push(id.to_string());
                continue;
            }
            put(&client, &path, id).await?;
            stored += 1;
        }
    }
    let pins = directory.join("pins");
    let pins = tokio::fs::read_to_string(&pins).await.map_err(|error| named(&pins, &error))?;
    let mut pinned = 0_u64;
    for line in pins.lines() {
        let id: ContentId = line.parse().map_err(|error| format!("pins: {line:?}: {error}"))?;
        if !damaged.contains(&line.to_owned()) {
            client.pin(id, target.deadline()).await?;
            pinned += 1;
        }
    }
    if target.is_json() {
        println!("{}", json!({"stored": stored, "existed": existed, "pinned": pinned, "damaged": damaged}));
    } else {
        println!("{stored} objects stored, {existed} were there, {pinned} pinned");
    }
    if damaged.is_empty() { Ok(()) } else { Err(Damaged { ids: damaged }.into()) }
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

async fn entries(directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let failed = |error: io::Error| named(directory, &error);
    let mut found = Vec::new();
    let mut reader = tokio::fs::read_dir(directory).await.map_err(failed)?;
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

async fn put(client: &Client, path: &Path, id: ContentId) -> Result<(), Box<dyn Error>> {
    let file = tokio::fs::File::open(path).await.map_err(|error| named(path, &error))?;
    let len = file.metadata().await.map_err(|error| named(path, &error))?.len();
    let source = Reading { source: Box::pin(file), progress: Progress::new("put", Some(len)) };
    let options = PutOptions { len: Some(len), ..PutOptions::default() };
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

async fn sync(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = tokio::fs::File::open(path).await.map_err(|error| named(path, &error))?;
    file.sync_all().await.map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> Box<dyn Error> {
    format!("{}: {error}", path.display()).into()
}
