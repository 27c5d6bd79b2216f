//! One contender with one number of nodes and of publishers, in a process of its own: how the rate that it sustains is
//! looked for, and what is measured on the way.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ron_core::net::Identity;

use super::{
    VERIFYING,
    book::Book,
    rung::{Driver, Offer, Rung},
};
use crate::{
    figures::Figures,
    measure::{Outcome, Stopwatch, raise_file_limit, resident, runtime},
    peers::gossip::{self, Start},
};

/// Earlier nodes that each node is told of.
const CONTACTS: usize = 5;

/// The rate at which everybody is compared without load, and at which the search for more begins.
const RATE_FIRST: f64 = 50.0;

/// No contender is offered more, nor less.
const RATE_MOST: f64 = 25_600.0;
const RATE_LEAST: f64 = 3.0;

/// Halvings, in ratio, of what lies between a rate that was sustained and twice that, which was not: 4.4 % are left.
const HALVINGS: usize = 4;

const HASH_BYTES: usize = 32;

/// How much is done to a network.
#[derive(Debug, Clone, Copy)]
struct Plan {
    nodes: usize,
    publishers: usize,
    round: u64,
    is_quick: bool,
}

impl Plan {
    /// Messages are offered at each rate for so long.
    fn length(&self) -> Duration {
        if self.is_quick { Duration::from_millis(200) } else { Duration::from_secs(1) }
    }

    /// With nothing to do, before and while the cost of that is taken.
    fn settle(&self) -> Duration {
        if self.is_quick { Duration::from_millis(100) } else { Duration::from_secs(2) }
    }

    fn join_limit(&self) -> Duration {
        if self.is_quick { Duration::from_secs(20) } else { Duration::from_secs(60) }
    }
}

/// What the process does: `contender nodes publishers round quick|full`.
pub(crate) fn child(arguments: &[String]) -> Outcome<()> {
    let [name, nodes, publishers, round, scale] = arguments else {
        return Err("contender, nodes, publishers, round and quick or full are missing".into());
    };
    let plan = Plan {
        nodes: nodes.parse()?,
        publishers: publishers.parse()?,
        round: round.parse()?,
        is_quick: scale == "quick",
    };
    raise_file_limit()?;
    let figures = match name.as_str() {
        VERIFYING => verify(&plan)?,
        name => runtime()?.block_on(measure(name, plan))?,
    };
    print!("{figures}");
    // Not one by one: whom they would tell is going, too.
    std::process::exit(0)
}

async fn measure(name: &str, plan: Plan) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let book = Arc::new(Book::new(plan.nodes)?);
    let before = resident()?;
    let grown = || Outcome::Ok(resident()?.saturating_sub(before) as f64 / plan.nodes as f64);
    let began = Instant::now();
    let hear = Arc::clone(&book);
    let hear = Arc::new(move |node: usize, message: &[u8]| hear.heard(node, message));
    let start = Start { nodes: plan.nodes, contacts: CONTACTS, seed: plan.round, hear };
    let network = gossip::start(name, start).await?;
    let driver = Driver::new(network, book, plan.publishers, plan.round);
    driver.joined(plan.join_limit()).await?;
    figures.set("joined.seconds", began.elapsed().as_secs_f64());
    tokio::time::sleep(plan.settle()).await;
    figures.set("neighbours", driver.neighbours().await? as f64 / plan.nodes as f64);
    figures.set("memory.ready", grown()?);
    let watch = Stopwatch::start();
    tokio::time::sleep(plan.settle()).await;
    let idle = watch.stop(1);
    figures.set("idle.percent", idle.cpu.as_secs_f64() / idle.wall.as_secs_f64() * 100.0);

    let climbed = climb(&driver, &plan).await?;
    tell(&mut figures, "quiet", &climbed.quiet);
    if let Some(best) = &climbed.best {
        tell(&mut figures, "best", best);
    }
    if let Some(over) = &climbed.over {
        tell(&mut figures, "over", over);
    }
    figures.set("most", climbed.most);
    figures.set("memory.end", grown()?);
    Ok(figures)
}

