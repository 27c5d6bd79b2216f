//! Finding the network and keeping up with it: the seeds, readiness, refreshing the table, asking whether peers are there.

use std::{borrow::Cow, ops::ControlFlow, sync::Arc, time::Duration};

use ron_core::{BackoffPolicy, Deadline, ReadyGate, Restart, Stop, TaskSpec, now};

use crate::{
    Event,
    buckets::Errand,
    inflight::InFlight,
    logic::{
        Contact, Key,
        estimate::{Looked, expected_buckets},
        lookup::{Failure, Goal, Reason, Verdict},
        table::{BUCKETS, K, random_key_in},
        wire::Request,
    },
    node::{Errands, Node},
    search::{Nearest, Plan, search},
};

pub(crate) const BOOTSTRAPPER: TaskSpec = TaskSpec::new("ron-dht", "bootstrapper")
    .restart(Restart::PATIENT)
    .what("asks the seeds until they answer, fills the table, says when the node is ready, refreshes quiet buckets");

/// Between rounds of asking seeds that do not answer: quickly at first, for a node that started before its seeds.
const SEEDS_BACKOFF: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(60));

/// What a search of the bootstrapper may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a node looks whether it has been cut off: as long as that it may wait for nothing.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Silent peers that are tried again by a node that has no others.
const SILENT_TRIED: usize = 32;

/// Pings that are out at once.
const PINGS_AT_ONCE: usize = 8;

/// Buckets beyond the expected ones that a refresh looks into.
const REFRESH_SPARE: usize = 2;

/// Contacts of the last run that are asked together with the seeds. Some of them have gone meanwhile, and one that
/// answers is enough; all would be a thousand handshakes at once.
const KNOWN_AT_ONCE: usize = 32;

/// When a node that has joined a small network looks for itself again. Two who join at once by the same seed are not told of
/// each other, and where there are few nobody else tells them before the next refresh.
const SETTLE: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// How often a node that is alone looks whether somebody has come.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Whom to begin with.
pub(crate) struct Beginning {
    /// Given by the host.
    pub(crate) seeds: Vec<Contact>,
    /// Known from the last run, the latest first.
    pub(crate) known: Vec<Contact>,
}

/// Finds the network and keeps up with it.
pub(crate) async fn bootstrap(
    node: Arc<Node>,
    beginning: Arc<Beginning>,
    gates: Arc<Gates>,
    seed: u64,
    stop: Stop,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pause = SEEDS_BACKOFF.with_seed(rng.u64(..));
    let seeds = &beginning.seeds;
    // Whom the last run knew is asked some at a time, round by round, as long as there is nobody: after a power cut this node
    // may be back long before all of them, and without a seed nobody else can find the network for it.
    let mut known = beginning.known.chunks(KNOWN_AT_ONCE).cycle();
    let mut looked = Looked::nowhere();
    loop {
        let more = if node.buckets.filled() == 0 { known.next().unwrap_or_default() } else { &[] };
        let answered = Box::pin(node.ask_seeds(seeds, more, &mut rng)).await;
        if answered > 0 {
            node.buckets.wait_for_anybody().await;
        }
        let settings = node.settings();
        let required = settings.seeds_required.min(seeds.len());
        let mut is_connected = gates.seeds(answered, required, &node);
        if is_connected {
            // Boxed: between two refreshes, which is nearly always, nobody needs the room.
            looked = Box::pin(node.fill(&mut rng)).await.unwrap_or(looked);
            is_connected = gates.buckets(&node, &looked);
        }
        if !*node.settled.load() {
            node.settled.replace(true);
        }
        // A node that is alone looks for others all the same, only not in a hurry.
        let alone = node.buckets.filled() == 0;
        if *node.joined.load() != (is_connected && !alone) {
            node.joined.replace(is_connected && !alone);
            if is_connected && !alone && Box::pin(node.settle(&mut rng, &stop)).await.is_break() {
                return;
            }
        }
        let mut wait = if is_connected && !alone {
            pause.reset();
            // Jitter, so that a network that started together does not refresh together.
            settings.refresh.mul_f64(0.75 + rng.f64() / 2.0)
        } else {
            pause.next_delay().max(Duration::from_millis(50))
        };
        while !wait.is_zero() {
            let part = wait.min(LOOK_EVERY);
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = tokio::time::sleep(part) => {}
                () = node.somebody_comes(), if alone => break,
            }
            wait -= part;
            let was_connected = is_connected;
            is_connected = gates.buckets(&node, &looked);
            // Of a network that is taken for a very small one no bucket is required, and nothing is missed when all are silent;
            // a client is found by nobody either. The next refresh may be an hour away.
            let is_left_alone = !alone && node.buckets.filled() == 0;
            if is_left_alone || was_connected && !is_connected {
                break;
            }
        }
    }
}

