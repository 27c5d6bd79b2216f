//! Why two nodes never both delete the last copies of an object, each because the other has one.
//!
//! A node trims only after others have shown that they have theirs and have promised to keep it for a while, and it makes no
//! such promise about what it is about to trim. Of two that ask each other, both are refused or one is, and never none. The
//! promise is longer than the one who asked may take until it has deleted, so nobody relies on one that has run out.
//!
//! Nothing of this survives a restart, and nothing has to: what a node that restarts had promised matters only to one that is
//! trimming, which makes no promise itself and has to be asked before the other may trim.

use std::{collections::BTreeMap, time::Duration};

use ron_core::ContentId;

/// How long a promise holds.
pub const PROMISE: Duration = Duration::from_secs(600);

/// How long after the first promise a node may still delete. Far less than a promise holds, since clocks run apart and answers
/// take their time.
pub const TRIM_WITHIN: Duration = Duration::from_secs(120);

/// Promises that a node may have made at a time; beyond that it makes no more until some have run out. 5 MiB.
const PROMISED_MAX: usize = 65_536;

/// Why there is no promise, or no trimming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromiseError {
    /// This node is about to delete it itself.
    #[error("about to be trimmed here")]
    Trimming,
    /// This node has promised to keep it.
    #[error("promised to be kept here")]
    Promised,
    /// Too many promises are outstanding.
    #[error("{PROMISED_MAX} promises are outstanding")]
    TooMany,
}

/// What a node has promised to keep, and what it is about to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Promises {
    kept: BTreeMap<ContentId, Duration>,
    trimming: BTreeMap<ContentId, Duration>,
}

impl Promises {
    /// Promises to keep a piece until the time returned.
    ///
    /// # Errors
    /// [`PromiseError::Trimming`], [`PromiseError::TooMany`].
    pub fn promise(&mut self, piece: ContentId, now: Duration) -> Result<Duration, PromiseError> {
        if self.trimming.contains_key(&piece) {
            return Err(PromiseError::Trimming);
        }
        if self.kept.len() >= PROMISED_MAX && !self.kept.contains_key(&piece) {
            self.kept.retain(|_, until| *until > now);
            if self.kept.len() >= PROMISED_MAX {
                return Err(PromiseError::TooMany);
            }
        }
        let until = now + PROMISE;
        self.kept.insert(piece, until);
        Ok(until)
    }

    /// Begins to trim a piece: from now until [`end`](Self::end) it is not promised to anybody. Others are asked after this.
    ///
    /// # Errors
    /// [`PromiseError::Promised`], [`PromiseError::Trimming`] if somebody is at it already.
    pub fn begin(&mut self, piece: ContentId, now: Duration) -> Result<(), PromiseError> {
        if self.kept.get(&piece).is_some_and(|until| *until > now) {
            return Err(PromiseError::Promised);
        }
        if self.trimming.contains_key(&piece) {
            return Err(PromiseError::Trimming);
        }
        self.kept.remove(&piece);
        self.trimming.insert(piece, now);
        Ok(())
    }

    /// Whether what was begun may still delete.
    #[must_use]
    pub fn may_delete(&self, piece: &ContentId, now: Duration) -> bool {
        self.trimming.get(piece).is_some_and(|began| now < *began + TRIM_WITHIN)
    }

    /// Ends what was begun, whether or not it deleted.
    pub fn end(&mut self, piece: &ContentId) {
        self.trimming.remove(piece);
    }

    /// Whether it was promised to keep a piece.
    #[must_use]
    pub fn is_promised(&self, piece: &ContentId, now: Duration) -> bool {
        self.kept.get(piece).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    #[test]
    fn what_is_promised_is_not_trimmed_and_what_is_trimmed_not_promised() {
        let (mut promises, piece) = (Promises::default(), ContentId::of(b"x"));
        assert_eq!(promises.promise(piece, START), Ok(PROMISE));
        assert_eq!(promises.begin(piece, PROMISE / 2), Err(PromiseError::Promised));
        assert!(promises.is_promised(&piece, PROMISE / 2) && !promises.is_promised(&piece, PROMISE));
        assert_eq!(promises.begin(piece, PROMISE), Ok(()));
        assert_eq!(promises.begin(piece, PROMISE), Err(PromiseError::Trimming));
        assert_eq!(promises.promise(piece, PROMISE), Err(PromiseError::Trimming));
        assert!(promises.may_delete(&piece, PROMISE));
        assert!(!promises.may_delete(&piece, PROMISE + TRIM_WITHIN));
        promises.end(&piece);
        assert!(!promises.may_delete(&piece, PROMISE));
        assert_eq!(promises.promise(piece, PROMISE), Ok(PROMISE * 2));
    }

    #[test]
    fn promises_are_bounded_and_run_out() {
        let mut promises = Promises::default();
        for number in 0..PROMISED_MAX as u64 {
            promises.promise(ContentId::of(&number.to_be_bytes()), START).unwrap();
        }
        let more = ContentId::of(b"more");
        assert_eq!(promises.promise(more, START), Err(PromiseError::TooMany));
        assert!(promises.promise(ContentId::of(&0_u64.to_be_bytes()), START).is_ok());
        assert!(promises.promise(more, PROMISE * 2).is_ok());
    }
}
