//! Compressed request bodies, decoded no further than they are worth.
//!
//! A quarter of a megabyte of gzip can stand for a quarter of a gigabyte of zeros. So two limits hold while decoding,
//! not after it: the plain bytes the route takes, and ten plain bytes for each compressed one. The decoder stops in
//! the middle of a chunk when either is reached, so a bomb costs the limit and no more.

use std::io::{self, Write as _};

use axum::body::Bytes;
use flate2::write::MultiGzDecoder;

/// Plain bytes for each compressed one. JSON of real life stays below; a bomb is at a thousand.
const RATIO_MAX: u64 = 10;

/// Plain bytes that are allowed at any ratio: a short list of like things compresses better than 10 to 1 and harms
/// nobody.
const RATIO_FREE: u64 = 64 << 10;

/// Why a compressed body was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InflateError {
    /// More plain bytes than the limit.
    #[error("more plain bytes than allowed")]
    TooLarge,
    /// More plain bytes for each compressed one than an honest body has.
    #[error("compressed more than ten to one")]
    TooDense,
    /// Not gzip, damaged, or cut short.
    #[error("not valid gzip")]
    Malformed,
}

/// Decodes one gzip body piece by piece.
///
/// ```
/// use ron_core::http::{Inflate, InflateError};
///
/// let mut inflate = Inflate::gzip(1 << 20);
/// assert_eq!(inflate.push(b"not gzip at all"), Err(InflateError::Malformed));
/// ```
pub struct Inflate {
    decoder: MultiGzDecoder<Sink>,
    plain_max: u64,
    taken: u64,
    failed: Option<InflateError>,
}

/// Takes what it may and refuses the rest, which stops the decoder.
struct Sink {
    plain: Vec<u8>,
    given: u64,
    allowed: u64,
    over: bool,
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.given + self.plain.len() as u64 + bytes.len() as u64 > self.allowed {
            self.over = true;
            return Err(io::Error::other("over the limit"));
        }
        self.plain.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inflate {
    /// A gzip body of at most `plain_max` plain bytes.
    #[must_use]
    pub fn gzip(plain_max: u64) -> Self {
        let sink = Sink { plain: Vec::new(), given: 0, allowed: 0, over: false };
        Inflate { decoder: MultiGzDecoder::new(sink), plain_max, taken: 0, failed: None }
    }

    /// Decodes the next piece.
    ///
    /// # Errors
    /// [`InflateError`]; the same again for every later call.
    pub fn push(&mut self, compressed: &[u8]) -> Result<Bytes, InflateError> {
        self.taken += compressed.len() as u64;
        self.step(|decoder| decoder.write_all(compressed))
    }

    /// Says that the body is complete, and returns what was still held back.
    ///
    /// # Errors
    /// [`InflateError::Malformed`] if it was cut short or its checksum is wrong.
    pub fn finish(&mut self) -> Result<Bytes, InflateError> {
        self.step(MultiGzDecoder::try_finish)
    }

    fn step(
        &mut self,
        work: impl FnOnce(&mut MultiGzDecoder<Sink>) -> io::Result<()>,
    ) -> Result<Bytes, InflateError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let dense = (self.taken * RATIO_MAX).max(RATIO_FREE);
        self.decoder.get_mut().allowed = self.plain_max.min(dense);
        if work(&mut self.decoder).is_err() {
            let error = match self.decoder.get_ref().over {
                true if dense < self.plain_max => InflateError::TooDense,
                true => InflateError::TooLarge,
                false => InflateError::Malformed,
            };
            self.failed = Some(error);
            self.decoder.get_mut().plain = Vec::new();
            return Err(error);
        }
        let sink = self.decoder.get_mut();
        sink.given += sink.plain.len() as u64;
        Ok(std::mem::take(&mut sink.plain).into())
    }
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate")
            .field("taken", &self.taken)
            .field("given", &self.decoder.get_ref().given)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn inflate(body: &[u8], max: u64, piece: usize) -> Result<Vec<u8>, InflateError> {
        let mut inflate = Inflate::gzip(max);
        let mut plain = Vec::new();
        for piece in body.chunks(piece) {
            plain.extend_from_slice(&inflate.push(piece)?);
        }
        plain.extend_from_slice(&inflate.finish()?);
        Ok(plain)
    }

    #[test]
    fn every_split_gives_the_same_bytes() {
        let plain: Vec<u8> = (0..5_000_u32).flat_map(|n| (n * n).to_string().into_bytes()).collect();
        let body = gzip(&plain);
        for piece in [1, 2, 7, 1000, body.len()] {
            assert_eq!(inflate(&body, 1 << 20, piece).as_deref(), Ok(&plain[..]), "{piece}");
        }
    }

    #[test]
    fn limits_hold_at_their_edge() {
        let mut rng = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(100_000).collect();
        let body = gzip(&noise);
        assert!(inflate(&body, 100_000, 4096).is_ok());
        assert_eq!(inflate(&body, 99_999, 4096), Err(InflateError::TooLarge));
        let zeros = gzip(&vec![0; 1 << 20]);
        assert_eq!(inflate(&zeros, 1 << 30, 4096), Err(InflateError::TooDense));
        // Short and dense is a list of like things, not a bomb.
        assert!(inflate(&gzip(&vec![0; 60_000]), 1 << 20, 4096).is_ok());
    }

    #[test]
    fn damage_is_told_once_and_again() {
        let mut body = gzip(b"some words that are long enough to be worth it");
        assert_eq!(inflate(&body[..body.len() - 1], 1 << 20, 64), Err(InflateError::Malformed));
        let at = body.len() - 6;
        body[at] ^= 1;
        assert_eq!(inflate(&body, 1 << 20, 64), Err(InflateError::Malformed));
        let mut broken = Inflate::gzip(100);
        assert_eq!(broken.push(b"nonsense, and enough of it"), Err(InflateError::Malformed));
        assert_eq!(broken.push(&gzip(b"fine")), Err(InflateError::Malformed));
    }
}
