//! OAP/1: the one frame format between nodes.
//!
//! A frame is a 38-byte big-endian header, a capability and a payload. Its length is checked before anything is
//! allocated for it, every field has a closed set of values, and what is out of the set ends the stream with a reason
//! from a closed list. `docs/oap-1.md` is the specification, with vectors that the tests here read; this module is one
//! implementation of it.
//!
//! [`Decoder`] and [`Frame::encode`] turn bytes into frames and back, [`Streams`] keeps the rules between frames,
//! [`Hello`] is what two ends tell each other first, and [`FrameReader`] and [`FrameWriter`] do it over a byte stream
//! within time and memory limits.

mod alarm;
mod codec;
mod few;
mod hello;
mod reader;
mod streams;
mod writer;

use std::{fmt, io};

use bytes::Bytes;

pub(super) use alarm::Alarm;
pub use codec::{Decoder, Encoded};
pub(super) use few::Few;
pub use hello::{Agreed, Hello, HelloError};
pub use reader::{FrameReader, ReadSettings};
pub use streams::{Direction, Step, StreamError, Streams};
pub use writer::FrameWriter;

use crate::error::{ErrorKind, Refusal};

/// The version in every header.
pub const VERSION: u16 = 1;

/// Bytes of the header, and so the shortest frame.
pub const HEADER_BYTES: usize = 38;

/// Bytes of the longest frame, header included.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Bytes of application data in one frame of a stream. Larger frames are legal; this size keeps a small frame from
/// waiting behind a megabyte.
pub const CHUNK_BYTES: usize = 64 << 10;

/// The protocol number of HELLO and of everything else that is about the connection itself.
pub const PROTO_CONTROL: u16 = 0;

/// What a frame says about itself. Only known bits exist: a frame with another one does not decode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u16);

impl Flags {
    /// No bit; not the flags of any legal frame, which has a kind.
    pub const NONE: Flags = Flags(0);
    /// Part of a request.
    pub const REQ: Flags = Flags(1);
    /// Part of an answer.
    pub const RESP: Flags = Flags(1 << 1);
    /// Part of a message that wants no answer.
    pub const EVENT: Flags = Flags(1 << 2);
    /// The first frame of a message of several frames, or of one with a capability.
    pub const START: Flags = Flags(1 << 3);
    /// The last frame of such a message.
    pub const END: Flags = Flags(1 << 4);
    /// The sender asks for an acknowledgement, which is up to the protocol.
    pub const ACK_REQ: Flags = Flags(1 << 5);
    /// The payload is compressed. Reserved: nobody may send it yet.
    pub const COMP: Flags = Flags(1 << 6);
    /// The payload is encrypted between applications; nodes on the way do not look into it.
    pub const APP_E2E: Flags = Flags(1 << 7);

    const KNOWN: u16 = 0xff;
    const NAMES: [&'static str; 8] = ["REQ", "RESP", "EVENT", "START", "END", "ACK_REQ", "COMP", "APP_E2E"];

    /// These bits, if all are known.
    ///
    /// # Errors
    /// [`FrameError::UnknownFlag`].
    pub const fn from_bits(bits: u16) -> Result<Self, FrameError> {
        if bits & !Self::KNOWN == 0 { Ok(Flags(bits)) } else { Err(FrameError::UnknownFlag { bits }) }
    }

    /// The bits as they are sent.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Flags) -> Self {
        Flags(self.0 | other.0)
    }

    /// Request, answer or event: a frame is exactly one of them.
    ///
    /// # Errors
    /// [`FrameError::Kind`].
    pub const fn kind(self) -> Result<Kind, FrameError> {
        match self.0 & 0b111 {
            0b001 => Ok(Kind::Request),
            0b010 => Ok(Kind::Answer),
            0b100 => Ok(Kind::Event),
            _ => Err(FrameError::Kind { bits: self.0 }),
        }
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        self.with(other)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = (0..8).filter(|bit| self.0 >> bit & 1 == 1).map(|bit| Self::NAMES[bit]);
        f.write_str(set.next().unwrap_or("none"))?;
        set.try_for_each(|name| write!(f, "|{name}"))
    }
}

