//! The overlay's checker: what was published reaches every node that was on the topic, once, or the node is told that it
//! missed it. That holds through crashes and partitions, for as long as the publisher is up: what nobody has any more,
//! nobody can be told of. Of a publisher that had begun before it came, by the clocks of both, a node is owed what comes after the
//! first that it hears. Of one whose clock was set back between two beginnings it is owed what that says once it knows.
//!
//! What it hears is what was said, word for word. Once everything is well every node is on the topic and hears everything: to be
//! told that it missed something is not enough then.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Deadline, NodeId};
use ron_overlay::{Delivery, Gap, Message, Overlay, OverlayError, Serial, Subscription, Topic};

use crate::{
    node::{Hosts, Role, contact, identity},
    verdict::Verdict,
};

/// Cloning shares it.
#[derive(Clone)]
pub(crate) struct News {
    hosts: Hosts,
    verdict: Verdict,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Nodes that are up and on the topic, and what each was told since it came.
    readers: BTreeMap<u8, Reader>,
    /// What was published, by nodes that have been up since.
    published: Vec<Published>,
    /// Who was asked to say what, whether it did or not: each only once.
    asked: BTreeMap<Bytes, NodeId>,
    /// What each message says, by whoever heard it or published it first.
    words: BTreeMap<Place, Bytes>,
    clocks: BTreeMap<u8, Beginnings>,
}

/// When a node began, in milliseconds since 1970, as its clock said.
#[derive(Default)]
struct Beginnings {
    /// The latest before it was last gone.
    before: u64,
    /// The latest since.
    since: u64,
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

    /// Whether it has heard the publisher from a later beginning.
    fn is_ahead(&self, &(publisher, since, _): &Place) -> bool {
        self.heard.range((publisher, since + 1, 0)..=(publisher, u64::MAX, u64::MAX)).next().is_some()
    }
}

struct Published {
    by: u8,
    place: Place,
    /// Who was on the topic then, and has been up since.
    owed: BTreeSet<u8>,
    /// Whether everything was well by then.
    in_peace: bool,
}

impl State {
    /// Whether a reader has heard the publisher from a later beginning, because its clock was set back since: it had not yet been
    /// told from which beginning it is known when it published.
    fn is_passed(&self, reader: &Reader, by: u8, place: &Place) -> bool {
        let was_set_back = self.clocks.get(&by).is_some_and(|clock| place.1 <= clock.before);
        was_set_back && reader.is_ahead(place)
    }

    /// Whether all who heard a message, or said it, agree on what it says.
    fn agrees(&mut self, place: Place, payload: &Bytes) -> bool {
        self.words.entry(place).or_insert_with(|| payload.clone()) == payload
    }

    /// Whether a message was said by the one whom it is from.
    fn is_said(&mut self, message: &Message) -> bool {
        let place = place(message.serial());
        self.asked.get(message.payload()) == Some(&place.0) && self.agrees(place, message.payload())
    }
}

/// A message by its publisher, when that began, and its number.
type Place = (NodeId, u64, u64);

