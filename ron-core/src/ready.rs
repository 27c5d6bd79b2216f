//! Whether this program can serve, which part says no, why, and since when.
//!
//! Readiness is the conjunction of named gates, each held by the part that knows. Reads and writes are judged apart,
//! and a program that cannot read cannot write either: there is no moment in which writes are ready and reads are
//! not, so under pressure writes always go first.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};
use tokio::time::Instant;

use crate::{Lane, Ratio};

/// What a closed gate takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affects {
    /// Writes only: reads go on.
    Writes,
    /// Reads, and so writes too.
    Reads,
}

/// The readiness of a program. Cloning shares it.
#[derive(Clone, Default)]
pub struct Ready {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    gates: BTreeMap<u64, Gate>,
    entries: u64,
}

struct Gate {
    name: Cow<'static, str>,
    affects: Affects,
    /// `None` while open.
    reason: Option<Cow<'static, str>>,
    since: Instant,
    /// Asked for the reason, for gates that nobody opens and closes by hand.
    probe: Option<Probe>,
}

/// The reason for which a gate is closed, or `None`. Shared, so that it is asked without the lock: it is somebody else's code,
/// which may wait for a disk, or drop the last handle of what holds gates itself.
type Probe = Arc<dyn Fn() -> Option<Cow<'static, str>> + Send + Sync>;

impl Ready {
    /// No gates: ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate. It is closed ("starting") until opened, and leaves the list when the handle is dropped.
    #[must_use]
    pub fn gate(&self, name: impl Into<Cow<'static, str>>, affects: Affects) -> ReadyGate {
        self.add(Gate {
            name: name.into(),
            affects,
            reason: Some(Cow::Borrowed("starting")),
            since: crate::now(),
            probe: None,
        })
    }

    /// Ties readiness to how full `lane` is: from `writes_at` on writes are unready, from `reads_at` on everything
    /// is. Nothing runs for this; the lane is asked when readiness is. The gates go when the handles are dropped.
    #[must_use]
    pub fn watch_lane<T: Send + 'static>(
        &self,
        lane: &Lane<T>,
        writes_at: Ratio,
        reads_at: Ratio,
    ) -> [ReadyGate; 2] {
        [(Affects::Writes, writes_at), (Affects::Reads, reads_at)].map(|(affects, threshold)| {
            let fullness = lane.fullness();
            self.probe(lane.spec().name, affects, move || {
                let full = fullness().filter(|full| *full >= threshold.get())?;
                Some(format!("{:.0} % full", full * 100.0).into())
            })
        })
    }

    /// Adds a gate that is asked whenever readiness is: for the reason why it is closed, or `None`. `probe` must be quick.
    #[must_use]
    pub fn probe(
        &self,
        name: impl Into<Cow<'static, str>>,
        affects: Affects,
        probe: impl Fn() -> Option<Cow<'static, str>> + Send + Sync + 'static,
    ) -> ReadyGate {
        let probe: Option<Probe> = Some(Arc::new(probe));
        self.add(Gate { name: name.into(), affects, reason: None, since: crate::now(), probe })
    }

    /// Exports readiness as the gauges `ready{scope="reads"}` and `ready{scope="writes"}`, 1 or 0, behind `prefix`.
    /// Once for each registry and prefix.
    pub fn register(&self, prefix: &str, registry: &mut Registry) {
        registry.sub_registry_with_prefix(prefix).register_collector(Box::new(self.clone()));
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> ReadyStatus {
        let now = crate::now();
        let reasons: Vec<(u64, Option<Cow<'static, str>>)> =
            self.probes().into_iter().map(|(id, probe)| (id, probe())).collect();
        let mut state = self.lock();
        for (id, reason) in reasons {
            if let Some(gate) = state.gates.get_mut(&id) {
                gate.set(reason, now);
            }
        }
        let gates: Vec<GateStatus> = state.gates.values().map(|gate| gate.look(now)).collect();
        drop(state);
        let reads = gates.iter().all(|gate| gate.is_open() || gate.affects == Affects::Writes);
        let writes = gates.iter().all(GateStatus::is_open);
        ReadyStatus { reads, writes, gates }
    }

    /// The probes, with the lock given back.
    fn probes(&self) -> Vec<(u64, Probe)> {
        let of = |(id, gate): (&u64, &Gate)| Some((*id, gate.probe.clone()?));
        self.lock().gates.iter().filter_map(of).collect()
    }

    fn add(&self, gate: Gate) -> ReadyGate {
        let mut state = self.lock();
        state.entries += 1;
        let id = state.entries;
        state.gates.insert(id, gate);
        drop(state);
        ReadyGate { ready: self.clone(), id }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    fn set(&mut self, reason: Option<Cow<'static, str>>, now: Instant) {
        if self.reason.is_some() != reason.is_some() {
            self.since = now;
        }
        self.reason = reason;
    }

    fn look(&self, now: Instant) -> GateStatus {
        GateStatus {
            name: self.name.clone(),
            affects: self.affects,
            reason: self.reason.clone(),
            lasting: now.saturating_duration_since(self.since),
        }
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

impl Collector for Ready {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.status();
        let mut family =
            encoder.encode_descriptor("ready", "Whether this can be served", None, MetricType::Gauge)?;
        for (scope, is_ready) in [("reads", status.reads), ("writes", status.writes)] {
            family.encode_family(&[("scope", scope)])?.encode_gauge(&i64::from(is_ready))?;
        }
        Ok(())
    }
}

/// The handle of one gate, kept by the part that knows.
pub struct ReadyGate {
    ready: Ready,
    id: u64,
}

impl ReadyGate {
    /// This part can serve.
    pub fn open(&self) {
        self.set(None);
    }

    /// This part cannot serve, because of `reason`.
    pub fn close(&self, reason: impl Into<Cow<'static, str>>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<Cow<'static, str>>) {
        let now = crate::now();
        if let Some(gate) = self.ready.lock().gates.get_mut(&self.id) {
            gate.set(reason, now);
        }
    }
}

impl Drop for ReadyGate {
    fn drop(&mut self) {
        let gone = self.ready.lock().gates.remove(&self.id);
        drop(gone);
    }
}

impl fmt::Debug for ReadyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadyGate({})", self.id)
    }
}

/// Readiness at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyStatus {
    /// Whether reads can be served.
    pub reads: bool,
    /// Whether writes can be served; never true while `reads` is false.
    pub writes: bool,
    /// Every gate, in the order in which they were added.
    pub gates: Vec<GateStatus>,
}

