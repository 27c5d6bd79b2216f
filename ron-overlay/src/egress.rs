//! What waits for one peer, and the session that takes it away.
//!
//! The order and the bounds are decided by [`Lanes`]; here they meet the writer of a session, which asks for the next
//! frame whenever its link has room. What does not fit is refused before it is queued, counted, and told to the peer, so
//! that nothing is lost silently. The queues belong to the peer and not to the session: a session that takes the place of
//! another goes on where that one was.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Depth, LaneSpec, Lock, LockSpec, Metrics, NodeId, Overflow,
    net::rpc::{Outbox, Session, event_payload},
};

use crate::{
    logic::{
        gossip::{Class, Word},
        lanes::{Lanes, Pushed},
        message::TopicId,
        parts::cut,
        rate::Meter,
        wire::{Shed, encode_into, encode_part, encode_shed, number, number_of, room_for},
    },
    metrics::Tallies,
    settings::Settings,
};

pub(crate) const EGRESS: LaneSpec = LaneSpec::new("ron-overlay", "egress", 512)
    .flow("engines → the writer of a peer's session, control before gossip before bulk")
    .why("half a second of a busy link for each of three classes; more would be stale when it arrives");

pub(crate) const QUEUE: LockSpec = LockSpec::new("ron-overlay", "egress.queue", 430)
    .guards("what waits for one peer; held for a push, or while frames are copied to the writer");

/// The shortest and the longest pause that a publisher is told.
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A peer that refused what we sent is not published to for this long.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// The pace of a peer is looked at after so many frames.
const RATE_FRAMES: usize = 64;

/// Topics of which a peer is told what was shed, between two frames. What is beyond it is told without its topic.
const SHED_TOPICS_MAX: usize = 256;

/// A word as frames, made once for all peers that get it.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    frames: Frames,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Frames {
    One(Bytes),
    /// Pieces of a word with this number.
    Many(u64, Arc<[Bytes]>),
}

impl Parcel {
    /// Encodes a word. `pieces` numbers the words that are cut.
    pub(crate) fn new(topic: &TopicId, word: &Word, settings: &Settings, pieces: &AtomicUsize) -> Self {
        let method = number_of(word);
        let payload = event_payload(method, room_for(word), |bytes| encode_into(bytes, topic, word));
        if payload.len() <= settings.chunk_bytes {
            return Parcel { bytes: payload.len(), frames: Frames::One(payload) };
        }
        let body = Bytes::from(encode_into(Vec::with_capacity(room_for(word)), topic, word));
        let number = pieces.fetch_add(1, Ordering::Relaxed) as u64;
        let frames: Arc<[Bytes]> = cut(number, &body, settings.part_bytes())
            .map(|part| {
                event_payload(number::PIECE, part.bytes.len() + 64, |bytes| encode_part(bytes, method, &part))
            })
            .collect();
        Parcel { bytes: frames.iter().map(Bytes::len).sum(), frames: Frames::Many(number, frames) }
    }

    fn frames(&self) -> usize {
        match &self.frames {
            Frames::One(_) => 1,
            Frames::Many(_, frames) => frames.len(),
        }
    }
}

/// One frame that waits.
#[derive(Debug)]
struct Outgoing {
    topic: TopicId,
    payload: Bytes,
    /// The word that it is a piece of, and whether it is the last.
    piece: Option<(u64, bool)>,
}

