//! Five hundred readers and five hundred writers that hardly move, of eight clients: memory stays below its ceiling, a ninth
//! client is served, and nothing is left behind.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ClientKey, Deadline, Supervisor, TaskSpec, disk::RealDisk};
use ron_storage::{Settings, StorageError, Store};

use crate::alone::{is_alone, rss_mib};

const STREAMS: usize = 512;

/// What all readers hold, what all writers hold, and what the allocator keeps of what passed through.
const CEILING_MIB: u64 = 96 + 128 + 64;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Yields some of an object and then stands still.
struct Slow(u32, u8);

impl futures_core::Stream for Slow {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.0 == 0 {
            return Poll::Pending;
        }
        self.0 -= 1;
        Poll::Ready(Some(Ok(vec![self.1; 65_536].into())))
    }
}

#[test]
fn slow_streams_cost_no_more_than_is_said() {
    if !is_alone("slow::slow_streams_cost_no_more_than_is_said") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (host, callers) = (Supervisor::new("host"), Supervisor::new("callers"));
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let settings = Settings { small_bytes_max: 65_536, ..Settings::default() };
        let store = Store::builder().data(disk, "store").settings(settings).start(&host).await.unwrap();
        let id = store.put_bytes(vec![7; 4 << 20].into(), soon()).await.unwrap().id;
        let before = rss_mib();
        let client = |number: usize| {
            store.for_client(ClientKey::from(Ipv4Addr::new(10, 0, 0, u8::try_from(number).unwrap())))
        };
        // Each client has as many of either kind as it may have in all.
        let (readers_of, writers_of) =
            (|number: usize| client(number % 8), |number: usize| client(8 + number % 8));
        let mut readers = Vec::new();
        for number in 0..STREAMS {
            let mut reader = readers_of(number).get(id, .., soon()).await.unwrap();
            // Each holds the piece that it got, as one whose socket takes nothing.
            let piece = reader.next().await.unwrap().unwrap();
            readers.push((reader, piece));
        }
        // Those who came early hold more than those who came late, and all of them within what is said.
        for (reader, piece) in &mut readers {
            *piece = reader.next().await.unwrap().unwrap();
        }
        let pieces: usize = readers.iter().map(|(_, piece)| piece.len()).sum();
        assert!(pieces <= 96 << 20, "{pieces}");
        for number in 0..STREAMS {
            let store = writers_of(number);
            callers.spawn(TaskSpec::new("test", "writer"), move |_| async move {
                let slow = Slow(3, u8::try_from(number % 251).unwrap());
                let put = store.put(slow, Deadline::after(Duration::from_secs(3600))).await;
                assert!(put.is_err());
            });
        }
        let large = dir.path().join("store/large");
        let files = || std::fs::read_dir(&large).unwrap().count();
        // Those of the object, and one for each writer.
        while files() < STREAMS + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let held = rss_mib().saturating_sub(before);
        println!("{STREAMS} slow readers and {STREAMS} slow writers: {held} MiB");
        assert!(held <= CEILING_MIB, "{held} MiB");
        // Those who have all the places get no more of them; who has none is served at once, again and again.
        let busy = readers_of(0).get(id, .., soon()).await;
        assert!(matches!(busy, Err(StorageError::Busy { .. })), "{busy:?}");
        let other = client(99);
        for _ in 0..3 {
            assert_eq!(other.get_bytes(id, 4 << 20, soon()).await.unwrap().len(), 4 << 20);
            other.put_bytes("x".into(), soon()).await.unwrap();
        }
        assert!(other.has(id, soon()).await.unwrap());
        let mut cut = 0;
        for (reader, _) in &mut readers {
            cut += usize::from(reader.next().await.is_err());
        }
        // A place that was made for one is free for the next.
        assert_eq!(cut, 1);
        callers.abort();
        callers.shutdown().await;
        drop(readers);
        store.put_bytes("x".into(), soon()).await.unwrap();
        host.shutdown().await;
        // The one object, and nothing of those that were given up.
        assert_eq!(files(), 2);
    });
}