impl ReadyStatus {
    /// The gates that are closed.
    pub fn closed(&self) -> impl Iterator<Item = &GateStatus> {
        self.gates.iter().filter(|gate| !gate.is_open())
    }
}

/// One gate at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateStatus {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it takes away while closed.
    pub affects: Affects,
    /// Why it is closed; `None` while open.
    pub reason: Option<Cow<'static, str>>,
    /// For how long it has been open or closed.
    pub lasting: Duration,
}

impl GateStatus {
    /// Whether it lets work through.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.reason.is_none()
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;
    use crate::{LaneSpec, Metrics};

    #[tokio::test(start_paused = true)]
    async fn a_gate_says_why_and_since_when() {
        let ready = Ready::new();
        let seeds = ready.gate("seeds", Affects::Reads);
        tokio::time::advance(Duration::from_secs(2)).await;
        let status = ready.status();
        assert!(!status.reads && !status.writes);
        assert_eq!(status.gates[0].reason.as_deref(), Some("starting"));
        assert_eq!(status.gates[0].lasting, Duration::from_secs(2));

        seeds.close("no seed answers");
        assert_eq!(ready.status().gates[0].lasting, Duration::from_secs(2), "closed all the time");
        seeds.open();
        assert_eq!(ready.status().gates[0].lasting, Duration::ZERO);
        assert!(ready.status().reads && ready.status().writes);
        drop(seeds);
        assert!(ready.status().gates.is_empty());
    }

    /// Probes were asked under the lock of all gates. One that held the last handle of a node for the time of its question
    /// dropped the node there, whose gates then waited for the same lock for ever; and one that asked a slow disk held
    /// everybody up who opens or closes a gate.
    #[tokio::test(start_paused = true)]
    async fn a_probe_is_asked_without_the_lock() {
        let ready = Ready::new();
        let other = Mutex::new(Some(ready.gate("node", Affects::Reads)));
        let asked = ready.clone();
        let _disk = ready.probe("disk", Affects::Writes, move || {
            assert!(asked.state.try_lock().is_ok(), "asked under the lock");
            other.lock().unwrap().take();
            Some("full".into())
        });
        let status = ready.status();
        assert_eq!(status.gates.len(), 1, "the gate that went meanwhile is not told");
        assert!(status.reads && !status.writes);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filling_lane_takes_writes_first() {
        const WORK: LaneSpec = LaneSpec::new("test", "work", 10);
        let ready = Ready::new();
        let (lane, inbox) = Lane::open(WORK, &Metrics::default());
        let _gates = ready.watch_lane(&lane, Ratio::percent(70), Ratio::percent(90));
        let mut seen = Vec::new();
        for item in 0..10 {
            lane.try_push(item).unwrap();
            let status = ready.status();
            assert!(status.reads || !status.writes, "writes were ready while reads were not");
            seen.push((status.writes, status.reads));
        }
        assert_eq!(seen[5], (true, true));
        assert_eq!(seen[6], (false, true));
        assert_eq!(seen[8], (false, false));
        assert_eq!(ready.status().closed().count(), 2);
        let mut registry = Registry::default();
        ready.register("test", &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("test_ready{scope=\"writes\"} 0"), "{text}");
        while inbox.try_recv().is_some() {}
        assert!(ready.status().writes);
    }
}