impl News {
    pub(crate) fn new(hosts: &Hosts, verdict: &Verdict) -> Self {
        News { hosts: hosts.clone(), verdict: verdict.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's part: reads the news for as long as it is up.
    pub(crate) async fn live(self, number: u8, overlay: Overlay, clock: impl Fn() -> Duration) {
        let clock = || u64::try_from(clock().as_millis()).unwrap_or(u64::MAX);
        self.state().clocks.entry(number).or_default().since = clock();
        let (topic, mut news) = loop {
            match join(&overlay).await {
                Ok(joined) => break joined,
                Err(error) => self.verdict.refused("join", &error),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let reader = Reader { topic, joined_ms: clock(), heard: BTreeSet::new(), told: Vec::new() };
        self.state().readers.insert(number, reader);
        while let Some(delivery) = news.recv().await {
            let mut state = self.state();
            match delivery {
                Delivery::Message { message, .. } => {
                    let is_said = state.is_said(&message);
                    self.verdict.count("news heard");
                    self.verdict.promised(is_said, || {
                        format!("{number} heard {message:?}, which nobody said so: {:?}", message.payload())
                    });
                    let Some(reader) = state.readers.get_mut(&number) else { return };
                    let is_new = reader.heard.insert(place(message.serial()));
                    self.verdict.promised(is_new, || format!("{number} heard {message:?} twice"));
                }
                Delivery::Gap(gap) | Delivery::Missed(gap) => {
                    let Some(reader) = state.readers.get_mut(&number) else { return };
                    reader.told.push(gap);
                }
                _ => {}
            }
        }
        // It is no reader any more, which is noticed once everything is well.
        self.verdict.count("news ended");
        let reader = self.state().readers.remove(&number);
        drop(reader);
    }

    /// The node is about to lose power: it is owed nothing any more, and what it published may be lost with it.
    pub(crate) fn forget(&self, number: u8) {
        let mut state = self.state();
        let reader = state.readers.remove(&number);
        let clock = state.clocks.entry(number).or_default();
        clock.before = clock.before.max(clock.since);
        state.published.retain(|published| published.by != number);
        for published in &mut state.published {
            published.owed.remove(&number);
        }
        drop(state);
        drop(reader);
    }

    /// A user publishes something on a node.
    pub(crate) async fn publish(&self, by: u8, in_peace: bool) {
        let publisher = identity(by).node_id();
        let (topic, owed, payload) = {
            let mut state = self.state();
            let owed: BTreeSet<u8> = state.readers.keys().copied().filter(|&reader| reader != by).collect();
            let Some(topic) = state.readers.get(&by).map(|reader| reader.topic.clone()) else {
                return self.verdict.promised(!in_peace, || format!("{by} is not on the topic, in peace"));
            };
            let payload = Bytes::from(format!("news {} of {by}", state.asked.len()));
            state.asked.insert(payload.clone(), publisher);
            (topic, owed, payload)
        };
        let receipt = topic.publish(payload.clone(), Deadline::after(Duration::from_secs(5))).await;
        match receipt {
            Ok(receipt) => {
                let place = (publisher, receipt.since, receipt.seq);
                self.verdict.count("news published");
                let mut state = self.state();
                let agrees = state.agrees(place, &payload);
                self.verdict.promised(agrees, || {
                    format!(
                        "{by} said {payload:?} as {place:?}, where others heard {:?}",
                        state.words.get(&place)
                    )
                });
                // Its machine may be gone by now.
                if state.readers.contains_key(&by) {
                    let clock = state.clocks.entry(by).or_default();
                    clock.since = clock.since.max(receipt.since);
                    let owed = owed.into_iter().filter(|reader| state.readers.contains_key(reader)).collect();
                    state.published.push(Published { by, place, owed, in_peace });
                }
            }
            Err(error) => {
                self.verdict.refused("publish", &error);
                self.verdict.promised(!in_peace, || format!("{by} cannot publish, in peace: {error}"));
            }
        }
    }

    /// Who is not on the topic, who neither heard something nor was told that it missed it, and who did not hear what was said once
    /// everything was well.
    pub(crate) fn missing(&self) -> Vec<String> {
        let hosts = self.hosts.all();
        let state = self.state();
        let is_deaf = |number: &u8| !state.readers.contains_key(number);
        let nodes = hosts.iter().filter(|host| host.role != Role::Liar).map(|host| host.number);
        let mut missing: Vec<String> =
            nodes.filter(is_deaf).map(|number| format!("{number} is not on the topic")).collect();
        for Published { by, place, owed, in_peace } in &state.published {
            for (number, reader) in
                owed.iter().filter_map(|number| Some((number, state.readers.get(number)?)))
            {
                if reader.heard.contains(place) {
                    continue;
                }
                if *in_peace {
                    let told = reader.told.iter().any(|gap| covers(gap, place));
                    let told = if told { "and was told so" } else { "and was not told so" };
                    missing.push(format!("{number} did not hear message {} of {by}, {told}", place.2));
                } else if reader.is_owed(place)
                    && !state.is_passed(reader, *by, place)
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
        let (mut told, mut passed, mut unowed) = (0, 0, 0);
        for Published { by, place, owed, .. } in &state.published {
            let readers = owed.iter().filter_map(|number| state.readers.get(number));
            for reader in readers.filter(|reader| !reader.heard.contains(place)) {
                let count = match reader.told.iter().any(|gap| covers(gap, place)) {
                    true => &mut told,
                    false if state.is_passed(reader, *by, place) => &mut passed,
                    false => &mut unowed,
                };
                *count += 1;
            }
        }
        self.verdict.add("news missed and told", told);
        self.verdict.add("news of a clock that was set back", passed);
        self.verdict.add("news before the first that was heard", unowed);
    }
}

/// From its first neighbour on a node is owed everything.
async fn join(overlay: &Overlay) -> Result<(Topic, Subscription), OverlayError> {
    let me = overlay.node_id();
    let seeds = [0, 1].map(contact).into_iter().filter(|seed| seed.id != me);
    let minute = || Deadline::after(Duration::from_secs(60));
    let topic = overlay.topic("news").join(seeds, minute()).await?;
    let news = topic.subscribe(minute()).await?;
    topic.joined(minute()).await?;
    Ok((topic, news))
}

fn place(serial: &Serial) -> Place {
    (serial.publisher, serial.since, serial.seq)
}

fn covers(gap: &Gap, (publisher, since, seq): &Place) -> bool {
    (gap.publisher, gap.since) == (*publisher, *since) && gap.seqs.contains(seq)
}
