//! Why two nodes never both delete the last copies of an object, each because the other has one.
//!
//! A node trims only after others have shown that they have theirs and have promised to keep it for a while, and it makes no
//! such promise about what it is about to trim. Of two that ask each other, both are refused or one is, and never none. The
//! promise is longer than the one who asked may take until it has deleted, so nobody relies on one that has run out.
//!
//! Nothing of this survives a restart, and nothing has to. Of two nodes of which one deleted because the other had promised, the other
//! began to trim after that, whatever became of its promise: had it begun before, it would have made none. So along who relied on
//! whom the beginnings come later and later, there is no circle, and the last one relied on a node that never deleted. That does not
//! depend on any clock. What the time of a promise is for is that there are as many copies left as there should be, and not only one.

use std::{collections::BTreeMap, time::Duration};

use ron_core::ContentId;

use crate::planted::{Bug, is_planted};

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
    /// Somebody here is about to claim it.
    #[error("about to be claimed here")]
    Held,
    /// Somebody reads it here.
    #[error("being read here")]
    Read,
    /// Too many promises are outstanding.
    #[error("{PROMISED_MAX} promises are outstanding")]
    TooMany,
}

/// What a node has promised to keep, and what it is about to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Promises {
    kept: BTreeMap<ContentId, Duration>,
    trimming: BTreeMap<ContentId, Duration>,
    /// Pieces that are here for a claim that nobody has heard yet, and how many callers are about to make one.
    held: BTreeMap<ContentId, usize>,
    /// Pieces that are read here, and by how many.
    read: BTreeMap<ContentId, usize>,
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
    /// [`PromiseError::Promised`], [`PromiseError::Held`], [`PromiseError::Read`], [`PromiseError::Trimming`] if somebody is at it
    /// already.
    pub fn begin(&mut self, piece: ContentId, now: Duration) -> Result<(), PromiseError> {
        if self.kept.get(&piece).is_some_and(|until| *until > now) {
            return Err(PromiseError::Promised);
        }
        self.check_free(&piece)?;
        if self.read.contains_key(&piece) {
            return Err(PromiseError::Read);
        }
        self.kept.remove(&piece);
        self.trimming.insert(piece, now);
        Ok(())
    }

    /// Begins to delete a piece that nobody wants any more, whatever was promised about it.
    ///
    /// # Errors
    /// [`PromiseError::Held`], [`PromiseError::Trimming`] if somebody is at it already.
    pub fn begin_drop(&mut self, piece: ContentId, now: Duration) -> Result<(), PromiseError> {
        self.check_free(&piece)?;
        self.trimming.insert(piece, now);
        Ok(())
    }

    fn check_free(&self, piece: &ContentId) -> Result<(), PromiseError> {
        if self.held.contains_key(piece) && !is_planted(Bug::NotHeld) {
            return Err(PromiseError::Held);
        }
        if self.trimming.contains_key(piece) {
            return Err(PromiseError::Trimming);
        }
        Ok(())
    }

    /// Holds a piece until as many [`release`](Self::release)s: nobody begins to delete it here, whatever the claims that are
    /// known say about it.
    ///
    /// # Errors
    /// [`PromiseError::Trimming`]: it may be gone in a moment.
    pub fn hold(&mut self, piece: ContentId) -> Result<(), PromiseError> {
        if self.trimming.contains_key(&piece) {
            return Err(PromiseError::Trimming);
        }
        *self.held.entry(piece).or_default() += 1;
        Ok(())
    }

    /// Ends a [`hold`](Self::hold).
    pub fn release(&mut self, piece: &ContentId) {
        one_less(&mut self.held, piece);
    }

    /// A piece is read until as many [`read_over`](Self::read_over)s: it is not trimmed here meanwhile. What nobody wants any more goes
    /// all the same, or whoever reads slowly could keep what was deleted.
    ///
    /// # Errors
    /// [`PromiseError::Trimming`]: it may be gone in a moment.
    pub fn read(&mut self, piece: ContentId) -> Result<(), PromiseError> {
        if self.trimming.contains_key(&piece) {
            return Err(PromiseError::Trimming);
        }
        *self.read.entry(piece).or_default() += 1;
        Ok(())
    }

    /// Ends a [`read`](Self::read).
    pub fn read_over(&mut self, piece: &ContentId) {
        one_less(&mut self.read, piece);
    }

    /// Whether a piece is about to be deleted here. Who puts it meanwhile must not rely on its being here.
    #[must_use]
    pub fn is_trimming(&self, piece: &ContentId) -> bool {
        self.trimming.contains_key(piece)
    }

    /// Takes back what was just promised about a piece that is not here; an older promise was about nothing, too.
    pub fn withdraw(&mut self, piece: &ContentId) {
        self.kept.remove(piece);
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
}

fn one_less(counts: &mut BTreeMap<ContentId, usize>, piece: &ContentId) {
    if let Some(count) = counts.get_mut(piece) {
        *count -= 1;
        if *count == 0 {
            counts.remove(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    #[test]
    fn what_is_read_is_not_trimmed_and_dropped_all_the_same() {
        let (mut promises, piece) = (Promises::default(), ContentId::of(b"x"));
        assert_eq!((promises.read(piece), promises.read(piece)), (Ok(()), Ok(())));
        promises.read_over(&piece);
        assert_eq!(promises.begin(piece, START), Err(PromiseError::Read));
        promises.read_over(&piece);
        assert_eq!(promises.begin(piece, START), Ok(()));
        assert_eq!(promises.read(piece), Err(PromiseError::Trimming));
        promises.end(&piece);
        assert_eq!(promises.read(piece), Ok(()));
        assert_eq!(promises.begin_drop(piece, START), Ok(()));
    }

    #[test]
    fn what_is_held_is_not_deleted_and_what_is_being_deleted_not_held() {
        let (mut promises, piece) = (Promises::default(), ContentId::of(b"x"));
        assert_eq!((promises.hold(piece), promises.hold(piece)), (Ok(()), Ok(())));
        promises.release(&piece);
        assert_eq!(promises.begin(piece, START), Err(PromiseError::Held));
        assert_eq!(promises.begin_drop(piece, START), Err(PromiseError::Held));
        promises.release(&piece);
        assert_eq!(promises.begin(piece, START), Ok(()));
        assert_eq!(promises.hold(piece), Err(PromiseError::Trimming));
        promises.end(&piece);
        assert_eq!(promises.hold(piece), Ok(()));
    }

    #[test]
    fn what_is_promised_is_not_trimmed_and_what_is_trimmed_not_promised() {
        let (mut promises, piece) = (Promises::default(), ContentId::of(b"x"));
        assert_eq!(promises.promise(piece, START), Ok(PROMISE));
        assert_eq!(promises.begin(piece, PROMISE / 2), Err(PromiseError::Promised));
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
