//! When to stop asking something that keeps failing, and how to find out that it works again.
//!
//! Closed: every call passes and its outcome is kept in a sliding window of time. Enough calls with too many
//! failures among them open the breaker: calls are refused at once, which spares the caller a timeout and the other
//! side the load. After a cooldown it is half open: a few probes pass; if all succeed it closes, one failure opens it
//! again. Outcomes that arrive from before the last change of state say nothing about the present and are ignored.
//!
//! The machine is pure: it never reads a clock, and takes as many steps after a gap of a year as after a second.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

use crate::{CallError, ConfigError, ErrorKind, Ratio, Refusal, gate::nanos};

/// The window moves in steps of a tenth: fine enough that old failures fade rather than drop off a cliff, and the
/// whole memory is 160 bytes.
const SLICES: usize = 10;

/// The bounds of `window` and `cooldown`. Below ten milliseconds a slice is finer than the timer; a breaker that
/// remembers more than a day is a log.
const SPAN_MIN: Duration = Duration::from_millis(10);
const SPAN_MAX: Duration = Duration::from_secs(24 * 3600);

/// When a breaker trips and how it recovers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    /// How long an outcome counts. Default ten seconds; longer for rare calls, so that `calls_min` can be reached.
    pub window: Duration,
    /// The share of failures in the window that opens the breaker. Default half.
    pub trip_ratio: Ratio,
    /// Calls in the window below which nothing opens it: one failure of one call is no trend. Default 10.
    pub calls_min: NonZeroU32,
    /// How long it stays open before the first probe. Default one second; longer for what recovers slowly.
    pub cooldown: Duration,
    /// Probes that must succeed to close it, and that may be out at once. Default 3.
    pub probes: NonZeroU32,
    /// Who carries the probes. Default the callers.
    pub probing: Probing,
}

/// Who finds out whether the other side works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Probing {
    /// The first callers after the cooldown: no extra traffic, but one of them may pay with a failed call.
    Callers,
    /// Only a background task, through [`Breaker::admit_probe`]: no caller's request is ever spent on finding out.
    Background,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        BreakerSettings {
            window: Duration::from_secs(10),
            trip_ratio: Ratio::HALF,
            calls_min: const { NonZeroU32::new(10).expect("ten is not zero") },
            cooldown: Duration::from_secs(1),
            probes: const { NonZeroU32::new(3).expect("three is not zero") },
            probing: Probing::Callers,
        }
    }
}

/// Closed, open or half open. Its owner feeds it and asks it; it does nothing by itself.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    born: Instant,
    /// The latest time seen, in nanoseconds since birth. Time that runs backwards stands still here.
    latest: u64,
    state: State,
    /// Counts changes of state, so that an outcome can be told from one that began before the last change.
    generation: u64,
    window: Window,
}

/// What a breaker lets happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// The cooldown is over; probes decide.
    HalfOpen,
}

/// Leave to make one call. Give it back with the outcome: [`Breaker::on_success`], [`Breaker::on_failure`], or
/// [`Breaker::on_abandoned`] if there is none.
#[derive(Debug)]
#[must_use = "a breaker learns only from outcomes: report this one"]
pub struct Admission {
    generation: u64,
    probe: bool,
}

impl Admission {
    /// Whether the outcome of this call decides if the breaker closes.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.probe
    }
}

/// The breaker refused: the other side is failing, and nothing was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("refused after repeated failures")]
pub struct BreakerOpen {
    /// When asking again may help.
    pub retry_after: Duration,
}

impl BreakerOpen {
    /// The refusal as every queue and limit words it, with `what` as the refuser's name.
    #[must_use]
    pub fn busy(self, what: &'static str) -> CallError {
        CallError::Busy { what, retry_after: self.retry_after }
    }
}

impl Refusal for BreakerOpen {
    /// Not the caller's load but the other side's state: it passes without the caller doing anything.
    fn kind(&self) -> ErrorKind {
        ErrorKind::NotReady
    }

    fn retry_after(&self) -> Option<Duration> {
        Some(self.retry_after)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: u64,
    },
    HalfOpen {
        /// Probes whose outcome is awaited.
        out: u32,
        succeeded: u32,
        /// When the probes that are out count as lost: their callers may have died without a word.
        lost_at: u64,
    },
}

