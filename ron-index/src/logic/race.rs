//! Asking several who might know: the first few at once, others when those are slow, until somebody has answered well.
//!
//! First *success* wins: an error, however fast, only makes room for the next one to be asked, and is the answer only when
//! nobody is left. Every target is asked once, and again only after an error that passes. What is asked because others are
//! slow (a hedge) is paid from a budget; what is asked because others have failed is not, since it replaces a question.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How a race is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaceSettings {
    /// Targets that are asked at once.
    pub alpha: usize,
    /// Targets that are asked besides, when those are slow.
    pub beta: usize,
    /// How long those may take before others are asked besides.
    pub hedge_after: Duration,
    /// Times that a question may be asked again, in all.
    pub retries: u32,
    /// Whether another target is asked when one has failed. Not where the first one's word is worth more than the next
    /// one's: whoever could silence it would decide.
    pub fails_over: bool,
}

/// How a target answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With what was wanted: the race is over.
    Enough,
    /// With something, or with nothing that decides.
    Little {
        /// Whether it can say that there is no more.
        is_final: bool,
    },
    /// Not.
    Failed {
        /// Whether it may do so a moment later.
        is_transient: bool,
    },
}

/// A question to be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Of whom.
    pub target: usize,
    /// Whether it is asked because others are slow.
    pub is_hedge: bool,
    /// Whether it was asked before and failed.
    pub is_retry: bool,
}