/// What all peers share.
#[derive(Debug)]
pub(crate) struct EgressShared {
    pub(crate) tallies: Tallies,
    /// Bytes that wait for anybody.
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl EgressShared {
    pub(crate) fn new(tallies: Tallies, settings: &Settings) -> Self {
        EgressShared { tallies, bytes: AtomicUsize::new(0), bytes_max: settings.egress_bytes_max }
    }

    /// Bytes that wait for anybody.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Which share of the room for all is taken.
    pub(crate) fn fullness(&self) -> f64 {
        self.bytes() as f64 / self.bytes_max as f64
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if taken > self.bytes_max {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken <= self.bytes_max
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes so many bytes in place of those that are held, which nobody else gets meanwhile. If there are not that many,
    /// nothing is held any more.
    fn exchange(&self, held: usize, bytes: usize) -> bool {
        let has_room = bytes <= held || self.take(bytes - held);
        self.give_back(if has_room { held.saturating_sub(bytes) } else { held });
        has_room
    }
}

/// What waits for one peer.
pub(crate) struct Egress {
    pub(crate) peer: NodeId,
    shared: Arc<EgressShared>,
    queue: Lock<Queue>,
}

struct Queue {
    lanes: Lanes<Outgoing>,
    session: Option<Session>,
    /// Somebody is looking for a session.
    is_dialling: bool,
    /// Nothing is queued any more: the peer is gone, and its entry with it.
    is_over: bool,
    /// What the peer is to be told.
    shed: BTreeMap<TopicId, Shed>,
    /// Words that lost a piece: the others need not be sent.
    broken: BTreeSet<u64>,
    /// What the peer may send.
    meter: Meter,
    /// Until when it is not published to.
    refused_until: Duration,
    /// How fast it takes frames: so many since then.
    taken: usize,
    taken_since: Duration,
    per_second: f64,
}

/// Room for one message that has not been queued yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    frames: usize,
    bytes: usize,
}

/// What became of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It waits.
    Queued,
    /// There is no session, and somebody must look for one. Said once, whether the word waits or was shed.
    Dial { is_queued: bool },
    /// There was no room, which has been counted and will be told.
    Shed,
    /// The peer is gone, and another entry may have taken its place.
    Over,
}

impl Egress {
    pub(crate) fn new(
        peer: NodeId,
        settings: &Settings,
        shared: Arc<EgressShared>,
        meter: Meter,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let queue = Queue {
            lanes: Lanes::new(settings.peer.inflight_frames, settings.peer.egress_bytes),
            session: None,
            is_dialling: false,
            is_over: false,
            shed: BTreeMap::new(),
            broken: BTreeSet::new(),
            meter,
            refused_until: Duration::ZERO,
            taken: 0,
            taken_since: Duration::ZERO,
            per_second: 0.0,
        };
        let egress = Arc::new(Egress { peer, shared, queue: Lock::new(QUEUE, queue, metrics) });
        let measured: Arc<dyn Depth> = Arc::<Egress>::clone(&egress);
        metrics.watch_queue(EGRESS, Arc::downgrade(&measured));
        egress
    }

    /// Queues a word, or says why not. The session is rung for it. `promise` is room that it was promised.
    pub(crate) fn push(
        &self,
        class: Class,
        topic: TopicId,
        parcel: &Parcel,
        overflow: Overflow,
        promise: Option<Promise>,
    ) -> Sent {
        let mut queue = self.queue.lock();
        // What was promised in all is not given back before it is taken, or another engine could come in between.
        let held = promise.map_or(0, |promise| {
            queue.lanes.release(promise.frames, promise.bytes);
            promise.bytes
        });
        if queue.is_over {
            self.shared.give_back(held);
            return Sent::Over;
        }
        let is_queued = queue.push(&self.shared, class, topic, parcel, overflow, held);
        if !is_queued {
            self.shared.tallies.dropped.add(1);
            queue.note_shed(&self.shared, topic);
        }
        let has_session = queue.session.as_ref().is_some_and(Session::takes_events);
        if has_session {
            if let Some(session) = &queue.session {
                session.ring();
            }
        } else if !queue.is_dialling {
            queue.is_dialling = true;
            return Sent::Dial { is_queued };
        }
        if is_queued { Sent::Queued } else { Sent::Shed }
    }

    /// Promises room for a message of so many bytes that is about to be published over this link, or says when to try
    /// again. Several engines may publish to one peer at once, and what one was promised no other gets.
    pub(crate) fn promise(
        &self,
        bytes: usize,
        settings: &Settings,
        now: Duration,
    ) -> Result<Promise, Duration> {
        let mut queue = self.queue.lock();
        let frames = if bytes <= settings.chunk_bytes { 1 } else { bytes.div_ceil(settings.part_bytes()) };
        let is_paused = queue.refused_until > now;
        if !is_paused && queue.lanes.has_room_for(Class::Gossip, frames, bytes) && self.shared.take(bytes) {
            queue.lanes.reserve(frames, bytes);
            return Ok(Promise { frames, bytes });
        }
        Err(queue.retry_after().max(queue.refused_until.saturating_sub(now)))
    }

    /// Promised room is not needed after all.
    pub(crate) fn release(&self, promise: Promise) {
        self.queue.lock().lanes.release(promise.frames, promise.bytes);
        self.shared.give_back(promise.bytes);
    }

    /// A session with the peer has begun, and takes what waits from now on. Says whether there was none.
    pub(crate) fn set_session(&self, session: &Session) -> bool {
        let mut queue = self.queue.lock();
        queue.is_dialling = false;
        queue.session.replace(session.clone()).is_none()
    }

