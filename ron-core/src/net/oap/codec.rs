//! Bytes to frames and back.
//!
//! The decoder looks at the length as soon as its four bytes are there and at the rest of the header as soon as that
//! is complete, so a bad frame is refused before its payload arrives and long before memory is taken for it. What it
//! hands out shares the memory that was read into.

use std::io::IoSlice;

use bytes::{Buf, BufMut as _, Bytes, BytesMut};

use super::{Code, FRAME_BYTES_MAX, Flags, Frame, FrameError, HEADER_BYTES, Kind, VERSION};

/// Takes frames off the front of a buffer.
///
/// It keeps nothing between calls: how the bytes were cut into reads cannot change what comes out.
#[derive(Debug, Clone)]
pub struct Decoder {
    frame_bytes_max: u32,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new(FRAME_BYTES_MAX)
    }
}

impl Decoder {
    /// A decoder of frames up to `frame_bytes_max`, which is cut to what the format allows.
    #[must_use]
    pub fn new(frame_bytes_max: usize) -> Self {
        let max = frame_bytes_max.clamp(HEADER_BYTES, FRAME_BYTES_MAX);
        Decoder { frame_bytes_max: u32::try_from(max).expect("a mebibyte fits") }
    }

    /// The next frame; `None` when more bytes are needed. A frame is taken off the buffer whole or not at all.
    ///
    /// # Errors
    /// A [`FrameError`]. If it is fatal the buffer is left as it is, and asking again says the same.
    pub fn decode(&self, from: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(len) = self.frame_len(from)? else { return Ok(None) };
        let Some(header) = from.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::read(header)?;
        if from.len() < len {
            return Ok(None);
        }
        let mut body = from.split_to(len).freeze();
        body.advance(HEADER_BYTES);
        let cap = body.split_to(usize::from(header.cap_len));
        let Header { flags, code, proto, tenant, corr, kind, .. } = header;
        if flags.has(Flags::COMP) {
            return Err(FrameError::Compressed { kind, proto, tenant, corr });
        }
        Ok(Some(Frame { flags, code, proto, tenant, corr, cap, payload: body }))
    }

    /// Bytes that must come before [`decode`](Self::decode) can say more: the rest of the header, then of the frame.
    /// Zero when it can say something now.
    #[must_use]
    pub fn missing(&self, buffered: &[u8]) -> usize {
        if buffered.len() < HEADER_BYTES {
            return HEADER_BYTES - buffered.len();
        }
        match self.frame_len(buffered) {
            Ok(Some(len)) => len.saturating_sub(buffered.len()),
            _ => 0,
        }
    }

    fn frame_len(&self, buffered: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(len) = buffered.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else {
            return Ok(None);
        };
        if (len as usize) < HEADER_BYTES {
            return Err(FrameError::TooShort { len });
        }
        if len > self.frame_bytes_max {
            return Err(FrameError::TooLong { len: len.into(), max: self.frame_bytes_max });
        }
        Ok(Some(len as usize))
    }
}

/// The fixed part, checked.
struct Header {
    flags: Flags,
    kind: Kind,
    code: Code,
    proto: u16,
    tenant: u128,
    cap_len: u16,
    corr: u64,
}

impl Header {
    /// Reads what follows the length, which must be at least that of a header.
    fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let mut rest = &bytes[..];
        let len = u64::from(rest.get_u32());
        let version = rest.get_u16();
        if version != VERSION {
            // Nothing behind an unknown version has a known meaning.
            return Err(FrameError::UnknownVersion { version });
        }
        let flags = Flags::from_bits(rest.get_u16())?;
        let code = rest.get_u16();
        let code = Code::from_number(code).ok_or(FrameError::BadCode { code })?;
        let proto = rest.get_u16();
        let tenant = rest.get_u128();
        let cap_len = rest.get_u16();
        let corr = rest.get_u64();
        let kind = check(flags, code, cap_len)?;
        if HEADER_BYTES as u64 + u64::from(cap_len) > len {
            return Err(FrameError::CapTooLong { cap_len: cap_len.into() });
        }
        Ok(Header { flags, kind, code, proto, tenant, cap_len, corr })
    }
}

