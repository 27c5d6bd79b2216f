//! Whole nodes on a simulated network: what they find under silence, loss, deaths and lies, and that a seed replays.

#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ron_core::{
    ContentId, Deadline, NodeId, Supervisor,
    net::{BoxFuture, Identity},
    now,
};
use ron_dht::{
    Contact, Dht, DhtError, Settings,
    logic::{
        addrs::Sender,
        lookup::{Failure, LookupSettings, Reason},
        wire::{Answer, Request},
    },
    network::{Answers, Network, Reply, Served},
    sim::{Conditions, SimLink, SimNetwork, Testnet},
};

const K: usize = 20;

fn within(seconds: u64) -> Deadline {
    Deadline::after(Duration::from_secs(seconds))
}

/// What many searches came to.
#[derive(Debug, Default)]
struct Runs {
    count: usize,
    found: usize,
    recall: f64,
    hops: Vec<u8>,
    took: Vec<Duration>,
    questions: usize,
}

impl Runs {
    fn success(&self) -> f64 {
        self.found as f64 / self.count as f64
    }

    fn recall(&self) -> f64 {
        self.recall / self.count as f64
    }

    fn p99<T: Ord + Copy>(values: &[T]) -> T {
        let mut values = values.to_vec();
        values.sort_unstable();
        values[values.len() * 99 / 100]
    }
}

/// Random ones of `askers` look for random ones of `wanted`.
async fn searches(net: &mut Testnet, askers: &[usize], wanted: &[usize], count: usize) -> Runs {
    let mut runs = Runs { count, ..Runs::default() };
    while runs.took.len() < count {
        let asker = askers[net.rng().usize(..askers.len())];
        let wanted = wanted[net.rng().usize(..wanted.len())];
        let wanted = net.id(wanted);
        if net.id(asker) == wanted {
            continue;
        }
        let began = now();
        let closest = net.node(asker).find_node(wanted, within(20)).await.unwrap();
        runs.took.push(now() - began);
        runs.hops.push(closest.verdict.hops);
        runs.questions += closest.verdict.rpcs;
        runs.found += usize::from(closest.peers[0].id == wanted);
        let got: HashSet<NodeId> = closest.peers.iter().map(|peer| peer.id).collect();
        let mut truth = net.closest(wanted, K + 1);
        truth.retain(|id| *id != net.id(asker));
        truth.truncate(K);
        runs.recall += truth.iter().filter(|id| got.contains(id)).count() as f64 / truth.len() as f64;
    }
    runs
}

/// Random nodes look for random others.
async fn any_searches(net: &mut Testnet, count: usize) -> Runs {
    let live: Vec<usize> = net.live().collect();
    searches(net, &live, &live, count).await
}

