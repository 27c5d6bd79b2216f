//! Stores of objects on one disk, behind one small face, and the limits of that disk.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::{ObjectStoreExt as _, WriteMultipart, local::LocalFileSystem};
use ron_core::{ContentId, Deadline, Supervisor, disk::RealDisk};
use ron_storage::Store;

use crate::measure::Outcome;

pub(crate) const MIB: usize = 1 << 20;

/// Those that are compared.
pub(crate) enum Peer {
    /// One file for each object, synced with its directory before the answer. It does not know what an object is called, so the
    /// hash is ours, and so is the check of what is read.
    ObjectStore(LocalFileSystem),
    /// Acknowledges before anything is on the disk.
    #[cfg(feature = "iroh")]
    Iroh(iroh_blobs::store::fs::FsStore, std::sync::Mutex<Vec<iroh_blobs::api::TempTag>>),
    Ron(Store, Supervisor),
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

fn key(id: &ContentId) -> object_store::path::Path {
    let name = id.to_string();
    object_store::path::Path::from(format!("{}/{}", &name[3..5], &name[3..]))
}

impl Peer {
    pub(crate) async fn open(name: &str, dir: &Path) -> Outcome<Self> {
        Ok(match name {
            "object_store" => Peer::ObjectStore(LocalFileSystem::new_with_prefix(dir)?.with_fsync(true)),
            #[cfg(feature = "iroh")]
            "iroh-blobs" => {
                Peer::Iroh(iroh_blobs::store::fs::FsStore::load(dir).await?, std::sync::Mutex::default())
            }
            "ron-storage" => {
                let host = Supervisor::new("bench");
                let disk = Arc::new(RealDisk::open(PathBuf::from(dir))?);
                Peer::Ron(Store::builder().data(disk, "store").start(&host).await?, host)
            }
            other => return Err(format!("there is no store {other}").into()),
        })
    }

    pub(crate) async fn put(&self, content: Bytes) -> Outcome<ContentId> {
        match self {
            Peer::ObjectStore(store) => {
                let id = ContentId::of(&content);
                store.put(&key(&id), content.into()).await?;
                Ok(id)
            }
            #[cfg(feature = "iroh")]
            Peer::Iroh(store, tags) => {
                let tag = store.blobs().add_bytes(content).temp_tag().await?;
                let id = ContentId::from_bytes(*tag.hash().as_bytes());
                // Without a tag it may be collected.
                tags.lock().map_err(|_| "a caller panicked")?.push(tag);
                Ok(id)
            }
            Peer::Ron(store, _) => Ok(store.put_bytes(content, soon()).await?.id),
        }
    }

    pub(crate) async fn get(&self, id: ContentId) -> Outcome<usize> {
        match self {
            Peer::ObjectStore(store) => {
                let content = store.get(&key(&id)).await?.bytes().await?;
                if ContentId::of(&content) != id {
                    return Err("it is another object".into());
                }
                Ok(content.len())
            }
            #[cfg(feature = "iroh")]
            Peer::Iroh(store, _) => {
                let hash = iroh_blobs::Hash::from_bytes(*id.as_bytes());
                Ok(store.blobs().get_bytes(hash).await?.len())
            }
            Peer::Ron(store, _) => Ok(store.get_bytes(id, 1 << 20, soon()).await?.len()),
        }
    }

    /// Stores what a stream yields.
    pub(crate) async fn put_large(&self, mut source: Pieces) -> Outcome<ContentId> {
        match self {
            Peer::ObjectStore(store) => {
                // It has to be called something before it is known what it is.
                let (mut hasher, name) = (blake3::Hasher::new(), "incoming".into());
                let mut upload =
                    WriteMultipart::new_with_chunk_size(store.put_multipart(&name).await?, 8 * MIB);
                while let Some(piece) = source.next().await {
                    let piece = piece?;
                    hasher.update(&piece);
                    upload.wait_for_capacity(4).await?;
                    upload.put(piece);
                }
                upload.finish().await?;
                let id = ContentId::from_bytes(*hasher.finalize().as_bytes());
                store.rename(&name, &key(&id)).await?;
                Ok(id)
            }
            #[cfg(feature = "iroh")]
            Peer::Iroh(store, tags) => {
                let tag = store.blobs().add_stream(source).await.temp_tag().await?;
                let id = ContentId::from_bytes(*tag.hash().as_bytes());
                tags.lock().map_err(|_| "a caller panicked")?.push(tag);
                Ok(id)
            }
            Peer::Ron(store, _) => Ok(store.put(source, soon()).await?.id),
        }
    }