impl Breaker {
    /// A closed breaker that has seen nothing.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] if the window or the cooldown is not between ten milliseconds and a day.
    pub fn new(settings: BreakerSettings, now: Instant) -> Result<Self, ConfigError> {
        for (key, span) in [("breaker.window", settings.window), ("breaker.cooldown", settings.cooldown)] {
            if !(SPAN_MIN..=SPAN_MAX).contains(&span) {
                return Err(ConfigError::OutOfRange {
                    key,
                    value: format!("{span:?}"),
                    allowed: "10ms..=24h",
                });
            }
        }
        Ok(Breaker {
            settings,
            born: now,
            latest: 0,
            state: State::Closed,
            generation: 0,
            window: Window::new(settings.window),
        })
    }

    /// Asks for leave to make a call.
    ///
    /// # Errors
    /// [`BreakerOpen`] while open, and while half open unless this caller is wanted as a probe.
    pub fn admit(&mut self, now: Instant) -> Result<Admission, BreakerOpen> {
        let at = self.tick(now);
        if self.state == State::Closed {
            return Ok(self.admission(false));
        }
        let granted = match self.settings.probing {
            Probing::Callers => self.grant_probe(at),
            Probing::Background => None,
        };
        granted.ok_or_else(|| BreakerOpen { retry_after: Duration::from_nanos(self.refused_for(at)) })
    }

    /// Asks for leave to probe, for a background task. Nothing while closed (there is nothing to find out), during
    /// the cooldown, and while enough probes are out; [`wake_at`](Self::wake_at) says when to ask again.
    pub fn admit_probe(&mut self, now: Instant) -> Option<Admission> {
        let at = self.tick(now);
        self.grant_probe(at)
    }

    /// The call succeeded.
    pub fn on_success(&mut self, admission: Admission, now: Instant) {
        let at = self.tick(now);
        if admission.generation != self.generation {
            return;
        }
        match &mut self.state {
            State::Closed => self.window.record(at, false),
            State::Open { .. } => {}
            State::HalfOpen { out, succeeded, .. } => {
                *out = out.saturating_sub(1);
                *succeeded += 1;
                if *succeeded >= self.settings.probes.get() {
                    self.window = Window::new(self.settings.window);
                    self.enter(State::Closed);
                }
            }
        }
    }

    /// The call failed in a way that says something about the other side. A call that failed because its caller
    /// asked for nonsense is a success here.
    pub fn on_failure(&mut self, admission: Admission, now: Instant) {
        let at = self.tick(now);
        if admission.generation != self.generation {
            return;
        }
        match self.state {
            State::Closed => {
                self.window.record(at, true);
                // Only a failure trips, so a ratio of zero means "at the first failure" and not "always".
                if self.window.is_beyond(self.settings.trip_ratio, self.settings.calls_min) {
                    self.open(at);
                }
            }
            State::Open { .. } => {}
            State::HalfOpen { .. } => self.open(at),
        }
    }

    /// The caller gave up before there was an outcome. A probe's place is free again.
    pub fn on_abandoned(&mut self, admission: Admission) {
        if admission.generation == self.generation {
            if let State::HalfOpen { out, .. } = &mut self.state {
                *out = out.saturating_sub(1);
            }
        }
    }

