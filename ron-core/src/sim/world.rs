//! Whole nodes on a simulated network and disk: started, crashed, restarted, out of one seed.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{CrashStyle, SimDisk, SimNet};
use crate::{Metrics, Stopped, Supervisor, TaskSpec};

/// The task in which a node's program runs.
pub const NODE: TaskSpec = TaskSpec::new("ron-core", "sim_node").what("runs one simulated node's program");

/// Where simulated wall clocks begin: the first second of 2026, so that what is dated looks dated.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

type Program = Box<dyn FnMut(SimNode) -> Pin<Box<dyn Future<Output = ()> + Send>>>;

/// What a node's program is given.
#[derive(Clone)]
pub struct SimNode {
    /// Its address.
    pub ip: IpAddr,
    /// The network.
    pub net: SimNet,
    /// Its own disk, the same after a restart, less what a crash took.
    pub disk: SimDisk,
    /// What its tasks run under. Blocking work runs inline.
    pub supervisor: Supervisor,
    /// A seed of its own, another one after each restart.
    pub seed: u64,
    clock: WallClock,
}

impl SimNode {
    /// What this node believes the time is, since 1970.
    #[must_use]
    pub fn unix_time(&self) -> Duration {
        self.clock.read()
    }

    /// What tells it, for parts that outlive the call: it does not keep the node.
    pub fn unix_clock(&self) -> impl Fn() -> Duration + Send + Sync + use<> {
        let clock = self.clock.clone();
        move || clock.read()
    }
}

impl fmt::Debug for SimNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNode({})", self.ip)
    }
}

/// A clock on the wall, which may be wrong.
#[derive(Clone)]
struct WallClock {
    began: Instant,
    wrong_by_ms: Arc<AtomicI64>,
}

impl WallClock {
    fn read(&self) -> Duration {
        let right = EPOCH + crate::now().saturating_duration_since(self.began);
        let wrong = self.wrong_by_ms.load(Ordering::Relaxed);
        let by = Duration::from_millis(wrong.unsigned_abs());
        if wrong < 0 { right.saturating_sub(by) } else { right + by }
    }
}

/// A simulated world. Everything random in it is drawn from its seed.
pub struct Sim {
    seed: u64,
    rng: fastrand::Rng,
    net: SimNet,
    began: Instant,
    nodes: BTreeMap<IpAddr, Node>,
}

struct Node {
    program: Program,
    disk: SimDisk,
    clock: WallClock,
    supervisor: Option<Supervisor>,
}

/// Says something if it is dropped by a panic.
struct SayOnPanic(String);

impl Drop for SayOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

impl Sim {
    /// Runs `scenario` in a world of `seed`, on a paused clock, and returns what it returns. The environment variable
    /// `RON_SEED` replaces the seed; a scenario that panics says which one it had. What tries one seed after the other wants
    /// [`run_seed`](Self::run_seed).
    ///
    /// # Panics
    /// If the scenario does, or if the runtime cannot be built.
    pub fn run<R>(seed: u64, scenario: impl AsyncFnOnce(&mut Sim) -> R) -> R {
        let asked = std::env::var("RON_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = asked.unwrap_or(seed);
        let _say = SayOnPanic(format!("replay with RON_SEED={seed}"));
        Self::run_in(seed, scenario)
    }

    /// [`run`](Self::run) with exactly this seed, whatever the environment says.
    ///
    /// # Panics
    /// If the scenario does, or if the runtime cannot be built.
    pub fn run_seed<R>(seed: u64, scenario: impl AsyncFnOnce(&mut Sim) -> R) -> R {
        let _say = SayOnPanic(format!("the seed was {seed}"));
        Self::run_in(seed, scenario)
    }

    fn run_in<R>(seed: u64, scenario: impl AsyncFnOnce(&mut Sim) -> R) -> R {
        #[cfg(all(feature = "net", not(ron_loom)))]
        let _remembering = super::checked::Remembering::begin();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing from the operating system");
        runtime.block_on(async {
            let mut sim = Sim {
                seed,
                rng: fastrand::Rng::with_seed(seed),
                net: SimNet::new(seed ^ 0x6e65_7477_6f72_6b00),
                began: crate::now(),
                nodes: BTreeMap::new(),
            };
            let result = scenario(&mut sim).await;
            for node in sim.nodes.values_mut() {
                if let Some(supervisor) = node.supervisor.take() {
                    supervisor.abort();
                    supervisor.shutdown().await;
                }
            }
            result
        })
    }

    /// The seed of this world.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The network.
    #[must_use]
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// For chances of the scenario's own.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.rng
    }

