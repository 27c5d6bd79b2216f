//! A network in memory, on tokio's paused clock, out of one seed.
//!
//! Streams behave as TCP streams do over a bad line: bytes arrive in order or not at all, and what the line does to
//! packets (latency, loss, duplication, reordering, bandwidth) shows as time. A partition holds packets back until it
//! is healed. Nothing runs in the background: a packet is given its time of arrival when it is sent, and the reader waits
//! for that. So the same seed and the same program give the same run, and [`SimNet::trace`] proves it.
//!
//! # How a peer learns that a stream is over
//!
//! As over TCP, by a packet or not at all. A stream that is dropped says so, which takes its time and does not pass a
//! partition; bytes that arrive where nobody reads any more are answered with a reset. A machine that loses power
//! ([`SimNet::crash`]) says nothing: its streams are half open, what is written to it waits, and who waits for its bytes
//! waits for ever. When it is back ([`SimNet::restart`]) it knows its old streams no more, and what arrives for them is
//! answered with a reset; who writes nothing still hears nothing. So a program that relies on being told hangs here as it
//! would there: it needs its own deadlines.

mod stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Waker,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use self::stream::Pipe;
pub use self::stream::SimStream;
use crate::{Inbox, Lane, LaneSpec, Metrics, Ratio};

/// Connections that wait for a listener.
pub const BACKLOG: LaneSpec = LaneSpec::new("ron-core", "sim_backlog", 128)
    .flow("simulated dialers → listener")
    .why("as a kernel's; a dialer beyond it tries again");

/// Pause before a lost packet is sent again; doubles with every loss in a row.
const RESEND: Duration = Duration::from_millis(200);
const RESEND_MAX: Duration = Duration::from_secs(4);
/// A dialer that hears nothing gives up, as kernels do after some minutes; callers have deadlines much shorter.
const CONNECT: Duration = Duration::from_secs(120);

/// How long a packet is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// Always the same.
    Fixed(Duration),
    /// Evenly between the two.
    Between(Duration, Duration),
    /// Mostly near the first, now and then (one in twenty) near the second: the usual internet.
    Tailed(Duration, Duration),
}

impl Latency {
    fn draw(self, rng: &mut fastrand::Rng) -> Duration {
        let between = |low: Duration, high: Duration, rng: &mut fastrand::Rng| {
            low + high.saturating_sub(low).mul_f64(rng.f64())
        };
        match self {
            Latency::Fixed(time) => time,
            Latency::Between(low, high) => between(low, high, rng),
            Latency::Tailed(usual, rare) if rng.u8(..20) == 0 => between(usual, rare, rng),
            Latency::Tailed(usual, _) => between(usual.mul_f64(0.8), usual.mul_f64(1.2), rng),
        }
    }
}

/// What a line does to packets, in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Time under way.
    pub latency: Latency,
    /// Share of packets that are lost and sent again.
    pub loss: Ratio,
    /// Share that arrives twice: it takes its bandwidth twice.
    pub duplicated: Ratio,
    /// Share that is overtaken: it takes its latency twice, and what follows waits for it.
    pub reordered: Ratio,
    /// Bytes per second; `None` is no limit.
    pub bandwidth: Option<u64>,
}

impl Default for Line {
    /// One millisecond, nothing lost, no limit.
    fn default() -> Self {
        Line {
            latency: Latency::Fixed(Duration::from_millis(1)),
            loss: Ratio::percent(0),
            duplicated: Ratio::percent(0),
            reordered: Ratio::percent(0),
            bandwidth: None,
        }
    }
}