    /// A session has ended. Says whether it was the one.
    pub(crate) fn lose_session(&self, session: &Session) -> bool {
        let mut queue = self.queue.lock();
        queue.session.take_if(|held| held.is_same(session)).is_some()
    }

    /// The peer was not reached. Says whether it has no session from elsewhere either.
    pub(crate) fn give_up_dial(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.is_dialling = false;
        queue.session.is_none()
    }

    /// Whether there is neither a session nor anybody who looks for one.
    pub(crate) fn is_orphan(&self) -> bool {
        let queue = self.queue.lock();
        queue.session.is_none() && !queue.is_dialling
    }

    /// The peer is gone: what waited is dropped, and counted. Says whether there was a session still.
    pub(crate) fn end(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        queue.is_dialling = false;
        let session = queue.session.take();
        let untold = std::mem::take(&mut queue.shed).into_values();
        let untold: u64 = untold.map(|shed| shed.unsent.saturating_add(shed.refused)).sum();
        let (mut frames, mut bytes) = (0, 0);
        while let Some(gone) = queue.lanes.pop() {
            frames += 1;
            bytes += gone.payload.len();
        }
        drop(queue);
        self.shared.give_back(bytes);
        self.shared.tallies.dropped.add(frames);
        self.shared.tallies.untold.add(untold);
        session.inspect(Session::close).is_some()
    }

    /// Whether something waits that a session will take. What waits for a session that is still looked for is not waited
    /// for: a stop ends the search, and what waited is counted as dropped.
    pub(crate) fn is_draining(&self) -> bool {
        let queue = self.queue.lock();
        !queue.lanes.is_empty() && queue.session.as_ref().is_some_and(Session::takes_events)
    }

    /// Whether messages wait for the peer: it is not told of what it lacks while it is being sent.
    pub(crate) fn has_messages(&self) -> bool {
        self.queue.lock().lanes.waiting(Class::Gossip) > 0
    }

    /// Frames that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().lanes.len()
    }

    /// Bytes that wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.queue.lock().lanes.bytes()
    }

    /// Whether the peer may send one more word, or how many were too many since it was last quiet.
    pub(crate) fn may_receive(&self, per_second: u32, now: Duration) -> Result<(), u32> {
        let mut queue = self.queue.lock();
        if queue.meter.take(per_second, now) { Ok(()) } else { Err(queue.meter.refused()) }
    }

    /// A word of the peer was refused here. It will be told.
    pub(crate) fn refused(&self, topic: TopicId) {
        self.shared.tallies.refused.add(1);
        let mut queue = self.queue.lock();
        queue.shed_of(&self.shared, topic).refused += 1;
        if let Some(session) = &queue.session {
            session.ring();
        }
    }

    /// The peer says that it refused words of ours.
    pub(crate) fn on_refused(&self, now: Duration) {
        self.queue.lock().refused_until = now + REFUSED_PAUSE;
    }

    /// What the peer may still send.
    pub(crate) fn meter(&self) -> Meter {
        self.queue.lock().meter
    }

    /// Other room for frames from now on.
    pub(crate) fn set_frames_max(&self, frames: usize) {
        self.queue.lock().lanes.set_frames_max(frames);
    }
}

impl Queue {
    fn push(
        &mut self,
        shared: &EgressShared,
        class: Class,
        topic: TopicId,
        parcel: &Parcel,
        overflow: Overflow,
        held: usize,
    ) -> bool {
        let frames = parcel.frames();
        let is_rejecting = overflow == Overflow::RejectNewest;
        if is_rejecting && !self.lanes.has_room_for(class, frames, parcel.bytes) {
            shared.give_back(held);
            return false;
        }
        if !shared.exchange(held, parcel.bytes) {
            return false;
        }
        match &parcel.frames {
            Frames::One(payload) => {
                let frame = Outgoing { topic, payload: payload.clone(), piece: None };
                self.push_frame(shared, class, topic, frame, overflow)
            }
            Frames::Many(word, pieces) => {
                for (place, payload) in pieces.iter().enumerate() {
                    let piece = Some((*word, place + 1 == frames));
                    let frame = Outgoing { topic, payload: payload.clone(), piece };
                    if !self.push_frame(shared, class, topic, frame, overflow) {
                        // Those that wait already go to the peer for nothing, or not at all.
                        let rest = pieces[place + 1..].iter().map(Bytes::len).sum();
                        shared.give_back(rest);
                        if place > 0 {
                            self.broken.insert(*word);
                        }
                        return false;
                    }
                }
                true
            }
        }
    }