    /// Adds a node and starts it. `program` is called again at every restart.
    pub fn add<F>(&mut self, ip: IpAddr, mut program: impl FnMut(SimNode) -> F + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let clock = WallClock { began: self.began, wrong_by_ms: Arc::new(AtomicI64::new(0)) };
        let program: Program = Box::new(move |node| Box::pin(program(node)));
        self.nodes.insert(ip, Node { program, disk: SimDisk::new(), clock, supervisor: None });
        self.start(ip);
    }

    /// Power loss: the node stops where it is, the network hears nothing of it, and its disk keeps what was synced
    /// and, by chance, some of the rest.
    pub async fn crash(&mut self, ip: IpAddr) {
        let seed = self.rng.u64(..);
        self.crash_in(ip, CrashStyle::Scramble { seed }).await;
    }

    /// [`crash`](Self::crash), and what is left of unsynced changes is decided by `style`. With [`CrashStyle::Killed`] only the
    /// program dies: to others its machine is silent all the same.
    pub async fn crash_in(&mut self, ip: IpAddr, style: CrashStyle) {
        // Silence first: what its tasks do as they are torn down must reach neither anybody nor the disk.
        self.net.crash(ip);
        let Some(node) = self.nodes.get_mut(&ip) else { return };
        node.disk.crash();
        if let Some(supervisor) = node.supervisor.take() {
            supervisor.abort();
            supervisor.shutdown().await;
        }
        node.disk.restart(style);
    }

    /// The node is asked to stop, drains, and is off: what it says last is heard. Says how that went; nothing of a node that
    /// did not run.
    pub async fn stop(&mut self, ip: IpAddr) -> Option<Stopped> {
        let supervisor = self.nodes.get_mut(&ip)?.supervisor.take()?;
        let stopped = supervisor.shutdown().await;
        self.net.crash(ip);
        let node = self.nodes.get_mut(&ip)?;
        node.disk.restart(CrashStyle::Killed);
        Some(stopped)
    }

    /// Power again: the program starts anew on what the disk has.
    pub fn restart(&mut self, ip: IpAddr) {
        self.net.restart(ip);
        self.start(ip);
    }

    /// Whether the node runs.
    #[must_use]
    pub fn is_up(&self, ip: IpAddr) -> bool {
        self.nodes.get(&ip).is_some_and(|node| node.supervisor.is_some())
    }

    /// A node's disk, also while it is off.
    #[must_use]
    pub fn disk(&self, ip: IpAddr) -> Option<&SimDisk> {
        self.nodes.get(&ip).map(|node| &node.disk)
    }

    /// What a node's tasks run under, while it runs.
    #[must_use]
    pub fn supervisor(&self, ip: IpAddr) -> Option<&Supervisor> {
        self.nodes.get(&ip)?.supervisor.as_ref()
    }

    /// Sets a node's wall clock forward, or back if negative, by milliseconds. Its sense of duration is not touched.
    pub fn jump_clock(&mut self, ip: IpAddr, by_ms: i64) {
        if let Some(node) = self.nodes.get(&ip) {
            node.clock.wrong_by_ms.fetch_add(by_ms, Ordering::Relaxed);
        }
    }

