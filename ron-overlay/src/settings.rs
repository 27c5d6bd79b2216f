//! The knobs of a node.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{
    Capacity, ConfigError, Deadline,
    net::{
        oap::FRAME_BYTES_MAX,
        rpc::{PeersSettings, RpcSettings},
    },
};

use crate::logic::{
    gossip::GossipSettings,
    parts::PartsSettings,
    score::ScoreSettings,
    view::WALK_MAX,
    wire::{PAYLOAD_MAX, PUSH_OVERHEAD},
};

/// The least and the most that one frame may carry.
const CHUNK_BYTES_MIN: usize = 1 << 10;
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// What one peer may take of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    /// Words a second that are taken from one peer, and as many at once after a quiet second. More are refused, told to
    /// the peer, and count against it. Default 20 000; lower it where peers are strangers and messages few.
    pub max_rps: u32,
    /// Frames that may wait for one peer, of each class: control, gossip, bulk. Default 512. All chunks of the largest
    /// message must fit: for less than about 256, lower [`message_bytes_max`](Settings::message_bytes_max) too.
    pub inflight_frames: usize,
    /// Bytes that may wait for one peer. Default 32 MiB: the largest message must fit.
    pub egress_bytes: usize,
    /// Bytes of one peer that may wait for an engine. Default 32 MiB: the largest message must fit.
    pub ingress_bytes: usize,
    /// Topics on which one peer may be our neighbour. Default 64; more are refused, and count against it.
    pub topics_max: usize,
    /// Requests that one peer may have at work here. Default 128.
    pub requests_max: u32,
}

impl Default for PeerSettings {
    fn default() -> Self {
        PeerSettings {
            max_rps: 20_000,
            inflight_frames: 512,
            egress_bytes: 32 << 20,
            ingress_bytes: 32 << 20,
            topics_max: 64,
            requests_max: 128,
        }
    }
}

/// The knobs of a node. Builder methods set them; [`Overlay::reload`](crate::Overlay::reload) changes those that can
/// change while it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What one peer may take of us. `max_rps`, `inflight_frames` and `topics_max` can change while running.
    pub peer: PeerSettings,
    /// Views, trees and repair of every topic. `relay_fanout` and `burst_budget_frames` can change while running.
    pub gossip: GossipSettings,
    /// What offences cost.
    pub score: ScoreSettings,
    /// What unfinished large messages may hold.
    pub parts: PartsSettings,
    /// Bytes of the largest message. Default 16 MiB, the most there is.
    pub message_bytes_max: usize,
    /// Larger words are cut into pieces of this. Default 64 KiB, the most there is; less lets small words pass a large
    /// one sooner on a thin line. Can change while running.
    pub chunk_bytes: usize,
    /// Bytes of the largest frame that is taken. Default 1 MiB, the most there is.
    pub max_frame_bytes: usize,
    /// Tasks among which topics are divided. Default 2.
    pub engines: NonZeroUsize,
    /// Tasks that check signatures and ask validators. Default 2: as many as there are cores to spare.
    pub checkers: NonZeroUsize,
    /// Words that wait for an engine, control and gossip each. Default 512.
    pub ingress_lane: usize,
    /// Bytes that wait for an engine, control and gossip each. Default 64 MiB.
    pub ingress_bytes: usize,
    /// The shortest pause between two turns of a busy engine. Words that arrive meanwhile are worked on and sent together, so
    /// each hop of a busy topic may add this much latency. There is no pause after a quiet moment or while a full batch
    /// waits. Default 2 ms; zero for the least latency. Can change while running.
    pub gather: Duration,
    /// Messages that wait for a check. Default 512.
    pub checks_lane: usize,
    /// How long a validator may take. Then the message is let go; it may come again. Default 1 s. Can change while
    /// running.
    pub check_timeout: Duration,
    /// Events that a slow reader of [`Overlay::events`](crate::Overlay::events) may be behind. Default 1024.
    pub events_lane: usize,
    /// Messages that may wait for one subscriber. Default 1024.
    pub subscription_lane: usize,
    /// Bytes that may wait for all subscribers. Default 64 MiB.
    pub subscription_bytes: u64,
    /// Bytes that may wait for all peers. Default 256 MiB.
    pub egress_bytes_max: usize,
    /// Bytes of calls that may wait to be written to all peers together, and as many that peers may have at work here; what
    /// goes over the lanes above is not among them. Default 64 MiB.
    pub links_bytes: u64,
    /// Sessions at once. Default 1024.
    pub max_conns: usize,
    /// How long a frame that has begun may take to come, or 64 KiB of a large one. Default 5 s.
    pub read_timeout: Duration,
    /// How long a peer may take to take what is sent, or 64 KiB of it. Default 5 s. Who takes longer is disconnected.
    pub write_timeout: Duration,
    /// A session on which nothing was said for this long is closed. Default 30 s; neighbours say something every
    /// [`ping_every`](GossipSettings::ping_every), which must be less than half of this.
    pub idle_timeout: Duration,
    /// How long HELLO may take on a new link, and a dial in all is given twice that. Default 3 s.
    pub handshake_timeout: Duration,
    /// How long a stop may take to leave topics and send what waits. Default 3 s.
    pub drain_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let two = const { NonZeroUsize::new(2).expect("not zero") };
        Settings {
            peer: PeerSettings::default(),
            gossip: GossipSettings::default(),
            score: ScoreSettings::default(),
            parts: PartsSettings::default(),
            message_bytes_max: PAYLOAD_MAX,
            chunk_bytes: CHUNK_BYTES_MAX,
            max_frame_bytes: FRAME_BYTES_MAX,
            engines: two,
            checkers: two,
            ingress_lane: 512,
            ingress_bytes: 64 << 20,
            gather: Duration::from_millis(2),
            checks_lane: 512,
            check_timeout: Duration::from_secs(1),
            events_lane: 1024,
            subscription_lane: 1024,
            subscription_bytes: 64 << 20,
            egress_bytes_max: 256 << 20,
            links_bytes: 64 << 20,
            max_conns: 1024,
            read_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(3),
            drain_deadline: Duration::from_secs(3),
        }
    }
}