    /// What the breaker lets happen at `now`.
    #[must_use]
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { until } if until > self.since_birth(now) => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// When the next probe may be granted; nothing while closed. May lie in the past.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let at = match self.state {
            State::Closed => return None,
            State::Open { until } => until,
            State::HalfOpen { out, succeeded, .. } if out + succeeded < self.settings.probes.get() => {
                self.latest
            }
            State::HalfOpen { lost_at, .. } => lost_at,
        };
        Some(self.born + Duration::from_nanos(at))
    }

    fn admission(&self, probe: bool) -> Admission {
        Admission { generation: self.generation, probe }
    }

    fn grant_probe(&mut self, at: u64) -> Option<Admission> {
        let (out, succeeded) = match self.state {
            State::Closed => return None,
            State::Open { until } if until > at => return None,
            State::Open { .. } => (0, 0),
            State::HalfOpen { out, succeeded, .. } if out + succeeded < self.settings.probes.get() => {
                (out, succeeded)
            }
            State::HalfOpen { lost_at, .. } if lost_at > at => return None,
            // The generation stays: a probe that was only slow still counts when it comes in.
            State::HalfOpen { succeeded, .. } => (0, succeeded),
        };
        self.state = State::HalfOpen {
            out: out + 1,
            succeeded,
            lost_at: at.saturating_add(nanos(self.settings.cooldown)),
        };
        Some(self.admission(true))
    }

    /// How long a caller refused at `at` should stay away: to the end of the cooldown, then to the moment the
    /// probes that are out have answered or count as lost. With nothing to go by, one cooldown.
    fn refused_for(&self, at: u64) -> u64 {
        let until = match self.state {
            State::Closed => at,
            State::Open { until } => until,
            State::HalfOpen { out: 0, .. } => at,
            State::HalfOpen { lost_at, .. } => lost_at,
        };
        match until.saturating_sub(at) {
            0 => nanos(self.settings.cooldown),
            left => left,
        }
    }

    fn open(&mut self, at: u64) {
        self.enter(State::Open { until: at.saturating_add(nanos(self.settings.cooldown)) });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }

    fn tick(&mut self, now: Instant) -> u64 {
        self.latest = self.since_birth(now);
        self.latest
    }

    fn since_birth(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.born)).max(self.latest)
    }
}

/// The outcomes of the last ten slices of time, as sums.
#[derive(Debug)]
struct Window {
    slice_nanos: u64,
    newest: u64,
    slices: [Slice; SLICES],
}

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    calls: u64,
    failures: u64,
}

impl Window {
    fn new(length: Duration) -> Self {
        Window { slice_nanos: nanos(length) / SLICES as u64, newest: 0, slices: [Slice::default(); SLICES] }
    }

    fn record(&mut self, at: u64, failed: bool) {
        let slice = at / self.slice_nanos;
        // A gap longer than the window empties it in ten steps, however long the gap.
        for passed in 1..=slice.saturating_sub(self.newest).min(SLICES as u64) {
            *self.slot(self.newest.wrapping_add(passed)) = Slice::default();
        }
        self.newest = slice;
        let slot = self.slot(slice);
        slot.calls += 1;
        slot.failures += u64::from(failed);
    }

    fn slot(&mut self, slice: u64) -> &mut Slice {
        &mut self.slices[(slice % SLICES as u64) as usize]
    }

