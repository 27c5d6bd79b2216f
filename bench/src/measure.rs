//! How things are measured and told: rounds that take turns, medians, clocks, and tables.

use std::{
    error::Error,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use rustix::{
    process::{Resource, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};
use tokio::runtime::{Builder, Runtime};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is measured.
#[derive(Debug, Clone)]
pub(crate) struct Bench {
    /// Rounds that count; one more goes first and does not.
    pub(crate) rounds: usize,
    /// What the work of a round is divided by.
    pub(crate) divisor: u64,
    /// Contenders to be measured, in sections that can leave some out; all if it is empty.
    pub(crate) only: Vec<String>,
    /// Nodes of a network, in sections that have such, instead of their own choice.
    pub(crate) nodes: Option<usize>,
    /// Nodes that publish, likewise.
    pub(crate) publishers: Option<usize>,
}

impl Bench {
    pub(crate) const fn full() -> Self {
        Bench { rounds: 9, divisor: 1, only: Vec::new(), nodes: None, publishers: None }
    }

    pub(crate) const fn quick() -> Self {
        Bench { rounds: 1, divisor: 50, only: Vec::new(), nodes: None, publishers: None }
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.divisor > 1
    }

    /// So much work, or the part of it that a quick run does.
    pub(crate) fn scaled(&self, work: u64) -> u64 {
        (work / self.divisor).max(1)
    }
}

/// Two workers, as a small server has them, so that both ends of a link can run at once on two cores.
pub(crate) fn runtime() -> Outcome<Runtime> {
    runtime_of(2)
}

/// As many workers as this.
pub(crate) fn runtime_of(workers: usize) -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

/// Wall time and processor time of the whole process since it was started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch { wall: Instant::now(), cpu: cpu() }
    }

    pub(crate) fn stop(self, items: u64) -> Sample {
        Sample { wall: self.wall.elapsed(), cpu: cpu() - self.cpu, items }
    }
}

/// User and system time of all threads.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Seconds that another process has worked, its threads and the kernel's part included.
pub(crate) fn cpu_of(process: u32) -> Outcome<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("stat has a name")?.1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// MiB that a process had in memory at its highest.
pub(crate) fn peak_of(process: u32) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("there is a peak")?;
    let kib: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// What one contender did in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) items: u64,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.items as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.items as f64
    }
}

/// Somebody in a comparison, and how it does one round.
pub(crate) struct Contender<'a, S> {
    name: &'static str,
    round: Box<dyn FnMut() -> Outcome<S> + 'a>,
}

impl<'a, S> Contender<'a, S> {
    pub(crate) fn new(name: &'static str, round: impl FnMut() -> Outcome<S> + 'a) -> Self {
        Contender { name, round: Box::new(round) }
    }
}

/// All rounds of one contender.
#[derive(Debug)]
pub(crate) struct Series<S> {
    pub(crate) name: &'static str,
    samples: Vec<S>,
}

impl<S> Series<S> {
    pub(crate) fn median(&self, of: impl Fn(&S) -> f64) -> f64 {
        median(self.samples.iter().map(of).collect())
    }

    /// The median over rounds of this contender's value in units of the other's in the same round.
    pub(crate) fn ratio(&self, base: &Series<S>, of: impl Fn(&S) -> f64) -> f64 {
        median(self.samples.iter().zip(&base.samples).map(|(ours, base)| of(ours) / of(base)).collect())
    }
}

/// Lets the contenders take turns, each round beginning with another one, after a round that does not count.
pub(crate) fn interleave<S>(bench: &Bench, contenders: Vec<Contender<'_, S>>) -> Outcome<Vec<Series<S>>> {
    take_turns(bench.rounds, 1, contenders)
}

/// The same for so many rounds, of which the first `warm_up` are over and above, and do not count.
pub(crate) fn take_turns<S>(
    rounds: usize,
    warm_up: usize,
    mut contenders: Vec<Contender<'_, S>>,
) -> Outcome<Vec<Series<S>>> {
    let mut series: Vec<_> =
        contenders.iter().map(|contender| Series { name: contender.name, samples: Vec::new() }).collect();
    let count = contenders.len();
    for round in 0..warm_up + rounds {
        for turn in 0..count {
            let at = (turn + round) % count;
            let sample = (contenders[at].round)().map_err(|error| format!("{}: {error}", series[at].name))?;
            if round >= warm_up {
                series[at].samples.push(sample);
            }
        }
    }
    Ok(series)
}

/// Of those that are numbers.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => (values[even / 2 - 1] + values[even / 2]) / 2.0,
        odd => values[odd / 2],
    }
}

/// The value that `part` of all are not above.
pub(crate) fn quantile(sorted: &[Duration], part: f64) -> Duration {
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * part).round() as usize).copied().unwrap_or_default()
}

/// Prints a table in Markdown. The first column is text, the others are numbers.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) {
    println!("| {} |", head.join(" | "));
    println!("|---{}|", "|--:".repeat(head.len() - 1));
    rows.iter().for_each(|row| println!("| {} |", row.join(" | ")));
}

/// A whole number, its thousands apart.
pub(crate) fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut apart = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            apart.push(' ');
        }
        apart.push(digit);
    }
    apart
}

/// What the numbers were measured on, and whether it had other things to do.
pub(crate) fn machine() -> String {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpus = line("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc
        .map_or_else(|_| "rustc unknown".into(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
    let load = line("/proc/loadavg");
    format!(
        "{cores} cores ({}), Linux {}, {}, load {} at the start",
        model.trim_start_matches([' ', '\t', ':']),
        line("/proc/sys/kernel/osrelease"),
        rustc.trim(),
        load.split(' ').next().unwrap_or("unknown"),
    )
}

/// As many files as the system lets us have.
pub(crate) fn raise_file_limit() -> Outcome<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.unwrap_or(u64::MAX))
}

/// KiB of this process that are in memory.
pub(crate) fn resident() -> Outcome<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm has a second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64 / 1024)
}

/// Sockets of this process, listening ones included.
pub(crate) fn sockets() -> Outcome<usize> {
    let is_socket = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    };
    Ok(fs::read_dir("/proc/self/fd")?.filter_map(Result::ok).filter(is_socket).count())
}

/// Datagrams that were sent on this machine so far, by whomever.
pub(crate) fn datagrams() -> Outcome<u64> {
    let counters = fs::read_to_string("/proc/self/net/snmp")?;
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let sent = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "OutDatagrams");
    Ok(sent.ok_or("the kernel counts datagrams")?.1.parse()?)
}