/// The least that a node can do with, see [`Settings::within`], for each topic and each engine.
const WITHIN_MIN: usize = 16 << 20;
const ENGINE_MIN: usize = 2 << 20;

impl Settings {
    /// These settings with limits lowered until all queues, stores, sessions and unfinished messages together hold at most
    /// `bytes` with `topics` topics. That may lower the largest message and the number of sessions. No limit is raised.
    ///
    /// ```
    /// use ron_overlay::Settings;
    ///
    /// let small = Settings::default().within(64 << 20, 1)?;
    /// assert!(small.held_bytes_max(1) <= 64 << 20 && small.message_bytes_max < Settings::default().message_bytes_max);
    /// # Ok::<(), ron_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] (`bytes_max`) below 16 MiB for each topic or 2 MiB for each engine.
    pub fn within(mut self, bytes: usize, topics: usize) -> Result<Settings, ConfigError> {
        let topics = topics.max(1);
        if bytes / topics < WITHIN_MIN || bytes / self.engines.get() < ENGINE_MIN {
            let allowed = "16777216 or more for each topic, and 2097152 for each engine";
            return Err(out_of_range("bytes_max", bytes, allowed));
        }
        // Sixteenths: four for what waits to be sent, four for what waits to be worked on, two for pieces, one for
        // subscribers, two for calls, one for sessions, and two for topics, of which a quarter is what is kept.
        let part = bytes / 16;
        let ingress = 4 * part / (2 * self.engines.get());
        let message = (ingress - PUSH_OVERHEAD).min(part) - CHUNK_BYTES_MAX;
        self.message_bytes_max = self.message_bytes_max.min(message);
        self.egress_bytes_max = self.egress_bytes_max.min(4 * part);
        self.ingress_bytes = self.ingress_bytes.min(ingress);
        self.peer.egress_bytes = self.peer.egress_bytes.min(2 * part);
        self.peer.ingress_bytes = self.peer.ingress_bytes.min(ingress);
        self.parts.bytes_max = self.parts.bytes_max.min(2 * part);
        self.parts.peer_bytes_max = self.parts.peer_bytes_max.min(part + part / 2);
        self.parts.word_bytes_max = self.parts.word_bytes_max.min(part);
        self.subscription_bytes = self.subscription_bytes.min(part as u64);
        self.links_bytes = self.links_bytes.min(part as u64);
        self.max_conns = self.max_conns.min((part / SESSION_BYTES).max(1));
        let topic = 2 * part / topics;
        self.gossip.store.bytes_max = self.gossip.store.bytes_max.min(topic / 4);
        self.gossip.store.bytes = self.gossip.store.bytes.min(topic / 8);
        self.gossip.unchecked_bytes = self.gossip.unchecked_bytes.min(topic * 3 / 4);
        Ok(self)
    }

