//! The overlay's checker: what was published reaches every node that was on the topic, once, or the node is told that it
//! missed it. That holds through crashes and partitions, for as long as the publisher is up: what nobody has any more,
//! nobody can be told of. Of a publisher that had begun before it came, by the clocks of both, a node is owed what comes after the
//! first that it hears. Of one whose clock was set back between two beginnings it is owed what that says once it knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ron_core::{Deadline, NodeId};
use ron_overlay::{Delivery, Gap, Overlay, Serial, Topic};

use crate::{
    node::{contact, identity},
    verdict::Verdict,
};

/// Cloning shares it.
#[derive(Clone)]
pub(crate) struct News {
    verdict: Verdict,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Nodes that are up and on the topic, and what each was told since it came.
    readers: BTreeMap<u8, Reader>,
    /// What was published, by nodes that have been up since.
    published: Vec<Published>,
}

struct Reader {
    topic: Topic,
    /// When it came, in milliseconds since 1970, as its clock said.
    joined_ms: u64,
    heard: BTreeSet<Place>,
    told: Vec<Gap>,
}

impl Reader {
    fn is_owed(&self, &(publisher, since, seq): &Place) -> bool {
        since > self.joined_ms
            || self.heard.range((publisher, since, 0)..(publisher, since, seq)).next().is_some()
    }

    /// Whether it has heard the publisher from a later beginning: its clock was set back since, and it had not yet been told
    /// from which beginning it is known when it published.
    fn is_passed(&self, &(publisher, since, _): &Place) -> bool {
        self.heard.range((publisher, since + 1, 0)..=(publisher, u64::MAX, u64::MAX)).next().is_some()
    }
}

struct Published {
    by: u8,
    place: Place,
    /// Who was on the topic then, and has been up since.
    owed: BTreeSet<u8>,
}

/// A message by its publisher, when that began, and its number.
type Place = (NodeId, u64, u64);

impl News {
    pub(crate) fn new(verdict: &Verdict) -> Self {
        News { verdict: verdict.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: reads the news for as long as it is up.
    pub(crate) async fn live(self, number: u8, overlay: Overlay, clock: impl Fn() -> Duration) {
        let me = overlay.node_id();
        let seeds = [0, 1].map(contact).into_iter().filter(|seed| seed.id != me);
        let minute = || Deadline::after(Duration::from_secs(60));
        let Ok(topic) = overlay.topic("news").join(seeds, minute()).await else { return };
        let Ok(mut news) = topic.subscribe(minute()).await else { return };
        // From its first neighbour on it is owed everything.
        while topic.joined(minute()).await.is_err() {}
        let joined_ms = u64::try_from(clock().as_millis()).unwrap_or(u64::MAX);
        let reader = Reader { topic, joined_ms, heard: BTreeSet::new(), told: Vec::new() };
        self.state().readers.insert(number, reader);
        while let Some(delivery) = news.recv().await {
            let mut state = self.state();
            let Some(reader) = state.readers.get_mut(&number) else { return };
            match delivery {
                Delivery::Message { message, .. } => {
                    let is_new = reader.heard.insert(place(message.serial()));
                    self.verdict.count("news heard");
                    self.verdict.promised(is_new, || format!("{number} heard {message:?} twice"));
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

    /// A user publishes something on a node.
    pub(crate) async fn publish(&self, by: u8) {
        let (topic, owed) = {
            let state = self.state();
            let owed: BTreeSet<u8> = state.readers.keys().copied().filter(|&reader| reader != by).collect();
            (state.readers.get(&by).map(|reader| reader.topic.clone()), owed)
        };
        let Some(topic) = topic else { return };
        let receipt = topic.publish("news", Deadline::after(Duration::from_secs(5))).await;
        match receipt {
            Ok(receipt) => {
                let place = (identity(by).node_id(), receipt.since, receipt.seq);
                self.verdict.count("news published");
                let mut state = self.state();
                // Its machine may be gone by now.
                if state.readers.contains_key(&by) {
                    let owed = owed.into_iter().filter(|reader| state.readers.contains_key(reader)).collect();
                    state.published.push(Published { by, place, owed });
                }
            }
            Err(error) => self.verdict.refused("publish", &error),
        }
    }

    /// Who neither heard something nor was told that it missed it.
    pub(crate) fn missing(&self) -> Vec<String> {
        let state = self.state();
        let mut missing = Vec::new();
        for Published { by, place, owed } in &state.published {
            for (number, reader) in
                owed.iter().filter_map(|number| Some((number, state.readers.get(number)?)))
            {
                if reader.is_owed(place)
                    && !reader.is_passed(place)
                    && !reader.heard.contains(place)
                    && !reader.told.iter().any(|gap| covers(gap, place))
                {
                    missing.push(format!("{number} neither heard nor missed message {} of {by}", place.2));
                }
            }
        }
        missing
    }

    /// Counts what readers were told that they missed.
    pub(crate) fn count_told(&self) {
        let state = self.state();
        for Published { place, owed, .. } in &state.published {
            let readers = owed.iter().filter_map(|number| state.readers.get(number));
            let deaf: Vec<&Reader> = readers.filter(|reader| !reader.heard.contains(place)).collect();
            let passed = deaf.iter().filter(|reader| reader.is_passed(place)).count();
            self.verdict.add("news of a clock that was set back", passed);
            self.verdict.add("news missed and told", deaf.len() - passed);
        }
    }
}

fn place(serial: &Serial) -> Place {
    (serial.publisher, serial.since, serial.seq)
}

fn covers(gap: &Gap, (publisher, since, seq): &Place) -> bool {
    (gap.publisher, gap.since) == (*publisher, *since) && gap.seqs.contains(seq)
}
