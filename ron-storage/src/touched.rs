//! Objects that are younger than their place on the disk says: those that were put again, and those that took long to come.
//!
//! A collection tells young objects from old ones by where they are. But an object that is put again stays where it was, and
//! one that took an hour to arrive has the file number it got at the beginning; yet whoever put them has the grace to pin
//! them. Keeping this in memory is enough: after a restart nothing counts as old before the grace has passed again. Of each
//! name eight bytes are kept, for one to two graces. Two objects that share these keep each other, which harms nobody.

use std::{collections::HashSet, time::Duration};

use ron_core::{ContentId, Lock, LockSpec, Metrics};
use tokio::time::Instant;

pub(crate) const TOUCHED: LockSpec = LockSpec::new("ron-storage", "touched", 715)
    .guards("which objects are young although their places are old; held for one look or one change");

/// Names in one generation: 9 MiB, enough for eight hundred a second during ten minutes. If there are more, nothing is
/// collected until the grace has passed.
const NAMES_MAX: usize = 1 << 19;

/// Objects that were put lately and do not look so.
pub(crate) struct Touched {
    state: Lock<State>,
    names_max: usize,
}

struct State {
    began: Instant,
    now: HashSet<u64>,
    before: HashSet<u64>,
    /// Until when everything counts as young.
    all_until: Option<Instant>,
}

impl Touched {
    pub(crate) fn new(metrics: &Metrics, now: Instant) -> Self {
        Touched::with_limit(metrics, now, NAMES_MAX)
    }

    fn with_limit(metrics: &Metrics, now: Instant, names_max: usize) -> Self {
        let state = State { began: now, now: HashSet::new(), before: HashSet::new(), all_until: None };
        Touched { state: Lock::new(TOUCHED, state, metrics), names_max }
    }

    /// Notes that an object was put just now.
    pub(crate) fn touch(&self, id: &ContentId, now: Instant, grace: Duration) {
        let mut state = self.state.lock();
        state.turn(now, grace);
        if state.now.len() < self.names_max || state.now.contains(&short(id)) {
            state.now.insert(short(id));
        } else {
            state.all_until = Some(now + grace);
        }
    }

    /// Whether an object was put less than the grace ago, or somewhat more.
    pub(crate) fn is_young(&self, id: &ContentId, now: Instant, grace: Duration) -> bool {
        let mut state = self.state.lock();
        state.turn(now, grace);
        let name = short(id);
        state.all_until.is_some_and(|until| now < until)
            || state.now.contains(&name)
            || state.before.contains(&name)
    }
}

impl State {
    /// What was touched a grace and more ago may be forgotten when as much has passed again.
    fn turn(&mut self, now: Instant, grace: Duration) {
        let passed = now.saturating_duration_since(self.began);
        if passed < grace {
            return;
        }
        self.before = std::mem::take(&mut self.now);
        if passed >= grace.saturating_mul(2) {
            self.before = HashSet::new();
        }
        self.began = now;
    }
}

fn short(id: &ContentId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use ron_core::now;

    use super::*;

    const GRACE: Duration = Duration::from_secs(100);

    #[tokio::test(start_paused = true)]
    async fn what_is_touched_is_young_for_the_grace_and_not_for_ever() {
        let touched = Touched::new(&Metrics::default(), now());
        let (first, second) = (ContentId::of(b"1"), ContentId::of(b"2"));
        let is_young = |id: &ContentId| touched.is_young(id, now(), GRACE);
        tokio::time::advance(GRACE / 2).await;
        touched.touch(&first, now(), GRACE);
        for _ in 0..9 {
            assert!(is_young(&first) && !is_young(&second));
            tokio::time::advance(GRACE / 9).await;
        }
        tokio::time::advance(GRACE * 2).await;
        assert!(!is_young(&first));
    }

    #[tokio::test(start_paused = true)]
    async fn when_there_are_too_many_everything_is_young() {
        let touched = Touched::with_limit(&Metrics::default(), now(), 2);
        for name in [b"1", b"2", b"1"] {
            touched.touch(&ContentId::of(name), now(), GRACE);
        }
        let other = ContentId::of(b"4");
        assert!(!touched.is_young(&other, now(), GRACE));
        touched.touch(&ContentId::of(b"3"), now(), GRACE);
        assert!(touched.is_young(&other, now(), GRACE));
        tokio::time::advance(GRACE).await;
        assert!(!touched.is_young(&other, now(), GRACE));
    }
}
