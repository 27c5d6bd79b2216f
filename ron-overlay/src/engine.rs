//! One engine: the machines of the topics that it has, their time, and what they want to happen.
//!
//! A topic has one owner, so its machine needs no lock. Whatever waits is taken in batches, what this node says before
//! what peers say, and control before messages; then everything that the machines want is done at once, so that a link
//! is rung once for many words.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ron_core::{Counter, Deadline, Inbox, LaneSpec, NodeId, Reply, Restart, Stop, TaskSpec};
use tokio::sync::Notify;

use crate::{
    Contact, Event, OverlayError, Receipt, Settings, TopicStatus,
    checks::Job,
    egress::{Egress, Parcel, Promise, Sent},
    ingress::Ingress,
    logic::{
        gossip::{Counts, Gossip, Offence, Output, Verdict, Word},
        message::{Author, Message, MessageId, TopicId},
        view::ViewMessage,
        wire::PUSH_OVERHEAD,
    },
    metrics::{BACKPRESSURE, FRAME_REJECT, MESSAGES},
    node::Node,
    subscription::Subscriber,
    topic::TopicOptions,
};

pub(crate) const LOCAL: LaneSpec = LaneSpec::new("ron-overlay", "engine", 1024)
    .flow("handles, checkers, sessions → one engine")
    .why("a verdict for each of 512 checks, and as many orders");

pub(crate) const CONTROL: LaneSpec = LaneSpec::new("ron-overlay", "control_ingress", 512)
    .flow("readers → one engine, what keeps the network together, in turns between peers")
    .why("sixty neighbours that say eight things at once");

pub(crate) const INGRESS: LaneSpec = LaneSpec::new("ron-overlay", "gossip_ingress", 512)
    .flow("readers → one engine, messages, in turns between peers")
    .why("10 ms of an engine that is behind; more would only be later");

pub(crate) const ENGINE: TaskSpec = TaskSpec::new("ron-overlay", "engine").restart(Restart::Never).what(
    "owns the topics that its share of names falls to: relays, repairs, delivers; on a stop leaves them in order",
);

/// What is taken from one lane before the next has its turn.
const BATCH: usize = 64;

/// What is left of the drain when an engine no longer waits for what it said to be sent.
const LEAVE_SLACK: Duration = Duration::from_millis(500);

/// A word of a peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) from: NodeId,
    pub(crate) topic: TopicId,
    pub(crate) word: Word,
}

/// What this node wants of an engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Enter a topic, or add contacts to it.
    Join {
        topic: TopicId,
        options: Arc<TopicOptions>,
        contacts: Vec<Contact>,
        reply: Reply<Result<(), OverlayError>>,
    },
    /// More contacts for a topic.
    Meet { topic: TopicId, contacts: Vec<Contact> },
    /// Publish a message.
    Publish { topic: TopicId, payload: Bytes, reply: Reply<Result<Receipt, OverlayError>> },
    /// One more subscriber.
    Subscribe { topic: TopicId, subscriber: Subscriber, reply: Reply<Result<(), OverlayError>> },
    /// Leave a topic.
    Leave { topic: TopicId, reply: Reply<Result<(), OverlayError>> },
    /// Tell how a topic is doing.
    Status { topic: Option<TopicId>, reply: Reply<Vec<TopicStatus>> },
    /// A message was checked.
    Verdict { topic: TopicId, id: MessageId, ruling: Verdict },
    /// A peer is gone.
    Unreachable(NodeId),
    /// A peer is banned.
    Ban(NodeId, Duration),
}

/// The inboxes of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Inboxes {
    pub(crate) local: Inbox<Command>,
    pub(crate) control: Arc<Ingress>,
    pub(crate) gossip: Arc<Ingress>,
    /// Rung when something was put into one of them.
    pub(crate) bell: Arc<Notify>,
}

