//! How things are measured and told: rounds that take turns, medians, clocks, and tables.

use std::{
    error::Error,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench {
    /// Rounds that count; one more goes first and does not.
    pub(crate) rounds: usize,
    /// What the work of a round is divided by.
    pub(crate) divisor: u64,
}

impl Bench {
    pub(crate) const fn full() -> Self {
        Bench { rounds: 9, divisor: 1 }
    }

    pub(crate) const fn quick() -> Self {
        Bench { rounds: 1, divisor: 50 }
    }

    /// So much work, or the part of it that a quick run does.
    pub(crate) fn scaled(&self, work: u64) -> u64 {
        (work / self.divisor).max(1)
    }
}

/// Two workers, as a small server has them, so that both ends of a link can run at once on two cores.
pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
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

/// Lets the contenders take turns, each round beginning with another one.
pub(crate) fn interleave<S>(bench: &Bench, mut contenders: Vec<Contender<'_, S>>) -> Outcome<Vec<Series<S>>> {
    let mut series: Vec<_> =
        contenders.iter().map(|contender| Series { name: contender.name, samples: Vec::new() }).collect();
    let count = contenders.len();
    for round in 0..=bench.rounds {
        for turn in 0..count {
            let at = (turn + round) % count;
            let sample = (contenders[at].round)().map_err(|error| format!("{}: {error}", series[at].name))?;
            if round > 0 {
                series[at].samples.push(sample);
            }
        }
    }
    Ok(series)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
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
