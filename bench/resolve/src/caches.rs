//! The two tables that the cache could have been built on, used as the index uses one: keys as they come from outside, hashed
//! with a key; answers behind a pointer, weighed in bytes; nearly half of the questions for something that is not there, which is put in; popular
//! keys asked for more often. One thread, and two.

use std::{
    hash::RandomState,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quick_cache::{OptionsBuilder, Weighter, sync::DefaultLifecycle};

use crate::{Outcome, median};

/// An answer is about so large, and so many fit.
const ENTRY_BYTES: u32 = 1500;
const FIT: u64 = 40_000;

/// Keys there are: what is asked for follows a power law.
const KEYS: u64 = 400_000;
const STEEP: f64 = 4.2;

type Key = [u8; 33];
type Value = Arc<[u8; 64]>;

fn key(number: u64) -> Key {
    let mut key = [1; 33];
    for part in key[1..].chunks_exact_mut(8) {
        part.copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    key
}

#[derive(Clone)]
struct Weigh;

impl Weighter<Key, Value> for Weigh {
    fn weight(&self, _: &Key, _: &Value) -> u64 {
        ENTRY_BYTES.into()
    }
}

type Quick = quick_cache::sync::Cache<Key, Value, Weigh, RandomState, DefaultLifecycle<Key, Value>>;
type Moka = moka::sync::Cache<Key, Value, RandomState>;

trait Table: Send + Sync {
    fn get(&self, key: &Key) -> Option<Value>;
    fn put(&self, key: Key, value: Value);
}

impl Table for Quick {
    fn get(&self, key: &Key) -> Option<Value> {
        Quick::get(self, key)
    }

    fn put(&self, key: Key, value: Value) {
        self.insert(key, value);
    }
}

impl Table for Moka {
    fn get(&self, key: &Key) -> Option<Value> {
        Moka::get(self, key)
    }

    fn put(&self, key: Key, value: Value) {
        self.insert(key, value);
    }
}

fn quick() -> Arc<dyn Table> {
    let options = OptionsBuilder::new()
        .shards(16)
        .estimated_items_capacity(FIT as usize)
        .weight_capacity(FIT * u64::from(ENTRY_BYTES))
        .build()
        .expect("both capacities are given");
    Arc::new(Quick::with_options(options, Weigh, RandomState::new(), DefaultLifecycle::default()))
}

fn moka(expires: bool) -> Arc<dyn Table> {
    let builder = moka::sync::Cache::builder()
        .max_capacity(FIT * u64::from(ENTRY_BYTES))
        .weigher(|_: &Key, _: &Value| ENTRY_BYTES);
    let builder = if expires { builder.time_to_live(Duration::from_secs(300)) } else { builder };
    Arc::new(builder.build_with_hasher(RandomState::new()))
}

/// Questions a second, the share that was known, and what the slowest of a thousand took.
struct Round {
    per_second: f64,
    hits: f64,
    p999_micros: f64,
}

fn round(table: &Arc<dyn Table>, threads: usize, length: Duration) -> Round {
    let (asked, known) = (AtomicU64::new(0), AtomicU64::new(0));
    let barrier = Barrier::new(threads);
    let mut slow = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (asked, known, barrier) = (&asked, &known, &barrier);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(worker as u64 + 7);
                    let (mut all, mut hits, mut took) = (0, 0, Vec::new());
                    barrier.wait();
                    let began = Instant::now();
                    while began.elapsed() < length {
                        for _ in 0..64 {
                            let number = (rng.f64().powf(STEEP) * KEYS as f64) as u64;
                            let key = key(number);
                            // One in 64 is timed: the clock costs as much as the question.
                            let timed = (all % 64 == 0).then(Instant::now);
                            match table.get(&key) {
                                Some(_) => hits += 1,
                                None => table.put(key, Arc::new([0; 64])),
                            }
                            took.extend(timed.map(|timed| timed.elapsed()));
                            all += 1;
                        }
                    }
                    asked.fetch_add(all, Ordering::Relaxed);
                    known.fetch_add(hits, Ordering::Relaxed);
                    took
                })
            })
            .collect();
        slow.extend(workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")));
    });
    slow.sort();
    let asked = asked.into_inner() as f64;
    Round {
        per_second: asked / length.as_secs_f64(),
        hits: known.into_inner() as f64 / asked,
        p999_micros: slow[slow.len() * 999 / 1000].as_secs_f64() * 1e6,
    }
}

pub(crate) fn run(is_quick: bool) -> Outcome<()> {
    let (rounds, length) =
        if is_quick { (1, Duration::from_millis(100)) } else { (5, Duration::from_millis(800)) };
    println!("| Table | Threads | Questions/s | Known | p99.9 µs |\n|---|--:|--:|--:|--:|");
    for threads in [1, 2] {
        let tables = [("quick_cache", quick()), ("moka", moka(false)), ("moka with a lifetime", moka(true))];
        let mut results: Vec<Vec<Round>> = tables.iter().map(|_| Vec::new()).collect();
        // One round that does not count fills them; then they take turns.
        for turn in 0..=rounds {
            for (at, (_, table)) in tables.iter().enumerate() {
                let result = round(table, threads, length);
                if turn > 0 {
                    results[at].push(result);
                }
            }
        }
        for ((name, _), rounds) in tables.iter().zip(&results) {
            let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
            println!(
                "| {name} | {threads} | {:.0} | {:.3} | {:.2} |",
                of(|round| round.per_second),
                of(|round| round.hits),
                of(|round| round.p999_micros)
            );
        }
    }
    Ok(())
}