/// The rules between fields, the same for what is read and what is written.
fn check(flags: Flags, code: Code, cap_len: u16) -> Result<Kind, FrameError> {
    let kind = flags.kind()?;
    if (kind == Kind::Answer) == (code == Code::None) {
        return Err(FrameError::BadCode { code: code.number() });
    }
    if cap_len > 0 && !flags.has(Flags::START) {
        return Err(FrameError::CapWithoutStart { cap_len });
    }
    Ok(kind)
}

impl Frame {
    /// The frame as it is sent: a header, and the capability and payload as they are, for a vectored write.
    ///
    /// # Errors
    /// The [`FrameError`] that the other end would find.
    pub fn encode(self) -> Result<Encoded, FrameError> {
        Ok(Encoded { header: self.header()?, sent: 0, cap: self.cap, payload: self.payload })
    }

    /// What is sent before the capability and the payload.
    pub(super) fn header(&self) -> Result<[u8; HEADER_BYTES], FrameError> {
        let cap_len = u16::try_from(self.cap.len());
        let cap_len = cap_len.map_err(|_| FrameError::CapTooLong { cap_len: self.cap.len() as u64 })?;
        let kind = check(self.flags, self.code, cap_len)?;
        if self.flags.has(Flags::COMP) {
            let Frame { proto, tenant, corr, .. } = *self;
            return Err(FrameError::Compressed { kind, proto, tenant, corr });
        }
        let len = self.encoded_len();
        if len > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { len: len as u64, max: FRAME_BYTES_MAX as u32 });
        }
        let mut header = [0; HEADER_BYTES];
        let mut rest = &mut header[..];
        rest.put_u32(len as u32);
        rest.put_u16(VERSION);
        rest.put_u16(self.flags.bits());
        rest.put_u16(self.code.number());
        rest.put_u16(self.proto);
        rest.put_u128(self.tenant);
        rest.put_u16(cap_len);
        rest.put_u64(self.corr);
        Ok(header)
    }

    /// Bytes of the whole frame.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        HEADER_BYTES.saturating_add(self.cap.len()).saturating_add(self.payload.len())
    }
}

/// A frame ready to be written. It is a [`Buf`] of up to three pieces, none of which was copied.
#[derive(Clone)]
pub struct Encoded {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are written already.
    sent: usize,
    cap: Bytes,
    payload: Bytes,
}

impl Encoded {
    /// Header, capability and payload: what is left of them to write.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.header[self.sent..], &self.cap, &self.payload]
    }
}