struct Topic {
    gossip: Gossip,
    options: Arc<TopicOptions>,
    subscribers: Vec<Subscriber>,
    wakes_at: Duration,
    published: u64,
    delivered: u64,
    /// What was counted when the metrics were last told.
    counted: Counts,
}

/// An engine.
pub(crate) struct Engine {
    node: Arc<Node>,
    settings: Arc<Settings>,
    topics: BTreeMap<TopicId, Topic>,
    wakes: BTreeSet<(Duration, TopicId)>,
    /// Topics whose machines may want something.
    touched: Vec<TopicId>,
    /// The last message that was encoded, which usually goes to more than one peer.
    encoded: Option<(MessageId, u8, bool, Parcel)>,
    /// Room that the message which is being published was promised.
    promises: Promises,
    /// Words of a batch.
    batch: Vec<Incoming>,
    /// How often settings had been changed when these were taken up.
    reloads: usize,
    /// When this node last began to publish on a topic. It begins later on each that it joins, also within a millisecond
    /// and whatever the clock does: others take what has the same beginning and number for the same message.
    published_since: u64,
    rng: fastrand::Rng,
}

impl Engine {
    pub(crate) fn new(node: Arc<Node>, seed: u64) -> Self {
        let settings = node.settings();
        Engine {
            node,
            settings,
            topics: BTreeMap::new(),
            wakes: BTreeSet::new(),
            touched: Vec::new(),
            encoded: None,
            promises: Promises::default(),
            batch: Vec::new(),
            reloads: 0,
            published_since: 0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    pub(crate) async fn run(mut self, inboxes: Inboxes, stop: Stop) {
        let Inboxes { local, control, gossip, bell } = inboxes;
        // One bell for all lanes and for the stop: to wait on each of them would cost more than most words do.
        let ringing = Arc::clone(&bell);
        let _on_stop = stop.on_request(move || ringing.notify_one());
        let mut sleep = pin!(tokio::time::sleep(Duration::MAX));
        let (mut armed, mut ran_at) = (Duration::MAX, None);
        while !stop.is_requested() {
            let mut now = self.node.since();
            // Soon after the last time, words of peers wait for company: what a batch needs is brought into the cache
            // once, and what goes to the same link goes in one write. After a quiet moment nothing waits, and orders of
            // this node never do: a publisher that awaits each receipt would wait that long for each.
            if let Some(next) = ran_at.map(|at: Duration| at + self.settings.gather).filter(|at| *at > now) {
                armed = next;
                sleep.as_mut().reset(self.node.epoch + next);
                let ordered = async {
                    while local.depth() == 0 {
                        bell.notified().await;
                    }
                };
                tokio::select! {
                    biased;
                    () = stop.requested() => continue,
                    () = ordered => {}
                    () = sleep.as_mut() => armed = Duration::ZERO,
                }
                now = self.node.since();
            }
            self.reload();
            let mut taken = 0;
            while taken < BATCH && local.depth() > 0 {
                let Some(command) = local.try_recv() else { break };
                self.on_command(command, now);
                taken += 1;
            }
            taken += self.take_words(&control, BATCH, now) + self.take_words(&gossip, BATCH, now);
            self.on_time(now);
            self.perform(now);
            if taken > 0 {
                ran_at = Some(now);
                if taken >= BATCH {
                    // There is more: no company is needed.
                    ran_at = None;
                    tokio::task::consume_budget().await;
                    continue;
                }
            }
            let wakes_at = self.wakes.first().map_or(Duration::MAX, |(at, _)| *at);
            if wakes_at < armed || armed <= now {
                armed = wakes_at;
                let at = now.max(armed.min(now + Duration::from_secs(3600)));
                sleep.as_mut().reset(self.node.epoch + at);
            }
            tokio::select! {
                biased;
                () = bell.notified() => {}
                () = sleep.as_mut() => armed = Duration::ZERO,
            }
        }
        // Nothing new is begun; what has been taken in is answered, and then the topics are left in order.
        // What peers say from here on is refused, and they are told.
        control.close();
        gossip.close();
        local.close();
        let now = self.node.since();
        while let Some(command) = local.try_recv() {
            self.on_command(command, now);
        }
        self.take_words(&control, usize::MAX, now);
        self.take_words(&gossip, usize::MAX, now);
        self.leave_all(&stop).await;
    }

    /// Works on what peers said, at most so many words. Returns how many.
    fn take_words(&mut self, ingress: &Ingress, most: usize, now: Duration) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        let taken = ingress.take(most, &mut batch);
        batch.drain(..).for_each(|word| self.on_word(word, now));
        self.batch = batch;
        taken
    }

    fn on_command(&mut self, command: Command, now: Duration) {
        match command {
            Command::Join { topic, options, contacts, reply } => {
                reply.send(self.join(topic, options, contacts, now));
            }
            Command::Meet { topic, contacts } => self.with(topic, |gossip| gossip.join(contacts, now)),
            Command::Publish { topic, payload, reply } => {
                // The caller has gone, and with it whoever would be told that it was published.
                if !reply.is_abandoned() {
                    reply.send(self.publish(topic, payload, now));
                }
            }
            Command::Subscribe { topic, subscriber, reply } => {
                let found = self.topics.get_mut(&topic).ok_or(OverlayError::NotJoined);
                reply.send(found.map(|topic| topic.subscribers.push(subscriber)));
            }
            Command::Leave { topic, reply } => {
                let left = self.leave(topic, now);
                reply.send(if left { Ok(()) } else { Err(OverlayError::NotJoined) });
            }
            Command::Status { topic, reply } => {
                let wanted = |id: &TopicId| topic.is_none_or(|topic| topic == *id);
                let found = self.topics.iter().filter(|(id, _)| wanted(id));
                reply.send(found.map(|(id, topic)| topic.status(*id)).collect());
            }
            Command::Verdict { topic, id, ruling } => {
                self.with(topic, |gossip| gossip.on_verdict(&id, ruling, now));
            }
            Command::Unreachable(peer) => self.with_all(|gossip| gossip.on_unreachable(peer, now)),
            Command::Ban(peer, until) => self.with_all(|gossip| gossip.ban(peer, until, now)),
        }
    }

    /// Takes up settings that were changed. They are looked at, and not told of by a lane that may be full.
    fn reload(&mut self) {
        let reloads = self.node.reloads.load(Ordering::Acquire);
        if reloads != self.reloads {
            self.reloads = reloads;
            self.settings = self.node.settings();
            let budgets = (self.settings.gossip.relay_fanout, self.settings.gossip.burst_budget_frames);
            let me = self.node.contact.load();
            for topic in self.topics.values_mut() {
                topic.gossip.set_budgets(budgets.0, budgets.1);
                topic.gossip.set_addrs(&me);
            }
        }
    }

    fn join(
        &mut self,
        topic: TopicId,
        options: Arc<TopicOptions>,
        contacts: Vec<Contact>,
        now: Duration,
    ) -> Result<(), OverlayError> {
        if let Some(known) = self.topics.get_mut(&topic) {
            if !known.options.is_same(&options) {
                return Err(OverlayError::Joined);
            }
            known.gossip.join(contacts, now);
        } else {
            let (me, unix_ms) =
                ((*self.node.contact.load()).clone(), self.node.unix_ms().max(self.published_since + 1));
            let gossip = Gossip::new(me, self.settings.gossip, unix_ms, self.rng.u64(..));
            let mut gossip = gossip.sealed(self.node.identity.clone(), topic);
            gossip.join(contacts, now);
            let subscribers = Vec::new();
            let state = Topic {
                gossip,
                options,
                subscribers,
                wakes_at: Duration::MAX,
                published: 0,
                delivered: 0,
                counted: Counts::default(),
            };
            self.topics.insert(topic, state);
        }
        self.touched.push(topic);
        Ok(())
    }

    fn publish(&mut self, id: TopicId, payload: Bytes, now: Duration) -> Result<Receipt, OverlayError> {
        let topic = self.topics.get_mut(&id).ok_or(OverlayError::NotJoined)?;
        let links = topic.gossip.publish_links(now);
        if topic.options.rejects_newest() {
            let bytes = payload.len() + PUSH_OVERHEAD;
            for peer in &links {
                let Some(egress) = self.node.egress(peer) else { continue };
                match egress.promise(bytes, &self.settings, now) {
                    Ok(promise) => self.promises.links.push((egress, promise)),
                    Err(retry_after) => {
                        self.promises.release();
                        self.node.metrics.tally(Counter::BusyRejections, "egress").add(1);
                        self.node.metrics.tally(BACKPRESSURE, "neighbour").add(1);
                        return Err(OverlayError::Busy { what: "egress", retry_after });
                    }
                }
            }
        }
        let serial = topic.gossip.next_serial(self.node.unix_ms());
        let message = if topic.options.is_signed() {
            Message::signed(&id, &self.node.identity, serial.since, serial.seq, payload)
        } else {
            Message::unsigned(&id, serial, payload)
        };
        self.published_since = self.published_since.max(serial.since);
        let mut receipt = Receipt {
            id: message.id(),
            since: serial.since,
            seq: serial.seq,
            pushed: links.len(),
            neighbours: topic.gossip.neighbours().count(),
        };
        topic.gossip.publish(message, now);
        topic.published += 1;
        self.node.egress.tallies.published.add(1);
        // At once: the room that was promised is for this message, and whoever publishes next must see what is left.
        (self.promises.of, self.promises.shed) = (Some(receipt.id), 0);
        self.perform_one(id, now);
        // Where the newest is not refused it may still have found no room, among frames of other topics.
        receipt.pushed = links.len().saturating_sub(self.promises.shed);
        self.promises.release();
        Ok(receipt)
    }

    /// Leaves a topic. Says whether it was there.
    fn leave(&mut self, id: TopicId, now: Duration) -> bool {
        let Some(topic) = self.topics.get_mut(&id) else { return false };
        topic.gossip.leave(now);
        self.perform_one(id, now);
        if let Some(topic) = self.topics.remove(&id) {
            self.wakes.remove(&(topic.wakes_at, id));
        }
        true
    }

    /// Leaves all topics, and waits until what was said about it is on its way, or the time is up.
    async fn leave_all(&mut self, stop: &Stop) {
        let now = self.node.since();
        self.perform(now);
        let topics: Vec<TopicId> = self.topics.keys().copied().collect();
        for topic in topics {
            self.leave(topic, now);
        }
        // Ends well before it would be cut off, on a machine that is busy too.
        let left = stop.drain_until().map_or(Duration::ZERO, Deadline::remaining);
        let until = Deadline::after(left.saturating_sub(LEAVE_SLACK).max(left / 2));
        let mut pause = Duration::from_micros(200);
        while self.node.all_egress().iter().any(|egress| egress.is_draining()) {
            if until.has_passed() {
                tracing::debug!("left without having sent all that waited");
                return;
            }
            tokio::time::sleep(pause.min(until.remaining())).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn on_word(&mut self, incoming: Incoming, now: Duration) {
        let Incoming { from, topic: id, word } = incoming;
        let wants_in = matches!(word, Word::View(ViewMessage::Join { .. } | ViewMessage::Ask { .. }));
        if wants_in {
            // A neighbour is counted when what the words before this one led to is done, and a peer may ask for all of our
            // topics in one breath.
            self.perform(now);
        }
        let Some(topic) = self.topics.get_mut(&id) else {
            self.node.metrics.tally(FRAME_REJECT, "unknown_topic").add(1);
            return;
        };
        if wants_in {
            let topics = self.node.topics_of(&from);
            if topics >= self.settings.peer.topics_max && !topic.gossip.is_neighbour(&from) {
                self.node.metrics.tally(FRAME_REJECT, "topics_max").add(1);
                let answer = Word::View(ViewMessage::Answer { is_accepted: false });
                let parcel = self.node.parcel(&id, &answer, &self.settings);
                let _ =
                    self.node.send(&from.into(), answer.class(), id, &parcel, topic.options.overflow(), None);
                self.node.on_offence(from, Offence::Greedy);
                return;
            }
        }
        topic.gossip.on_word(from, word, now);
        self.touched.push(id);
    }

    fn with(&mut self, id: TopicId, act: impl FnOnce(&mut Gossip)) {
        if let Some(topic) = self.topics.get_mut(&id) {
            act(&mut topic.gossip);
            self.touched.push(id);
        }
    }

    fn with_all(&mut self, mut act: impl FnMut(&mut Gossip)) {
        for (id, topic) in &mut self.topics {
            act(&mut topic.gossip);
            self.touched.push(*id);
        }
    }

    /// Wakes the machines whose time has come.
    fn on_time(&mut self, now: Duration) {
        while let Some((at, id)) = self.wakes.first().copied() {
            if at > now {
                return;
            }
            self.wakes.pop_first();
            if let Some(topic) = self.topics.get_mut(&id) {
                topic.wakes_at = Duration::MAX;
                topic.gossip.on_tick(now);
                self.touched.push(id);
            }
        }
    }

    /// Does what the machines want.
    fn perform(&mut self, now: Duration) {
        let mut touched = std::mem::take(&mut self.touched);
        // A batch is mostly of one topic.
        touched.dedup();
        for id in touched.drain(..) {
            self.perform_one(id, now);
        }
        self.touched = touched;
    }

    fn perform_one(&mut self, id: TopicId, now: Duration) {
        let Engine { node, settings, topics, wakes, encoded, promises, .. } = self;
        let Some(topic) = topics.get_mut(&id) else { return };
        while let Some(output) = topic.gossip.poll() {
            match output {
                Output::Send { to, word } => send(node, settings, (encoded, promises), id, topic, &to, &word),
                Output::Check { message } => check(node, settings, id, topic, message, now),
                Output::Deliver { message, hops } => {
                    topic.delivered += 1;
                    node.egress.tallies.delivered.add(1);
                    topic.subscribers.retain(|subscriber| subscriber.deliver(&message, hops));
                }
                Output::Gap(gap) => {
                    node.egress.tallies.gaps.add(gap.count());
                    topic.subscribers.retain(|subscriber| subscriber.tell_gap(&gap));
                }
                Output::Up(peer) => {
                    node.count_neighbour(peer, true);
                    node.events.publish(Event::NeighbourUp { topic: id, peer });
                }
                Output::Down(peer) => {
                    node.count_neighbour(peer, false);
                    node.events.publish(Event::NeighbourDown { topic: id, peer });
                }
                Output::Offence { peer, offence } => node.on_offence(peer, offence),
            }
        }
        topic.tell_counts(node);
        let wakes_at = topic.gossip.wake_at();
        if wakes_at != topic.wakes_at {
            wakes.remove(&(topic.wakes_at, id));
            topic.wakes_at = wakes_at;
            wakes.insert((wakes_at, id));
        }
    }
}

fn send(
    node: &Node,
    settings: &Settings,
    (encoded, promises): (&mut Option<(MessageId, u8, bool, Parcel)>, &mut Promises),
    id: TopicId,
    topic: &Topic,
    to: &Contact,
    word: &Word,
) {
    let overflow = topic.options.overflow();
    let Word::Push(pushed) = word else {
        // It would fetch what waits for it already.
        let is_early = matches!(word, Word::Digest(_))
            && node.egress(&to.id).is_some_and(|egress| egress.has_messages());
        if is_early {
            node.let_go("digest_early", 1);
            return;
        }
        let parcel = node.parcel(&id, word, settings);
        let _ = node.send(to, word.class(), id, &parcel, overflow, None);
        return;
    };
    let (name, hops, is_repair) = (pushed.message.id(), pushed.hops, pushed.is_repair);
    let is_same = encoded.as_ref().is_some_and(|last| (last.0, last.1, last.2) == (name, hops, is_repair));
    if !is_same {
        *encoded = Some((name, hops, is_repair, node.parcel(&id, word, settings)));
    }
    if let Some((.., parcel)) = encoded {
        let promise = promises.take(&name, &to.id);
        if node.send(to, word.class(), id, parcel, overflow, promise) == Sent::Shed {
            node.metrics.tally(MESSAGES, "shed").add(1);
            promises.shed += usize::from(promises.of == Some(name));
        }
    }
}

/// Has a message checked, or says at once what is cheap to say.
fn check(node: &Node, settings: &Settings, id: TopicId, topic: &mut Topic, message: Message, now: Duration) {
    let options = &topic.options;
    let is_signed = matches!(message.author(), Author::Signed(..));
    let name = message.id();
    let verdict = if is_signed != options.is_signed() {
        node.metrics.tally(FRAME_REJECT, "author").add(1);
        Verdict::Forged
    } else if message.payload().len() > options.message_bytes_max(settings) {
        node.metrics.tally(FRAME_REJECT, "size").add(1);
        Verdict::Reject { is_proven: false }
    } else if !is_signed && options.validator().is_none() {
        Verdict::Accept
    } else {
        let validator = options.validator().cloned();
        match node.checks.try_push(Job { topic: id, message, is_signed, validator }) {
            Ok(()) => return,
            Err(_) => Verdict::Shed,
        }
    };
    topic.gossip.on_verdict(&name, verdict, now);
}

/// Room on links that a message was promised before it was published.
#[derive(Debug, Default)]
struct Promises {
    of: Option<MessageId>,
    /// Links on which it found no room after all.
    shed: usize,
    links: Vec<(Arc<Egress>, Promise)>,
}

impl Promises {
    /// What this message was promised on the link to `peer`.
    fn take(&mut self, name: &MessageId, peer: &NodeId) -> Option<(Arc<Egress>, Promise)> {
        if self.of.as_ref() != Some(name) {
            return None;
        }
        let place = self.links.iter().position(|(egress, _)| egress.peer == *peer)?;
        Some(self.links.swap_remove(place))
    }

    /// The rest is not needed.
    fn release(&mut self) {
        self.of = None;
        self.links.drain(..).for_each(|(egress, promise)| egress.release(promise));
    }
}

impl Topic {
    /// Tells the metrics what the machine let go since the last time.
    fn tell_counts(&mut self, node: &Node) {
        let now = self.gossip.counts();
        let before = std::mem::replace(&mut self.counted, now);
        for (reason, before, now) in [
            ("announcements", before.unannounced, now.unannounced),
            ("announced", before.unfollowed, now.unfollowed),
            ("over_budget", before.over_budget, now.over_budget),
            ("unchecked", before.unchecked_shed, now.unchecked_shed),
            ("stale", before.stale, now.stale),
        ] {
            if now > before {
                node.let_go(reason, now - before);
            }
        }
        if now.beacons_refused > before.beacons_refused {
            node.metrics.tally(FRAME_REJECT, "beacon").add(now.beacons_refused - before.beacons_refused);
        }
    }

    fn status(&self, id: TopicId) -> TopicStatus {
        TopicStatus {
            id,
            name: self.options.name().to_owned(),
            neighbours: self.gossip.neighbours().map(|peer| peer.id).collect(),
            spares: self.gossip.spares().count(),
            trees: self.gossip.trees().iter().count(),
            subscribers: self.subscribers.len(),
            published: self.published,
            delivered: self.delivered,
            kept_bytes: self.gossip.kept_bytes(),
            counts: self.gossip.counts(),
        }
    }
}