    fn is_beyond(&self, ratio: Ratio, calls_min: NonZeroU32) -> bool {
        let calls: u64 = self.slices.iter().map(|slice| slice.calls).sum();
        let failures: u64 = self.slices.iter().map(|slice| slice.failures).sum();
        calls >= u64::from(calls_min.get()) && failures as f64 >= ratio.get() * calls as f64
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn settings() -> BreakerSettings {
        BreakerSettings {
            calls_min: NonZeroU32::new(4).expect("four"),
            probes: NonZeroU32::new(2).expect("two"),
            ..BreakerSettings::default()
        }
    }

    fn breaker(settings: BreakerSettings) -> (Breaker, Instant) {
        let start = crate::now();
        (Breaker::new(settings, start).expect("in range"), start)
    }

    /// A breaker that has just tripped.
    fn tripped(settings: BreakerSettings) -> (Breaker, Instant) {
        let (mut breaker, start) = breaker(settings);
        for _ in 0..settings.calls_min.get() {
            let call = breaker.admit(start).expect("closed");
            breaker.on_failure(call, start);
        }
        assert_eq!(breaker.state(start), BreakerState::Open);
        (breaker, start)
    }

    #[test]
    fn too_few_calls_do_not_trip_it_and_enough_do() {
        let (mut breaker, start) = breaker(settings());
        for calls in 1..=4 {
            assert_eq!(breaker.state(start), BreakerState::Closed, "after {calls}");
            let call = breaker.admit(start).unwrap();
            assert!(!call.is_probe());
            breaker.on_failure(call, start);
        }
        assert_eq!(breaker.admit(start + 300 * MILLI).unwrap_err(), BreakerOpen { retry_after: 700 * MILLI });
    }

    #[test]
    fn failures_below_the_ratio_do_not_trip_it() {
        let (mut breaker, start) = breaker(settings());
        for call in 0..1_000 {
            let admission = breaker.admit(start).unwrap();
            if call % 5 < 3 {
                breaker.on_success(admission, start);
            } else {
                breaker.on_failure(admission, start);
            }
        }
        assert_eq!(breaker.state(start), BreakerState::Closed);
    }

    #[test]
    fn old_failures_fade() {
        let (mut breaker, start) = breaker(settings());
        for second in [0, 0, 0, 11, 11, 11] {
            let at = start + second * SECOND;
            let call = breaker.admit(at).unwrap();
            breaker.on_failure(call, at);
        }
        assert_eq!(breaker.state(start + 11 * SECOND), BreakerState::Closed);
    }

    #[test]
    fn all_probes_succeeding_close_it_with_a_clean_window() {
        let (mut breaker, start) = tripped(settings());
        let later = start + SECOND;
        let (first, second) = (breaker.admit(later).unwrap(), breaker.admit(later).unwrap());
        assert!(first.is_probe() && second.is_probe());
        assert_eq!(breaker.admit(later).unwrap_err().retry_after, SECOND);
        breaker.on_success(first, later);
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
        breaker.on_success(second, later);
        assert_eq!(breaker.state(later), BreakerState::Closed);
        let call = breaker.admit(later).unwrap();
        breaker.on_failure(call, later);
        assert_eq!(breaker.state(later), BreakerState::Closed);
    }

    #[test]
    fn one_failed_probe_opens_it_for_another_cooldown() {
        let (mut breaker, start) = tripped(settings());
        let later = start + SECOND;
        let (first, second) = (breaker.admit(later).unwrap(), breaker.admit(later).unwrap());
        breaker.on_failure(first, later);
        assert_eq!(breaker.admit(later).unwrap_err().retry_after, SECOND);
        // The other probe began before; it neither closes nor reopens anything.
        breaker.on_success(second, later);
        assert_eq!(breaker.state(later), BreakerState::Open);
        assert_eq!(breaker.state(later + SECOND), BreakerState::HalfOpen);
    }

    #[test]
    fn late_outcomes_of_an_earlier_state_are_ignored() {
        let (mut breaker, start) = breaker(settings());
        let slow: Vec<_> = (0..20).map(|_| breaker.admit(start).unwrap()).collect();
        for _ in 0..4 {
            let call = breaker.admit(start).unwrap();
            breaker.on_failure(call, start);
        }
        let later = start + SECOND;
        for _ in 0..2 {
            let probe = breaker.admit(later).unwrap();
            breaker.on_success(probe, later);
        }
        assert_eq!(breaker.state(later), BreakerState::Closed);
        for call in slow {
            breaker.on_failure(call, later);
        }
        assert_eq!(breaker.state(later), BreakerState::Closed);
    }

    #[test]
    fn an_abandoned_probe_frees_its_place() {
        let (mut breaker, start) = tripped(settings());
        let later = start + SECOND;
        for _ in 0..100 {
            let probe = breaker.admit(later).unwrap();
            breaker.on_abandoned(probe);
        }
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
    }

    #[test]
    fn a_probe_that_vanished_frees_its_place_after_a_cooldown() {
        let (mut breaker, start) = tripped(settings());
        let later = start + SECOND;
        let slow = breaker.admit(later).unwrap();
        let _vanished = breaker.admit(later).unwrap();
        assert!(breaker.admit(later + 999 * MILLI).is_err());
        assert_eq!(breaker.wake_at(), Some(later + SECOND));
        let third = breaker.admit(later + SECOND).unwrap();
        // The slow one was not lost after all, and counts.
        breaker.on_success(slow, later + SECOND);
        breaker.on_success(third, later + SECOND);
        assert_eq!(breaker.state(later + SECOND), BreakerState::Closed);
    }

    #[test]
    fn a_background_prober_spares_the_callers() {
        let (mut breaker, start) = tripped(BreakerSettings { probing: Probing::Background, ..settings() });
        assert!(breaker.admit_probe(start).is_none());
        assert_eq!(breaker.wake_at(), Some(start + SECOND));
        for seconds in 1..100 {
            let refused = breaker.admit(start + seconds * SECOND).unwrap_err();
            assert_eq!(refused.retry_after, SECOND);
        }
        let later = start + 100 * SECOND;
        for _ in 0..2 {
            let probe = breaker.admit_probe(later).unwrap();
            assert!(breaker.admit(later).is_err());
            breaker.on_success(probe, later);
        }
        assert_eq!(breaker.wake_at(), None);
        assert!(breaker.admit_probe(later).is_none(), "closed: nothing to find out");
        assert!(!breaker.admit(later).unwrap().is_probe());
    }

    #[test]
    fn time_running_backwards_stands_still() {
        let (mut breaker, start) = tripped(settings());
        assert!(breaker.admit(start + 500 * MILLI).is_err());
        let early = start.checked_sub(Duration::from_nanos(1)).unwrap_or(start);
        assert_eq!(breaker.admit(early).unwrap_err().retry_after, 500 * MILLI);
        assert!(breaker.admit(start + SECOND).unwrap().is_probe());
        assert_eq!(breaker.state(early), BreakerState::HalfOpen);
    }

    #[test]
    fn a_ratio_of_zero_trips_at_the_first_failure_and_not_before() {
        let (mut breaker, start) = breaker(BreakerSettings { trip_ratio: Ratio::percent(0), ..settings() });
        for _ in 0..100 {
            let call = breaker.admit(start).unwrap();
            breaker.on_success(call, start);
        }
        assert_eq!(breaker.state(start), BreakerState::Closed);
        let call = breaker.admit(start).unwrap();
        breaker.on_failure(call, start);
        assert_eq!(breaker.state(start), BreakerState::Open);
    }

    #[test]
    fn senseless_spans_are_refused_by_name() {
        let with = |window, cooldown| {
            let settings = BreakerSettings { window, cooldown, ..settings() };
            Breaker::new(settings, crate::now()).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(
            with(Duration::ZERO, SECOND),
            Err("breaker.window is 0ns, allowed is 10ms..=24h".to_owned())
        );
        assert!(with(SECOND, Duration::MAX).unwrap_err().starts_with("breaker.cooldown"));
        assert_eq!(with(SPAN_MIN, SPAN_MAX), Ok(()));
    }

    #[test]
    fn a_refusal_can_be_worded_as_busy() {
        let busy = BreakerOpen { retry_after: SECOND }.busy("peers");
        assert_eq!(busy, CallError::Busy { what: "peers", retry_after: SECOND });
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit,
        AdmitProbe,
        Succeed(prop::sample::Index),
        Fail(prop::sample::Index),
        Abandon(prop::sample::Index),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => Just(Step::Admit),
            1 => Just(Step::AdmitProbe),
            3 => any::<prop::sample::Index>().prop_map(Step::Succeed),
            4 => any::<prop::sample::Index>().prop_map(Step::Fail),
            1 => any::<prop::sample::Index>().prop_map(Step::Abandon),
            2 => (0_u64..600).prop_map(Step::Wait),
            1 => prop_oneof![Just(5_000_u64), Just(1 << 33)].prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..300)
    }

    /// The same rules over a plain list of what happened when: slow, and short enough to be believed.
    struct Model {
        settings: BreakerSettings,
        now: u64,
        outcomes: Vec<(u64, bool)>,
        /// Bumped at each change of state.
        era: u64,
        open_since: Option<u64>,
        /// When each probe of this half-open time was granted; answered ones leave, lost ones are struck out.
        probes_out: Vec<u64>,
        probes_succeeded: u32,
        last_grant: u64,
    }

    impl Model {
        fn admit_probe(&mut self) -> bool {
            let cooldown = nanos(self.settings.cooldown);
            if self.open_since.is_none_or(|since| self.now < since + cooldown) {
                return false;
            }
            let taken = self.probes_out.len() as u32 + self.probes_succeeded;
            if taken >= self.settings.probes.get() {
                if self.now < self.last_grant + cooldown {
                    return false;
                }
                self.probes_out.clear();
            }
            self.probes_out.push(self.now);
            self.last_grant = self.now;
            true
        }

        fn change(&mut self, open_since: Option<u64>) {
            self.era += 1;
            self.open_since = open_since;
            self.outcomes.clear();
            self.probes_out.clear();
            self.probes_succeeded = 0;
        }

        fn outcome(&mut self, era: u64, failed: bool) {
            if era != self.era {
                return;
            }
            if self.open_since.is_some() {
                self.probes_out.pop();
                self.probes_succeeded += u32::from(!failed);
                if failed {
                    self.change(Some(self.now));
                } else if self.probes_succeeded >= self.settings.probes.get() {
                    self.change(None);
                }
                return;
            }
            self.outcomes.push((self.now, failed));
            let slice = nanos(self.settings.window) / 10;
            let recent = |at: u64| at / slice + 10 > self.now / slice;
            let (mut calls, mut failures) = (0_u32, 0_u32);
            for (_, failed) in self.outcomes.iter().filter(|(at, _)| recent(*at)) {
                calls += 1;
                failures += u32::from(*failed);
            }
            let ratio = f64::from(failures) / f64::from(calls);
            if failed && calls >= self.settings.calls_min.get() && ratio >= self.settings.trip_ratio.get() {
                self.change(Some(self.now));
            }
        }

        fn abandoned(&mut self, era: u64) {
            if era == self.era && self.open_since.is_some() {
                self.probes_out.pop();
            }
        }

        fn state(&self) -> BreakerState {
            match self.open_since {
                None => BreakerState::Closed,
                Some(since) if self.now < since + nanos(self.settings.cooldown) => BreakerState::Open,
                Some(_) => BreakerState::HalfOpen,
            }
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_list_of_outcomes(
            steps in steps(),
            calls_min in 1_u32..6,
            probes in 1_u32..4,
            percent in prop::sample::select(vec![0_u8, 25, 50, 75, 100]),
            background: bool,
        ) {
            let settings = BreakerSettings {
                window: SECOND,
                trip_ratio: Ratio::percent(percent),
                calls_min: NonZeroU32::new(calls_min).expect("from one"),
                cooldown: 300 * MILLI,
                probes: NonZeroU32::new(probes).expect("from one"),
                probing: if background { Probing::Background } else { Probing::Callers },
            };
            let (mut breaker, start) = breaker(settings);
            let mut model = Model {
                settings, now: 0, outcomes: Vec::new(), era: 0, open_since: None,
                probes_out: Vec::new(), probes_succeeded: 0, last_grant: 0,
            };
            let mut out: Vec<(Admission, u64)> = Vec::new();
            for step in steps {
                let now = start + Duration::from_nanos(model.now);
                match step {
                    Step::Admit => {
                        let closed = model.open_since.is_none();
                        let expected = closed || (!background && model.admit_probe());
                        let got = breaker.admit(now);
                        prop_assert_eq!(got.is_ok(), expected);
                        match got {
                            Ok(admission) => {
                                prop_assert_eq!(admission.is_probe(), !closed);
                                out.push((admission, model.era));
                            }
                            Err(refused) => prop_assert!(
                                refused.retry_after > Duration::ZERO && refused.retry_after <= settings.cooldown
                            ),
                        }
                    }
                    Step::AdmitProbe => {
                        let got = breaker.admit_probe(now);
                        prop_assert_eq!(got.is_some(), model.admit_probe());
                        out.extend(got.map(|admission| (admission, model.era)));
                    }
                    Step::Wait(millis) => model.now += millis * 1_000_000,
                    Step::Succeed(which) | Step::Fail(which) | Step::Abandon(which) if !out.is_empty() => {
                        let (admission, era) = out.swap_remove(which.index(out.len()));
                        match step {
                            Step::Succeed(_) => {
                                breaker.on_success(admission, now);
                                model.outcome(era, false);
                            }
                            Step::Fail(_) => {
                                breaker.on_failure(admission, now);
                                model.outcome(era, true);
                            }
                            _ => {
                                breaker.on_abandoned(admission);
                                model.abandoned(era);
                            }
                        }
                    }
                    _ => {}
                }
                let now = start + Duration::from_nanos(model.now);
                prop_assert_eq!(breaker.state(now), model.state());
            }
        }
    }
}