    /// What all queues, stores and unfinished messages hold at most together, with `topics` topics: the sum of their limits.
    /// A frame that is still coming in is not among it, and one message is kept and checked however large.
    #[must_use]
    pub fn held_bytes_max(&self, topics: usize) -> usize {
        let ingress = self.ingress_bytes.saturating_mul(2 * self.engines.get());
        let topic = self.gossip.store.bytes_max.saturating_add(self.gossip.unchecked_bytes);
        let links = usize::try_from(self.links_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
        let subscriptions = usize::try_from(self.subscription_bytes).unwrap_or(usize::MAX);
        [
            self.egress_bytes_max,
            self.parts.bytes_max,
            subscriptions,
            links,
            self.max_conns.saturating_mul(SESSION_BYTES),
            topic.saturating_mul(topics.max(1)),
        ]
        .into_iter()
        .fold(ingress, usize::saturating_add)
    }

    /// Whether these make sense, as a start checks them: for programs that read them from a file.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Settings { peer, gossip, .. } = self;
        for (key, items) in [
            ("ingress_lane", self.ingress_lane),
            ("checks_lane", self.checks_lane),
            ("events_lane", self.events_lane),
            ("subscription_lane", self.subscription_lane),
            ("peer.inflight_frames", peer.inflight_frames),
            ("peer.topics_max", peer.topics_max),
            ("peer.max_rps", peer.max_rps as usize),
            ("peer.requests_max", peer.requests_max as usize),
            ("gossip.relay_fanout", gossip.relay_fanout),
            ("gossip.burst_budget_frames", gossip.burst_budget_frames as usize),
            ("gossip.view.neighbours", gossip.view.neighbours),
            ("max_conns", self.max_conns),
        ] {
            Capacity::new(key, items)?;
        }
        for (key, duration) in [
            ("read_timeout", self.read_timeout),
            ("write_timeout", self.write_timeout),
            ("idle_timeout", self.idle_timeout),
            ("handshake_timeout", self.handshake_timeout),
            ("check_timeout", self.check_timeout),
            // What is due again at once is due for ever, and an engine that does it does nothing else.
            ("gossip.ping_every", gossip.ping_every),
            ("gossip.digest_every", gossip.digest_every),
            ("gossip.view.shuffle_every", gossip.view.shuffle_every),
            ("gossip.trees.round", gossip.trees.round),
            ("score.half_life", self.score.half_life),
        ] {
            if duration.is_zero() {
                return Err(out_of_range(key, "0 s", "above zero"));
            }
        }
        let (view, trees) = (&gossip.view, &gossip.trees);
        // These are added to the clock as they are, which has an end. Those that are not may be for ever.
        for (key, duration) in [
            ("gather", self.gather),
            ("handshake_timeout", self.handshake_timeout),
            ("gossip.announce_after", gossip.announce_after),
            ("gossip.want_after", gossip.want_after.1),
            ("gossip.digest_every", gossip.digest_every),
            ("gossip.ping_every", gossip.ping_every),
            ("gossip.silent_after", gossip.silent_after),
            ("gossip.gap_after", gossip.gap_after),
            ("gossip.view.shuffle_every", view.shuffle_every),
            ("gossip.view.ask_timeout", view.ask_timeout),
            ("gossip.view.displace_every", view.displace_every),
            ("gossip.trees.round", trees.round),
            ("gossip.trees.settle", trees.settle),
            ("gossip.trees.hold", trees.hold),
            ("gossip.trees.gather", trees.gather),
            ("gossip.trees.idle", trees.idle),
            ("score.ban_for", self.score.ban_for),
            ("parts.timeout", self.parts.timeout),
        ] {
            if duration > Deadline::LONGEST {
                return Err(out_of_range(key, format!("{} s", duration.as_secs()), "at most a year"));
            }
        }
        if self.score.ban_at.is_nan() || self.score.ban_at <= 0.0 {
            return Err(out_of_range("score.ban_at", self.score.ban_at, "above zero"));
        }
        let chunks = CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX;
        if !chunks.contains(&self.chunk_bytes) {
            return Err(out_of_range("chunk_bytes", self.chunk_bytes, "1024..=65536"));
        }
        let frames = CHUNK_BYTES_MAX + FRAME_OVERHEAD..=FRAME_BYTES_MAX;
        if !frames.contains(&self.max_frame_bytes) {
            return Err(out_of_range("max_frame_bytes", self.max_frame_bytes, "65830..=1048576"));
        }
        let messages = 1..=PAYLOAD_MAX;
        if !messages.contains(&self.message_bytes_max) {
            return Err(out_of_range("message_bytes_max", self.message_bytes_max, "1..=16777216"));
        }
        if peer.egress_bytes < self.message_bytes_max + CHUNK_BYTES_MAX {
            let allowed = "64 KiB more than message_bytes_max";
            return Err(out_of_range("peer.egress_bytes", peer.egress_bytes, allowed));
        }
        if peer.inflight_frames < self.message_bytes_max.div_ceil(self.part_bytes()) {
            let allowed = "no less than message_bytes_max has chunks; lower that too";
            return Err(out_of_range("peer.inflight_frames", peer.inflight_frames, allowed));
        }
        if self.egress_bytes_max < peer.egress_bytes {
            return Err(out_of_range("egress_bytes_max", self.egress_bytes_max, "peer.egress_bytes or more"));
        }
        if peer.ingress_bytes < self.message_bytes_max + PUSH_OVERHEAD {
            let allowed = "512 more than message_bytes_max";
            return Err(out_of_range("peer.ingress_bytes", peer.ingress_bytes, allowed));
        }
        if self.ingress_bytes < peer.ingress_bytes {
            return Err(out_of_range("ingress_bytes", self.ingress_bytes, "peer.ingress_bytes or more"));
        }
        if gossip.view.walk > WALK_MAX {
            // What walks farther is no word to others.
            return Err(out_of_range("gossip.view.walk", gossip.view.walk, "0..=8"));
        }
        if self.parts.word_bytes_max < self.message_bytes_max + PUSH_OVERHEAD {
            let allowed = "512 more than message_bytes_max";
            return Err(out_of_range("parts.word_bytes_max", self.parts.word_bytes_max, allowed));
        }
        if gossip.ping_every * 2 >= self.idle_timeout {
            let allowed = "less than half of idle_timeout";
            return Err(out_of_range("gossip.ping_every", format!("{:?}", gossip.ping_every), allowed));
        }
        Ok(())
    }

