//! What rpc puts into the payload of a frame: CBOR maps with integer keys, in the one deterministic way, read with
//! every length checked first. Keys that are not known are skipped.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use minicbor::{Decoder, Encoder};

use super::{
    super::{
        cbor::{self, CborFault},
        oap::{Code, Frame, PROTO_CONTROL},
    },
    Fault,
};

/// Bytes of the longest head of a request; ours has at most seventeen, the rest is for later versions.
pub(super) const ASK_BYTES_MAX: usize = 256;

/// Bytes of the longest control event, and of the longest explanation of a refusal.
const CONTROL_BYTES_MAX: usize = 256;
const FAULT_BYTES_MAX: usize = 1024;
const REASON_BYTES_MAX: usize = 256;

/// The longest pause that a peer can talk a caller into.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

const CONTROL_CREDIT: u64 = 1;
const CONTROL_CANCEL: u64 = 2;

/// Why a payload is not what rpc puts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// Not a CBOR map of definite length with ascending unsigned keys, or a value of the wrong type.
    #[error("malformed envelope")]
    Malformed,
    /// More bytes or keys than there may be.
    #[error("envelope too large")]
    TooLarge,
    /// A key that must be there is not.
    #[error("envelope lacks key {key}")]
    Missing {
        /// The key.
        key: u8,
    },
    /// A number beyond what its key allows.
    #[error("envelope has a value out of range at key {key}")]
    OutOfRange {
        /// The key.
        key: u8,
    },
}

impl From<CborFault> for EnvelopeError {
    fn from(fault: CborFault) -> Self {
        match fault {
            CborFault::TooMany { .. } => EnvelopeError::TooLarge,
            _ => EnvelopeError::Malformed,
        }
    }
}

impl From<minicbor::decode::Error> for EnvelopeError {
    fn from(_: minicbor::decode::Error) -> Self {
        EnvelopeError::Malformed
    }
}

/// The head of a request or event; the body follows it directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// What is asked.
    pub method: u16,
    /// The time it has left, in milliseconds. Zero on events.
    pub budget_ms: u32,
    /// Chunks the answer may have on its way before more are granted. Zero on events.
    pub credit: u32,
}

impl Ask {
    /// Head and body in one payload.
    #[must_use]
    pub fn encode(&self, body: &[u8]) -> Bytes {
        let mut payload = self.encode_into(Vec::with_capacity(20 + body.len()));
        payload.extend_from_slice(body);
        payload.into()
    }

    /// The head alone.
    pub(super) fn encode_into(&self, mut payload: Vec<u8>) -> Vec<u8> {
        let pairs = [(0, self.method.into()), (1, self.budget_ms.into()), (2, self.credit.into())];
        write_map(&mut payload, &pairs[..if self.budget_ms == 0 { 1 } else { 3 }]);
        payload
    }