/// The gates of readiness that say whether there is anybody to ask.
pub(crate) struct Gates {
    pub(crate) seeds: ReadyGate,
    pub(crate) buckets: ReadyGate,
    /// Asked whenever readiness is: the others are looked at every half minute, and who has just been cut off refuses at once.
    pub(crate) _peers: ReadyGate,
}

impl Gates {
    /// Whether enough seeds answered. Whoever else has answered stands in for one: seeds may be long gone, and a node that
    /// others came to is part of their network.
    fn seeds(&self, answered: usize, required: usize, node: &Node) -> bool {
        let answered = answered.max(node.buckets.answering(required));
        let is_enough = answered >= required;
        if is_enough {
            self.seeds.open();
        } else {
            self.seeds.close(format!("{answered} of {required} seeds answered"));
        }
        is_enough
    }

    /// Whether the table is as full as a network of this size makes it.
    fn buckets(&self, node: &Node, looked: &Looked) -> bool {
        let nodes = node.estimate.lock().nodes().unwrap_or(1.0);
        let is_empty = |bucket| node.buckets.is_empty(bucket);
        let required = looked.required_buckets(nodes, node.settings().buckets_required, is_empty);
        let filled = node.buckets.filled();
        let ready = filled >= required;
        if ready {
            self.buckets.open();
        } else {
            self.buckets.close(format!("{filled} of {required} buckets filled"));
        }
        ready
    }
}