    /// Bytes of a large word that go into one piece: what is around them has room within a chunk.
    pub(crate) fn part_bytes(&self) -> usize {
        self.chunk_bytes - PART_OVERHEAD
    }

    /// Whether a running node can take `new` in place of these. Named is the first setting that it cannot change: one
    /// that decided the size of something, or what peers were told, when the node began.
    ///
    /// # Errors
    /// [`ConfigError::NeedsRestart`] for such a setting, others for one that makes no sense.
    pub fn check_change(&self, new: &Settings) -> Result<(), ConfigError> {
        new.check()?;
        let fixed_gossip = GossipSettings {
            relay_fanout: self.gossip.relay_fanout,
            burst_budget_frames: self.gossip.burst_budget_frames,
            ..new.gossip
        };
        let fixed = [
            ("gossip", self.gossip == fixed_gossip),
            ("score", self.score == new.score),
            ("parts", self.parts == new.parts),
            ("links_bytes", self.links_bytes == new.links_bytes),
            ("peer.egress_bytes", self.peer.egress_bytes == new.peer.egress_bytes),
            ("peer.ingress_bytes", self.peer.ingress_bytes == new.peer.ingress_bytes),
            ("peer.requests_max", self.peer.requests_max == new.peer.requests_max),
            ("message_bytes_max", self.message_bytes_max == new.message_bytes_max),
            ("max_frame_bytes", self.max_frame_bytes == new.max_frame_bytes),
            ("engines", self.engines == new.engines),
            ("checkers", self.checkers == new.checkers),
            ("ingress_lane", self.ingress_lane == new.ingress_lane),
            ("ingress_bytes", self.ingress_bytes == new.ingress_bytes),
            ("checks_lane", self.checks_lane == new.checks_lane),
            ("events_lane", self.events_lane == new.events_lane),
            ("subscription_lane", self.subscription_lane == new.subscription_lane),
            ("subscription_bytes", self.subscription_bytes == new.subscription_bytes),
            ("egress_bytes_max", self.egress_bytes_max == new.egress_bytes_max),
            ("max_conns", self.max_conns == new.max_conns),
            ("read_timeout", self.read_timeout == new.read_timeout),
            ("write_timeout", self.write_timeout == new.write_timeout),
            ("idle_timeout", self.idle_timeout == new.idle_timeout),
            ("handshake_timeout", self.handshake_timeout == new.handshake_timeout),
            ("drain_deadline", self.drain_deadline == new.drain_deadline),
        ];
        match fixed.iter().find(|(_, is_same)| !is_same) {
            Some((key, _)) => Err(ConfigError::NeedsRestart { key }),
            None => Ok(()),
        }
    }

