//! The store's checker: what a node acknowledged as durable is there after every loss of power, byte for byte, what it
//! deleted is not, and nothing else is: neither half of an object nor a file that belongs to none.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    num::NonZeroUsize,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use ron_core::{ContentId, Deadline, disk::Disk, sim::SimNode};
use ron_storage::{Durability, Put, Settings, StorageError, Store};

/// Objects longer than this have files of their own.
const SMALL: u32 = 4096;

#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Of each node, by the numbers of its objects: whether each is owed to be there. `None` is either.
    owed: BTreeMap<u8, BTreeMap<u64, Option<bool>>>,
    tally: Tally,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) put: usize,
    pub(crate) deleted: usize,
    /// Times a store was opened, and how many of them were after a loss of power.
    pub(crate) opened: usize,
    pub(crate) unclean: usize,
    /// Objects that were there as owed when a store was opened.
    pub(crate) kept: usize,
    /// Objects that were owed and not there, or there and wrong.
    pub(crate) lost: usize,
    /// Objects that were deleted and there again.
    pub(crate) risen: usize,
    /// Objects that nobody put and files that belong to none, and stores that did not open.
    pub(crate) strange: usize,
}

impl Tally {
    /// Whether every promise was kept, and there were some.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept > 0 && self.unclean > 0 && (self.lost, self.risen, self.strange) == (0, 0, 0)
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn settings() -> Settings {
    Settings {
        small_bytes_max: SMALL,
        segment_bytes: 64 << 10,
        // The disk of a simulated machine has no end.
        reserve_bytes: 0,
        get_workers: NonZeroUsize::MIN,
        put_workers: NonZeroUsize::MIN,
        ..Settings::default()
    }
}

/// The object of a node with this number: mostly short, every fifth with files of its own.
fn content(node: u8, number: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(number << 8 | u64::from(node));
    let len = if number % 5 == 4 { rng.usize(5_000..150_000) } else { rng.usize(9..4000) };
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// An object as it comes over a network: in pieces.
struct Pieces(Bytes);

impl Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let len = self.0.len().min(16 << 10);
        Poll::Ready((len > 0).then(|| Ok(self.0.split_to(len))))
    }
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// A node's part: looks whether everything is as it should be, and then puts and deletes until it loses power.
    pub(crate) async fn live(self, number: u8, node: SimNode) {
        let disk: Arc<dyn Disk> = Arc::new(node.disk.clone());
        let store = Store::builder().data(disk, "store").seed(node.seed).settings(settings());
        let store = match store.start(&node.supervisor).await {
            Ok(store) => store,
            // A machine may lose power while its store opens.
            Err(StorageError::Canceled) => return,
            Err(error) => {
                println!("node {number} does not open: {error}");
                self.state().tally.strange += 1;
                return;
            }
        };
        self.check(number, &node, &store).await;
        let mut rng = fastrand::Rng::with_seed(node.seed);
        let mut next =
            self.state().owed.get(&number).and_then(|owed| owed.keys().last().copied()).unwrap_or(0);
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(50..3000))).await;
            next += 1;
            let durability = if rng.u8(..4) == 0 { Durability::Buffered } else { Durability::Durable };
            self.put(number, next, durability, &store).await;
            if rng.bool() {
                self.delete(number, rng.u64(1..=next), &store).await;
            }
        }
    }

    fn owe(&self, node: u8, number: u64, owed: Option<bool>) {
        self.state().owed.entry(node).or_default().insert(number, owed);
    }

    async fn put(&self, node: u8, number: u64, durability: Durability, store: &Store) {
        let source = Pieces(content(node, number).into());
        self.owe(node, number, None);
        let put = Put { durability, ..Put::default() };
        if let Ok(stored) = store.put_with(source, put, soon()).await {
            self.state().tally.put += 1;
            if stored.durability == Durability::Durable {
                self.owe(node, number, Some(true));
            }
        }
    }

    async fn delete(&self, node: u8, number: u64, store: &Store) {
        self.owe(node, number, None);
        if let Ok(was_there) = store.delete(ContentId::of(&content(node, number)), soon()).await {
            self.state().tally.deleted += usize::from(was_there);
            self.owe(node, number, Some(false));
        }
    }

    /// Compares what is there with what is owed. What is found is what is owed from now on.
    async fn check(&self, number: u8, node: &SimNode, store: &Store) {
        let owed = self.state().owed.get(&number).cloned().unwrap_or_default();
        let mut listed = BTreeMap::new();
        let mut after = None;
        loop {
            let Ok(page) = store.list(after, 1000, soon()).await else { return };
            listed.extend(page.objects.into_iter().map(|object| (object.id, object.len)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut found =
            Tally { opened: 1, unclean: usize::from(!store.opened().was_clean), ..Tally::default() };
        let large = listed.values().filter(|len| **len > u64::from(SMALL)).count();
        let files = node.disk.list(Path::new("store/large")).map_or(0, |files| files.len());
        found.strange += usize::from(files != 2 * large);
        for (&object, &owed) in &owed {
            let content = content(number, object);
            let id = ContentId::of(&content);
            let is_listed = listed.remove(&id).is_some();
            let is_there = store.get_bytes(id, u64::MAX, soon()).await.is_ok_and(|bytes| bytes == content);
            if is_listed != is_there || (owed == Some(true) && !is_there) {
                println!(
                    "node {number} owes object {object} ({owed:?}): listed {is_listed}, right {is_there}"
                );
                found.lost += 1;
            } else if owed == Some(false) && is_there {
                println!("node {number} has object {object} again");
                found.risen += 1;
            } else {
                found.kept += usize::from(is_there);
            }
            self.owe(number, object, Some(is_there));
        }
        found.strange += listed.len();
        let tally = &mut self.state().tally;
        tally.opened += found.opened;
        tally.unclean += found.unclean;
        tally.kept += found.kept;
        tally.lost += found.lost;
        tally.risen += found.risen;
        tally.strange += found.strange;
    }
}