/// What was found on the way up.
struct Climbed {
    /// At the first rate.
    quiet: Rung,
    /// At the highest rate that was sustained.
    best: Option<Rung>,
    /// At the first doubled rate that was not.
    over: Option<Rung>,
    /// Messages a second that reached everybody, in whichever rung that was most.
    most: f64,
}

/// Doubles the rate until it is not sustained, and halves what is between.
async fn climb(driver: &Driver, plan: &Plan) -> Outcome<Climbed> {
    let at = |rate: f64| Offer { rate, length: plan.length(), is_probe: false };
    // The first messages of a publisher make its tree, and are not those that count.
    driver.offer(at(RATE_FIRST)).await?;
    let quiet = driver.offer(at(RATE_FIRST)).await?;
    let mut climbed = Climbed { most: quiet.carried(), quiet, best: None, over: None };
    let (mut low, mut high) = (None, None);
    let mut rate = RATE_FIRST;
    loop {
        let rung = driver.offer_again(at(rate)).await?;
        climbed.most = climbed.most.max(rung.carried());
        if rung.is_sustained() {
            low = Some(rate);
            climbed.best = Some(rung);
        } else {
            high = Some(rate);
            climbed.over.get_or_insert(rung);
        }
        rate = match (low, high) {
            (Some(low), None) => low * 2.0,
            (None, Some(high)) => high / 2.0,
            _ => break,
        };
        if plan.is_quick || !(RATE_LEAST..=RATE_MOST).contains(&rate) {
            break;
        }
    }
    let (Some(mut low), Some(mut high)) = (low, high) else { return Ok(climbed) };
    for _ in 0..HALVINGS {
        let rate = (low * high).sqrt();
        let rung = driver.offer_again(at(rate)).await?;
        climbed.most = climbed.most.max(rung.carried());
        if rung.is_sustained() {
            low = rate;
            climbed.best = Some(rung);
        } else {
            high = rate;
        }
    }
    Ok(climbed)
}

fn tell(figures: &mut Figures, when: &str, rung: &Rung) {
    let mut set = |what: &str, value: f64| figures.set(format!("{when}.{what}"), value);
    set("rate", rung.rate);
    set("carried", rung.carried());
    set("p50", rung.p50.as_secs_f64() * 1e3);
    set("p99", rung.p99.as_secs_f64() * 1e3);
    set("cpu", rung.cpu_micros());
    set("rmr", rung.redundancy());
    set("share", rung.share());
    set("refused", (rung.offered - rung.taken) as f64);
    set("missed", rung.missed() as f64);
    set("told", rung.told as f64);
    set("twice", rung.twice as f64);
}

/// Messages a second that could be if nodes did nothing but check a signature each, on as many threads as there are
/// cores. What is signed is the hash of a message, as ours do it.
fn verify(plan: &Plan) -> Outcome<Figures> {
    const DOMAIN: &str = "ron-bench gossip 1";
    let threads = std::thread::available_parallelism()?.get();
    let count = if plan.is_quick { 200_u64 } else { 20_000 };
    let identity = Identity::from_seed(&[1; 32]);
    let message = [7; HASH_BYTES];
    let signature = identity.sign(DOMAIN, &message);
    let key = identity.public_key();
    let watch = Stopwatch::start();
    let is_proven = std::thread::scope(|scope| {
        let check = || (0..count).all(|_| key.verify_strict(DOMAIN, &message, &signature).is_ok());
        let checking: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
        checking.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    if !is_proven {
        return Err("a signature does not hold".into());
    }
    let sample = watch.stop(count * threads as u64);
    let mut figures = Figures::default();
    figures.set("best.rate", sample.per_second() / (plan.nodes - 1) as f64);
    figures.set("best.cpu", sample.cpu_micros());
    Ok(figures)
}
