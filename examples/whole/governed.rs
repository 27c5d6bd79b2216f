//! The registry's checker: what one node's log gave receipts for is in it to the end, whatever crashed, and those who follow
//! the log have the same one, or less of it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{
    Deadline,
    journal::Salts,
    net::{Endpoint, Identity},
    sim::SimNode,
};
use ron_registry::{
    Content, KeyKind, LogTrust, NoteSigner, Outcome, Policy, ProposalId, Registry, Signer,
    net::Links,
    store::{JournalStore, JournalStoreSettings},
};

use crate::{PORT, identity, ip};

const ORIGIN: &str = "example.com/whole";
const LOG_KEY: [u8; 32] = [7; 32];

/// Whose log it is, and which servers follow it; clients do, too.
const OWNER: u8 = 2;
const FOLLOWERS: [u8; 3] = [0, 3, 4];

const PATIENCE: Duration = Duration::from_secs(5);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Entries that there were receipts for.
    pub(crate) committed: usize,
    /// Of these, how many are not where the receipt says.
    pub(crate) lost: usize,
    /// Followers with the whole log.
    pub(crate) followed: usize,
    /// Followers with another log, or that believe to have seen one.
    pub(crate) forked: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Governed(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    handles: BTreeMap<u8, Registry>,
    receipts: BTreeMap<u64, ProposalId>,
    proposed: u64,
}

fn person(number: u8) -> Identity {
    Identity::from_seed(&[100 + number; 32])
}

impl Governed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: has the log, follows it, or neither.
    pub(crate) async fn live(self, number: u8, is_client: bool, node: &SimNode, endpoint: &Endpoint) {
        let registry = match number {
            OWNER => own(node, endpoint).await,
            _ if is_client || FOLLOWERS.contains(&number) => follow(node, endpoint).await,
            _ => None,
        };
        // A machine may lose power before its log is open.
        let Some((registry, _links)) = registry else { return std::future::pending().await };
        self.state().handles.insert(number, registry);
        std::future::pending().await
    }

    /// The node is about to lose power.
    pub(crate) fn forget(&self, number: u8) {
        let handle = self.state().handles.remove(&number);
        drop(handle);
    }

    /// Commits some, if the owner is up, and keeps the receipts.
    pub(crate) async fn commit(&self, count: usize) {
        for _ in 0..count {
            let Some(owner) = self.state().handles.get(&OWNER).cloned() else { return };
            let number = {
                let mut state = self.state();
                state.proposed += 1;
                state.proposed
            };
            let name = format!("names/{}", number % 17).parse().expect("letters and digits");
            let content = Content::Payload(number.to_string().into());
            let Ok(proposal) = owner.draft_bind(name, content, Duration::from_secs(3600)) else { continue };
            let approvals =
                [0, 2].map(|number| proposal.approve(&person(number), proposal.expires())).to_vec();
            let outcome = owner.submit(proposal, approvals, Deadline::after(PATIENCE)).await;
            if let Ok(Outcome::Committed(receipt)) = outcome {
                self.state().receipts.insert(receipt.version, receipt.proposal);
            }
        }
    }

    /// Compares what there is with what was promised.
    pub(crate) async fn tally(&self) -> Tally {
        let (receipts, handles) = {
            let state = self.state();
            (state.receipts.clone(), state.handles.clone())
        };
        let mut tally = Tally { committed: receipts.len(), ..Tally::default() };
        let Some(owner) = handles.get(&OWNER) else { return Tally { lost: receipts.len(), ..tally } };
        for (version, proposal) in &receipts {
            let entry = owner.entry(*version, Deadline::after(PATIENCE)).await;
            tally.lost += usize::from(!entry.is_ok_and(|entry| entry.proposal().id() == *proposal));
        }
        for follower in handles.values().filter(|registry| registry.follows()) {
            let (head, last) = (follower.head(), follower.checkpoint());
            let same = owner.entry(head.version, Deadline::after(PATIENCE)).await;
            let same = same.is_ok_and(|entry| {
                let before = ron_registry::Head { version: entry.version() - 1, hash: entry.previous() };
                before.next(entry.encoded()) == head
            });
            let is_forked = !follower.evidence().is_empty() || (head.version > 0 && !same);
            tally.forked += usize::from(is_forked);
            tally.followed += usize::from(head == owner.head() && last.text() == owner.checkpoint().text());
        }
        tally
    }
}

async fn store(node: &SimNode) -> Option<Arc<JournalStore>> {
    let settings = JournalStoreSettings { segment_bytes: 64 << 10, salts: Salts::Seeded(node.seed) };
    let disk = Arc::new(node.disk.clone());
    JournalStore::open(&node.supervisor, disk, Path::new("registry"), settings).await.ok().map(Arc::new)
}

fn clock(node: &SimNode) -> impl Fn() -> u64 + Send + Sync + 'static {
    let clock = node.unix_clock();
    move || u64::try_from(clock().as_millis()).unwrap_or(u64::MAX)
}

async fn own(node: &SimNode, endpoint: &Endpoint) -> Option<(Registry, Links)> {
    let registry = Registry::builder(ORIGIN, LOG_KEY).clock(clock(node));
    let registry = registry.start(store(node).await?, &node.supervisor).await.ok()?;
    let signer =
        |number: u8| Signer { name: format!("p{number}"), key: person(number).public_key(), expires: None };
    let policy = Policy::of(2, (0..3).map(signer).collect()).expect("two of three");
    // Again after a restart, which is answered as the first time.
    registry.found(policy, Deadline::after(PATIENCE)).await.ok()?;
    let links = Links::start(endpoint, &node.supervisor).ok()?;
    links.serve(&registry, None);
    Some((registry, links))
}

async fn follow(node: &SimNode, endpoint: &Endpoint) -> Option<(Registry, Links)> {
    let links = Links::start(endpoint, &node.supervisor).ok()?;
    let source = links.source(identity(OWNER).node_id(), &[SocketAddr::new(ip(OWNER), PORT)]);
    let signer = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &LOG_KEY).expect("a name");
    let follower = Registry::follower(LogTrust::new(signer.verifier().clone()), source).clock(clock(node));
    let follower = follower.start(store(node).await?, &node.supervisor).await.ok()?;
    Some((follower, links))
}
