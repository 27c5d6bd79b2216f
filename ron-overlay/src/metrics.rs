//! What only the overlay counts.

use ron_core::{Counter, GaugeSpec, Metrics, Tally};

use crate::logic::gossip::Offence;

ron_core::counters! {
    SESSION_OPEN = "session_open", "", "Sessions that began";
    SESSION_CLOSE = "session_close", "reason", "Sessions that had begun and ended, by why";
    GOSSIP_FRAMES = "gossip_frames", "dir", "Words about topics, sent and received";
    FRAME_REJECT = "frame_reject", "reason", "Words and messages refused for what they are";
    BACKPRESSURE = "backpressure_events", "peer", "Publications that a saturated link refused or held up, by what the peer is";
    CONFIG_UPDATE = "config_update", "", "Settings replaced while running";
    SHED = "shed_words", "side", "Words lost to a full queue: unsent here, refused here, and told by peers of their own";
    OFFENCES = "offences", "kind", "What peers did that they should not";
    BANS = "bans", "", "Peers banned for their offences";
    MESSAGES = "messages", "what", "Messages by what became of them";
    GAPS = "gap_messages", "", "Messages told to subscribers as missing";
    SUBSCRIBER_MISSED = "subscriber_missed", "", "Messages that slow subscribers were told to have missed";
    LET_GO = "let_go", "reason", "What was not done for want of room or time, which repair finds or a peer is not told";
    PARTS_REFUSED = "parts_refused", "reason", "Pieces of large words that were not taken";
}

/// Neighbours on all topics.
pub(crate) const NEIGHBOURS: GaugeSpec =
    GaugeSpec { name: "neighbours", help: "Neighbours, summed over topics" };

/// Bytes that wait for links.
pub(crate) const EGRESS_BYTES: GaugeSpec =
    GaugeSpec { name: "egress_bytes", help: "Bytes that wait to be sent, over all peers" };

/// The name of an offence in counters.
pub(crate) const fn offence_name(offence: Offence) -> &'static str {
    match offence {
        Offence::Invalid => "invalid",
        Offence::Late => "late",
        Offence::Silent => "silent",
        Offence::Spam => "spam",
        Offence::Greedy => "greedy",
    }
}

/// Counters of the way of every word, resolved once.
#[derive(Debug)]
pub(crate) struct Tallies {
    pub(crate) received: Tally,
    pub(crate) sent: Tally,
    pub(crate) unsent: Tally,
    pub(crate) refused: Tally,
    pub(crate) told: Tally,
    pub(crate) dropped: Tally,
    pub(crate) delivered: Tally,
    pub(crate) published: Tally,
    pub(crate) gaps: Tally,
    pub(crate) missed: Tally,
    pub(crate) opened: Tally,
    /// Sheds of more topics than a peer is told of one by one.
    pub(crate) topicless: Tally,
    /// Sheds that a peer was to be told of when it went.
    pub(crate) untold: Tally,
}

impl Tallies {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Tallies {
            received: metrics.tally(GOSSIP_FRAMES, "rx"),
            sent: metrics.tally(GOSSIP_FRAMES, "tx"),
            unsent: metrics.tally(SHED, "unsent"),
            refused: metrics.tally(SHED, "refused"),
            told: metrics.tally(SHED, "told"),
            dropped: metrics.tally(Counter::QueueDropped, "egress"),
            delivered: metrics.tally(MESSAGES, "delivered"),
            published: metrics.tally(MESSAGES, "published"),
            gaps: metrics.tally(GAPS, ""),
            missed: metrics.tally(SUBSCRIBER_MISSED, ""),
            opened: metrics.tally(SESSION_OPEN, ""),
            topicless: metrics.tally(LET_GO, "shed_topics"),
            untold: metrics.tally(LET_GO, "untold"),
        }
    }
}
