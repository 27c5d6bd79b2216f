//! The rules between frames: what may follow what.
//!
//! One value watches one connection, both directions of it. A *message* is one plain frame, or frames from START to
//! END. A request is a message that opens an exchange, its answer is the message that comes back under the same
//! correlation, an event is a message that nothing comes back for. Who opened a message ends it, even when the other
//! side has lost interest: without that, the rest of an abandoned request could not be told from a new one. So both
//! ends agree, frame by frame, on what is open, and a peer that disagrees is out of step and is disconnected.

use super::{Few, Flags, Frame, FrameError, Kind};

/// Which way a frame went, seen from this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer to us.
    Received,
    /// From us to the peer.
    Sent,
}

impl Direction {
    fn reversed(self) -> Self {
        match self {
            Direction::Received => Direction::Sent,
            Direction::Sent => Direction::Received,
        }
    }
}

/// Where in its message a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The first frame of its message.
    pub first: bool,
    /// The last frame of its message.
    pub last: bool,
    /// Nothing more will come under this correlation; the number is free again.
    pub closed: bool,
}

/// Which rule between frames was broken. All end the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// An answer, or one more, to something that was not asked.
    #[error("answer to {corr}, which is not open")]
    AnswerBeforeRequest {
        /// The correlation.
        corr: u64,
    },
    /// A message begins under a correlation that is in use.
    #[error("{corr} is already open")]
    DuplicateStart {
        /// The correlation.
        corr: u64,
    },
    /// A message ends that never began.
    #[error("{corr} ends without having begun")]
    EndWithoutStart {
        /// The correlation.
        corr: u64,
    },
    /// A capability in the middle of a message.
    #[error("capability on a frame of {corr} without START")]
    CapWithoutStart {
        /// The correlation.
        corr: u64,
    },
    /// A frame that belongs to another protocol or tenant than the one that opened the exchange.
    #[error("{corr} changes its protocol or tenant")]
    Mixed {
        /// The correlation.
        corr: u64,
    },
    /// More exchanges are open than were agreed.
    #[error("more than {max} exchanges open")]
    TooMany {
        /// The agreed number.
        max: usize,
    },
    /// The frame itself is not legal.
    #[error("not a legal frame")]
    Frame(#[from] FrameError),
}

impl StreamError {
    /// The rule in one word, for counters: one of six, or a [`FrameError::reason`].
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            StreamError::AnswerBeforeRequest { .. } => "answer_before_request",
            StreamError::DuplicateStart { .. } => "duplicate_start",
            StreamError::EndWithoutStart { .. } => "end_without_start",
            StreamError::CapWithoutStart { .. } => "cap_without_start",
            StreamError::Mixed { .. } => "mixed",
            StreamError::TooMany { .. } => "too_many",
            StreamError::Frame(error) => error.reason(),
        }
    }
}

/// What is open on one connection. Memory is bounded by the two limits it is made with.
#[derive(Debug)]
pub struct Streams {
    /// Opened by us and by the peer. The two number independently.
    ours: Side,
    theirs: Side,
}

#[derive(Debug)]
struct Side {
    max: usize,
    exchanges: Few<Exchange>,
    events: Few<Exchange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Exchange,
    Event,
}

#[derive(Debug, Clone, Copy)]
struct Exchange {
    proto: u16,
    tenant: u128,
    /// What the opener says, and what comes back. An event is an exchange whose answer is over before it began.
    said: Half,
    answer: Half,
}

/// How far a message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Before,
    Open,
    Over,
}

impl Half {
    /// The message after a frame with these flags.
    fn step(self, flags: Flags, corr: u64) -> Result<Half, StreamError> {
        match (self, flags.has(Flags::START), flags.has(Flags::END)) {
            (Half::Before, true, false) => Ok(Half::Open),
            // One frame: plain, or marked on both sides to carry a capability.
            (Half::Before, start, end) if start == end => Ok(Half::Over),
            (Half::Open, false, end) => Ok(if end { Half::Over } else { Half::Open }),
            (_, true, _) => Err(StreamError::DuplicateStart { corr }),
            (Half::Before, false, _) => Err(StreamError::EndWithoutStart { corr }),
            (Half::Over, false, true) => Err(StreamError::EndWithoutStart { corr }),
            (Half::Over, false, false) => Err(StreamError::DuplicateStart { corr }),
        }
    }
}