    /// Takes the head off `payload` and returns it with the body, which shares the memory.
    ///
    /// # Errors
    /// An [`EnvelopeError`].
    pub fn decode(mut payload: Bytes) -> Result<(Ask, Bytes), EnvelopeError> {
        let head = &payload[..payload.len().min(ASK_BYTES_MAX)];
        let (mut method, mut budget_ms, mut credit) = (None, 0, 0);
        let read = read_map(head, |key, cbor| {
            match key {
                0 => method = Some(cbor.u64()?),
                1 => budget_ms = cbor.u64()?,
                2 => credit = cbor.u64()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let method = method.ok_or(EnvelopeError::Missing { key: 0 })?;
        let ask = Ask {
            method: u16::try_from(method).map_err(|_| EnvelopeError::OutOfRange { key: 0 })?,
            // More than the callee would ever allow means the same as what it allows.
            budget_ms: u32::try_from(budget_ms).unwrap_or(u32::MAX),
            credit: u32::try_from(credit).unwrap_or(u32::MAX),
        };
        payload.advance(read);
        Ok((ask, payload))
    }

    /// The time left as a duration.
    #[must_use]
    pub fn budget(&self) -> Duration {
        Duration::from_millis(self.budget_ms.into())
    }
}

/// What one end tells the other about an exchange, as an event of the connection's own protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// So many more chunks of the answer may come.
    Credit {
        /// The exchange.
        corr: u64,
        /// How many.
        chunks: u32,
    },
    /// The answer is not wanted any more. It must still be ended.
    Cancel {
        /// The exchange.
        corr: u64,
    },
}

impl Control {
    /// The frame that says it.
    #[must_use]
    pub fn frame(&self) -> Frame {
        let mut payload = Vec::with_capacity(16);
        match *self {
            Control::Credit { corr, chunks } => {
                write_map(&mut payload, &[(0, CONTROL_CREDIT), (1, corr), (2, chunks.into())]);
            }
            Control::Cancel { corr } => write_map(&mut payload, &[(0, CONTROL_CANCEL), (1, corr)]),
        }
        Frame::event(PROTO_CONTROL, 0, payload)
    }

    /// Reads the payload of a control event; `None` for a kind that is not known, which is to be ignored.
    ///
    /// # Errors
    /// An [`EnvelopeError`].
    pub fn decode(payload: &[u8]) -> Result<Option<Self>, EnvelopeError> {
        if payload.len() > CONTROL_BYTES_MAX {
            return Err(EnvelopeError::TooLarge);
        }
        let (mut kind, mut corr, mut chunks) = (None, None, None);
        let read = read_map(payload, |key, cbor| {
            match key {
                0 => kind = Some(cbor.u64()?),
                1 => corr = Some(cbor.u64()?),
                2 => chunks = Some(cbor.u64()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if read != payload.len() {
            return Err(EnvelopeError::Malformed);
        }
        let kind = kind.ok_or(EnvelopeError::Missing { key: 0 })?;
        if !(CONTROL_CREDIT..=CONTROL_CANCEL).contains(&kind) {
            return Ok(None);
        }
        let corr = corr.ok_or(EnvelopeError::Missing { key: 1 })?;
        if kind == CONTROL_CANCEL {
            return Ok(Some(Control::Cancel { corr }));
        }
        let chunks = chunks.ok_or(EnvelopeError::Missing { key: 2 })?;
        let chunks = u32::try_from(chunks).map_err(|_| EnvelopeError::OutOfRange { key: 2 })?;
        Ok(Some(Control::Credit { corr, chunks }))
    }
}

impl Fault {
    /// The payload of the answer that says it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut end = self.reason.len().min(REASON_BYTES_MAX);
        while !self.reason.is_char_boundary(end) {
            end -= 1;
        }
        let retry_ms = self.retry_after.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let payload = cbor::encode(16 + end, |cbor| {
            cbor.map(if retry_ms.is_some() { 2 } else { 1 })?.u64(0)?.str(&self.reason[..end])?;
            if let Some(retry_ms) = retry_ms {
                cbor.u64(1)?.u64(retry_ms)?;
            }
            cbor.ok()
        });
        payload.into()
    }

    /// What a refusal with `code` says. A payload that is not an explanation explains nothing: the code is enough.
    #[must_use]
    pub fn decode(code: Code, payload: &[u8]) -> Self {
        let (mut reason, mut retry_after) = (String::new(), None);
        if payload.len() <= FAULT_BYTES_MAX {
            let read = read_map(payload, |key, cbor| {
                match key {
                    0 => {
                        let text = cbor.str()?;
                        let fits = text.len() <= REASON_BYTES_MAX;
                        reason = if fits { text.to_owned() } else { String::new() };
                    }
                    1 => retry_after = Some(Duration::from_millis(cbor.u64()?).min(RETRY_AFTER_MAX)),
                    _ => return Ok(false),
                }
                Ok(true)
            });
            if read.is_err() {
                (reason, retry_after) = (String::new(), None);
            }
        }
        Fault { code, reason: reason.into(), retry_after }
    }
}

fn write_map(into: &mut Vec<u8>, pairs: &[(u64, u64)]) {
    let mut cbor = Encoder::new(into);
    let mut write = || {
        cbor.map(pairs.len() as u64)?;
        for (key, value) in pairs {
            cbor.u64(*key)?.u64(*value)?;
        }
        cbor.ok()
    };
    write().expect("writing to memory does not fail");
}

/// Reads a map, and returns how many bytes it took.
fn read_map<'b>(
    bytes: &'b [u8],
    entry: impl FnMut(u64, &mut Decoder<'b>) -> Result<bool, EnvelopeError>,
) -> Result<usize, EnvelopeError> {
    let mut cbor = Decoder::new(bytes);
    cbor::read_map(&mut cbor, entry)?;
    Ok(cbor.position())
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_head_and_its_body_are_told_apart() {
        let ask = Ask { method: 7, budget_ms: 1_500, credit: 16 };
        let payload = ask.encode(b"body");
        assert_eq!(&payload[..], b"\xa3\x00\x07\x01\x19\x05\xdc\x02\x10body");
        assert_eq!(Ask::decode(payload), Ok((ask, Bytes::from_static(b"body"))));
        let event = Ask { method: 1, budget_ms: 0, credit: 0 };
        assert_eq!(&event.encode(b"")[..], b"\xa1\x00\x01");
        assert_eq!(Ask::decode(event.encode(b"x")), Ok((event, Bytes::from_static(b"x"))));
    }

    #[test]
    fn unknown_keys_are_skipped_and_broken_heads_are_named() {
        let decode = |bytes: &'static [u8]| Ask::decode(Bytes::from_static(bytes)).map(|(ask, _)| ask.method);
        assert_eq!(decode(b"\xa2\x00\x05\x18\x63\x82\x01\x61a"), Ok(5));
        assert_eq!(decode(b""), Err(EnvelopeError::Malformed));
        assert_eq!(decode(b"\xa0"), Err(EnvelopeError::Missing { key: 0 }));
        assert_eq!(decode(b"\xbf\x00\x05\xff"), Err(EnvelopeError::Malformed));
        assert_eq!(decode(b"\xa2\x01\x05\x00\x05"), Err(EnvelopeError::Malformed));
        assert_eq!(decode(b"\xa1\x00\x1a\x00\x01\x00\x00"), Err(EnvelopeError::OutOfRange { key: 0 }));
        assert_eq!(decode(b"\xb8\x64"), Err(EnvelopeError::TooLarge));
        assert_eq!(decode(b"\xa1\x00\x61a"), Err(EnvelopeError::Malformed));
        // What is skipped has a form too: definite length, and no deeper than eight.
        assert_eq!(decode(b"\xa2\x00\x05\x09\x81\x9f\xff"), Err(EnvelopeError::Malformed));
        assert_eq!(decode(b"\xa2\x00\x05\x09\x81\x81\x81\x81\x81\x81\x81\x81\x01"), Ok(5));
        assert_eq!(
            decode(b"\xa2\x00\x05\x09\x81\x81\x81\x81\x81\x81\x81\x81\x81\x01"),
            Err(EnvelopeError::TooLarge)
        );
    }

    #[test]
    fn control_events_survive_the_wire_and_unknown_ones_are_ignored() {
        for control in [Control::Credit { corr: 9, chunks: 8 }, Control::Cancel { corr: u64::MAX }] {
            assert_eq!(Control::decode(&control.frame().payload), Ok(Some(control)));
        }
        assert_eq!(Control::decode(b"\xa1\x00\x18\x63"), Ok(None));
        assert_eq!(Control::decode(b"\xa1\x00\x02"), Err(EnvelopeError::Missing { key: 1 }));
        assert_eq!(Control::decode(b"\xa2\x00\x01\x01\x01"), Err(EnvelopeError::Missing { key: 2 }));
        assert_eq!(Control::decode(b"\xa2\x00\x02\x01\x01z"), Err(EnvelopeError::Malformed));
    }

    #[test]
    fn a_refusal_keeps_its_words_within_bounds() {
        let fault = Fault::busy("work", Duration::from_millis(40));
        assert_eq!(Fault::decode(Code::Busy, &fault.encode()), fault);
        let long = Fault::bad_request("ä".repeat(1000));
        assert_eq!(Fault::decode(Code::BadRequest, &long.encode()).reason, "ä".repeat(128));
        let for_ever = Fault::busy("work", Duration::MAX);
        assert_eq!(Fault::decode(Code::Busy, &for_ever.encode()).retry_after, Some(RETRY_AFTER_MAX));
        assert_eq!(Fault::decode(Code::Failed, b"\xff\xff"), Fault::new(Code::Failed, ""));
        assert_eq!(Fault::decode(Code::Failed, &[0xa1; 5000]), Fault::new(Code::Failed, ""));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..300)) {
            let whole = Bytes::from(bytes);
            if let Ok((ask, body)) = Ask::decode(whole.clone()) {
                prop_assert!(whole.ends_with(&body));
                let (again, same) = Ask::decode(Ask { budget_ms: ask.budget_ms.max(1), ..ask }.encode(&body)).expect("ours");
                prop_assert_eq!((again.method, again.credit, same), (ask.method, ask.credit, body));
            }
            let _ = Control::decode(&whole);
            let fault = Fault::decode(Code::Failed, &whole);
            prop_assert_eq!(Fault::decode(Code::Failed, &fault.encode()), fault);
        }
    }
}