    /// Queues one frame whose bytes have been taken.
    fn push_frame(
        &mut self,
        shared: &EgressShared,
        class: Class,
        topic: TopicId,
        frame: Outgoing,
        overflow: Overflow,
    ) -> bool {
        let bytes = frame.payload.len();
        match self.lanes.push(class, topic, bytes, frame, overflow) {
            Pushed::Queued => true,
            Pushed::Shed(shed) => {
                for gone in shed {
                    shared.give_back(gone.payload.len());
                    // Of a word in pieces the first that goes is the loss; the others are skipped.
                    let is_new = gone.piece.is_none_or(|(word, _)| self.broken.insert(word));
                    if let Some((word, true)) = gone.piece {
                        self.broken.remove(&word);
                    }
                    if is_new {
                        shared.tallies.dropped.add(1);
                        self.note_shed(shared, gone.topic);
                    }
                }
                true
            }
            Pushed::Full(frame) => {
                shared.give_back(frame.payload.len());
                false
            }
        }
    }

    fn note_shed(&mut self, shared: &EgressShared, topic: TopicId) {
        shared.tallies.unsent.add(1);
        self.shed_of(shared, topic).unsent += 1;
    }

    /// What the peer is to be told of a topic; beyond so many topics, under none.
    fn shed_of(&mut self, shared: &EgressShared, topic: TopicId) -> &mut Shed {
        let has_room = self.shed.len() < SHED_TOPICS_MAX || self.shed.contains_key(&topic);
        if !has_room {
            shared.tallies.topicless.add(1);
        }
        self.shed.entry(if has_room { topic } else { TopicId::from_bytes([0; 32]) }).or_default()
    }

    /// How long half of what waits takes at the pace at which frames were taken lately.
    fn retry_after(&self) -> Duration {
        let half = self.lanes.len() as f64 / 2.0;
        if self.per_second < 1.0 {
            return RETRY_MAX / 10;
        }
        Duration::from_secs_f64((half / self.per_second).min(1.0)).clamp(RETRY_MIN, RETRY_MAX)
    }

    fn on_taken(&mut self, now: Duration) {
        let time = now.saturating_sub(self.taken_since);
        if time >= RETRY_MAX / 10 {
            let latest = self.taken as f64 / time.as_secs_f64();
            self.per_second = (self.per_second + latest) / 2.0;
            (self.taken, self.taken_since) = (0, now);
        }
    }
}

/// The outbox of a peer's session.
pub(crate) struct Taking {
    pub(crate) egress: Arc<Egress>,
    pub(crate) since: Box<dyn Fn() -> Duration + Send + Sync>,
}

impl Outbox for Taking {
    fn pour(&self, take: &mut dyn FnMut(Bytes) -> bool) {
        let egress = &*self.egress;
        let mut queue = egress.queue.lock();
        let (mut frames, mut bytes, mut goes_on) = (0, 0, true);
        while let Some((topic, shed)) = queue.shed.pop_first() {
            goes_on = take(event_payload(number::SHED, 64, |bytes| encode_shed(bytes, &topic, shed)));
            if !goes_on {
                break;
            }
        }
        while goes_on {
            let Some(frame) = queue.lanes.pop() else { break };
            bytes += frame.payload.len();
            if let Some((word, is_last)) = frame.piece {
                let is_broken = queue.broken.contains(&word);
                if is_last {
                    queue.broken.remove(&word);
                }
                if is_broken {
                    continue;
                }
            }
            frames += 1;
            goes_on = take(frame.payload);
        }
        queue.taken += frames;
        if queue.taken >= RATE_FRAMES {
            queue.on_taken((self.since)());
        }
        drop(queue);
        egress.shared.give_back(bytes);
        egress.shared.tallies.sent.add(frames as u64);
    }
}

impl Depth for Egress {
    fn depth(&self) -> usize {
        self.waiting()
    }

    fn capacity(&self) -> usize {
        self.queue.lock().lanes.frames_max()
    }
}

impl Drop for Egress {
    /// What waited when the last who knew the peer let go of it counts as dropped too.
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Egress({:?}, {} waiting)", self.peer, self.waiting())
    }
}

#[cfg(test)]
mod tests {
    use ron_core::NodeId;

    use super::*;
    use crate::logic::{gossip::Pushed as Message, message::Message as Inner, publishers::Serial};