    /// Lets virtual time pass.
    pub async fn run_for(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn start(&mut self, ip: IpAddr) {
        let seed = self.rng.u64(..);
        let Some(node) = self.nodes.get_mut(&ip) else { return };
        let supervisor = Supervisor::builder(ip.to_string())
            .metrics(Metrics::default())
            .seed(seed)
            .inline_blocking(true)
            .inline_pace({
                let disk = node.disk.clone();
                move || disk.pace()
            })
            .start();
        let given = SimNode {
            ip,
            net: self.net.clone(),
            disk: node.disk.clone(),
            supervisor: supervisor.clone(),
            seed,
            clock: node.clock.clone(),
        };
        let program = (node.program)(given);
        supervisor.spawn(NODE, |_| program);
        node.supervisor = Some(supervisor);
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = self.nodes.values().filter(|node| node.supervisor.is_some()).count();
        write!(f, "Sim(seed {}, {up} of {} nodes up)", self.seed, self.nodes.len())
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use std::{net::SocketAddr, path::Path, sync::Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{
        Deadline,
        journal::{Journal, Settings},
        sim::{Latency, Line},
    };

    fn ip(number: u8) -> IpAddr {
        IpAddr::from([198, 18, 1, number])
    }

    #[test]
    fn a_seed_that_must_be_that_one_is() {
        for seed in [3, 4] {
            assert_eq!(Sim::run_seed(seed, async |sim| sim.seed()), seed);
        }
    }

    #[test]
    fn a_node_finds_what_it_acknowledged_after_every_crash() {
        let counts = Sim::run(5, async |sim| {
            let counts = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&counts);
            sim.add(ip(1), move |node| {
                let log = Arc::clone(&log);
                async move {
                    let opened = Journal::open(
                        &node.supervisor,
                        Arc::new(node.disk),
                        Path::new("log"),
                        Settings::default(),
                    );
                    let (journal, recovered) = opened.await.unwrap();
                    log.lock().unwrap().push((recovered.records, 0));
                    loop {
                        let deadline = Deadline::after(Duration::from_secs(1));
                        journal.append(1, "tick".into(), deadline).await.unwrap();
                        log.lock().unwrap().last_mut().unwrap().1 += 1;
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                }
            });
            for _ in 0..5 {
                sim.run_for(Duration::from_secs(10)).await;
                sim.crash(ip(1)).await;
                assert!(!sim.is_up(ip(1)));
                sim.run_for(Duration::from_secs(60)).await;
                sim.restart(ip(1));
            }
            sim.run_for(Duration::from_secs(1)).await;
            counts.lock().unwrap().clone()
        });
        assert_eq!(counts.len(), 6);
        let mut acknowledged = 0;
        for (recovered, appended) in counts {
            assert_eq!(recovered, acknowledged, "the disk and the acknowledgements disagree");
            assert!(appended > 2);
            acknowledged += appended;
        }
    }

    /// One record after the other, each with the time it took.
    async fn appender(node: SimNode, log: Arc<Mutex<Vec<Duration>>>) {
        let settings = Settings::default();
        let opened = Journal::open(&node.supervisor, Arc::new(node.disk), Path::new("log"), settings).await;
        let (journal, _) = opened.unwrap();
        loop {
            let began = crate::now();
            let appended = journal.append(1, "tick".into(), Deadline::after(Duration::from_secs(9))).await;
            if appended.is_ok() {
                log.lock().unwrap().push(began.elapsed());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[test]
    fn a_slow_disk_takes_its_time_and_a_stop_waits_for_it() {
        Sim::run(3, async |sim| {
            let took = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&took);
            sim.add(ip(1), move |node| appender(node, Arc::clone(&log)));
            sim.run_for(Duration::from_millis(1500)).await;
            let pace = Duration::from_millis(700);
            sim.disk(ip(1)).unwrap().slow_down(pace);
            sim.run_for(Duration::from_secs(1)).await;
            assert!(sim.supervisor(ip(1)).unwrap().running() >= 2);
            // In the middle of an append: the writer finishes, and the program is cut off, since it never ends.
            let stopped = sim.stop(ip(1)).await.unwrap();
            assert!(stopped.drained > 0 && stopped.aborted > 0, "{stopped:?}");
            assert!(sim.stop(ip(1)).await.is_none() && !sim.is_up(ip(1)));
            assert_eq!(*took.lock().unwrap(), [Duration::ZERO, Duration::ZERO, pace]);
            sim.disk(ip(1)).unwrap().wipe();
            sim.restart(ip(1));
            sim.run_for(Duration::from_millis(500)).await;
            assert_eq!(took.lock().unwrap().len(), 4, "a new disk, and not a slow one");
        });
    }

    #[test]
    fn clocks_jump_and_durations_do_not() {
        Sim::run(1, async |sim| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&seen);
            sim.add(ip(1), move |node| {
                let log = Arc::clone(&log);
                async move {
                    for _ in 0..3 {
                        log.lock().unwrap().push(node.unix_time());
                        tokio::time::sleep(Duration::from_secs(10)).await;
                    }
                }
            });
            sim.run_for(Duration::from_secs(15)).await;
            sim.jump_clock(ip(1), -3_600_000);
            sim.run_for(Duration::from_secs(15)).await;
            let seen = seen.lock().unwrap();
            assert_eq!(seen[1] - seen[0], Duration::from_secs(10));
            assert_eq!(seen[1] - seen[2], Duration::from_secs(3590));
        });
    }

    /// Fifty nodes that pass numbers on for ten minutes, while some crash and some are cut off.
    fn ten_minutes_of_churn(seed: u64) -> (blake3::Hash, u64, usize) {
        const NODES: u8 = 50;
        Sim::run(seed, async |sim| {
            let latency = Latency::Tailed(Duration::from_millis(30), Duration::from_millis(400));
            sim.net().set_usual(Line { latency, loss: crate::Ratio::percent(1), ..Line::default() });
            let heard = Arc::new(Mutex::new(0usize));
            for number in 0..NODES {
                let heard = Arc::clone(&heard);
                sim.add(ip(number), move |node| chatter(node, NODES, Arc::clone(&heard)));
            }
            for minute in 0..10u8 {
                let victims = [sim.rng().u8(0..NODES), sim.rng().u8(0..NODES)].map(ip);
                let split = sim.rng().u8(1..NODES);
                let (one, other): (Vec<_>, Vec<_>) = (0..NODES).map(ip).partition(|ip| *ip < self::ip(split));
                if minute % 3 == 1 {
                    sim.net().partition(&one, &other);
                }
                sim.crash(victims[0]).await;
                sim.run_for(Duration::from_secs(30)).await;
                sim.net().heal();
                sim.restart(victims[0]);
                sim.net().slow_down(victims[1], u32::from(minute) + 1);
                sim.run_for(Duration::from_secs(30)).await;
            }
            let heard = *heard.lock().unwrap();
            (sim.net().trace(), sim.net().events(), heard)
        })
    }

    async fn chatter(node: SimNode, nodes: u8, heard: Arc<Mutex<usize>>) {
        const HANDLER: TaskSpec = TaskSpec::new("test", "handler");
        let port = 9000;
        // A machine may lose power before its program has run at all.
        let Ok(listener) = node.net.listen(SocketAddr::new(node.ip, port)) else { return };
        let spawner = node.supervisor.spawner();
        node.supervisor.spawn(HANDLER, |_| async move {
            while let Ok(mut stream) = listener.accept().await {
                let heard = Arc::clone(&heard);
                spawner.spawn(HANDLER, |_| async move {
                    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_u64()).await;
                    if read.is_ok_and(|number| number.is_ok()) {
                        *heard.lock().unwrap() += 1;
                    }
                });
            }
        });
        let mut rng = fastrand::Rng::with_seed(node.seed);
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(500..3000))).await;
            let to = SocketAddr::new(ip(rng.u8(0..nodes)), port);
            let dial = tokio::time::timeout(Duration::from_secs(3), node.net.connect(node.ip, to)).await;
            if let Ok(Ok(mut stream)) = dial {
                let _ = stream.write_u64(rng.u64(..)).await;
                let _ = stream.shutdown().await;
            }
        }
    }

    #[test]
    fn fifty_nodes_under_churn_replay_exactly() {
        let (trace, events, heard) = ten_minutes_of_churn(11);
        assert!(heard > 10_000, "{heard} numbers were heard");
        assert_eq!(ten_minutes_of_churn(11), (trace, events, heard), "the same seed gave another run");
        assert_ne!(ten_minutes_of_churn(12).0, trace, "another seed gave the same run");
        println!("{events} events, {heard} numbers heard, trace {trace}");
    }
}