    /// Reads an object to its end, verified, and says how long it is.
    pub(crate) async fn get_large(&self, id: ContentId) -> Outcome<u64> {
        let mut len = 0;
        match self {
            Peer::ObjectStore(store) => {
                let mut hasher = blake3::Hasher::new();
                let mut stream = store.get(&key(&id)).await?.into_stream();
                while let Some(piece) = stream.next().await {
                    let piece = piece?;
                    hasher.update(&piece);
                    len += piece.len() as u64;
                }
                if hasher.finalize().as_bytes() != id.as_bytes() {
                    return Err("it is another object".into());
                }
            }
            #[cfg(feature = "iroh")]
            Peer::Iroh(store, _) => {
                use iroh_blobs::api::blobs::EncodedItem;
                let hash = iroh_blobs::Hash::from_bytes(*id.as_bytes());
                let all = iroh_blobs::protocol::ChunkRanges::all();
                let mut stream = Box::pin(store.blobs().export_bao(hash, all).stream());
                while let Some(item) = stream.next().await {
                    match item {
                        EncodedItem::Leaf(leaf) => len += leaf.data.len() as u64,
                        EncodedItem::Error(error) => return Err(error.to_string().into()),
                        EncodedItem::Done => break,
                        _ => {}
                    }
                }
            }
            Peer::Ron(store, _) => {
                let mut reader = store.get(id, .., soon()).await?;
                while let Some(piece) = reader.next().await? {
                    len += piece.len() as u64;
                }
            }
        }
        Ok(len)
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        match self {
            Peer::ObjectStore(_) => {}
            #[cfg(feature = "iroh")]
            Peer::Iroh(store, _) => store.shutdown().await?,
            Peer::Ron(_, host) => {
                host.shutdown().await;
            }
        }
        Ok(())
    }
}

/// Mebibytes out of the same one, each with another beginning.
pub(crate) struct Pieces {
    pub(crate) piece: Vec<u8>,
    pub(crate) left: u64,
}

impl futures_util::Stream for Pieces {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let number = self.left.to_be_bytes();
        self.piece[..8].copy_from_slice(&number);
        Poll::Ready(Some(Ok(Bytes::copy_from_slice(&self.piece))))
    }
}

/// The least that durable puts can take: as many as are in flight, appended together to a file that has its length
/// already, and synced. Says how long each batch took.
pub(crate) fn group_commit(dir: &Path, objects: &[Bytes], in_flight: usize) -> Outcome<Vec<Duration>> {
    let len: usize = objects.iter().map(Bytes::len).sum();
    let file = File::create(dir.join("raw"))?;
    file.write_all_at(&vec![0; len], 0)?;
    file.sync_all()?;
    let (mut at, mut times) = (0, Vec::new());
    for batch in objects.chunks(in_flight) {
        let began = std::time::Instant::now();
        let batch = batch.concat();
        file.write_all_at(&batch, at)?;
        at += batch.len() as u64;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Hashes what a stream of so many mebibytes would yield, with one thread.
pub(crate) fn hash(piece: &[u8], mebibytes: u64) {
    let mut hasher = blake3::Hasher::new();
    for _ in 0..mebibytes {
        hasher.update(std::hint::black_box(piece));
    }
    std::hint::black_box(hasher.finalize());
}

/// Writes it to a file, and waits for the disk.
pub(crate) fn write(dir: &Path, piece: &[u8], mebibytes: u64) -> Outcome<()> {
    let file = File::create(dir.join("raw"))?;
    for number in 0..mebibytes {
        file.write_all_at(piece, number * piece.len() as u64)?;
    }
    Ok(file.sync_data()?)
}

/// Reads the file back from memory, and hashes it.
pub(crate) fn read(dir: &Path, mebibytes: u64) -> Outcome<()> {
    let (file, mut buffer) = (File::open(dir.join("raw"))?, vec![0; MIB / 4]);
    let (mut hasher, len) = (blake3::Hasher::new(), buffer.len() as u64);
    for number in 0..mebibytes * 4 {
        file.read_exact_at(&mut buffer, number * len)?;
        hasher.update(&buffer);
    }
    std::hint::black_box(hasher.finalize());
    Ok(())
}