impl Streams {
    /// Nothing is open. We may open `ours_max` exchanges and event streams at once, the peer `theirs_max`.
    #[must_use]
    pub fn new(ours_max: usize, theirs_max: usize) -> Self {
        let side = |max| Side { max, exchanges: Few::new(), events: Few::new() };
        Streams { ours: side(ours_max), theirs: side(theirs_max) }
    }

    /// Notes a frame that was received, or is about to be sent.
    ///
    /// # Errors
    /// A [`StreamError`]; nothing has changed then.
    pub fn on_frame(&mut self, direction: Direction, frame: &Frame) -> Result<Step, StreamError> {
        if !frame.cap.is_empty() && !frame.flags.has(Flags::START) {
            return Err(StreamError::CapWithoutStart { corr: frame.corr });
        }
        match frame.flags.kind()? {
            Kind::Request => self.side(direction).say(Class::Exchange, frame),
            Kind::Event => self.side(direction).say(Class::Event, frame),
            Kind::Answer => self.side(direction.reversed()).answer(frame),
        }
    }

    /// Exchanges and event streams that `opener` has open: [`Direction::Sent`] for ours.
    #[must_use]
    pub fn open(&self, opener: Direction) -> usize {
        match opener {
            Direction::Sent => self.ours.len(),
            Direction::Received => self.theirs.len(),
        }
    }

    /// Whether nothing is open, so that the connection can close without cutting anything off.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ours.len() + self.theirs.len() == 0
    }

    fn side(&mut self, opener: Direction) -> &mut Side {
        match opener {
            Direction::Sent => &mut self.ours,
            Direction::Received => &mut self.theirs,
        }
    }
}

impl Side {
    fn len(&self) -> usize {
        self.exchanges.len() + self.events.len()
    }

    fn open(&mut self, class: Class) -> &mut Few<Exchange> {
        match class {
            Class::Exchange => &mut self.exchanges,
            Class::Event => &mut self.events,
        }
    }

    /// A frame of the opener: a request or an event.
    fn say(&mut self, class: Class, frame: &Frame) -> Result<Step, StreamError> {
        let Some(exchange) = self.open(class).get_mut(frame.corr) else {
            return self.begin(class, frame);
        };
        let before = exchange.said;
        let said = before.step(frame.flags, frame.corr)?;
        exchange.check(frame)?;
        exchange.said = said;
        let closed = exchange.is_over();
        if closed {
            self.open(class).remove(frame.corr);
        }
        Ok(Step { first: before == Half::Before, last: said == Half::Over, closed })
    }

    fn begin(&mut self, class: Class, frame: &Frame) -> Result<Step, StreamError> {
        let said = Half::Before.step(frame.flags, frame.corr)?;
        let answer = if class == Class::Event { Half::Over } else { Half::Before };
        let exchange = Exchange { proto: frame.proto, tenant: frame.tenant, said, answer };
        let closed = exchange.is_over();
        if !closed {
            if self.len() >= self.max {
                return Err(StreamError::TooMany { max: self.max });
            }
            self.open(class).insert(frame.corr, exchange);
        }
        Ok(Step { first: true, last: said == Half::Over, closed })
    }

    /// A frame that comes back to the opener.
    fn answer(&mut self, frame: &Frame) -> Result<Step, StreamError> {
        let corr = frame.corr;
        let exchange = self.exchanges.get_mut(corr).filter(|exchange| exchange.answer != Half::Over);
        let exchange = exchange.ok_or(StreamError::AnswerBeforeRequest { corr })?;
        let before = exchange.answer;
        let answer = before.step(frame.flags, corr)?;
        exchange.check(frame)?;
        exchange.answer = answer;
        let closed = exchange.is_over();
        if closed {
            self.exchanges.remove(corr);
        }
        Ok(Step { first: before == Half::Before, last: answer == Half::Over, closed })
    }
}

