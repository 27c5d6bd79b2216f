//! Writing: bytes come in as a stream, are hashed on the way, and exist once they are acknowledged.

use std::{error::Error, future::poll_fn, pin::pin};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use ron_core::{ContentId, Deadline};

use crate::{StorageError, handle::Inner, streams::Place};

/// What an acknowledgement stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The object is on disk and survives a crash.
    #[default]
    Durable,
    /// The object can be read, and a crash in the next moments may lose it. A store in memory always says this.
    Buffered,
}

/// How to put. The default is durable, unpinned, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Put {
    /// What to wait for.
    pub durability: Durability,
    /// Whether the object is pinned as it is stored, so that no collection can come in between.
    pub pin: bool,
    /// What it must be called, if that is known.
    pub expect: Option<ContentId>,
}

/// An object that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Its name.
    pub id: ContentId,
    /// Its length.
    pub len: u64,
    /// What this acknowledgement stands for: what was asked for, or less if the store cannot do that.
    pub durability: Durability,
    /// Whether it was here before.
    pub existed: bool,
}

impl Inner {
    /// Takes everything that `source` yields and keeps it.
    pub(crate) async fn write<S, E>(&self, place: Place, source: S, put: Put) -> Result<Stored, StorageError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut source = pin!(source);
        let settings = self.settings.load();
        let mut content = BytesMut::new();
        loop {
            place.moved("put")?;
            let next = poll_fn(|cx| source.as_mut().poll_next(cx));
            match Deadline::after(settings.idle_timeout).limit("put", next).await? {
                Some(Ok(bytes)) => content.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(StorageError::Source { message: error.into().to_string() }),
                None => break,
            }
            if content.len() as u64 > settings.object_bytes_max {
                let limit = settings.object_bytes_max;
                return Err(StorageError::TooLarge { key: "object_bytes_max", limit });
            }
        }
        let content = content.freeze();
        let actual = ContentId::of(&content);
        if let Some(expected) = put.expect.filter(|expected| *expected != actual) {
            return Err(StorageError::Mismatch { expected, actual });
        }
        let len = content.len() as u64;
        let existed = self.objects.insert(actual, content, put.pin, &settings)?;
        Ok(Stored { id: actual, len, durability: Durability::Buffered, existed })
    }
}