impl Node {
    /// Why there is nobody to ask, for a node that was `given` seeds to wait for.
    pub(crate) fn lacks_peers(&self, given: usize) -> Option<Cow<'static, str>> {
        let is_alone = self.settings().seeds_required.min(given) > 0 && self.buckets.filled() == 0;
        is_alone.then(|| "no peer answers".into())
    }

    /// Returns when there is somebody in the table: others may come to a node that is alone.
    async fn somebody_comes(&self) {
        while self.buckets.filled() == 0 {
            tokio::time::sleep(LOOK_AROUND).await;
        }
    }

    /// Asks every seed, all at once, and by whom else the node could be found again if it is alone. Says how many
    /// answered of whom there is reason to expect it.
    async fn ask_seeds(&self, seeds: &[Contact], known: &[Contact], rng: &mut fastrand::Rng) -> usize {
        let deadline = Deadline::after(self.settings().rpc_timeout);
        let mut silent = if self.buckets.filled() == 0 { self.buckets.peers() } else { Vec::new() };
        // Others every time: the first few may be the ones that have gone for good.
        rng.shuffle(&mut silent);
        // A seed that has said itself where it is now is there, whatever it was given to us with.
        let begin_with = seeds.iter().chain(known).filter(|seed| seed.id != self.id);
        let begin_with: Vec<Contact> = begin_with.map(|seed| self.lead(seed.clone()).contact).collect();
        let mut asked = InFlight::new();
        for seed in &begin_with {
            asked.push(1, self.ping(seed, true, deadline));
        }
        for peer in silent.iter().take(SILENT_TRIED) {
            asked.push(0, self.ping(&peer.contact, true, deadline));
        }
        let mut answered = 0;
        while !asked.is_empty() {
            let (is_seed, is_there) = asked.next().await;
            answered += if is_there { is_seed } else { 0 };
        }
        answered
    }

    /// Whether `peer` answers. The table hears of it either way.
    pub(crate) async fn ping(&self, peer: &Contact, introduces: bool, deadline: Deadline) -> bool {
        let is_told = introduces && self.is_server;
        let listening = if is_told { self.network().listening() } else { Vec::new() };
        let began = now();
        let reply = self.network().ask(peer, Arc::new(Request::Ping { listening }), deadline).await;
        match reply {
            Ok(reply) => {
                self.buckets.answered(peer, reply.observed, now() - began, true).await;
                true
            }
            Err(Failure::Busy { .. }) => true,
            Err(failure) => {
                if failure.is_the_peers() {
                    self.buckets.failed(peer.id).await;
                }
                false
            }
        }
    }

    /// Looks for ourselves, and then into every bucket that a network of this size should fill. Nothing is told if that
    /// is called off.
    async fn fill(&self, rng: &mut fastrand::Rng) -> Option<Looked> {
        let verdict = self.look(Key::from(self.id), true).await;
        if verdict.reason == Reason::Canceled {
            return None;
        }
        let nodes = self.estimate.lock().nodes().unwrap_or(1.0);
        let buckets = expected_buckets(nodes).ceil() as usize + REFRESH_SPARE;
        // Targets nearer than this have our own neighbours, whatever they are: many of them are one sample, and a mean of
        // one sample taken for one of many calls every fifth key a made-up one.
        let apart = (nodes / (2 * K) as f64).max(1.0).log2() as usize;
        let mut looked = Looked::default();
        for bucket in 0..buckets.min(BUCKETS) {
            let target = random_key_in(&self.id, bucket, rng);
            let verdict = self.look(target, bucket < apart).await;
            if verdict.reason == Reason::Canceled {
                return None;
            }
            looked.on_look(verdict.shows_vacant(&self.id, bucket));
        }
        self.events
            .publish(Event::Refreshed { buckets: self.buckets.filled(), peers: self.buckets.peers().len() });
        Some(looked)
    }

    /// Looks for ourselves a few times more, as long as there are few. Breaks off when the node is to stop.
    async fn settle(&self, rng: &mut fastrand::Rng, stop: &Stop) -> ControlFlow<()> {
        for pause in SETTLE {
            if self.buckets.peers().len() >= K {
                break;
            }
            tokio::select! {
                biased;
                () = stop.requested() => return ControlFlow::Break(()),
                () = tokio::time::sleep(pause.mul_f64(0.75 + rng.f64() / 2.0)) => {}
            }
            self.look(Key::from(self.id), false).await;
        }
        ControlFlow::Continue(())
    }

    async fn look(&self, target: Key, is_sample: bool) -> Verdict {
        let plan = Plan {
            target,
            goal: Goal::Closest,
            settings: self.settings().lookup,
            deadline: Deadline::after(SEARCH_TIMEOUT),
            is_sample,
        };
        search(self, plan, &mut Nearest(target)).await
    }
}

/// Asks whoever is to be asked, a few at a time, until the stop. Newcomers have at most half of the places: most of those
/// who are not what they say take the whole timeout. And they wait until the node has looked around by itself: a table
/// that is empty takes everybody, and belongs to whoever calls first and most.
pub(crate) async fn ping_all(node: Arc<Node>, errands: Errands, _stop: Stop) {
    let mut running = InFlight::new();
    let mut newcomers = 0;
    let mut settled = node.settled.watch();
    loop {
        let is_settled = **settled.get();
        let is_full = running.len() >= PINGS_AT_ONCE;
        let are_many = !is_settled || is_full || newcomers >= PINGS_AT_ONCE / 2;
        let (errand, is_newcomer) = tokio::select! {
            biased;
            (was_newcomer, _) = running.next() => {
                newcomers -= usize::from(was_newcomer);
                continue;
            }
            () = settled.changed(), if !is_settled => continue,
            errand = errands.pings.recv(), if !is_full => (errand, false),
            // Without an introduction of ours: two nodes with full buckets would introduce themselves for ever.
            newcomer = errands.newcomers.recv(), if !are_many => {
                (newcomer.map(|to| Errand { to, introduces: false }), true)
            }
        };
        let Some(Errand { to, introduces }) = errand else { return };
        if introduces && !node.is_server {
            continue;
        }
        newcomers += usize::from(is_newcomer);
        let node = Arc::clone(&node);
        running.push(is_newcomer, async move {
            let deadline = Deadline::after(node.settings().rpc_timeout);
            node.ping(&to, introduces, deadline).await
        });
    }
}