/// What a frame is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request: one answer is owed.
    Request,
    /// The answer to a request.
    Answer,
    /// A message that is owed nothing.
    Event,
}

/// How a request went. Answers carry one of these and nothing else; requests and events carry none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u16)]
#[non_exhaustive]
pub enum Code {
    /// Not an answer.
    #[default]
    None = 0,
    /// Done; the payload is the answer.
    Ok = 200,
    /// A part of the answer; more follows.
    Partial = 206,
    /// The request makes no sense. Asking again is useless.
    BadRequest = 400,
    /// The capability is missing or not valid.
    Unauthorized = 401,
    /// The capability is valid and does not allow this.
    Forbidden = 403,
    /// There is no such thing, or no such protocol.
    NotFound = 404,
    /// The budget of the request was spent.
    Timeout = 408,
    /// Something else happened first.
    Conflict = 409,
    /// The request is larger than the callee takes.
    TooLarge = 413,
    /// Refused before it began, because something was full. Ask again later.
    Busy = 429,
    /// The callee failed.
    Failed = 500,
    /// The callee is stopping or not ready.
    Unavailable = 503,
}

impl Code {
    const ALL: [Code; 13] = [
        Code::None,
        Code::Ok,
        Code::Partial,
        Code::BadRequest,
        Code::Unauthorized,
        Code::Forbidden,
        Code::NotFound,
        Code::Timeout,
        Code::Conflict,
        Code::TooLarge,
        Code::Busy,
        Code::Failed,
        Code::Unavailable,
    ];

    /// The code with this number, 0 included.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }

    /// The number as it is sent.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

/// One frame.
///
/// Decoded frames share the memory of the read they came in: what is kept for long should be copied.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// Kind, place in its message, and properties.
    pub flags: Flags,
    /// How a request went; [`Code::None`] unless this is an answer.
    pub code: Code,
    /// Which protocol the payload belongs to; [`PROTO_CONTROL`] is the connection's own.
    pub proto: u16,
    /// On whose behalf; 0 when unused.
    pub tenant: u128,
    /// Ties the frames of one exchange together.
    pub corr: u64,
    /// A capability; only on a frame with START.
    pub cap: Bytes,
    /// What the protocol says.
    pub payload: Bytes,
}

impl Frame {
    /// A request in one frame.
    #[must_use]
    pub fn request(proto: u16, corr: u64, payload: impl Into<Bytes>) -> Self {
        Frame { flags: Flags::REQ, proto, corr, payload: payload.into(), ..Frame::default() }
    }

    /// The whole answer to `request` in one frame.
    #[must_use]
    pub fn answer(request: &Frame, code: Code, payload: impl Into<Bytes>) -> Self {
        let Frame { proto, tenant, corr, .. } = *request;
        Frame { flags: Flags::RESP, code, proto, tenant, corr, payload: payload.into(), cap: Bytes::new() }
    }

    /// An event in one frame.
    #[must_use]
    pub fn event(proto: u16, corr: u64, payload: impl Into<Bytes>) -> Self {
        Frame { flags: Flags::EVENT, proto, corr, payload: payload.into(), ..Frame::default() }
    }
}

impl fmt::Debug for Frame {
    /// Without the payload, which may be large or private, and the capability, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Frame({:?} {} proto {} tenant {:x} corr {}, cap {} B, payload {} B)",
            self.flags,
            self.code.number(),
            self.proto,
            self.tenant,
            self.corr,
            self.cap.len(),
            self.payload.len()
        )
    }
}