/// How a race ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Somebody answered with what was wanted.
    Won {
        /// Who.
        by: usize,
        /// Whether that one was asked because others were slow.
        is_hedge: bool,
    },
    /// Everybody who could be asked was.
    Spent {
        /// Targets that answered.
        answered: usize,
        /// Whether one of them can say that there is no more.
        is_final: bool,
        /// Targets that failed.
        failed: usize,
        /// Targets that were not asked because they keep failing.
        refused: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not asked.
    Idle,
    /// Asked.
    Out,
    /// To be asked again then.
    Waiting(Instant),
    Answered {
        is_final: bool,
    },
    Failed,
    /// Not to be asked.
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Target {
    state: State,
    is_hedge: bool,
}

/// One race.
#[derive(Debug)]
pub struct Race {
    settings: RaceSettings,
    targets: Vec<Target>,
    questions: VecDeque<Question>,
    hedge_at: Option<Instant>,
    retries: u32,
    /// Whether hedges were asked.
    hedged: bool,
    won: Option<usize>,
    rng: fastrand::Rng,
}

/// The pause before a question is asked again.
const RETRY_PAUSE: std::ops::RangeInclusive<u64> = 50..=100;

impl Race {
    /// A race between so many targets, the best first.
    #[must_use]
    pub fn new(targets: usize, settings: RaceSettings, rng: fastrand::Rng, now: Instant) -> Self {
        let target = Target { state: State::Idle, is_hedge: false };
        let mut race = Race {
            settings,
            targets: vec![target; targets],
            questions: VecDeque::new(),
            hedge_at: Some(now + settings.hedge_after).filter(|_| settings.beta > 0),
            retries: settings.retries,
            hedged: false,
            won: None,
            rng,
        };
        for _ in 0..settings.alpha.max(1) {
            race.ask_next(false);
        }
        race
    }

    /// Asks one who was not asked yet, if there is one.
    fn ask_next(&mut self, is_hedge: bool) -> bool {
        let Some(target) = self.targets.iter().position(|target| target.state == State::Idle) else {
            return false;
        };
        self.targets[target] = Target { state: State::Out, is_hedge };
        self.questions.push_back(Question { target, is_hedge, is_retry: false });
        true
    }

    /// The next question to be asked.
    pub fn poll(&mut self) -> Option<Question> {
        self.questions.pop_front().filter(|_| self.won.is_none())
    }

    /// A question is not asked, because its target keeps failing.
    pub fn on_refused(&mut self, target: usize) {
        self.targets[target].state = State::Refused;
        if self.settings.fails_over {
            self.ask_next(false);
        }
    }

    /// A target has answered.
    pub fn on_outcome(&mut self, target: usize, outcome: Outcome, now: Instant) {
        if self.won.is_some() || self.targets[target].state != State::Out {
            return;
        }
        let (state, ask_another) = match outcome {
            Outcome::Enough => {
                self.won = Some(target);
                return;
            }
            // The next one may know more. One that says that there is no more is believed.
            Outcome::Little { is_final } => (State::Answered { is_final }, true),
            Outcome::Failed { is_transient } if is_transient && self.retries > 0 => {
                self.retries -= 1;
                let pause = Duration::from_millis(self.rng.u64(RETRY_PAUSE));
                (State::Waiting(now + pause), self.settings.fails_over)
            }
            Outcome::Failed { .. } => (State::Failed, self.settings.fails_over),
        };
        self.targets[target].state = state;
        if ask_another {
            self.ask_next(false);
        }
    }

    /// Time has passed. `spend` takes a hedge from the budget, or says that it is spent.
    pub fn on_tick(&mut self, now: Instant, mut spend: impl FnMut() -> bool) {
        for target in 0..self.targets.len() {
            if matches!(self.targets[target].state, State::Waiting(until) if until <= now) {
                self.targets[target].state = State::Out;
                let is_hedge = self.targets[target].is_hedge;
                self.questions.push_back(Question { target, is_hedge, is_retry: true });
            }
        }
        if self.hedge_at.is_some_and(|at| at <= now) {
            self.hedge_at = None;
            let is_slow = self.count(|state| state == State::Out) > 0;
            for _ in 0..self.settings.beta {
                let has_idle = self.targets.iter().any(|target| target.state == State::Idle);
                if !is_slow || !has_idle || !spend() {
                    break;
                }
                self.hedged |= self.ask_next(true);
            }
        }
    }

    /// When the clock matters next.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let has_idle = self.targets.iter().any(|target| target.state == State::Idle);
        let hedge = self.hedge_at.filter(|_| has_idle);
        let waiting = self.targets.iter().filter_map(|target| match target.state {
            State::Waiting(until) => Some(until),
            _ => None,
        });
        waiting.chain(hedge).min()
    }

    /// Whether somebody was asked because others were slow.
    #[must_use]
    pub fn was_hedged(&self) -> bool {
        self.hedged
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        if let Some(by) = self.won {
            return Some(End::Won { by, is_hedge: self.targets[by].is_hedge });
        }
        let is_open = |state| matches!(state, State::Out | State::Waiting(_));
        if !self.questions.is_empty() || self.count(is_open) > 0 {
            return None;
        }
        Some(End::Spent {
            answered: self.count(|state| matches!(state, State::Answered { .. })),
            is_final: self.count(|state| state == State::Answered { is_final: true }) > 0,
            failed: self.count(|state| state == State::Failed),
            refused: self.count(|state| state == State::Refused),
        })
    }

    fn count(&self, is: impl Fn(State) -> bool) -> usize {
        self.targets.iter().filter(|target| is(target.state)).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: RaceSettings = RaceSettings {
        alpha: 3,
        beta: 2,
        hedge_after: Duration::from_millis(150),
        retries: 3,
        fails_over: true,
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn race(targets: usize, settings: RaceSettings) -> (Race, Instant) {
        let now = ron_core::now();
        (Race::new(targets, settings, fastrand::Rng::with_seed(7), now), now)
    }

    fn asked(race: &mut Race) -> Vec<usize> {
        std::iter::from_fn(|| race.poll()).map(|question| question.target).collect()
    }

    const FAILED: Outcome = Outcome::Failed { is_transient: false };

    #[test]
    fn alpha_are_asked_and_beta_others_when_those_are_slow() {
        let (mut race, now) = race(9, SETTINGS);
        assert_eq!(asked(&mut race), [0, 1, 2]);
        assert_eq!(race.wake_at(), Some(now + ms(150)));
        race.on_tick(now + ms(149), || true);
        assert_eq!(asked(&mut race), [0; 0]);
        race.on_tick(now + ms(150), || true);
        assert_eq!(asked(&mut race), [3, 4], "distinct ones");
        assert!(race.was_hedged() && race.wake_at().is_none());
        race.on_outcome(4, Outcome::Enough, now + ms(200));
        assert_eq!(race.end(), Some(End::Won { by: 4, is_hedge: true }));
        race.on_outcome(0, Outcome::Enough, now + ms(201));
        assert_eq!(race.end(), Some(End::Won { by: 4, is_hedge: true }), "the first success stays");
    }

    #[test]
    fn without_budget_there_are_no_hedges() {
        let (mut race, now) = race(9, SETTINGS);
        asked(&mut race);
        let mut left = 1;
        race.on_tick(now + ms(150), || std::mem::replace(&mut left, 0) > 0);
        assert_eq!(asked(&mut race), [3]);
    }

    #[test]
    fn a_fast_error_never_beats_a_slower_success() {
        let (mut race, now) = race(3, SETTINGS);
        asked(&mut race);
        race.on_outcome(0, FAILED, now + ms(1));
        race.on_outcome(1, FAILED, now + ms(2));
        assert_eq!(race.end(), None);
        race.on_outcome(2, Outcome::Enough, now + ms(900));
        assert_eq!(race.end(), Some(End::Won { by: 2, is_hedge: false }));
    }

    #[test]
    fn one_that_failed_is_replaced_at_once_and_costs_no_hedge() {
        let (mut race, now) = race(5, RaceSettings { alpha: 1, ..SETTINGS });
        assert_eq!(asked(&mut race), [0]);
        race.on_outcome(0, FAILED, now);
        let next = race.poll().unwrap();
        assert_eq!((next.target, next.is_hedge), (1, false));
        race.on_refused(1);
        assert_eq!(asked(&mut race), [2]);
    }

    #[test]
    fn errors_that_pass_are_retried_three_times_in_all_after_a_jittered_pause() {
        let (mut race, mut now) = race(1, SETTINGS);
        let (mut tries, mut pauses) = (0, Vec::new());
        while race.end().is_none() {
            tries += asked(&mut race).len();
            race.on_outcome(0, Outcome::Failed { is_transient: true }, now);
            if let Some(at) = race.wake_at() {
                pauses.push(at - now);
                now = at;
                race.on_tick(now, || false);
            }
        }
        assert_eq!((tries, pauses.len()), (4, 3));
        assert!(pauses.iter().all(|pause| (ms(50)..=ms(100)).contains(pause)), "{pauses:?}");
        let failed = End::Spent { answered: 0, is_final: false, failed: 1, refused: 0 };
        assert_eq!(race.end(), Some(failed));
    }

    #[test]
    fn a_trusted_source_that_failed_is_not_replaced() {
        let settings = RaceSettings { alpha: 1, beta: 0, fails_over: false, ..SETTINGS };
        let (mut race, now) = race(2, settings);
        asked(&mut race);
        race.on_outcome(0, FAILED, now);
        assert_eq!(race.end(), Some(End::Spent { answered: 0, is_final: false, failed: 1, refused: 0 }));
        // But it is when it has said that it knows nothing.
        let (mut race, now) = self::race(2, settings);
        asked(&mut race);
        race.on_outcome(0, Outcome::Little { is_final: true }, now);
        assert_eq!(asked(&mut race), [1]);
    }

    #[test]
    fn nobody_to_ask_is_an_end() {
        let (race, _) = race(0, SETTINGS);
        assert_eq!(race.end(), Some(End::Spent { answered: 0, is_final: false, failed: 0, refused: 0 }));
    }

    proptest! {
        /// Whatever targets do, a race ends, asks nobody twice at once, and within its questions.
        #[test]
        fn a_race_ends(
            targets in 0_usize..8, alpha in 1_usize..5, beta in 0_usize..4, fails_over: bool,
            script in prop::collection::vec((0_u8..5, 0_u64..300), 0..60),
        ) {
            let (mut race, mut now) = race(targets, RaceSettings { alpha, beta, fails_over, ..SETTINGS });
            let (mut out, mut total) = (Vec::<usize>::new(), 0);
            for (what, after) in script.into_iter().chain(std::iter::repeat_n((4, 300), 40)) {
                while let Some(question) = race.poll() {
                    prop_assert!(!out.contains(&question.target));
                    out.push(question.target);
                    total += 1;
                }
                if race.end().is_some() {
                    break;
                }
                now += ms(after);
                if let Some(target) = (what > 0).then(|| out.pop()).flatten() {
                    let outcome = match what {
                        1 => Outcome::Little { is_final: false },
                        2 => Outcome::Little { is_final: true },
                        3 => Outcome::Failed { is_transient: true },
                        _ => FAILED,
                    };
                    race.on_outcome(target, outcome, now);
                }
                race.on_tick(now, || true);
            }
            prop_assert!(race.end().is_some());
            prop_assert!(total <= targets + 3);
        }
    }
}