    /// The limits of the sessions.
    pub(crate) fn peers(&self) -> PeersSettings {
        PeersSettings {
            rpc: RpcSettings {
                inflight_max: self.peer.requests_max,
                request_bytes_max: u32::try_from(self.max_frame_bytes - FRAME_OVERHEAD).unwrap_or(u32::MAX),
                hello_timeout: self.handshake_timeout,
                idle_timeout: self.idle_timeout,
                read_timeout: self.read_timeout,
                write_timeout: self.write_timeout,
                drain: self.drain_deadline,
                ..RpcSettings::default()
            },
            sessions_max: self.max_conns,
            dial_timeout: self.handshake_timeout * 2,
            drain: self.drain_deadline,
            // Of all sessions together; what `rpc` says is for one that has no others beside it.
            queued_bytes_max: self.links_bytes,
            requests_bytes_max: self.links_bytes,
        }
    }
}

/// What a session takes that does nothing: 17 KiB were measured.
const SESSION_BYTES: usize = 32 << 10;

/// What a frame has around the body of a request, at most: its header and the head of a request.
const FRAME_OVERHEAD: usize = 294;

/// What a piece has around its bytes.
const PART_OVERHEAD: usize = 64;

fn out_of_range(key: &'static str, value: impl ToString, allowed: &'static str) -> ConfigError {
    ConfigError::OutOfRange { key, value: value.to_string(), allowed }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;

    /// The links of a session without others beside it have limits of the same name, which nobody reads here.
    #[test]
    fn links_hold_as_many_bytes_as_they_are_allowed() {
        let peers = Settings { links_bytes: 7, ..Settings::default() }.peers();
        assert_eq!((peers.queued_bytes_max, peers.requests_bytes_max), (7, 7));
    }

    /// What should last for ever was added to the clock, which ended the task that did it: for how long a peer is banned, when
    /// the first one was to be; `ping_every` the check itself.
    #[test]
    fn what_would_never_be_due_is_refused_by_name() {
        type Field = fn(&mut Settings) -> &mut Duration;
        let fields: [(&str, Field); 18] = [
            ("gather", |s| &mut s.gather),
            ("handshake_timeout", |s| &mut s.handshake_timeout),
            ("gossip.announce_after", |s| &mut s.gossip.announce_after),
            ("gossip.want_after", |s| &mut s.gossip.want_after.1),
            ("gossip.digest_every", |s| &mut s.gossip.digest_every),
            ("gossip.ping_every", |s| &mut s.gossip.ping_every),
            ("gossip.silent_after", |s| &mut s.gossip.silent_after),
            ("gossip.gap_after", |s| &mut s.gossip.gap_after),
            ("gossip.view.shuffle_every", |s| &mut s.gossip.view.shuffle_every),
            ("gossip.view.ask_timeout", |s| &mut s.gossip.view.ask_timeout),
            ("gossip.view.displace_every", |s| &mut s.gossip.view.displace_every),
            ("gossip.trees.round", |s| &mut s.gossip.trees.round),
            ("gossip.trees.settle", |s| &mut s.gossip.trees.settle),
            ("gossip.trees.hold", |s| &mut s.gossip.trees.hold),
            ("gossip.trees.gather", |s| &mut s.gossip.trees.gather),
            ("gossip.trees.idle", |s| &mut s.gossip.trees.idle),
            ("score.ban_for", |s| &mut s.score.ban_for),
            ("parts.timeout", |s| &mut s.parts.timeout),
        ];
        for (key, field) in fields {
            let mut settings = Settings::default();
            *field(&mut settings) = Duration::MAX;
            let refused = settings.check().unwrap_err();
            assert!(
                matches!(refused, ConfigError::OutOfRange { key: named, .. } if named == key),
                "{key}: {refused}"
            );
        }
        let mut settings = Settings::default();
        settings.score.ban_for = Deadline::LONGEST;
        assert_eq!(settings.check(), Ok(()), "a year is as good");
    }

    /// With the first four an engine was busy with one thing for ever; with the others points were no numbers, which ended
    /// the task that compared them, or nobody was ever banned.
    #[test]
    fn what_would_be_due_for_ever_or_count_no_points_is_refused_by_name() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            match settings.check() {
                Err(ConfigError::OutOfRange { key, .. }) => Some(key),
                other => other.map(|()| None).unwrap(),
            }
        };
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|s| s.gossip.ping_every = Duration::ZERO), Some("gossip.ping_every"));
        assert_eq!(refused(|s| s.gossip.digest_every = Duration::ZERO), Some("gossip.digest_every"));
        assert_eq!(
            refused(|s| s.gossip.view.shuffle_every = Duration::ZERO),
            Some("gossip.view.shuffle_every")
        );
        assert_eq!(refused(|s| s.gossip.trees.round = Duration::ZERO), Some("gossip.trees.round"));
        assert_eq!(refused(|s| s.score.half_life = Duration::ZERO), Some("score.half_life"));
        assert_eq!(refused(|s| s.score.ban_at = f64::NAN), Some("score.ban_at"));
        assert_eq!(refused(|s| s.score.ban_at = 0.0), Some("score.ban_at"));
        assert_eq!(refused(|s| s.score.ban_at = f64::INFINITY), None, "nobody is to be banned");
    }

    #[test]
    fn what_is_held_is_what_was_allowed() {
        for mib in [16, 17, 24, 64, 100, 333, 1024, 4096] {
            for engines in [1, 2, 3, 16] {
                let engines = NonZeroUsize::new(engines).unwrap();
                let settings = Settings { engines, ..Settings::default() }.within(mib << 20, 1);
                if mib < 2 * engines.get() {
                    settings.unwrap_err();
                    continue;
                }
                let settings = settings.unwrap();
                settings.check().unwrap();
                assert!(settings.held_bytes_max(1) <= mib << 20, "{mib} MiB: {}", settings.held_bytes_max(1));
                assert!(settings.message_bytes_max >= 128 << 10, "{mib} MiB, {engines} engines");
            }
        }
        // More than it takes changes nothing.
        assert_eq!(Settings::default().within(64 << 30, 1).unwrap(), Settings::default());
        let many = Settings::default().within(64 << 20, 4).unwrap();
        assert!(many.held_bytes_max(4) <= 64 << 20);
        for (mib, topics) in [(0, 1), (15, 1), (63, 4)] {
            let refused = Settings::default().within(mib << 20, topics).unwrap_err();
            assert!(matches!(refused, ConfigError::OutOfRange { key: "bytes_max", .. }), "{refused}");
        }
    }
}