    fn one_peer(settings: &Settings, shared: &Arc<EgressShared>, metrics: &Metrics) -> Arc<Egress> {
        Egress::new(NodeId::from_bytes([1; 32]), settings, Arc::clone(shared), Meter::new(), metrics)
    }

    /// Two engines that publish over one link at once: the second is refused before it gives a receipt, and neither is
    /// shed afterwards.
    #[test]
    fn promised_room_is_nobody_elses() {
        let metrics = Metrics::default();
        let mut settings = Settings::default();
        settings.peer.inflight_frames = 2;
        let shared = Arc::new(EgressShared::new(Tallies::new(&metrics), &settings));
        let egress = one_peer(&settings, &shared, &metrics);
        let (topic, now) = (TopicId::of("one"), Duration::ZERO);
        let parcel = Parcel::new(&topic, &Word::Ping(1), &settings, &AtomicUsize::new(1));
        let first = egress.promise(1000, &settings, now).unwrap();
        let second = egress.promise(1000, &settings, now).unwrap();
        assert!(egress.promise(1000, &settings, now).is_err());
        assert_eq!(shared.bytes(), 2000);
        let push = |promise| egress.push(Class::Gossip, topic, &parcel, Overflow::RejectNewest, promise);
        let dial = Sent::Dial { is_queued: false };
        assert_eq!(push(None), dial, "somebody else's is shed, and asks for a session");
        assert_eq!(push(None), Sent::Shed);
        assert_eq!(push(Some(first)), Sent::Queued);
        egress.release(second);
        assert_eq!((push(None), egress.waiting()), (Sent::Queued, 2));
        assert_eq!(shared.bytes(), egress.waiting_bytes());
        assert_eq!(shared.tallies.dropped.get(), 2);
    }

    /// A peer is told of sheds on more topics than are kept apart, too.
    #[test]
    fn sheds_of_very_many_topics_are_told_under_none() {
        let (metrics, settings) = (Metrics::default(), Settings::default());
        let shared = Arc::new(EgressShared::new(Tallies::new(&metrics), &settings));
        let egress = one_peer(&settings, &shared, &metrics);
        (0..300).for_each(|number| egress.refused(TopicId::of(&format!("topic {number}"))));
        let queue = egress.queue.lock();
        assert_eq!(queue.shed.len(), SHED_TOPICS_MAX + 1);
        assert_eq!(queue.shed.values().map(|shed| shed.refused).sum::<u64>(), 300);
        assert_eq!(shared.tallies.topicless.get(), 300 - SHED_TOPICS_MAX as u64);
    }

    /// What a peer was to be told when it went is counted here at least.
    #[test]
    fn sheds_that_nobody_can_be_told_of_are_counted() {
        let (metrics, settings) = (Metrics::default(), Settings::default());
        let shared = Arc::new(EgressShared::new(Tallies::new(&metrics), &settings));
        let egress = one_peer(&settings, &shared, &metrics);
        (0..3).for_each(|_| egress.refused(TopicId::of("news")));
        egress.end();
        egress.end();
        assert_eq!(shared.tallies.untold.get(), 3);
    }

    /// A peer that takes nothing, on topics that shed: what is remembered of words in pieces ends with the words.
    #[test]
    fn what_was_shed_of_large_words_is_not_remembered_forever() {
        let metrics = Metrics::default();
        let mut settings = Settings { message_bytes_max: 256 << 10, ..Settings::default() };
        settings.peer.inflight_frames = 8;
        let shared = Arc::new(EgressShared::new(Tallies::new(&metrics), &settings));
        let egress = one_peer(&settings, &shared, &metrics);
        let pieces = AtomicUsize::new(1);
        let [own, other] = ["one", "other"].map(TopicId::of);
        for seq in 1..=100 {
            let serial = Serial { publisher: NodeId::from_bytes([2; 32]), since: 5, seq };
            for topic in [own, other] {
                let message = Inner::unsigned(&topic, serial, vec![0; 200 << 10].into());
                let tree = serial.publisher;
                let word = Word::Push(Message { tree, hops: 0, is_repair: false, message });
                let parcel = Parcel::new(&topic, &word, &settings, &pieces);
                assert!(parcel.frames() > 1);
                let _ = egress.push(Class::Gossip, topic, &parcel, Overflow::ShedOldest, None);
            }
        }
        let queue = egress.queue.lock();
        assert!(queue.broken.len() <= 8, "{} words are remembered for 8 frames", queue.broken.len());
        drop(queue);
        assert_eq!(shared.bytes(), egress.waiting_bytes());
    }
}