/// Which rule of the frame format was broken. All but [`Compressed`](FrameError::Compressed) end the stream: after
/// them nobody knows where the next frame begins or what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The length is less than that of a header.
    #[error("frame length {len} is less than a header")]
    TooShort {
        /// The length as sent.
        len: u32,
    },
    /// The length is more than this end accepts. Nothing was allocated for it.
    #[error("frame length {len} is more than {max}")]
    TooLong {
        /// The length as sent, or as it would be.
        len: u64,
        /// The most that is accepted.
        max: u32,
    },
    /// The version is not 1.
    #[error("unknown frame version {version}")]
    UnknownVersion {
        /// The version as sent.
        version: u16,
    },
    /// A flag that version 1 does not have.
    #[error("unknown flag in {bits:#06x}")]
    UnknownFlag {
        /// The flags as sent.
        bits: u16,
    },
    /// Not exactly one of request, answer and event.
    #[error("flags {bits:#06x} are not exactly one of REQ, RESP and EVENT")]
    Kind {
        /// The flags as sent.
        bits: u16,
    },
    /// A code on a request or event, none on an answer, or one that is not in the list.
    #[error("code {code} does not belong on this frame")]
    BadCode {
        /// The code as sent.
        code: u16,
    },
    /// A capability on a frame without START.
    #[error("capability of {cap_len} bytes on a frame without START")]
    CapWithoutStart {
        /// The length of the capability as sent.
        cap_len: u16,
    },
    /// A capability longer than the frame, or than its length field can say.
    #[error("capability of {cap_len} bytes does not fit")]
    CapTooLong {
        /// The length of the capability.
        cap_len: u64,
    },
    /// A compressed payload, which version 1 reserves. The frame was skipped and the stream goes on;
    /// [`answer`](FrameError::answer) is what its sender is owed.
    #[error("compressed frames are not supported")]
    Compressed {
        /// Whether it was a request, and so is owed an answer.
        kind: Kind,
        /// Its protocol.
        proto: u16,
        /// Its tenant.
        tenant: u128,
        /// Its correlation.
        corr: u64,
    },
}

impl FrameError {
    /// The rule in one word, for counters: one of nine.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            FrameError::TooShort { .. } => "too_short",
            FrameError::TooLong { .. } => "too_long",
            FrameError::UnknownVersion { .. } => "version",
            FrameError::UnknownFlag { .. } => "flag",
            FrameError::Kind { .. } => "kind",
            FrameError::BadCode { .. } => "code",
            FrameError::CapWithoutStart { .. } => "cap_without_start",
            FrameError::CapTooLong { .. } => "cap_too_long",
            FrameError::Compressed { .. } => "compressed",
        }
    }

    /// Whether the stream ends here.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        !matches!(self, FrameError::Compressed { .. })
    }

    /// What the sender is owed, if the stream goes on and the frame was a request: 400 and the reason.
    #[must_use]
    pub fn answer(&self) -> Option<Frame> {
        let FrameError::Compressed { kind: Kind::Request, proto, tenant, corr } = *self else {
            return None;
        };
        Some(Frame {
            flags: Flags::RESP,
            code: Code::BadRequest,
            proto,
            tenant,
            corr,
            cap: Bytes::new(),
            payload: Bytes::from_static(self.reason().as_bytes()),
        })
    }
}

/// Why reading or writing frames ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The other end broke a rule of the format, or we were about to. Counted by reason.
    #[error("not a legal frame")]
    Frame(#[from] FrameError),
    /// Nothing came for longer than the stream may idle. Closing is all there is to do.
    #[error("idle for too long")]
    Idle,
    /// The other end takes or gives less than the slowest allowed rate.
    #[error("{op} is too slow")]
    Slow {
        /// `frame_read`, `frame_write` or `frame_close`.
        op: &'static str,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a frame")]
    Truncated,
    /// The stream failed.
    #[error("{op}: {message}")]
    Io {
        /// `frame_read`, `frame_write` or `frame_close`.
        op: &'static str,
        /// The kind of the underlying error.
        kind: io::ErrorKind,
        /// The text of the underlying error.
        message: String,
    },
}

impl WireError {
    fn io(op: &'static str, error: &io::Error) -> Self {
        WireError::Io { op, kind: error.kind(), message: error.to_string() }
    }
}

impl Refusal for WireError {
    fn kind(&self) -> ErrorKind {
        match self {
            WireError::Idle | WireError::Slow { .. } => ErrorKind::Timeout,
            _ => ErrorKind::Peer,
        }
    }
}
