//! Places for stores, and things to put into them.

use std::{
    collections::VecDeque,
    convert::Infallible,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline,
    disk::RealDisk,
    prometheus_client::{self, registry::Registry},
};
use ron_storage::{Builder, Durability, Store};

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Bytes that depend on `seed` and do not repeat.
pub(crate) fn content(size: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// A stream of pieces.
pub(crate) struct Pieces(pub(crate) VecDeque<Bytes>);

impl Pieces {
    pub(crate) fn of<const N: usize>(pieces: [&'static str; N]) -> Self {
        Pieces(pieces.into_iter().map(Bytes::from).collect())
    }

    pub(crate) fn cut(content: &Bytes, piece: usize) -> Self {
        let at = (0..content.len()).step_by(piece);
        Pieces(at.map(|at| content.slice(at..content.len().min(at + piece))).collect())
    }
}

impl futures_core::Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// Where a store is.
pub(crate) enum Place {
    Memory,
    Real(tempfile::TempDir),
}

impl Place {
    pub(crate) fn all() -> [Place; 2] {
        [Place::Memory, Place::real()]
    }

    pub(crate) fn real() -> Place {
        Place::Real(tempfile::tempdir().unwrap())
    }

    pub(crate) fn builder(&self) -> Builder {
        match self {
            Place::Memory => Store::builder().memory(),
            Place::Real(dir) => Store::builder().data(Arc::new(RealDisk::open(dir.path()).unwrap()), "store"),
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        match self {
            Place::Memory => Durability::Buffered,
            Place::Real(_) => Durability::Durable,
        }
    }

    pub(crate) fn dir(&self) -> Option<PathBuf> {
        match self {
            Place::Memory => None,
            Place::Real(dir) => Some(dir.path().join("store")),
        }
    }

    /// Whether there are exactly the files of large objects of these sizes.
    pub(crate) fn check_no_leftovers(&self, sizes: &[u64]) {
        let Some(dir) = self.dir() else { return };
        let files = std::fs::read_dir(dir.join("large")).unwrap().map(Result::unwrap);
        let mut found: Vec<u64> = files
            .filter(|file| file.file_name().to_string_lossy().ends_with(".dat"))
            .map(|file| file.metadata().unwrap().len())
            .collect();
        let mut expected = sizes.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let names = std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name());
        assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".tmp")));
    }
}

/// A source that never yields anything.
pub(crate) struct Stuck;

impl futures_core::Stream for Stuck {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Pending
    }
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<Bytes>,
    is_over: bool,
    waker: Option<std::task::Waker>,
}

/// Both ends of a source that a test feeds.
pub(crate) fn pipe() -> (Sender, Receiver) {
    let pipe = Arc::new(std::sync::Mutex::new(Pipe::default()));
    (Sender(Arc::clone(&pipe)), Receiver(pipe))
}

pub(crate) struct Sender(Arc<std::sync::Mutex<Pipe>>);
pub(crate) struct Receiver(Arc<std::sync::Mutex<Pipe>>);

impl Sender {
    pub(crate) fn send(&self, piece: Bytes) {
        let mut pipe = self.0.lock().unwrap();
        pipe.pieces.push_back(piece);
        pipe.waker.take().into_iter().for_each(std::task::Waker::wake);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut pipe = self.0.lock().unwrap();
        pipe.is_over = true;
        pipe.waker.take().into_iter().for_each(std::task::Waker::wake);
    }
}

impl futures_core::Stream for Receiver {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut pipe = self.0.lock().unwrap();
        match pipe.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None if pipe.is_over => Poll::Ready(None),
            None => {
                pipe.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// What a scrape of the registry says.
pub(crate) fn counters(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

/// A source that yields these pieces and then fails.
pub(crate) struct Failing(pub(crate) Vec<Bytes>);

impl futures_core::Stream for Failing {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let failed = || std::io::Error::other("the line went dead");
        Poll::Ready(Some(self.0.pop().ok_or_else(failed)))
    }
}
