//! One contender with one number of nodes, in a process of its own: what is done to it, and what is measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    figures::Figures,
    measure::{Outcome, Stopwatch, datagrams, quantile, raise_file_limit, resident, runtime, sockets},
    peers::dht::{self, Answer, JOINING, Key, Network, Place, Start},
};

/// Searches at once in the two halves of each measurement.
pub(crate) const CONCURRENCY: [usize; 2] = [1, 32];

/// Keys in a row that everybody who is asked must find before the network counts as ready. One alone may be lucky.
const KEYS_IN_A_ROW: usize = 5;

/// Nodes that are asked for each of those keys.
const PROBES: usize = 16;

/// Share of the true nearest nodes that a probe has to find where there are no providers.
const PROBE_RECALL: f64 = 0.9;

/// After a key that was not found.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// No search takes longer, unless it hangs.
const SEARCH_MOST: Duration = Duration::from_secs(20);

/// Searches before those that are measured, over all askers, so that they have their connections.
const WARM_UP: usize = 256;

/// Buckets that are looked into beyond those that have somebody by expectation.
const REFRESH_SPARE: u32 = 1;

/// How much is done to a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) round: u64,
    pub(crate) is_quick: bool,
}

impl Plan {
    /// Who asks: everybody, or a few fixed nodes in a network so large that links between all need more descriptors
    /// than a process has.
    fn askers(&self) -> usize {
        if self.nodes > 64 { 8 } else { self.nodes }
    }

    /// Keys that are provided, and found later.
    fn keys(&self) -> usize {
        if self.is_quick { 20 } else { 200 }
    }

    /// The most that is asked at this concurrency; time ends it sooner for slow contenders.
    fn searches(&self, concurrency: usize) -> usize {
        let most = if concurrency == 1 { 4_000 } else { 10_000 };
        if self.is_quick { most / 50 } else { most }
    }

    fn phase(&self) -> Duration {
        if self.is_quick { Duration::from_millis(200) } else { Duration::from_secs(2) }
    }

    /// With nothing to do, before the cost of that is taken: what joining and searching left over is put away by then. Of two
    /// links that two nodes opened to each other at once, ours close one after four seconds.
    fn rest(&self) -> Duration {
        if self.is_quick { Duration::from_millis(100) } else { Duration::from_secs(6) }
    }

    /// With nothing to do, while the cost of that is taken.
    fn idle(&self) -> Duration {
        if self.is_quick { Duration::from_millis(100) } else { Duration::from_secs(4) }
    }

    fn start_limit(&self) -> Duration {
        if self.is_quick { Duration::from_secs(20) } else { Duration::from_secs(150) }
    }
}

/// What the process does: `contender nodes round quick|full`.
pub(crate) fn child(arguments: &[String]) -> Outcome<()> {
    let [name, nodes, round, scale] = arguments else {
        return Err("contender, nodes, round and quick or full are missing".into());
    };
    let plan = Plan { nodes: nodes.parse()?, round: round.parse()?, is_quick: scale == "quick" };
    raise_file_limit()?;
    let figures = runtime()?.block_on(measure(name, plan))?;
    print!("{figures}");
    // Not one by one: whom they would tell is going, too.
    std::process::exit(0)
}

async fn measure(name: &str, plan: Plan) -> Outcome<Figures> {
    let mut figures = Figures::default();
    let mut chance = Chance(fastrand::Rng::with_seed(plan.round));
    let before = resident()?;
    let (watch, began) = (Stopwatch::start(), Instant::now());
    let start =
        Start { nodes: plan.nodes, askers: plan.askers(), seed: plan.round, limit: plan.start_limit() };
    let (network, failed) = dht::start(name, start).await?;
    let nodes = Arc::new(Nodes::new(network, plan.nodes));
    if !nodes.network.abilities().refreshes_at_join {
        nodes.refresh(&mut chance).await?;
    }
    figures.set("join.seconds", began.elapsed().as_secs_f64());
    figures.set("join.failed", failed as f64);
    let gate = nodes.ready(&mut chance, plan, began).await?;
    figures.set("ready.keys", gate.keys as f64);
    if let Some(since) = gate.since {
        figures.set("ready.seconds", since.as_secs_f64());
    }
    figures.set("start.cpu.seconds", watch.stop(1).cpu.as_secs_f64());
    nodes.tell_memory(&mut figures, "ready", before).await?;

    let keys: Arc<[Key]> = (0..plan.keys()).map(|_| chance.key()).collect();
    if nodes.network.abilities().has_providers {
        let jobs = keys.iter().map(|key| Job { node: chance.below(plan.nodes), key: *key }).collect();
        let done = nodes.run(Kind::Provide, jobs, 8, SEARCH_MOST).await?;
        figures.set("provide.failed", done.failed as f64);
    }
    let warm = (0..WARM_UP).map(|at| Job { node: at % plan.askers(), key: chance.key() }).collect();
    nodes.run(Kind::Closest, warm, JOINING, plan.phase() * 2).await?;

    tokio::time::sleep(plan.rest()).await;
    let watch = Stopwatch::start();
    tokio::time::sleep(plan.idle()).await;
    let idle = watch.stop(1);
    let idle = idle.cpu.as_secs_f64() / idle.wall.as_secs_f64();
    figures.set("idle.percent", idle * 100.0);

    for kind in [Kind::Providers, Kind::Closest] {
        for concurrency in CONCURRENCY {
            if kind == Kind::Providers && !nodes.network.abilities().has_providers {
                continue;
            }
            let job = |_| {
                let key = match kind {
                    Kind::Providers => keys[chance.below(keys.len())],
                    _ => chance.key(),
                };
                Job { node: chance.below(plan.askers()), key }
            };
            let jobs = (0..plan.searches(concurrency)).map(job).collect();
            let datagrams_before = datagrams()?;
            let done = nodes.run(kind, jobs, concurrency, plan.phase()).await?;
            let datagrams = datagrams()? - datagrams_before;
            done.tell(&mut figures, &nodes, kind, concurrency, idle, datagrams);
        }
    }
    nodes.tell_memory(&mut figures, "end", before).await?;
    Ok(figures)
}

