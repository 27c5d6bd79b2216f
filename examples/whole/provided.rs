//! The DHT's checker: what each node provides, by its own word. Whoever looks for it must find it, as long as its provider
//! is up and everybody can reach everybody.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{ContentId, Deadline, now, sim::Sim};
use ron_dht::Dht;

use crate::{CLIENTS, identity};

#[derive(Clone, Default)]
pub(crate) struct Provided(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The content of each node that was provided since it last started.
    by: BTreeMap<u8, ContentId>,
    handles: BTreeMap<u8, Dht>,
    provided: usize,
}

impl Provided {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: says every minute that it has something. A client says nothing; it is who looks.
    pub(crate) async fn live(self, number: u8, is_client: bool, dht: Dht) {
        self.state().handles.insert(number, dht.clone());
        if is_client {
            return std::future::pending().await;
        }
        let content = ContentId::of(&[number]);
        loop {
            let provided = dht.provide(content, Deadline::after(Duration::from_secs(10))).await.is_ok();
            if provided {
                let mut state = self.state();
                state.by.insert(number, content);
                state.provided += 1;
            }
            tokio::time::sleep(Duration::from_secs(if provided { 60 } else { 5 })).await;
        }
    }

    /// The node is about to lose power.
    pub(crate) fn forget(&self, number: u8) {
        let mut state = self.state();
        state.by.remove(&number);
        let handle = state.handles.remove(&number);
        drop(state);
        drop(handle);
    }

    /// What a node has provided since it last started.
    pub(crate) fn of(&self, number: u8) -> Option<ContentId> {
        self.state().by.get(&number).copied()
    }

    /// How often something was provided.
    pub(crate) fn count(&self) -> usize {
        self.state().provided
    }

    /// Looks from random clients for what others provide. Says how often it was found, and how often not.
    pub(crate) async fn look(&self, sim: &mut Sim, nodes: u8, times: usize) -> (usize, usize) {
        let (mut found, mut missed) = (0, 0);
        for _ in 0..times {
            let (asker, provider) = (sim.rng().u8(nodes..nodes + CLIENTS), sim.rng().u8(0..nodes));
            let (dht, content) = {
                let state = self.state();
                (state.handles.get(&asker).cloned(), state.by.get(&provider).copied())
            };
            let (Some(dht), Some(content)) = (dht, content) else { continue };
            let began = now();
            let deadline = Deadline::after(Duration::from_secs(10));
            let first = match dht.find_providers(content, NonZeroUsize::MIN, deadline) {
                Ok(mut search) => search.next().await.ok().flatten(),
                Err(_) => None,
            };
            match first {
                Some(first) if first.id == identity(provider).node_id() => found += 1,
                _ => missed += 1,
            }
            debug_assert!(now() - began <= Duration::from_secs(11), "the deadline is kept");
        }
        (found, missed)
    }
}