/// The network. Cloning shares it.
#[derive(Clone)]
pub struct SimNet {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: fastrand::Rng,
    began: Instant,
    trace: blake3::Hasher,
    events: u64,
    usual: Line,
    lines: BTreeMap<(IpAddr, IpAddr), Line>,
    slow: BTreeMap<IpAddr, u32>,
    cut: BTreeSet<(IpAddr, IpAddr)>,
    /// When each line is done with what was sent over it, for bandwidth.
    busy_until: BTreeMap<(IpAddr, IpAddr), Instant>,
    /// Machines without power.
    dead: BTreeSet<IpAddr>,
    listeners: BTreeMap<SocketAddr, Lane<SimStream>>,
    /// By the machines that write and read. Of thousands, few are of those two whose way is mended.
    pipes: BTreeMap<(IpAddr, IpAddr), Vec<Weak<Pipe>>>,
    ports: BTreeMap<IpAddr, u16>,
}

impl SimNet {
    /// A network whose every chance is drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(seed),
            began: crate::now(),
            trace: blake3::Hasher::new(),
            events: 0,
            usual: Line::default(),
            lines: BTreeMap::new(),
            slow: BTreeMap::new(),
            cut: BTreeSet::new(),
            busy_until: BTreeMap::new(),
            dead: BTreeSet::new(),
            listeners: BTreeMap::new(),
            pipes: BTreeMap::new(),
            ports: BTreeMap::new(),
        };
        SimNet { state: Arc::new(Mutex::new(state)) }
    }

    /// The line between any two machines that have none of their own.
    pub fn set_usual(&self, line: Line) {
        self.lock().usual = line;
    }

    /// The line from one machine to another, in this direction.
    pub fn set_line(&self, from: IpAddr, to: IpAddr, line: Line) {
        self.lock().lines.insert((from, to), line);
    }

    /// Makes a machine's every packet, out and in, take `times` as long. One is as before.
    pub fn slow_down(&self, machine: IpAddr, times: u32) {
        self.lock().slow.insert(machine, times.max(1));
    }

    /// Holds back what `from` sends to `to`, and not the other way.
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        let mut state = self.lock();
        state.note("cut", from, to, 0);
        state.cut.insert((from, to));
    }

    /// Parts the two groups, both ways.
    pub fn partition(&self, one: &[IpAddr], other: &[IpAddr]) {
        for left in one {
            for right in other {
                self.cut(*left, *right);
                self.cut(*right, *left);
            }
        }
    }

    /// Mends one cut, in this direction. What was held back is sent again.
    pub fn mend(&self, from: IpAddr, to: IpAddr) {
        let mut state = self.lock();
        if !state.cut.remove(&(from, to)) {
            return;
        }
        state.note("mend", from, to, 0);
        // What is answered with a reset waited for the way back.
        let ways = [(from, to), (to, from)];
        let pipes =
            ways.iter().filter_map(|way| state.pipes.get(way)).flatten().filter_map(Weak::upgrade).collect();
        let woken = state.release(pipes);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether what one machine sends reaches the other now: both have power, and the way is not cut.
    #[must_use]
    pub fn reaches(&self, from: IpAddr, to: IpAddr) -> bool {
        self.lock().reaches(from, to)
    }

    /// The line from one machine to another is the usual one again.
    pub fn reset_line(&self, from: IpAddr, to: IpAddr) {
        self.lock().lines.remove(&(from, to));
    }

    /// Mends every cut. What was held back is sent again.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.cut.clear();
        let pipes = state.pipes();
        let woken = state.release(pipes);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// The machine loses power: it falls silent, its listeners and its ends of streams are gone, and nobody is told: not
    /// now, and not when its program drops them. What was under way to it is lost.
    pub fn crash(&self, machine: IpAddr) {
        let mut state = self.lock();
        state.note("crash", machine, machine, 0);
        state.dead.insert(machine);
        let (gone, kept) =
            std::mem::take(&mut state.listeners).into_iter().partition(|(addr, _)| addr.ip() == machine);
        state.listeners = kept;
        let woken = state.forget(machine);
        drop(state);
        let gone: BTreeMap<SocketAddr, Lane<SimStream>> = gone;
        drop(gone);
        woken.into_iter().for_each(Waker::wake);
    }

    /// The machine has power again. It knows its old streams no more: whatever arrives for one of them, and so what was
    /// sent while it was gone and is now sent again, is answered with a reset.
    pub fn restart(&self, machine: IpAddr) {
        let mut state = self.lock();
        state.note("restart", machine, machine, 0);
        state.dead.remove(&machine);
        let pipes = state.pipes();
        let woken = state.release(pipes);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Accepts connections to `addr`.
    ///
    /// # Errors
    /// `AddrInUse`, or `NetworkDown` on a machine without power.
    pub fn listen(&self, addr: SocketAddr) -> io::Result<SimListener> {
        let mut state = self.lock();
        if state.dead.contains(&addr.ip()) {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        // Port 0 is any free one, as everywhere.
        let addr =
            if addr.port() == 0 { SocketAddr::new(addr.ip(), state.free_port(addr.ip())) } else { addr };
        if state.listeners.get(&addr).is_some_and(|lane| !lane.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (lane, inbox) = Lane::open(BACKLOG, &Metrics::default());
        state.listeners.insert(addr, lane);
        Ok(SimListener { addr, inbox })
    }

    /// Connects from a port of `from` to `to`. Dropping the future gives up.
    ///
    /// # Errors
    /// `ConnectionRefused` when nobody listens, `TimedOut` when nobody answers for two minutes, `NetworkDown` when
    /// `from` has no power.
    pub async fn connect(&self, from: IpAddr, to: SocketAddr) -> io::Result<SimStream> {
        let give_up = crate::now() + CONNECT;
        let mut pause = RESEND;
        while crate::now() < give_up {
            let round_trip = {
                let mut state = self.lock();
                if state.dead.contains(&from) {
                    return Err(io::ErrorKind::NetworkDown.into());
                }
                let reaches = state.reaches(from, to.ip()) && state.reaches(to.ip(), from);
                reaches.then(|| state.delay(from, to.ip(), 64) + state.delay(to.ip(), from, 64))
            };
            let Some(round_trip) = round_trip else {
                sleep(pause).await;
                pause = (pause * 2).min(RESEND_MAX);
                continue;
            };
            sleep(round_trip).await;
            if let Some(stream) = self.meet(from, to)? {
                return Ok(stream);
            }
            sleep(pause).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// A hash over everything that happened, with its time. Equal runs have equal traces.
    #[must_use]
    pub fn trace(&self) -> blake3::Hash {
        self.lock().trace.finalize()
    }

    /// How many events the trace covers.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Writes something of the caller's into the trace.
    pub fn note(&self, what: &str) {
        let mut state = self.lock();
        let at = state.elapsed();
        state.trace.update(&at.to_be_bytes());
        state.trace.update(what.as_bytes());
        state.events += 1;
    }

    /// Joins a dialer and a listener. `None` when the listener's backlog is full or the dialer's packet met a cut.
    fn meet(&self, from: IpAddr, to: SocketAddr) -> io::Result<Option<SimStream>> {
        let mut state = self.lock();
        if !state.reaches(from, to.ip()) {
            return Ok(None);
        }
        let Some(listener) = state.listeners.get(&to).filter(|lane| !lane.is_closed()).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let from = SocketAddr::new(from, state.free_port(from));
        let (there, back) = Pipe::pair(from, to);
        for pipe in [&there, &back] {
            let known = state.pipes.entry((pipe.from.ip(), pipe.to.ip())).or_default();
            known.retain(|pipe| pipe.strong_count() > 0);
            known.push(Arc::downgrade(pipe));
        }
        state.note("connect", from.ip(), to.ip(), 0);
        drop(state);
        let dialer = SimStream::new(self, &back, &there);
        let accepted = SimStream::new(self, &there, &back);
        Ok(listener.try_push(accepted).is_ok().then_some(dialer))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SimNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNet").field("events", &self.events()).finish_non_exhaustive()
    }
}

impl State {
    fn elapsed(&self) -> u64 {
        u64::try_from(crate::now().saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    fn note(&mut self, what: &str, from: IpAddr, to: IpAddr, bytes: usize) {
        let at = self.elapsed();
        self.events += 1;
        self.trace.update(&at.to_be_bytes());
        self.trace.update(what.as_bytes());
        for machine in [from, to] {
            match machine {
                IpAddr::V4(ip) => self.trace.update(&ip.octets()),
                IpAddr::V6(ip) => self.trace.update(&ip.octets()),
            };
        }
        self.trace.update(&(bytes as u64).to_be_bytes());
    }

    fn free_port(&mut self, machine: IpAddr) -> u16 {
        let port = self.ports.entry(machine).or_insert(32_767);
        *port = port.checked_add(1).unwrap_or(32_768);
        *port
    }

    fn reaches(&self, from: IpAddr, to: IpAddr) -> bool {
        !self.cut.contains(&(from, to)) && !self.dead.contains(&from) && !self.dead.contains(&to)
    }

    /// How long a packet of `bytes` takes from here to there, resending included.
    fn delay(&mut self, from: IpAddr, to: IpAddr, bytes: usize) -> Duration {
        let line = self.lines.get(&(from, to)).copied().unwrap_or(self.usual);
        let now = crate::now();
        let mut total = Duration::ZERO;
        let mut resend = RESEND;
        while self.rng.f64() < line.loss.get() {
            self.note("lost", from, to, bytes);
            total += resend;
            resend = (resend * 2).min(RESEND_MAX);
        }
        let mut sent = bytes as u64;
        if self.rng.f64() < line.duplicated.get() {
            self.note("duplicated", from, to, bytes);
            sent *= 2;
        }
        if let Some(rate) = line.bandwidth {
            let start = self.busy_until.get(&(from, to)).copied().unwrap_or(now).max(now);
            let done = start + Duration::from_secs_f64(sent as f64 / rate.max(1) as f64);
            self.busy_until.insert((from, to), done);
            total += done - now;
        }
        let mut latency = line.latency.draw(&mut self.rng);
        if self.rng.f64() < line.reordered.get() {
            self.note("reordered", from, to, bytes);
            latency *= 2;
        }
        let slower = |machine| self.slow.get(machine).copied().unwrap_or(1);
        total + latency * slower(&from).max(slower(&to))
    }

    /// When a packet sent now arrives; `None` while the way is cut.
    fn arrival(&mut self, from: IpAddr, to: IpAddr, bytes: usize) -> Option<Instant> {
        if !self.reaches(from, to) {
            self.note("held", from, to, bytes);
            return None;
        }
        let delay = self.delay(from, to, bytes);
        self.note("sent", from, to, bytes);
        Some(crate::now() + delay)
    }

    /// All streams that there are, in both directions.
    fn pipes(&self) -> Vec<Arc<Pipe>> {
        self.pipes.values().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Gives what was held back a time of arrival, where the way is open again, and resets those who write to nobody.
    fn release(&mut self, pipes: Vec<Arc<Pipe>>) -> Vec<Waker> {
        let (mut woken, mut bounced) = (Vec::new(), Vec::new());
        for pipe in pipes {
            let (from, to) = (pipe.from.ip(), pipe.to.ip());
            if !self.reaches(from, to) {
                continue;
            }
            let mut held = pipe.lock();
            let mut latest = held.latest;
            for packet in held.packets.iter_mut().filter(|packet| packet.arrives.is_none()) {
                let arrives = crate::now() + RESEND + self.delay(from, to, packet.bytes.len());
                latest = arrives.max(latest);
                packet.arrives = Some(latest);
            }
            held.latest = latest;
            woken.extend(held.reader.take());
            let is_bounced = held.is_bounced();
            drop(held);
            if is_bounced {
                bounced.push((pipe, latest));
            }
        }
        // When everything has its time: a reset comes behind what was sent before it.
        for (pipe, arrives) in bounced {
            woken.extend(self.bounce(&pipe, arrives));
        }
        woken
    }

    /// What arrives where nobody reads is answered with a reset, if the way back is open. If not, the writer sends
    /// again when it is.
    fn bounce(&mut self, pipe: &Pipe, arrives: Instant) -> Vec<Waker> {
        let (from, to) = (pipe.from.ip(), pipe.to.ip());
        if !self.reaches(to, from) {
            return Vec::new();
        }
        let mut at = arrives.max(crate::now()) + self.delay(to, from, 64);
        self.note("reset", to, from, 0);
        let mut woken = Vec::new();
        if let Some(back) = pipe.back.upgrade() {
            let mut state = back.lock();
            at = at.max(state.latest);
            state.reader_reset_at = Some(at);
            woken.extend(state.reader.take());
        }
        let mut state = pipe.lock();
        state.writer_reset_at = Some(at);
        woken.extend(state.writer.take());
        woken
    }

    /// The machine loses what it knew of its streams.
    fn forget(&mut self, machine: IpAddr) -> Vec<Waker> {
        let now = crate::now();
        let mut woken = Vec::new();
        let ways = self.pipes.iter().filter(|((from, to), _)| [*from, *to].contains(&machine));
        for pipe in ways.flat_map(|(_, pipes)| pipes).filter_map(Weak::upgrade) {
            let mut state = pipe.lock();
            if pipe.to.ip() == machine {
                state.reader_is_gone = true;
                // What had arrived was acknowledged. The rest never arrives, and its sender sends it again.
                state.packets.retain(|packet| packet.arrives.is_none_or(|arrives| arrives > now));
                state.packets.iter_mut().for_each(|packet| packet.arrives = None);
                woken.extend(state.reader.take());
            }
            if pipe.from.ip() == machine {
                state.writer_is_gone = true;
                state.packets.retain(|packet| packet.arrives.is_some());
                woken.extend(state.writer.take());
            }
        }
        woken
    }
}

/// Takes connections.
#[derive(Debug)]
pub struct SimListener {
    addr: SocketAddr,
    inbox: Inbox<SimStream>,
}

impl SimListener {
    /// The next connection. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `NetworkDown` when the machine has lost power.
    pub async fn accept(&self) -> io::Result<SimStream> {
        self.inbox.recv().await.ok_or_else(|| io::ErrorKind::NetworkDown.into())
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::{stream::WINDOW, *};

    fn machine(number: u8) -> IpAddr {
        IpAddr::from([198, 18, 0, number])
    }

    fn port(number: u8) -> SocketAddr {
        SocketAddr::new(machine(number), 7000)
    }

    async fn joined(net: &SimNet) -> (SimStream, SimStream) {
        let listener = net.listen(port(2)).unwrap();
        let (dialer, accepted) = tokio::join!(net.connect(machine(1), port(2)), listener.accept());
        (dialer.unwrap(), accepted.unwrap())
    }

    async fn read(stream: &mut SimStream, bytes: usize) -> Vec<u8> {
        let mut buf = vec![0; bytes];
        stream.read_exact(&mut buf).await.unwrap();
        buf
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_arrive_in_order_after_the_latency_and_end_with_the_close() {
        let net = SimNet::new(1);
        net.set_usual(Line { latency: Latency::Fixed(Duration::from_millis(40)), ..Line::default() });
        let began = crate::now();
        let (mut dialer, mut accepted) = joined(&net).await;
        assert_eq!(began.elapsed(), Duration::from_millis(80), "a round trip to connect");
        dialer.write_all(b"hello").await.unwrap();
        dialer.shutdown().await.unwrap();
        assert_eq!(read(&mut accepted, 5).await, b"hello");
        assert_eq!(began.elapsed(), Duration::from_millis(120));
        assert_eq!(accepted.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(accepted.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(dialer.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_line_costs_time_and_not_bytes() {
        let net = SimNet::new(7);
        let bad = Line {
            latency: Latency::Between(Duration::from_millis(5), Duration::from_millis(50)),
            loss: Ratio::percent(20),
            duplicated: Ratio::percent(10),
            reordered: Ratio::percent(30),
            bandwidth: Some(1 << 20),
        };
        net.set_usual(bad);
        let (mut dialer, mut accepted) = joined(&net).await;
        let sent: Vec<u8> = (0..1_000_000u32).map(|byte| byte as u8).collect();
        let copy = sent.clone();
        let began = crate::now();
        let (_, received) =
            tokio::join!(async { dialer.write_all(&copy).await.unwrap() }, read(&mut accepted, 1_000_000));
        assert!(received == sent);
        assert!(
            began.elapsed() > Duration::from_millis(950),
            "a megabyte at a megabyte a second: {:?}",
            began.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_holds_back_and_a_heal_delivers() {
        let net = SimNet::new(1);
        let (mut dialer, mut accepted) = joined(&net).await;
        net.cut(machine(1), machine(2));
        dialer.write_all(b"held").await.unwrap();
        accepted.write_all(b"through").await.unwrap();
        assert_eq!(read(&mut dialer, 7).await, b"through", "the other way is open");
        let quiet = tokio::time::timeout(Duration::from_secs(60), accepted.read_u8()).await;
        assert!(quiet.is_err());
        assert!(!net.reaches(machine(1), machine(2)) && net.reaches(machine(2), machine(1)));
        net.cut(machine(1), machine(3));
        net.mend(machine(1), machine(2));
        assert_eq!(read(&mut accepted, 4).await, b"held");
        assert!(!net.reaches(machine(1), machine(3)), "one cut was mended");
        net.heal();
        assert!(net.reaches(machine(1), machine(3)));

        net.partition(&[machine(1)], &[machine(2), machine(3)]);
        let late = tokio::time::timeout(Duration::from_secs(30), net.connect(machine(1), port(2))).await;
        assert!(late.is_err(), "no answer and no refusal");
    }

    #[tokio::test(start_paused = true)]
    async fn power_loss_is_silent_until_the_machine_is_back() {
        let net = SimNet::new(1);
        let (mut dialer, mut accepted) = joined(&net).await;
        net.crash(machine(2));
        assert_eq!(accepted.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        dialer.write_all(b"anyone?").await.unwrap();
        let silence = tokio::time::timeout(Duration::from_secs(600), dialer.read_u8()).await;
        assert!(silence.is_err(), "nobody tells");
        assert_eq!(net.listen(port(2)).unwrap_err().kind(), io::ErrorKind::NetworkDown);
        net.restart(machine(2));
        assert_eq!(dialer.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let refused = net.connect(machine(1), port(2)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "its listener is gone");
        let (mut again, mut there) = joined(&net).await;
        again.write_all(b"back").await.unwrap();
        assert_eq!(read(&mut there, 4).await, b"back");
    }

    /// Whoever saw its writer fail the moment a crashed machine's tasks were torn down was told what no network tells.
    #[tokio::test(start_paused = true)]
    async fn what_a_machine_without_power_drops_tells_nobody() {
        let net = SimNet::new(1);
        let (mut dialer, mut accepted) = joined(&net).await;
        accepted.write_all(b"last words").await.unwrap();
        net.crash(machine(2));
        drop(accepted);
        assert_eq!(read(&mut dialer, 10).await, b"last words", "they were under way");
        dialer.write_all(&[1; 1000]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        dialer.write_all(&[1; 1000]).await.unwrap();
        let silence = tokio::time::timeout(Duration::from_secs(600), dialer.read_u8()).await;
        assert!(silence.is_err(), "neither an end nor a reset");
        // It takes what fits into the window, and then nothing.
        let full = tokio::time::timeout(Duration::from_secs(600), dialer.write_all(&[1; WINDOW])).await;
        assert!(full.is_err());
        net.restart(machine(2));
        let began = crate::now();
        assert_eq!(dialer.write(&[1]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(began.elapsed(), RESEND + Duration::from_millis(2), "sent again, and answered");
        assert_eq!(dialer.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_restart_only_who_writes_is_told() {
        let net = SimNet::new(1);
        let (mut dialer, accepted) = joined(&net).await;
        net.crash(machine(2));
        drop(accepted);
        tokio::time::sleep(Duration::from_secs(60)).await;
        net.restart(machine(2));
        let silence = tokio::time::timeout(Duration::from_secs(600), dialer.read_u8()).await;
        assert!(silence.is_err(), "an idle stream stays half open");
        let began = crate::now();
        dialer.write_all(b"still there?").await.unwrap();
        assert_eq!(dialer.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(began.elapsed(), Duration::from_millis(2), "a round trip");
        assert_eq!(dialer.write(b"oh").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_and_a_reset_travel_as_packets_do() {
        let net = SimNet::new(1);
        let (mut dialer, accepted) = joined(&net).await;
        net.cut(machine(2), machine(1));
        drop(accepted);
        dialer.write_all(b"into the void").await.unwrap();
        let silence = tokio::time::timeout(Duration::from_secs(60), dialer.read_u8()).await;
        assert!(silence.is_err(), "neither passes the cut");
        dialer.write_all(b"and more").await.unwrap();
        net.heal();
        let began = crate::now();
        assert_eq!(dialer.read(&mut [0; 8]).await.unwrap(), 0, "the close comes first");
        assert_eq!(began.elapsed(), RESEND + Duration::from_millis(1));
        while dialer.write(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(began.elapsed() < RESEND + Duration::from_millis(10), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_holds_its_writer_back() {
        let net = SimNet::new(1);
        let (mut dialer, mut accepted) = joined(&net).await;
        let flood =
            tokio::time::timeout(Duration::from_secs(9), dialer.write_all(&vec![1; 4 * WINDOW])).await;
        assert!(flood.is_err(), "more than the window was taken");
        let drained = read(&mut accepted, WINDOW).await;
        assert_eq!(drained.len(), WINDOW);
        dialer.write_all(b"room again").await.unwrap();
        drop(accepted);
        let gone = dialer.write_all(&vec![1; 2 * WINDOW]).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_of_its_own_is_given_and_taken_back() {
        let net = SimNet::new(1);
        let slow = Line { latency: Latency::Fixed(Duration::from_millis(50)), ..Line::default() };
        net.set_line(machine(1), machine(2), slow);
        let (began, streams) = (crate::now(), joined(&net).await);
        assert_eq!(began.elapsed(), Duration::from_millis(51));
        drop(streams);
        net.reset_line(machine(1), machine(2));
        let (began, _streams) = (crate::now(), joined(&net).await);
        assert_eq!(began.elapsed(), Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_machine_is_slow_both_ways() {
        let net = SimNet::new(1);
        net.slow_down(machine(2), 10);
        let began = crate::now();
        let _streams = joined(&net).await;
        assert_eq!(began.elapsed(), Duration::from_millis(20));
    }

    /// A run with every chance in it, told by its trace.
    fn run(seed: u64) -> (blake3::Hash, u64) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let net = SimNet::new(seed);
            let latency = Latency::Tailed(Duration::from_millis(20), Duration::from_millis(300));
            net.set_usual(Line {
                latency,
                loss: Ratio::percent(5),
                reordered: Ratio::percent(5),
                ..Line::default()
            });
            let (mut dialer, mut accepted) = joined(&net).await;
            for round in 0..50u8 {
                dialer.write_all(&[round; 700]).await.unwrap();
                let echo = read(&mut accepted, 700).await;
                accepted.write_all(&echo).await.unwrap();
                read(&mut dialer, 700).await;
                if round == 25 {
                    net.cut(machine(1), machine(2));
                    net.heal();
                }
            }
            net.note("done");
            (net.trace(), net.events())
        })
    }

    #[test]
    fn the_same_seed_is_the_same_run_and_another_is_not() {
        assert_eq!(run(42), run(42));
        assert_ne!(run(42).0, run(43).0);
    }
}