#[tokio::test(start_paused = true)]
async fn the_nearest_are_found_in_few_hops_and_after_a_fifth_has_died() {
    let mut net = Testnet::builder(300).seed(1).build().await;
    let runs = any_searches(&mut net, 60).await;
    assert!(runs.success() == 1.0 && runs.recall() >= 0.99, "{runs:?}");
    assert!(Runs::p99(&runs.hops) <= 5, "{runs:?}");

    for number in 0..60 {
        net.kill(number).await;
    }
    let runs = any_searches(&mut net, 40).await;
    assert!(runs.success() >= 0.97, "at once: {runs:?}");
    tokio::time::sleep(Duration::from_secs(300)).await;
    let runs = any_searches(&mut net, 40).await;
    assert!(runs.success() >= 0.99 && runs.recall() >= 0.9, "five minutes later: {runs:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_run() {
    async fn trace(seed: u64, is_encoded: bool) -> [u8; 32] {
        let conditions = Conditions { loss: 0.02, is_encoded, ..Conditions::default() };
        let mut net = Testnet::builder(20).seed(seed).conditions(conditions).build().await;
        net.kill(3).await;
        net.add().await;
        net.node(7).provide(ContentId::of(b"x"), within(5)).await.unwrap();
        any_searches(&mut net, 5).await;
        net.net().trace()
    }
    let first = trace(5, false).await;
    assert_eq!(first, trace(5, false).await);
    assert_eq!(first, trace(5, true).await, "what is sent as bytes arrives as it was");
    assert_ne!(first, trace(6, false).await);
}

/// One peer in ten takes every question and answers none. Twice the share of the large simulation, because a small
/// network has fewer of them.
#[tokio::test(start_paused = true)]
async fn hedging_cuts_the_tail() {
    let mut net = Testnet::builder(60).seed(2).build().await;
    let asking = |hedges| Settings {
        lookup: LookupSettings { hedges, ..LookupSettings::default() },
        server: false,
        ..Testnet::settings()
    };
    let askers = [2, 0].map(|hedges| (0..6).map(|_| net.start_with(asking(hedges))).collect::<Vec<usize>>());
    net.ready(&askers.concat()).await;
    (0..6).for_each(|number| net.silence(number));
    let wanted: Vec<usize> = (6..60).collect();
    let hedged = searches(&mut net, &askers[0], &wanted, 50).await;
    let patient = searches(&mut net, &askers[1], &wanted, 50).await;
    assert!(hedged.success() == 1.0 && patient.success() == 1.0, "{hedged:?} {patient:?}");
    assert!(Runs::p99(&hedged.took) * 2 <= Runs::p99(&patient.took), "{hedged:?} {patient:?}");
    assert!(hedged.questions * 10 <= patient.questions * 11, "{hedged:?} {patient:?}");
}

/// One message in ten is lost, so one question in five has no answer.
#[tokio::test(start_paused = true)]
async fn what_is_looked_for_is_found_though_messages_get_lost() {
    let mut net = Testnet::builder(50).seed(3).build().await;
    net.net().set_conditions(Conditions { loss: 0.1, ..Conditions::default() });
    let runs = any_searches(&mut net, 50).await;
    assert!(runs.success() >= 0.98, "{runs:?}");
    let content = ContentId::of(b"x");
    net.node(1).provide(content, within(20)).await.unwrap();
    for asker in 2..12 {
        let mut found = net.node(asker).find_providers(content, NonZeroUsize::MIN, within(20)).unwrap();
        assert_eq!(found.next().await.unwrap().unwrap().id, net.id(1));
    }
}

/// Names twenty peers next to whatever is looked for, none of which exist.
struct Liar;

impl Answers for Liar {
    fn answer(&self, _: Sender, request: Request, _: Deadline) -> Served {
        let invented = |target: [u8; 32]| {
            let invent = |number: u8| {
                let mut id = target;
                id[31] ^= number;
                id[5] ^= number;
                let addrs: Arc<[SocketAddr]> = Arc::from([(Ipv4Addr::new(99, 9, 9, 9), 1).into()]);
                Contact { id: NodeId::from_bytes(id), addrs }
            };
            (1..=K as u8).map(invent).collect()
        };
        Served::Now(Ok(match request {
            Request::FindNode { target } => Answer::Nodes { closer: invented(*target.as_bytes()) },
            Request::FindValue { key, .. } => {
                Answer::Found { closer: invented(*key.as_bytes()), providers: Vec::new(), value: None }
            }
            _ => Answer::Pong,
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn searches_among_liars_end_within_their_requests() {
    let mut net = Testnet::builder(60).seed(4).build().await;
    for number in 0..12 {
        net.net().replace(&net.id(number), Arc::new(Liar));
    }
    let honest: Vec<usize> = (12..60).collect();
    let most = usize::from(LookupSettings::default().requests_max);
    let mut found = 0;
    for asker in honest.iter().take(20) {
        let wanted = honest[net.rng().usize(21..honest.len())];
        let wanted = net.id(wanted);
        let closest = net.node(*asker).find_node(wanted, within(60)).await.unwrap();
        assert!(closest.verdict.rpcs <= most, "{:?}", closest.verdict);
        assert_ne!(closest.verdict.reason, Reason::Deadline);
        found += usize::from(closest.peers.first().is_some_and(|first| first.id == wanted));
    }
    assert!(found >= 19, "{found} of 20");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_search_asks_nobody_any_more() {
    let net = Testnet::builder(25).seed(5).build().await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    let before = net.net().messages().asked;
    let search = net.node(0).find_node(ContentId::of(b"x"), within(20));
    assert!(tokio::time::timeout(Duration::from_millis(200), search).await.is_err());
    let dropped = net.net().messages().asked;
    assert!(dropped > before);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(net.net().messages().asked, dropped);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_whoever_is_silent() {
    let net = Testnet::builder(25).seed(6).build().await;
    (1..25).for_each(|number| net.silence(number));
    let budget = Duration::from_millis(800);
    let began = now();
    let closest = net.node(0).find_node(ContentId::of(b"x"), Deadline::after(budget)).await.unwrap();
    assert_eq!((closest.verdict.reason, closest.peers.len()), (Reason::Deadline, 0));
    let off = (now() - began).as_secs_f64() / budget.as_secs_f64() - 1.0;
    assert!(off.abs() <= 0.05, "{off}");
}

/// A way into the network that panics when it is told to, in the middle of a search.
#[derive(Debug)]
struct Explosive {
    link: SimLink,
    is_lit: Arc<AtomicBool>,
}

impl Network for Explosive {
    fn ask(
        &self,
        to: &Contact,
        request: Arc<Request>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Result<Reply, Failure>> {
        assert!(!self.is_lit.load(Ordering::Relaxed), "told to");
        self.link.ask(to, request, deadline)
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.link.listening()
    }
}

#[tokio::test(start_paused = true)]
async fn searches_that_panic_cost_themselves_and_nothing_else() {
    let net = Testnet::builder(20).seed(7).build().await;
    let identity = Arc::new(Identity::from_seed(&[7; 32]));
    let id = identity.node_id();
    let is_lit = Arc::new(AtomicBool::new(false));
    let host = Supervisor::builder("explosive").inline_blocking(true).seed(7).start();
    let builder = Dht::builder().settings(Testnet::settings()).seed(7).seeds([net.node(0).contact()]);
    let fuse = Arc::clone(&is_lit);
    let dht = builder.start_on(identity, &host, |answers, _| {
        Ok(Arc::new(Explosive { link: net.net().join(id, answers), is_lit: fuse }))
    });
    let dht = dht.await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(dht.ready().reads, "{:?}", dht.ready());

    is_lit.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        let failed = dht.find_node(net.id(9), within(5)).await.unwrap_err();
        assert_eq!(failed, DhtError::Panicked { op: "find_node" });
    }
    is_lit.store(false, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(dht.find_node(net.id(9), within(5)).await.unwrap().peers[0].id, net.id(9));
    }
    assert!(dht.ready().reads && host.failure().is_none());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_tells_of_a_cut_and_of_its_end() {
    let net = Testnet::builder(20).seed(8).build().await;
    let cut_off = net.node(4);
    assert!(cut_off.ready().reads);
    net.net().put_on_side(&net.id(4), 1);
    for number in 0..40_u8 {
        let _ = cut_off.find_node(ContentId::of(&[number]), within(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!cut_off.ready().reads, "{:?} {:?}", cut_off.ready(), cut_off.peers());
    let refused = cut_off.find_node(net.id(9), within(5)).await.unwrap_err();
    // Peers are known, and none of them answers.
    assert_eq!(refused, DhtError::NotReady { gate: "dht.peers" });
    assert_eq!(refused.to_string(), "not ready, no peer that is known answers (dht.peers)");

    net.net().heal();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(cut_off.ready().reads, "{:?}", cut_off.ready());
    assert_eq!(cut_off.find_node(net.id(9), within(5)).await.unwrap().peers[0].id, net.id(9));
}

/// A node whose id fell far from all others has fewer buckets to fill than the size of its network makes one expect. It
/// waited for them in vain, trying again after ever longer pauses: about one node in two networks of sixty-four, and
/// whoever started such a network and waited for all of it waited for ever.
#[tokio::test(start_paused = true)]
async fn a_node_far_from_all_others_is_ready_too() {
    let net = SimNetwork::new(11);
    let mut seeds = Vec::new();
    let mut nodes = Vec::new();
    let mut rng = fastrand::Rng::with_seed(11);
    // Whoever shares three bits with the last one is left out, so that it has three buckets to fill and not five.
    while nodes.len() < 50 {
        let mut key = [0; 32];
        rng.fill(&mut key);
        let identity = Arc::new(Identity::from_seed(&key));
        let id = identity.node_id();
        let is_far = id.as_bytes()[0] >> 5 == 0;
        if is_far != (nodes.len() == 49) {
            continue;
        }
        let host = Supervisor::builder("node").inline_blocking(true).seed(rng.u64(..)).start();
        let builder = Dht::builder().settings(Testnet::settings()).seed(rng.u64(..)).seeds(seeds.clone());
        let join = |answers, _: &Supervisor| -> Result<Arc<dyn Network>, DhtError> {
            Ok(Arc::new(net.join(id, answers)))
        };
        let dht = builder.start_on(identity, &host, join).await.unwrap();
        if seeds.is_empty() {
            seeds.push(dht.contact());
        } else {
            dht.joined(within(30)).await.unwrap();
        }
        nodes.push((dht, host));
    }
    let (far, _) = nodes.last().unwrap();
    assert!(far.ready().reads, "{:?}", far.ready());
    assert_eq!(far.status().buckets, 3);
    for (_, host) in &nodes {
        host.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_whoever_still_waits() {
    let net = Testnet::builder(25).seed(9).build().await;
    let dht = net.node(0).clone();
    let search = |number: u8| {
        let dht = dht.clone();
        async move { dht.find_node(ContentId::of(&[number]), within(20)).await }
    };
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        dht.shutdown().await
    };
    let (first, second, third, stopped) = tokio::join!(search(1), search(2), search(3), stop);
    for searched in [first, second, third] {
        match searched {
            Ok(closest) => assert_eq!(closest.verdict.reason, Reason::Canceled),
            Err(error) => assert_eq!(error, DhtError::Canceled),
        }
    }
    assert_eq!(stopped.aborted, 0, "{stopped:?}");
    let refused = dht.find_node(net.id(9), within(5)).await.unwrap_err();
    assert_eq!(refused, DhtError::Canceled);
    assert_eq!(dht.shutdown().await, stopped);
    assert_eq!(net.shutdown().await.aborted, 0);
}

#[tokio::test(start_paused = true)]
async fn clients_ask_and_are_in_nobodys_table() {
    let mut net = Testnet::builder(25).seed(10).build().await;
    let client = net.start_with(Settings { server: false, ..Testnet::settings() });
    net.ready(&[client]).await;
    let content = ContentId::of(b"x");
    net.node(3).provide(content, within(5)).await.unwrap();
    let mut found = net.node(client).find_providers(content, NonZeroUsize::MIN, within(5)).unwrap();
    assert_eq!(found.next().await.unwrap().unwrap().id, net.id(3));
    tokio::time::sleep(Duration::from_secs(60)).await;
    for number in 0..25 {
        assert!(net.node(number).peers().iter().all(|peer| peer.contact.id != net.id(client)));
    }
    assert!(!net.closest(net.id(client), 30).contains(&net.id(client)));
}

/// Two nodes whose buckets were full introduced themselves to each other, each because the other had, for ever: with
/// three hundred nodes, twenty pings for every question, and more each hour. Now a network at rest is silent.
#[tokio::test(start_paused = true)]
async fn a_network_at_rest_is_silent() {
    let net = Testnet::builder(60).seed(11).build().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = net.net().messages().asked;
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(net.net().messages().asked, before);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_killed_node() {
    let mut net = Testnet::builder(25).seed(12).build().await;
    let node = net.net().replace(&net.id(5), Arc::new(Liar));
    assert!(node.strong_count() > 0);
    net.kill(5).await;
    assert_eq!(node.strong_count(), 0);
}