impl Exchange {
    fn check(&self, frame: &Frame) -> Result<(), StreamError> {
        if (self.proto, self.tenant) == (frame.proto, frame.tenant) {
            Ok(())
        } else {
            Err(StreamError::Mixed { corr: frame.corr })
        }
    }

    fn is_over(&self) -> bool {
        self.said == Half::Over && self.answer == Half::Over
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::{
        super::Code,
        Direction::{Received, Sent},
        *,
    };

    const REQ: Flags = Flags::REQ;
    const RESP: Flags = Flags::RESP;
    const EVENT: Flags = Flags::EVENT;
    const START: Flags = Flags::START;
    const END: Flags = Flags::END;

    fn frame(flags: Flags, corr: u64) -> Frame {
        let code = if flags.has(RESP) { Code::Ok } else { Code::None };
        Frame { flags, code, corr, proto: 5, ..Frame::default() }
    }

    /// Feeds all but the last frame, which must pass, and gives the verdict on the last: `closed`, or the reason.
    fn check(frames: &[(Direction, Flags, u64)], expected: Result<bool, &str>) {
        let mut streams = Streams::new(2, 2);
        let (last, before) = frames.split_last().expect("at least one");
        for (direction, flags, corr) in before {
            streams.on_frame(*direction, &frame(*flags, *corr)).expect("legal so far");
        }
        let open = (streams.open(Sent), streams.open(Received));
        let verdict = streams.on_frame(last.0, &frame(last.1, last.2));
        if verdict.is_err() {
            assert_eq!((streams.open(Sent), streams.open(Received)), open, "a refusal changes nothing");
        }
        assert_eq!(verdict.map(|step| step.closed).map_err(|error| error.reason()), expected, "{frames:?}");
    }

    #[test]
    fn one_frame_each_way() {
        check(&[(Sent, REQ, 1)], Ok(false));
        check(&[(Sent, REQ, 1), (Received, RESP, 1)], Ok(true));
        check(&[(Sent, REQ | START | END, 1), (Received, RESP | START | END, 1)], Ok(true));
        check(&[(Sent, REQ, 1), (Received, RESP, 1), (Sent, REQ, 1)], Ok(false));
    }

    #[test]
    fn many_frames_each_way() {
        let asked = [(Sent, REQ | START, 1), (Sent, REQ, 1), (Sent, REQ | END, 1)];
        check(&asked, Ok(false));
        let answered = [(Received, RESP | START, 1), (Received, RESP, 1), (Received, RESP | END, 1)];
        check(&[asked, answered].concat(), Ok(true));
    }

    #[test]
    fn no_answer_before_its_request() {
        check(&[(Received, RESP, 1)], Err("answer_before_request"));
        check(&[(Sent, REQ, 1), (Received, RESP, 2)], Err("answer_before_request"));
        check(&[(Sent, REQ, 1), (Received, RESP, 1), (Received, RESP, 1)], Err("answer_before_request"));
        // The peer's request under the same number is another exchange, and we do not answer ourselves.
        check(&[(Received, REQ, 1), (Received, RESP, 1)], Err("answer_before_request"));
        check(&[(Received, EVENT | START, 1), (Sent, RESP, 1)], Err("answer_before_request"));
    }

    #[test]
    fn no_second_start() {
        check(&[(Sent, REQ | START, 1), (Sent, REQ | START, 1)], Err("duplicate_start"));
        check(&[(Sent, REQ, 1), (Sent, REQ | START, 1)], Err("duplicate_start"));
        check(&[(Sent, REQ, 1), (Sent, REQ, 1)], Err("duplicate_start"));
        check(
            &[(Sent, REQ, 1), (Received, RESP | START, 1), (Received, RESP | START, 1)],
            Err("duplicate_start"),
        );
        check(&[(Sent, EVENT | START, 1), (Sent, EVENT | START, 1)], Err("duplicate_start"));
    }

    #[test]
    fn no_end_without_start() {
        check(&[(Sent, REQ | END, 1)], Err("end_without_start"));
        check(&[(Sent, REQ, 1), (Sent, REQ | END, 1)], Err("end_without_start"));
        check(&[(Sent, REQ, 1), (Received, RESP | END, 1)], Err("end_without_start"));
        check(&[(Sent, EVENT | END, 1)], Err("end_without_start"));
    }

    /// The callee refuses early; the rest of the request was on its way and must not look like new requests.
    #[test]
    fn an_early_answer_leaves_the_request_to_be_ended() {
        let early = [(Received, REQ | START, 1), (Sent, RESP, 1)];
        check(&early, Ok(false));
        check(&[&early[..], &[(Received, REQ, 1)]].concat(), Ok(false));
        check(&[&early[..], &[(Received, REQ, 1), (Received, REQ | END, 1)]].concat(), Ok(true));
        check(&[&early[..], &[(Sent, RESP, 1)]].concat(), Err("answer_before_request"));
    }

    #[test]
    fn events_and_requests_number_independently_and_so_do_both_ends() {
        check(&[(Sent, EVENT, 1)], Ok(true));
        check(
            &[(Sent, EVENT | START, 1), (Sent, REQ, 1), (Received, REQ, 1), (Received, EVENT, 1)],
            Ok(true),
        );
        check(&[(Sent, EVENT | START, 1), (Sent, EVENT, 1), (Sent, EVENT | END, 1)], Ok(true));
    }

    #[test]
    fn each_end_has_its_own_limit() {
        let two = [(Received, REQ, 1), (Received, EVENT | START, 1)];
        check(&[&two[..], &[(Received, REQ, 2)]].concat(), Err("too_many"));
        check(&[&two[..], &[(Received, EVENT, 2)]].concat(), Ok(true));
        check(&[&two[..], &[(Sent, REQ, 2)]].concat(), Ok(false));
        check(&[&two[..], &[(Sent, RESP, 1), (Received, REQ, 2)]].concat(), Ok(false));
    }

    #[test]
    fn an_exchange_keeps_its_protocol_and_tenant() {
        let mut streams = Streams::new(2, 2);
        streams.on_frame(Sent, &frame(REQ, 1)).unwrap();
        let answer = |proto, tenant| Frame { proto, tenant, ..frame(RESP, 1) };
        for other in [answer(6, 0), answer(5, 1)] {
            assert_eq!(streams.on_frame(Received, &other), Err(StreamError::Mixed { corr: 1 }));
        }
        assert!(streams.on_frame(Received, &answer(5, 0)).is_ok());
    }

    #[test]
    fn a_capability_comes_with_start() {
        let mut streams = Streams::new(2, 2);
        let with_cap = |flags| Frame { cap: Bytes::from_static(b"cap"), ..frame(flags, 1) };
        let error = streams.on_frame(Sent, &with_cap(REQ)).unwrap_err();
        assert_eq!(error.reason(), "cap_without_start");
        assert!(streams.on_frame(Sent, &with_cap(REQ | START)).is_ok());
        assert_eq!(
            streams.on_frame(Sent, &with_cap(REQ | END)),
            Err(StreamError::CapWithoutStart { corr: 1 })
        );
    }

    proptest! {
        /// Whatever one end sends within its own rules, the other end agrees with, frame by frame.
        #[test]
        fn both_ends_agree(moves in prop::collection::vec((any::<bool>(), 0..3_u16, 0..4_u16, 0..3_u64), 0..200)) {
            let (mut here, mut there) = (Streams::new(2, 2), Streams::new(2, 2));
            for (from_here, kind, place, corr) in moves {
                let flags = Flags::from_bits(1 << kind | place << 3).unwrap();
                let (ours, theirs) = if from_here { (Sent, Received) } else { (Received, Sent) };
                let frame = frame(flags, corr);
                prop_assert_eq!(here.on_frame(ours, &frame), there.on_frame(theirs, &frame));
                prop_assert_eq!(here.open(Sent), there.open(Received));
                prop_assert!(here.open(Sent) <= 2 && here.open(Received) <= 2);
            }
        }
    }
}
