//! The store's checker: what a node acknowledged as durable is there after every loss of power, byte for byte, what it
//! deleted is not, and nothing else is: neither half of an object nor a file that belongs to none.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use ron_core::{ContentId, Deadline, disk::Disk as _, sim::SimNode};
use ron_storage::{Durability, Put, StorageError, Store};

use crate::{node::SMALL, verdict::Verdict};

/// From here on: what was being put when a node was asked to stop.
const LAST: u64 = 1 << 40;

/// Cloning shares it.
#[derive(Clone)]
pub(crate) struct Kept {
    verdict: Verdict,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Of each node, by the numbers of its objects: whether each is owed to be there. `None` is either.
    owed: BTreeMap<u8, BTreeMap<u64, Option<bool>>>,
    /// Nodes on whose disks a bit flipped that no scrub has looked for yet.
    rotten: BTreeSet<u8>,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
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
pub(crate) struct Pieces(pub(crate) Bytes);

impl Stream for Pieces {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let len = self.0.len().min(16 << 10);
        Poll::Ready((len > 0).then(|| Ok(self.0.split_to(len))))
    }
}

impl Kept {
    pub(crate) fn new(verdict: &Verdict) -> Self {
        Kept { verdict: verdict.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk of a node is lost.
    pub(crate) fn lost(&self, number: u8) {
        let mut state = self.state();
        state.owed.remove(&number);
        state.rotten.remove(&number);
    }

    /// A bit of an object on a node's disk flipped: any of them may be damaged, until a scrub has read them all. That one was
    /// read before says little: a scrub reads more, and takes one out of service whose tree does not say any more whose it is.
    pub(crate) fn doubt(&self, number: u8) {
        let mut state = self.state();
        state.rotten.insert(number);
        if let Some(owed) = state.owed.get_mut(&number) {
            owed.values_mut().filter(|owed| **owed == Some(true)).for_each(|owed| *owed = None);
        }
    }

    /// A scrub has read everything on a node's disk.
    pub(crate) fn scrubbed(&self, number: u8) {
        self.state().rotten.remove(&number);
    }

    /// A node's part: looks whether everything is as it should be, and then puts and deletes until it loses power.
    pub(crate) async fn live(self, number: u8, node: SimNode, store: Store) {
        self.check(number, &node, &store).await;
        let mut rng = fastrand::Rng::with_seed(node.seed);
        let before =
            |owed: &BTreeMap<u64, Option<bool>>| owed.range(..LAST).next_back().map(|(last, _)| *last);
        let mut next = self.state().owed.get(&number).and_then(before).unwrap_or(0);
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(200..6000))).await;
            next += 1;
            let durability = if rng.u8(..4) == 0 { Durability::Buffered } else { Durability::Durable };
            let _ = self.put(number, next, durability, &store).await;
            if rng.bool() {
                self.delete(number, rng.u64(1..=next), &store).await;
            }
        }
    }

    fn owe(&self, node: u8, number: u64, owed: Option<bool>) {
        self.state().owed.entry(node).or_default().insert(number, owed);
    }

    /// Puts one more on a node that is about to be asked to stop. If that is acknowledged it is there when the node is back.
    pub(crate) async fn put_last(&self, node: u8, store: &Store) -> Result<(), StorageError> {
        let number = {
            let mut state = self.state();
            let owed = state.owed.entry(node).or_default();
            let number = owed.range(LAST..).next_back().map_or(LAST, |(last, _)| last + 1);
            owed.insert(number, None);
            number
        };
        let put = self.put(node, number, Durability::Durable, store).await;
        self.verdict.add("put while it stopped", usize::from(put.is_ok()));
        put
    }

    async fn put(
        &self,
        node: u8,
        number: u64,
        durability: Durability,
        store: &Store,
    ) -> Result<(), StorageError> {
        let source = Pieces(content(node, number).into());
        self.owe(node, number, None);
        let put = Put { durability, ..Put::default() };
        match store.put_with(source, put, soon()).await {
            Ok(stored) => {
                self.verdict.count("put on one node");
                if stored.durability == Durability::Durable {
                    self.owe(node, number, Some(true));
                }
                Ok(())
            }
            Err(error) => {
                self.verdict.refused("put on one node", &error);
                Err(error)
            }
        }
    }

    async fn delete(&self, node: u8, number: u64, store: &Store) {
        self.owe(node, number, None);
        match store.delete(ContentId::of(&content(node, number)), soon()).await {
            Ok(_) => {
                self.verdict.count("deleted on one node");
                self.owe(node, number, Some(false));
            }
            Err(error) => self.verdict.refused("delete on one node", &error),
        }
    }

    /// Compares what is there with what is owed. What is found is what is owed from now on.
    async fn check(&self, number: u8, node: &SimNode, store: &Store) {
        let owed = self.state().owed.get(&number).cloned().unwrap_or_default();
        self.verdict.count("store opened");
        self.verdict.add("store opened after a crash", usize::from(!store.opened().was_clean));
        let (mut large, mut after) = (0, None);
        loop {
            let page = match store.list(after, 1000, soon()).await {
                Ok(page) => page,
                Err(error) => {
                    self.verdict.refused("list", &error);
                    return self.verdict.count("store opened, and not looked through");
                }
            };
            large += page.objects.iter().filter(|object| object.len > u64::from(SMALL)).count();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let files = node.disk.list(Path::new("store/large")).map_or(0, |files| files.len());
        self.verdict
            .promised(files <= 2 * large, || format!("{number} has {files} files of {large} objects"));
        for object in owed.into_keys() {
            let content = content(number, object);
            let id = ContentId::of(&content);
            let read = store.get_bytes(id, u64::MAX, soon()).await;
            // A disk that takes its time, or a stop meanwhile, says nothing about what is there.
            if read
                .as_ref()
                .is_err_and(|error| error.is_retryable() || error.kind() == ron_core::ErrorKind::Canceled)
            {
                continue;
            }
            // What is owed now: a bit may have flipped, and something been put, while it was read.
            let (owed, is_rotten) = {
                let state = self.state();
                let Some(owed) = state.owed.get(&number).and_then(|owed| owed.get(&object)) else { continue };
                (*owed, state.rotten.contains(&number))
            };
            if let Ok(bytes) = &read {
                self.verdict
                    .promised(*bytes == content, || format!("{number} gives wrong bytes of {object}"));
            }
            self.verdict.promised(owed != Some(true) || read.is_ok(), || {
                format!("{number} acknowledged {object} and has it no more: {read:?}")
            });
            self.verdict.promised(owed != Some(false) || read.is_err(), || {
                format!("{number} deleted {object} and has it again")
            });
            self.verdict.add("kept through a restart", usize::from(read.is_ok()));
            let is_last = object >= LAST && owed == Some(true) && read.is_ok();
            self.verdict.add("kept through a stop that it was put in", usize::from(is_last));
            let is_doubted = owed.is_none() && is_rotten;
            if !is_doubted {
                self.owe(number, object, Some(read.is_ok()));
            }
        }
    }
}
