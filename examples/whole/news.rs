//! The overlay's checker: what was published reaches every node that was on the topic, once, or the node is told that it
//! missed it. That holds through crashes and partitions, for as long as the publisher is up: what nobody has any more,
//! nobody can be told of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{Deadline, NodeId, sim::Sim};
use ron_overlay::{Contact, Delivery, Gap, Overlay, Serial, Topic};

use crate::identity;

#[derive(Clone, Default)]
pub(crate) struct News(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Nodes that are up and on the topic, and what each was told since it came.
    readers: BTreeMap<u8, Reader>,
    /// What was published, by nodes that have been up since.
    published: Vec<Published>,
    tally: Tally,
}

struct Reader {
    topic: Topic,
    heard: BTreeSet<Place>,
    told: Vec<Gap>,
}

struct Published {
    by: u8,
    place: Place,
    /// Who was on the topic then, and has been up since.
    owed: BTreeSet<u8>,
}

/// A message by its publisher, when that began, and its number.
type Place = (NodeId, u64, u64);

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) published: usize,
    pub(crate) refused: usize,
    pub(crate) heard: usize,
    /// Messages that a node got more than once.
    pub(crate) twice: usize,
    /// Messages that a node was told it missed.
    pub(crate) told: usize,
    /// Messages that a node neither got nor was told of.
    pub(crate) silent: usize,
}

impl News {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: reads the news for as long as it is up.
    pub(crate) async fn live(self, number: u8, overlay: Overlay, seeds: [Contact; 2]) {
        let me = overlay.node_id();
        let seeds = seeds.into_iter().filter(|seed| seed.id != me);
        let minute = || Deadline::after(Duration::from_secs(60));
        let Ok(topic) = overlay.topic("news").join(seeds, minute()).await else { return };
        let Ok(mut news) = topic.subscribe(minute()).await else { return };
        // From its first neighbour on it is owed everything.
        while topic.joined(minute()).await.is_err() {}
        self.state().readers.insert(number, Reader { topic, heard: BTreeSet::new(), told: Vec::new() });
        while let Some(delivery) = news.recv().await {
            let mut state = self.state();
            let State { readers, tally, .. } = &mut *state;
            let Some(reader) = readers.get_mut(&number) else { return };
            match delivery {
                Delivery::Message { message, .. } => {
                    let is_new = reader.heard.insert(place(message.serial()));
                    *if is_new { &mut tally.heard } else { &mut tally.twice } += 1;
                }
                Delivery::Gap(gap) | Delivery::Missed(gap) => reader.told.push(gap),
                _ => {}
            }
        }
    }

    /// The node is about to lose power: it is owed nothing any more, and what it published may be lost with it.
    pub(crate) fn forget(&self, number: u8) {
        let mut state = self.state();
        let reader = state.readers.remove(&number);
        state.published.retain(|published| published.by != number);
        for published in &mut state.published {
            published.owed.remove(&number);
        }
        drop(state);
        drop(reader);
    }

    /// Publishes from random nodes.
    pub(crate) async fn publish(&self, sim: &mut Sim, nodes: u8, times: usize) {
        for _ in 0..times {
            let by = sim.rng().u8(0..nodes);
            let (topic, owed) = {
                let state = self.state();
                let owed: BTreeSet<u8> =
                    state.readers.keys().copied().filter(|&reader| reader != by).collect();
                (state.readers.get(&by).map(|reader| reader.topic.clone()), owed)
            };
            let Some(topic) = topic else { continue };
            let receipt = topic.publish("news", Deadline::after(Duration::from_secs(5))).await;
            let mut state = self.state();
            match receipt {
                Ok(receipt) => {
                    let place = (identity(by).node_id(), receipt.since, receipt.seq);
                    state.tally.published += 1;
                    state.published.push(Published { by, place, owed });
                }
                Err(_) => state.tally.refused += 1,
            }
        }
    }

    /// What came of it, for now.
    pub(crate) fn tally(&self) -> Tally {
        let state = self.state();
        let mut tally = state.tally;
        for Published { place, owed, .. } in &state.published {
            for reader in owed.iter().filter_map(|number| state.readers.get(number)) {
                let is_told = reader.told.iter().any(|gap| covers(gap, place));
                match (reader.heard.contains(place), is_told) {
                    (true, _) => {}
                    (false, true) => tally.told += 1,
                    (false, false) => tally.silent += 1,
                }
            }
        }
        tally
    }
}

fn place(serial: &Serial) -> Place {
    (serial.publisher, serial.since, serial.seq)
}

fn covers(gap: &Gap, (publisher, since, seq): &Place) -> bool {
    (gap.publisher, gap.since) == (*publisher, *since) && gap.seqs.contains(seq)
}
