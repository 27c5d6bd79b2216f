//! The numbers of our own messages: from which beginning they count, and which is next.
//!
//! A beginning is a time, so that a later one is a higher one. But a clock may be set back, and whoever heard messages of the
//! later beginning takes those of an earlier one for old. So peers that know us from before say as which beginning, and
//! we begin above it.

/// How far ahead of our own beginning an earlier one may have been, in milliseconds: a day. More is made up.
const AHEAD_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// What we number our messages by.
#[derive(Debug)]
pub(super) struct Own {
    /// When we came.
    began: u64,
    /// The beginning that the messages so far are counted from, and how many they are.
    since: u64,
    seq: u64,
    /// The highest beginning of ours that others know.
    known: u64,
    /// Whether messages were numbered below it already: once in a life, or a liar could have us begin with every message.
    has_moved: bool,
}

impl Own {
    pub(super) fn new(unix_ms: u64) -> Self {
        Own { began: unix_ms, since: unix_ms, seq: 0, known: 0, has_moved: false }
    }

    /// Beginning and number of the next message. Numbers go on in a new beginning: whoever did not take those of the old one
    /// is told that they are missing.
    pub(super) fn next(&self, unix_ms: u64) -> (u64, u64) {
        let since = match self.seq {
            0 => unix_ms.max(self.began).max(self.known + 1),
            _ if self.known > self.since => self.known + 1,
            _ => self.since,
        };
        (since, self.seq + 1)
    }

    /// A message has this beginning and number. Whether it begins anew after others.
    pub(super) fn on_publish(&mut self, since: u64, seq: u64) -> bool {
        let moves = self.seq > 0 && since != self.since;
        (self.since, self.seq) = (since, seq);
        self.has_moved |= moves;
        moves
    }

    /// Somebody knows us from this beginning.
    pub(super) fn on_known(&mut self, since: u64) {
        if !self.has_moved && since <= self.began.saturating_add(AHEAD_MAX_MS) {
            self.known = self.known.max(since);
        }
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_known_from_a_later_beginning_begins_above_it() {
        let mut own = Own::new(1000);
        own.on_known(7000);
        assert_eq!(own.next(2000), (7001, 1));
        own.on_publish(7001, 1);
        own.on_known(7001);
        assert_eq!(own.next(2000), (7001, 2), "that is the one that it has");
    }

    #[test]
    fn what_is_learnt_late_moves_the_numbers_once() {
        let mut own = Own::new(1000);
        assert_eq!(own.next(1500), (1500, 1));
        assert!(!own.on_publish(1500, 1));
        own.on_known(7000);
        assert_eq!(own.next(2000), (7001, 2), "one and the other number are told apart");
        assert!(own.on_publish(7001, 2));
        own.on_known(9000);
        assert_eq!(own.next(3000), (7001, 3));
    }

    #[test]
    fn what_nobody_can_have_heard_is_not_believed() {
        let mut own = Own::new(1000);
        own.on_known(u64::MAX);
        own.on_known(1000 + AHEAD_MAX_MS + 1);
        assert_eq!(own.next(1500), (1500, 1));
    }
}