/// Keys and askers, the same for every contender in a round.
struct Chance(fastrand::Rng);

impl Chance {
    fn key(&mut self) -> Key {
        let mut key = [0; 32];
        self.0.fill(&mut key);
        key
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    /// A key that shares `bits` bits with `place`, and not one more.
    fn key_beside(&mut self, place: &Place, bits: u32) -> Key {
        let mut key = self.key();
        let (whole, rest) = ((bits / 8) as usize, bits % 8);
        key[..whole].copy_from_slice(&place[..whole]);
        let turned = 0x80_u8 >> rest;
        let shared = !(0xff_u8 >> rest);
        key[whole] = place[whole] & shared | !place[whole] & turned | key[whole] & !(shared | turned);
        key
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Provide,
    Providers,
    Closest,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Provide => "provide",
            Kind::Providers => "providers",
            Kind::Closest => "closest",
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    node: usize,
    key: Key,
}

/// When the network was ready, if it ever was, and how many keys were tried.
struct Ready {
    since: Option<Duration>,
    keys: usize,
}

/// A network, and the truth about it.
struct Nodes {
    network: Arc<dyn Network>,
    places: Vec<Place>,
}

impl Nodes {
    fn new(network: Arc<dyn Network>, nodes: usize) -> Self {
        let places = (0..nodes).map(|node| network.place_of_node(node)).collect();
        Nodes { network, places }
    }

    /// The share of the nodes truly nearest to the key of `job` that were found. The asker itself does not count.
    fn recall(&self, job: &Job, found: &[Place]) -> f64 {
        let key = self.network.place_of_key(&job.key);
        let distance = |place: &Place| -> Place { std::array::from_fn(|at| place[at] ^ key[at]) };
        let asker = &self.places[job.node];
        let mut nearest: Vec<&Place> = self.places.iter().filter(|place| *place != asker).collect();
        nearest.sort_by_key(|place| distance(place));
        nearest.truncate(self.network.abilities().k);
        nearest.iter().filter(|place| found.contains(place)).count() as f64 / nearest.len() as f64
    }

    async fn search(&self, kind: Kind, job: &Job) -> Outcome<Answer> {
        let search = match kind {
            Kind::Provide => self.network.provide(job.node, job.key),
            Kind::Providers => self.network.find_providers(job.node, job.key),
            Kind::Closest => self.network.find_closest(job.node, job.key),
        };
        tokio::time::timeout(SEARCH_MOST, search).await?
    }

    /// Looks into every bucket of every node, for libraries whose join does not.
    async fn refresh(self: &Arc<Self>, chance: &mut Chance) -> Outcome<()> {
        let buckets = self.places.len().ilog2() + REFRESH_SPARE;
        let mut jobs = Vec::new();
        for bucket in 0..buckets {
            for (node, place) in self.places.iter().enumerate() {
                jobs.push(Job { node, key: chance.key_beside(place, bucket) });
            }
        }
        self.run(Kind::Closest, jobs, JOINING, Duration::MAX).await?;
        Ok(())
    }

    /// Waits until some keys in a row are found by everybody who is asked. No key gets a second chance: one that was
    /// not found makes the count begin anew.
    async fn ready(self: &Arc<Self>, chance: &mut Chance, plan: Plan, began: Instant) -> Outcome<Ready> {
        let has_providers = self.network.abilities().has_providers;
        let kind = if has_providers { Kind::Providers } else { Kind::Closest };
        let (mut in_a_row, mut since) = (0, began.elapsed());
        for keys in 1.. {
            let (key, provider) = (chance.key(), chance.below(plan.nodes));
            let jobs = (0..PROBES).map(|_| Job { node: chance.below(plan.nodes), key }).collect();
            if has_providers {
                self.search(Kind::Provide, &Job { node: provider, key }).await?;
            }
            let done = self.run(kind, jobs, PROBES, SEARCH_MOST).await?;
            let is_good = |search: &Search| match kind {
                Kind::Closest => self.recall(&search.job, &search.answer.closest) >= PROBE_RECALL,
                _ => search.answer.found > 0,
            };
            if done.searches.iter().filter(|search| is_good(search)).count() == PROBES {
                in_a_row += 1;
                if in_a_row == KEYS_IN_A_ROW {
                    return Ok(Ready { since: Some(since), keys });
                }
                continue;
            }
            if began.elapsed() > plan.start_limit() {
                return Ok(Ready { since: None, keys });
            }
            in_a_row = 0;
            tokio::time::sleep(PROBE_PAUSE).await;
            since = began.elapsed();
        }
        Err("there are more keys".into())
    }

    /// As many callers at once, each with one search after the other, until the jobs or the time run out.
    async fn run(
        self: &Arc<Self>,
        kind: Kind,
        jobs: Vec<Job>,
        concurrency: usize,
        limit: Duration,
    ) -> Outcome<Done> {
        let (jobs, next): (Arc<[Job]>, _) = (jobs.into(), Arc::new(AtomicUsize::new(0)));
        let (watch, began) = (Stopwatch::start(), Instant::now());
        let mut callers = JoinSet::new();
        for _ in 0..concurrency.min(jobs.len()) {
            let (nodes, jobs, next) = (Arc::clone(self), Arc::clone(&jobs), Arc::clone(&next));
            callers.spawn(async move {
                let (mut searches, mut failed) = (Vec::new(), 0);
                while began.elapsed() < limit {
                    let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)).copied() else { break };
                    let began = Instant::now();
                    match nodes.search(kind, &job).await {
                        Ok(answer) => searches.push(Search { job, took: began.elapsed(), answer }),
                        Err(_) => failed += 1,
                    }
                }
                (searches, failed)
            });
        }
        let mut done = Done { searches: Vec::new(), failed: 0, wall: Duration::ZERO, cpu: Duration::ZERO };
        while let Some(caller) = callers.join_next().await {
            let (searches, failed) = caller?;
            done.searches.extend(searches);
            done.failed += failed;
        }
        let sample = watch.stop(1);
        Ok(Done { wall: sample.wall, cpu: sample.cpu, ..done })
    }