impl Buf for Encoded {
    fn remaining(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.parts().into_iter().find(|part| !part.is_empty()).unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let parts = self.parts().into_iter().filter(|part| !part.is_empty());
        into.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining(), "cannot advance past the end of the frame");
        let header = count.min(HEADER_BYTES - self.sent);
        self.sent += header;
        count -= header;
        let cap = count.min(self.cap.len());
        self.cap.advance(cap);
        self.payload.advance(count - cap);
    }
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Encoded({} B left)", self.remaining())
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use allocation_counter::measure;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut encoded = frame.clone().encode().expect("a legal frame");
        encoded.copy_to_bytes(encoded.remaining()).to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        Decoder::default().decode(&mut BytesMut::from(bytes))
    }

    /// A header that says what it is told to, legal or not.
    fn header(len: u32, version: u16, flags: u16, code: u16, cap_len: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32(len);
        bytes.put_u16(version);
        bytes.put_u16(flags);
        bytes.put_u16(code);
        bytes.put_u16(9);
        bytes.put_u128(0);
        bytes.put_u16(cap_len);
        bytes.put_u64(7);
        bytes
    }

    prop_compose! {
        fn frames()(
            kind in 0..3_u16, place in 0..4_u16, rest in 0..4_u16, code in 1..Code::ALL.len(),
            proto: u16, tenant: u128, corr: u64, cap in vec(any::<u8>(), 0..40), payload in vec(any::<u8>(), 0..200),
        ) -> Frame {
            let flags = Flags::from_bits(1 << kind | place << 3 | (rest & 1) << 5 | (rest & 2) << 6).expect("known bits");
            let code = if kind == 1 { Code::ALL[code] } else { Code::None };
            let cap = if flags.has(Flags::START) { cap } else { Vec::new() };
            Frame { flags, code, proto, tenant, corr, cap: cap.into(), payload: payload.into() }
        }
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same_frames(sent in vec(frames(), 1..4)) {
            let bytes: Vec<u8> = sent.iter().flat_map(bytes_of).collect();
            let decoder = Decoder::default();
            for split in 0..=bytes.len() {
                let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
                for part in [&bytes[..split], &bytes[split..]] {
                    buffer.extend_from_slice(part);
                    while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
                        got.push(frame);
                    }
                }
                prop_assert_eq!(&got, &sent);
                prop_assert!(buffer.is_empty());
            }
        }

        #[test]
        fn one_byte_at_a_time_needs_exactly_what_it_says(frame in frames()) {
            let bytes = bytes_of(&frame);
            let decoder = Decoder::default();
            let mut buffer = BytesMut::new();
            for (at, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(decoder.decode(&mut buffer).unwrap(), None);
                let missing = decoder.missing(&buffer);
                prop_assert!(missing > 0 && at + missing <= bytes.len());
                buffer.put_u8(*byte);
            }
            prop_assert_eq!(decoder.missing(&buffer), 0);
            prop_assert_eq!(decoder.decode(&mut buffer).unwrap(), Some(frame));
        }

        #[test]
        fn arbitrary_bytes_give_a_frame_that_encodes_to_them_or_an_error(bytes in vec(any::<u8>(), 0..100)) {
            if let Ok(Some(frame)) = decode(&bytes) {
                let again = bytes_of(&frame);
                prop_assert_eq!(&again[..], &bytes[..again.len()]);
            }
        }

        #[test]
        fn a_write_may_stop_anywhere(frame in frames(), stop: prop::sample::Index) {
            let whole = bytes_of(&frame);
            let mut encoded = frame.encode().unwrap();
            let stop = stop.index(whole.len());
            encoded.advance(stop);
            prop_assert_eq!(encoded.parts().concat(), &whole[stop..]);
            let mut slices = [IoSlice::new(&[]); 3];
            let count = encoded.chunks_vectored(&mut slices);
            let gathered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            prop_assert_eq!(gathered, encoded.remaining());
        }
    }

    #[test]
    fn each_rule_has_its_error() {
        let check = |bytes: Vec<u8>, reason: &str| {
            let error = decode(&bytes).unwrap_err();
            assert_eq!(error.reason(), reason, "{error:?}");
            assert_eq!(error.is_fatal(), reason != "compressed");
        };
        check(vec![0; 4], "too_short");
        check(header(37, 1, 1, 0, 0), "too_short");
        check(header(1 << 20 | 1, 1, 1, 0, 0), "too_long");
        check(header(u32::MAX, 1, 1, 0, 0)[..4].to_vec(), "too_long");
        check(header(38, 0, 1, 0, 0), "version");
        check(header(38, 2, 1, 0, 0), "version");
        check(header(38, 1, 1 << 8 | 1, 0, 0), "flag");
        check(header(38, 1, 1 << 15 | 1, 0, 0), "flag");
        for kind in [0, 0b011, 0b101, 0b110, 0b111] {
            check(header(38, 1, kind, 0, 0), "kind");
        }
        check(header(38, 1, 1, 200, 0), "code");
        check(header(38, 1, 4, 200, 0), "code");
        check(header(38, 1, 2, 0, 0), "code");
        check(header(38, 1, 2, 201, 0), "code");
        check(header(39, 1, 1, 0, 1), "cap_without_start");
        check(header(38, 1, 1 | 8, 0, 1), "cap_too_long");
        check(header(38, 1, 1 | 64, 0, 0), "compressed");
    }

    /// The payload has not come yet, and need not.
    #[test]
    fn a_bad_header_is_refused_before_its_payload_comes() {
        assert_eq!(decode(&header(1 << 20, 3, 1, 0, 0)), Err(FrameError::UnknownVersion { version: 3 }));
    }

    #[test]
    fn an_error_is_repeated_and_consumes_nothing() {
        let mut buffer = BytesMut::from(&header(38, 2, 1, 0, 0)[..]);
        for _ in 0..3 {
            assert!(Decoder::default().decode(&mut buffer).is_err());
            assert_eq!(buffer.len(), 38);
        }
    }

    #[test]
    fn a_compressed_request_is_skipped_and_owed_an_answer() {
        let mut buffer = BytesMut::from(&header(41, 1, 1 | 64, 0, 0)[..]);
        buffer.extend_from_slice(b"zip");
        let after = Frame::request(3, 8, &b"plain"[..]);
        buffer.extend_from_slice(&bytes_of(&after));
        let error = Decoder::default().decode(&mut buffer).unwrap_err();
        let answer = error.answer().unwrap();
        assert_eq!(
            (answer.flags, answer.code, answer.proto, answer.corr),
            (Flags::RESP, Code::BadRequest, 9, 7)
        );
        assert_eq!(Decoder::default().decode(&mut buffer), Ok(Some(after)));
        for flags in [2, 4] {
            let code = if flags == 2 { 200 } else { 0 };
            let error = decode(&header(38, 1, flags | 64, code, 0)).unwrap_err();
            assert_eq!(error.answer(), None, "only a request is owed anything");
        }
    }

    #[test]
    fn the_largest_frame_passes_and_one_byte_more_does_not() {
        for payload in [0, 1, FRAME_BYTES_MAX - HEADER_BYTES] {
            let frame = Frame::request(1, 1, vec![7; payload]);
            assert_eq!(decode(&bytes_of(&frame)), Ok(Some(frame)));
        }
        let over = Frame::request(1, 1, vec![7; FRAME_BYTES_MAX - HEADER_BYTES + 1]);
        assert_eq!(over.encode().unwrap_err().reason(), "too_long");
        let small = Decoder::new(100);
        let mut buffer = BytesMut::from(&header(101, 1, 1, 0, 0)[..]);
        assert_eq!(small.decode(&mut buffer), Err(FrameError::TooLong { len: 101, max: 100 }));
    }

    #[test]
    fn what_would_not_decode_does_not_encode() {
        let frame = || Frame::request(1, 1, Bytes::new());
        let check = |frame: Frame, reason| assert_eq!(frame.encode().unwrap_err().reason(), reason);
        check(Frame { flags: Flags::NONE, ..frame() }, "kind");
        check(Frame { code: Code::Ok, ..frame() }, "code");
        check(Frame { cap: Bytes::from_static(b"c"), ..frame() }, "cap_without_start");
        let flags = Flags::REQ | Flags::START;
        check(Frame { flags, cap: vec![0; 65_536].into(), ..frame() }, "cap_too_long");
        check(Frame { flags: Flags::REQ | Flags::COMP, ..frame() }, "compressed");
        assert!(Frame { flags, cap: vec![0; 65_535].into(), ..frame() }.encode().is_ok());
    }

    #[test]
    fn the_largest_value_of_each_field_does_no_harm() {
        let mut legal = header(38, 1, 1, 0, 0);
        legal[10..28].fill(0xff); // proto and tenant
        legal[30..].fill(0xff); // corr
        let frame = decode(&legal).unwrap().unwrap();
        assert_eq!((frame.proto, frame.tenant, frame.corr), (u16::MAX, u128::MAX, u64::MAX));
        for (from, to) in [(0, 4), (4, 6), (6, 8), (8, 10), (28, 30)] {
            let mut bytes = header(38, 1, 1, 0, 0);
            bytes[from..to].fill(0xff);
            assert!(decode(&bytes).is_err(), "bytes {from}..{to}");
        }
        assert!(decode(&[0xff; 200]).is_err());
    }

    #[test]
    fn four_gibibytes_claimed_cost_nothing() {
        let claim = header(u32::MAX, 1, 1, 0, 0);
        let used = measure(|| {
            let mut buffer = BytesMut::from(&claim[..]);
            assert_eq!(Decoder::default().missing(&buffer), 0);
            assert!(Decoder::default().decode(&mut buffer).is_err());
        });
        assert!(used.bytes_max < 1024, "{used:?}");
    }

    #[test]
    fn decoding_copies_no_payload() {
        let frame = Frame::request(1, 1, vec![7; 500_000]);
        let mut buffer = BytesMut::from(&bytes_of(&frame)[..]);
        let used = measure(|| {
            assert_eq!(Decoder::default().decode(&mut buffer).unwrap().unwrap().payload.len(), 500_000)
        });
        assert!(used.bytes_total < 1024, "{used:?}");
    }
}
