//! The index's checker: whatever it answers is true, and it answers or refuses within its budget, whatever crashes and parts.
//! In peace it finds what others provide.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{
    Deadline, now,
    sim::{Sim, SimNode},
};
use ron_dht::Dht;
use ron_index::{Index, Key, Settings, source::DhtProviders};

use crate::{CLIENTS, identity, provided::Provided};

/// What an answer may take; a way between two nodes is up to 200 ms here, and one message in a hundred is lost.
const BUDGET: Duration = Duration::from_secs(4);

/// How much later it may come.
const GRACE: Duration = Duration::from_millis(50);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Questions that were answered.
    pub(crate) answered: usize,
    /// Of these, how many out of the cache.
    pub(crate) cached: usize,
    /// Questions without an answer.
    pub(crate) unanswered: usize,
    /// Answers that name somebody who does not provide it.
    pub(crate) wrong: usize,
    /// Questions that took longer than they may.
    pub(crate) late: usize,
    /// Questions without an answer after everything was well again.
    pub(crate) missed_after_peace: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Resolved(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    handles: BTreeMap<u8, Index>,
    tally: Tally,
}

impl Resolved {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: clients have an index, because only clients look.
    pub(crate) async fn live(self, number: u8, is_client: bool, node: &SimNode, dht: Dht) {
        if is_client {
            let unix = node.unix_clock();
            let workers = NonZeroUsize::new(4).expect("not zero");
            let settings = Settings { budget: BUDGET, workers, ..Settings::default() };
            let index =
                Index::builder().providers(DhtProviders::new(&dht)).settings(settings).seed(node.seed);
            if let Ok(index) = index.unix_clock(move || unix().as_secs()).start(&node.supervisor) {
                self.state().handles.insert(number, index);
            }
        }
        std::future::pending().await
    }

    /// Resolves from random clients what others provide; anew, if there is peace and an old answer proves nothing.
    pub(crate) async fn look(
        &self,
        sim: &mut Sim,
        nodes: u8,
        times: usize,
        provided: &Provided,
        in_peace: bool,
    ) {
        for _ in 0..times {
            let (asker, provider) = (sim.rng().u8(nodes..nodes + CLIENTS), sim.rng().u8(0..nodes));
            let index = self.state().handles.get(&asker).cloned();
            let (Some(index), Some(content)) = (index, provided.of(provider)) else { continue };
            let (key, deadline, began) = (Key::Content(content), Deadline::after(2 * BUDGET), now());
            let answer = if in_peace {
                index.reindex(&key, deadline).await
            } else {
                index.resolve(&key, deadline).await
            };
            let took = now() - began;
            let mut state = self.state();
            let tally = &mut state.tally;
            tally.late += usize::from(took > BUDGET + GRACE);
            match answer {
                Ok(answer) => {
                    let named = answer
                        .resolution()
                        .providers
                        .iter()
                        .all(|ranked| ranked.provider.id == identity(provider).node_id());
                    tally.answered += 1;
                    tally.cached += usize::from(answer.is_cached);
                    tally.wrong += usize::from(!named);
                }
                Err(_) => {
                    tally.unanswered += 1;
                    tally.missed_after_peace += usize::from(in_peace);
                }
            }
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }
}