    async fn tell_memory(&self, figures: &mut Figures, when: &str, before: u64) -> Outcome<()> {
        let nodes = self.places.len() as f64;
        let grown = resident()?.saturating_sub(before) as f64;
        figures.set(format!("memory.{when}"), grown / nodes);
        if let Some(ends) = self.network.connections().await? {
            figures.set(format!("connections.{when}"), ends as f64 / nodes);
        }
        figures.set(format!("sockets.{when}"), sockets()? as f64);
        Ok(())
    }
}

struct Search {
    job: Job,
    took: Duration,
    answer: Answer,
}

/// Searches that were done at one concurrency.
struct Done {
    searches: Vec<Search>,
    failed: usize,
    wall: Duration,
    cpu: Duration,
}

impl Done {
    fn tell(
        &self,
        figures: &mut Figures,
        nodes: &Nodes,
        kind: Kind,
        concurrency: usize,
        idle: f64,
        datagrams: u64,
    ) {
        let count = self.searches.len() as f64;
        let mut set =
            |what: &str, value: f64| figures.set(format!("{}.{concurrency}.{what}", kind.name()), value);
        let sorted = |times: Vec<Duration>| {
            let mut times = times;
            times.sort_unstable();
            times
        };
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let took = sorted(self.searches.iter().map(|search| search.took).collect());
        let first = sorted(self.searches.iter().filter_map(|search| search.answer.first).collect());
        let wall = self.wall.as_secs_f64();
        set("searches", count);
        set("failed", self.failed as f64);
        set("per_second", count / wall);
        set("p50", millis(quantile(&took, 0.5)));
        set("p99", millis(quantile(&took, 0.99)));
        if !first.is_empty() {
            set("first.p50", millis(quantile(&first, 0.5)));
        }
        set("cpu.millis", (self.cpu.as_secs_f64() - idle * wall).max(0.0) * 1e3 / count);
        let rpcs: Vec<usize> = self.searches.iter().filter_map(|search| search.answer.rpcs).collect();
        let rpcs = match rpcs.is_empty() {
            // A question is a datagram, and so is its answer.
            true => datagrams as f64 / 2.0,
            false => rpcs.iter().sum::<usize>() as f64,
        };
        set("rpcs", rpcs / count);
        let worth: f64 = self
            .searches
            .iter()
            .map(|search| match kind {
                Kind::Closest => nodes.recall(&search.job, &search.answer.closest),
                _ => f64::from(u8::from(search.answer.found > 0)),
            })
            .sum();
        set("recall", worth / (count + self.failed as f64));
    }
}
