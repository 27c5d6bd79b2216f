//! The index of a store beside the engines that it could have been built on, in the way a store would use each.
//!
//! `cargo run --release -- DIR` measures all of them, each in a process of its own, so that memory can be told apart.
//! A store learns of new objects 64 at a time, when a commit of its journal is through; what it then notes need not be
//! synced, because the journal can tell it again. `synced` rows do it all the same.

mod engines;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use engines::{Engine, Fjall, Ours, Redb};
use ron_core::now;

/// Objects, how many a commit has, and how many are looked up afterwards.
const OBJECTS: u64 = 1_000_000;
const COMMIT: u64 = 64;
const READS: u64 = 1_000_000;

const ROWS: [(&str, bool); 5] =
    [("ours", false), ("fjall", false), ("fjall", true), ("redb", false), ("redb", true)];

/// The name and the entry of an object.
fn object(number: u64) -> ([u8; 32], [u8; 16]) {
    let mut entry = [0; 16];
    entry[..8].copy_from_slice(&(number * 288).to_be_bytes());
    entry[8..].copy_from_slice(&256_u64.to_be_bytes());
    (*blake3::hash(&number.to_be_bytes()).as_bytes(), entry)
}

fn status(field: &str) -> u64 {
    let (file, unit) = if field == "write_bytes" { ("io", 1) } else { ("status", 1024) };
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    unit * line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Time, on the wall and of the processor, background threads included: on a busy machine only the latter says something.
struct Meter {
    began: Instant,
    processor: f64,
}

impl Meter {
    fn start() -> Self {
        Meter { began: now().into_std(), processor: processor_seconds() }
    }

    /// Calls per second and microseconds of the processor for each.
    fn per(&self, count: u64) -> String {
        let (took, used) = (self.began.elapsed(), processor_seconds() - self.processor);
        format!("{:.0}/s, {:.2} µs", count as f64 / took.as_secs_f64(), used * 1e6 / count as f64)
    }

    /// Seconds, and seconds of the processor.
    fn total(&self) -> String {
        format!("{:.2?}, {:.2} s", self.began.elapsed(), processor_seconds() - self.processor)
    }
}

fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which is in parentheses: the twelfth and thirteenth are ticks of a hundredth of a second.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn open(name: &str, dir: &Path) -> Box<dyn Engine> {
    match name {
        "ours" => Box::new(Ours::open(dir)),
        "fjall" => Box::new(Fjall::open(dir)),
        _ => Box::new(Redb::open(dir)),
    }
}

/// Reads at random.
fn read(engine: &dyn Engine, count: u64) -> String {
    let mut rng = fastrand::Rng::with_seed(1);
    let meter = Meter::start();
    for _ in 0..count {
        let (id, entry) = object(rng.u64(..OBJECTS));
        assert_eq!(engine.get(&id), Some(entry), "an object is where it was put");
    }
    meter.per(count)
}

/// Fills an index and stops it.
fn fill(name: &str, synced: bool, dir: &Path) {
    let before = status("VmRSS");
    let mut engine = open(name, dir);
    let (mut slowest, meter) = (Duration::ZERO, Meter::start());
    for first in (0..OBJECTS).step_by(COMMIT as usize) {
        let objects: Vec<_> = (first..OBJECTS.min(first + COMMIT)).map(object).collect();
        let began = now().into_std();
        engine.insert(&objects, synced);
        slowest = slowest.max(began.elapsed());
    }
    let inserted = meter.per(OBJECTS);
    let read = read(&*engine, READS);
    let held = status("VmRSS").saturating_sub(before) / OBJECTS;
    let meter = Meter::start();
    engine.close();
    let label = if synced { format!("{name}, synced") } else { name.to_owned() };
    print!(
        "| {label} | {inserted} | {slowest:.1?} | {read} | {held} B | {} MiB | {} |",
        status("write_bytes") >> 20,
        meter.total(),
    );
}

/// Opens what was filled, as after a clean stop.
fn reopen(name: &str, dir: &Path) {
    let (before, meter) = (status("VmRSS"), Meter::start());
    let engine = open(name, dir);
    let (id, entry) = object(7);
    assert_eq!(engine.get(&id), Some(entry), "an object is where it was put");
    let opened = meter.total();
    read(&*engine, READS);
    let held = status("VmRSS").saturating_sub(before) / OBJECTS;
    println!(" {opened} | {held} B |");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(arguments.first().expect("a directory"));
    if let [_, part, name, synced] = &arguments[..] {
        match &**part {
            "fill" => fill(name, synced == "true", &dir),
            _ => reopen(name, &dir),
        }
        return;
    }
    println!(
        "| index | inserts | slowest commit | random reads | memory | written | stop | open | memory then |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let program = std::env::current_exe().expect("this program has a path");
    for (name, synced) in ROWS {
        let dir = dir.join(format!("index-{name}-{synced}"));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("the directory can be made");
        for part in ["fill", "open"] {
            let child = Command::new(&program).arg(&dir).args([part, name, &synced.to_string()]).status();
            assert!(child.is_ok_and(|status| status.success()), "{name} {part} failed");
        }
        std::fs::remove_dir_all(&dir).expect("the directory can be removed");
    }
}
