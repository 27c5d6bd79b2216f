//! Put, get, list, pin, collect: what a store is for.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use ron_core::{ContentId, Deadline, Supervisor};
use ron_storage::{Gc, Put, StorageError, Store};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

/// Pieces of a stream.
pub(crate) struct Pieces(pub(crate) Vec<Bytes>);

impl futures_core::Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = if self.0.is_empty() { None } else { Some(Ok(self.0.remove(0))) };
        std::task::Poll::Ready(next)
    }
}

#[tokio::test]
async fn what_is_put_is_got_and_listed_and_collected() {
    let host = Supervisor::new("host");
    let store = Store::builder().memory().start(&host).await.unwrap();
    let pieces = Pieces(vec!["hel".into(), "lo".into()]);
    let stored = store.put(pieces, soon()).await.unwrap();
    assert_eq!(stored.id, ContentId::of(b"hello"));
    assert_eq!(store.get_bytes(stored.id, 5, soon()).await.unwrap(), "hello");
    let mut reader = store.get(stored.id, 1..3, soon()).await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), "el");
    assert_eq!(reader.next().await.unwrap(), None);
    assert_eq!(store.get(stored.id, 6.., soon()).await.unwrap_err(), StorageError::Range { len: 5 });

    let other = Put { pin: true, ..Put::default() };
    let pinned = store.put_with(Pieces(vec!["pinned".into()]), other, soon()).await.unwrap();
    assert_eq!(store.delete(pinned.id, soon()).await, Err(StorageError::Pinned { id: pinned.id }));
    let page = store.list(None, 1, soon()).await.unwrap();
    let rest = store.list(page.next, 1, soon()).await.unwrap();
    assert_eq!((page.objects.len(), rest.objects.len(), rest.next), (1, 1, None));
    let wrong = store.put_expect(stored.id, Pieces(vec!["other".into()]), soon()).await;
    let actual = ContentId::of(b"other");
    assert_eq!(wrong, Err(StorageError::Mismatch { expected: stored.id, actual }));

    let collected = store.gc(Gc::new(), soon()).await.unwrap();
    assert_eq!((collected.objects, collected.bytes, collected.kept), (1, 5, 1));
    assert!(!store.has(stored.id, soon()).await.unwrap() && store.has(pinned.id, soon()).await.unwrap());
    host.shutdown().await;
    assert_eq!(store.stat(pinned.id, soon()).await.unwrap_err(), StorageError::Canceled);
}
