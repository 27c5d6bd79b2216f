//! Each knob that no other test turns, turned: what it changes is seen from outside.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ron_core::{
    Deadline, Event as Told, GateLimits, NodeId, Supervisor,
    net::{
        Endpoint, Identity,
        oap::{Code, Flags, Frame, Hello},
        rpc::Ask,
    },
    now,
    sim::{SimNet, SimTransport},
};
use ron_dht::{
    Contact, Dht, DhtError, Event, LookupSettings, Preset, Reason, Settings,
    network::{ALPN, Request, Sender, Served, Want},
};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::world::{Counts, World, host, id, key, ready, soon};

const SECOND: Duration = Duration::from_secs(1);

/// Why the node is not ready.
fn closed(dht: &Dht, gate: &str) -> Option<String> {
    let status = dht.ready();
    let gate = status.gates.iter().find(|found| *found.name == *gate).unwrap();
    gate.reason.as_ref().map(ToString::to_string)
}

#[tokio::test(start_paused = true)]
async fn as_many_seeds_as_required_must_answer() {
    let (world, host) = (World::of(60), host());
    let seeds = world.peers();
    world.silence(seeds[..2].iter().copied());
    let settings = Settings { seeds_required: 3, ..Settings::default() };
    let dht = world.start(1000, &host, Dht::builder().settings(settings)).await.unwrap();
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(closed(&dht, "dht.seeds").as_deref(), Some("1 of 3 seeds answered"));
    assert!(!dht.ready().reads);
    dht.reload(Settings { seeds_required: 1, ..(*dht.settings()).clone() }).unwrap();
    tokio::time::sleep(120 * SECOND).await;
    assert!(dht.ready().reads, "{:?}", dht.ready());

    // With peers of its own it needs no seed any more, however many it began with.
    dht.reload(Settings { seeds_required: 3, refresh: 60 * SECOND, ..(*dht.settings()).clone() }).unwrap();
    tokio::time::sleep(600 * SECOND).await;
    assert!(dht.ready().reads, "{:?}", dht.ready());
    host.shutdown().await;
}

/// Of a network of two hundred, only our nearest are left. That is too thin a table for eight tenths, until it turns out
/// that there is no more to have; for a tenth it is enough all the time.
#[tokio::test(start_paused = true)]
async fn as_many_buckets_as_required_must_be_filled() {
    for (buckets_required, closes) in [(0.8, true), (0.1, false)] {
        let (world, host) = (World::of(200), host());
        let settings = Settings { buckets_required, ..Settings::default() };
        let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
        assert!(dht.status().buckets >= 6, "{}", dht.status().buckets);
        let own = dht.node_id();
        let near = world.closest(&own.into(), 12, &own);
        world.silence(world.peers().into_iter().filter(|peer| !near.contains(peer)));
        let mut reasons = Vec::new();
        for number in 0..60 {
            let _ = dht.find_node(key(number), soon()).await;
            reasons.extend(closed(&dht, "dht.buckets"));
        }
        for _ in 0..600 {
            tokio::time::sleep(SECOND / 10).await;
            reasons.extend(closed(&dht, "dht.buckets"));
        }
        assert_eq!(!reasons.is_empty(), closes, "{reasons:?}");
        assert!(reasons.iter().all(|why| why.ends_with(" buckets filled")), "{reasons:?}");
        assert!((1..=4).contains(&dht.status().buckets));
        host.shutdown().await;
    }
}

/// Two nodes that joined at the same moment by the same seed did not know of each other until the next refresh, an hour later.
#[tokio::test(start_paused = true)]
async fn where_there_are_few_it_looks_again_soon() {
    let (world, host) = (World::of(3), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    ready(&dht).await;
    assert_eq!(dht.peers().len(), 3);
    world.join([id(7)]);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(dht.peers().len(), 4);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_table_is_refreshed_as_often_as_asked() {
    let (world, host) = (World::of(60), host());
    let settings = Settings { refresh: 600 * SECOND, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    let mut events = dht.events();
    let mut refreshed = async |hours: u32| {
        tokio::time::sleep(3600 * SECOND * hours).await;
        let mut count = 0;
        while let Ok(told) = tokio::time::timeout(Duration::ZERO, events.recv()).await {
            count += usize::from(matches!(told, Some(Told::Item(Event::Refreshed { buckets: 4.., .. }))));
        }
        count
    };
    // Every ten minutes, a quarter more or less.
    let often = refreshed(5).await;
    assert!((24..=40).contains(&often), "{often}");
    dht.reload(Settings { refresh: 3600 * SECOND, ..(*dht.settings()).clone() }).unwrap();
    let seldom = refreshed(5).await;
    assert!((4..=8).contains(&seldom), "{seldom}");
    host.shutdown().await;
}

/// Twenty ids ground next to a key.
fn ground(number: u64) -> Vec<NodeId> {
    let near = |low: u8| {
        let mut id = *key(number).as_bytes();
        id[8] ^= low;
        NodeId::from_bytes(id)
    };
    (1..=20).map(near).collect()
}

#[tokio::test(start_paused = true)]
async fn a_made_up_neighbourhood_is_stored_around_only_with_regions() {
    let (world, host) = (World::of(400), host());
    let settings = Settings { refresh: 60 * SECOND, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    // Long enough that its idea of the size of the network is settled.
    tokio::time::sleep(1200 * SECOND).await;
    world.join(ground(1));
    let honest = dht.provide(key(2), soon()).await.unwrap();
    assert!(!honest.is_region && honest.asked == 20, "{honest:?}");
    let wide = dht.provide(key(1), soon()).await.unwrap();
    assert!(wide.is_region && wide.asked >= 40, "{wide:?}");
    dht.reload(Settings { regions: false, ..(*dht.settings()).clone() }).unwrap();
    let narrow = dht.provide(key(1), soon()).await.unwrap();
    assert!(!narrow.is_region && narrow.asked == 20, "{narrow:?}");
    host.shutdown().await;
}

/// The searches around a made-up neighbourhood ran one after the other, and where each took its time the call was over
/// before those whom they found were told. They run at once: all of them take about as long as one.
#[tokio::test(start_paused = true)]
async fn a_made_up_neighbourhood_is_stored_around_in_the_time_of_the_call() {
    let (world, host) = (World::of(400), host());
    // Every question takes a while, but not so long that it counts as silence.
    world.latency(SECOND / 5);
    let settings = Settings { refresh: 60 * SECOND, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    tokio::time::sleep(1200 * SECOND).await;
    world.join(ground(1));
    let began = now();
    let honest = dht.provide(key(2), Deadline::after(60 * SECOND)).await.unwrap();
    assert!(!honest.is_region && honest.kept == 20, "{honest:?}");
    let alone = began.elapsed();

    // One search and its stores for the key itself, and the time of one more and of more stores for the region.
    let began = now();
    let wide = dht.provide(key(1), Deadline::after(3 * alone)).await.unwrap();
    println!("{alone:?} for one neighbourhood, {:?} for all around one that is made up", began.elapsed());
    assert!(wide.is_region && wide.kept >= 40, "{wide:?}");
    assert!(began.elapsed() < 3 * alone, "{:?} after {alone:?}", began.elapsed());
    // Everybody who was found was told: those who are looked for where the Sybils are not.
    let keepers = world.closest(&key(1), 40, &dht.node_id());
    let honest = keepers.iter().filter(|peer| !ground(1).contains(peer));
    assert!(honest.filter(|peer| world.kept_by(&key(1), peer).is_some()).count() >= 18);
    host.shutdown().await;
}

/// With places for eight peers, a ninth is turned away while the eight are being served.
#[tokio::test(start_paused = true)]
async fn so_many_peers_are_remembered() {
    for (remembered, served) in [(8, 8), (4096, 20)] {
        let (world, host) = (World::of(40), host());
        let limits = GateLimits { in_flight: 1000, ..Settings::default().total_limits };
        let settings = Settings { peers_remembered: remembered, total_limits: limits, ..Settings::default() };
        let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
        let answers = world.real(&dht.node_id()).upgrade().unwrap();
        // Strangers, and not those whom it met when it joined.
        let ask = |number: u64| {
            let sender = Sender { id: id(9000 + number), ip: [10, 1, 1, 1].into() };
            answers.answer(sender, Request::Provide { records: Vec::new() }, soon())
        };
        let asked: Vec<Served> = (0..20).map(ask).collect();
        let let_in = asked.iter().filter(|served| matches!(served, Served::Later(_))).count();
        assert_eq!(let_in, served);
        for refused in &asked[let_in..] {
            assert!(matches!(refused, Served::Now(Err(fault)) if fault.code == Code::Busy), "{refused:?}");
        }
        drop((asked, answers));
        host.shutdown().await;
    }
}

/// Nodes over endpoints, on a simulated network of machines.
struct Machines {
    net: SimNet,
    nodes: Vec<(Dht, Supervisor)>,
}

impl Machines {
    fn new() -> Self {
        Machines { net: SimNet::new(1), nodes: Vec::new() }
    }

    async fn add(&mut self, ip: IpAddr, settings: Settings, counts: &Counts) -> Dht {
        let number = self.nodes.len() as u8 + 1;
        let identity = Identity::from_seed(&[number; 32]);
        let transport = Arc::new(SimTransport::new(&self.net, ip, &identity));
        let host = host();
        let endpoint = Endpoint::builder(identity).transport(transport).listen(SocketAddr::new(ip, 4710));
        let endpoint = endpoint.start(&host).unwrap();
        let seeds: Vec<Contact> = self.nodes.first().map(|(dht, _)| dht.contact()).into_iter().collect();
        let dht = Dht::builder().settings(settings).metrics(counts.metrics()).seed(number.into());
        let dht = dht.seeds(seeds).start(&endpoint, &host).await.unwrap();
        ready(&dht).await;
        self.nodes.push((dht.clone(), host));
        dht
    }

    /// A link to `dht` from somebody who has said HELLO and will say no more by itself.
    async fn link(&self, host: &Supervisor, dht: &Dht) -> impl AsyncWrite + Unpin + use<> {
        let identity = Identity::from_seed(&[99; 32]);
        let transport = Arc::new(SimTransport::new(&self.net, lan(99), &identity));
        let endpoint = Endpoint::builder(identity).transport(transport).start(host).unwrap();
        let contact = dht.contact();
        let link = endpoint.connect(contact.id, &contact.addrs, ALPN, soon()).await.unwrap();
        let mut stream = link.stream;
        send(&mut stream, Hello::default().request()).await.unwrap();
        stream
    }

    async fn stop(self) {
        for (_, host) in &self.nodes {
            host.shutdown().await;
        }
    }
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: Frame) -> std::io::Result<()> {
    stream.write_all_buf(&mut frame.encode().unwrap()).await
}

fn lan(number: u8) -> IpAddr {
    [10, 7, 7, number].into()
}

#[tokio::test(start_paused = true)]
async fn links_are_few_and_end_when_nobody_uses_them() {
    // Short, and the default; the others keep theirs for longer than either.
    for (idle, closed_by) in [(5 * SECOND, 30 * SECOND), (60 * SECOND, 120 * SECOND)] {
        let (mut machines, others, counts) = (Machines::new(), Counts::new(), Counts::new());
        let patient = Settings { idle_timeout: 600 * SECOND, ..Settings::default() };
        for number in 1..=6 {
            machines.add(lan(number), patient.clone(), &others).await;
        }
        let settings = Settings { idle_timeout: idle, ..Settings::default() };
        let dht = machines.add(lan(7), settings, &counts).await;
        for number in 0..3 {
            dht.find_node(key(number), soon()).await.unwrap();
        }
        let ended = || counts.get("sessions_closed_total{reason=\"idle\"}");
        assert_eq!(ended(), 0);
        tokio::time::sleep(idle - SECOND).await;
        assert_eq!(ended(), 0);
        tokio::time::sleep(closed_by - idle).await;
        assert_eq!(ended(), 6);
        machines.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_links_than_allowed() {
    for (sessions_max, least, most) in [(2, 4, 100), (1024, 0, 0)] {
        let (mut machines, others, counts) = (Machines::new(), Counts::new(), Counts::new());
        let settings = Settings { idle_timeout: 6000 * SECOND, ..Settings::default() };
        for number in 1..=6 {
            machines.add(lan(number), settings.clone(), &others).await;
        }
        let dht = machines.add(lan(7), Settings { sessions_max, ..settings }, &counts).await;
        let closest = dht.find_node(key(1), soon()).await.unwrap();
        assert_eq!(
            closest.peers.len(),
            6,
            "a link gives way to the next, and nobody is left out: {:?}",
            closest.verdict
        );
        tokio::time::sleep(10 * SECOND).await;
        let ended = counts.get("sessions_closed_total{reason=\"shutdown\"}")
            + counts.get("sessions_closed_total{reason=\"peer\"}");
        assert!((least..=most).contains(&ended), "{sessions_max}: {}", counts.text());
        machines.stop().await;
    }
}

/// On the open Internet, one network has two places in a bucket and ten in a table. In a cluster everybody is of one.
#[tokio::test(start_paused = true)]
async fn a_preset_says_how_much_of_the_table_one_network_may_have() {
    for (preset, most) in [(Preset::Public, 10), (Preset::Lan, 1000)] {
        let (world, host) = (World::of(0), host());
        let settings = Settings { preset, ..Settings::default() };
        let dht = world.start(1000, &host, Dht::builder().settings(settings)).await.unwrap();
        world.join_at((0..300).map(id), [98, 7, 7, 7].into());
        let answers = world.real(&dht.node_id()).upgrade().unwrap();
        for number in 0..300 {
            let listening = vec![SocketAddr::from(([98, 7, 7, 7], 4710))];
            let sender = Sender { id: id(number), ip: [98, 7, 7, 7].into() };
            assert!(matches!(
                answers.answer(sender, Request::Ping { listening }, soon()),
                Served::Now(Ok(_))
            ));
            tokio::time::sleep(SECOND / 10).await;
        }
        tokio::time::sleep(60 * SECOND).await;
        let peers = dht.peers().len();
        assert!(if most == 10 { (5..=10).contains(&peers) } else { peers >= 80 }, "{preset:?}: {peers}");
        drop(answers);
        host.shutdown().await;
    }
}

/// Who is on the open Internet may not send us into our own house; in a cluster, houses are what there is.
#[tokio::test(start_paused = true)]
async fn a_preset_says_which_addresses_strangers_may_name() {
    for (preset, is_asked) in [(Preset::Public, false), (Preset::Lan, true)] {
        let (world, host) = (World::of(0), host());
        let settings = Settings { preset, ..Settings::default() };
        let dht = world.start(1000, &host, Dht::builder().settings(settings)).await.unwrap();
        let answers = world.real(&dht.node_id()).upgrade().unwrap();
        let before = world.asked(1);
        let listening = vec!["192.168.1.1:80".parse().unwrap(), "127.0.0.1:80".parse().unwrap()];
        let sender = Sender { id: id(1), ip: [98, 7, 7, 7].into() };
        assert!(matches!(answers.answer(sender, Request::Ping { listening }, soon()), Served::Now(Ok(_))));
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(world.asked(1) > before, is_asked, "{preset:?}");
        drop(answers);
        host.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_stands_still_in_a_message_is_closed() {
    for timeout in [2 * SECOND, Settings::default().read_timeout] {
        let (mut machines, counts, host) = (Machines::new(), Counts::new(), host());
        let settings = Settings { read_timeout: timeout, write_timeout: timeout, ..Settings::default() };
        machines.add(lan(1), Settings::default(), &Counts::new()).await;
        let dht = machines.add(lan(2), settings, &counts).await;
        let value = dht.put(&[7; 16_000], soon()).await.unwrap();
        let late = |op: &str| counts.get(&format!("io_timeouts_total{{op=\"frame_{op}\"}}"));

        // Half of a frame.
        let mut half = machines.link(&host, &dht).await;
        half.write_all(&1000_u32.to_be_bytes()).await.unwrap();
        tokio::time::sleep(timeout - SECOND).await;
        assert_eq!(late("read"), 0);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(late("read"), 1);

        // A megabyte of answers, of which none is read.
        let mut asking = machines.link(&host, &dht).await;
        let (number, body) = Request::FindValue { key: value, want: Want::Immutable, limit: 1 }.encode();
        for corr in 1..=64 {
            let ask = Ask { method: number, budget_ms: 20_000, credit: 1 };
            let payload = ask.encode(&body);
            let frame = Frame { flags: Flags::REQ, proto: 1, corr, payload, ..Frame::default() };
            send(&mut asking, frame).await.unwrap();
        }
        tokio::time::sleep(timeout - SECOND).await;
        assert_eq!(late("write"), 0);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(late("write"), 1);
        host.shutdown().await;
        machines.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn queues_are_as_long_as_the_settings_say() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    let buckets = counts.get("tasks_spawned_total{kind=\"bucket_writer\"}");
    for (queue, room) in [("work", 512), ("route", 1024 * buckets), ("events", 1024), ("pings", 256)] {
        assert_eq!(counts.get(&format!("queue_capacity{{queue=\"{queue}\"}}")), room, "{queue}");
    }
    assert_eq!(*dht.settings(), Settings::default());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_search_is_as_wide_and_as_deep_as_asked() {
    let (world, host) = (World::of(600), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let of = |lookup: LookupSettings, seeds: usize| Settings { lookup, seeds, ..(*dht.settings()).clone() };
    let usual = LookupSettings::default();
    for wide in [3, 7] {
        let parallelism = wide.try_into().unwrap();
        dht.reload(of(LookupSettings { parallelism, ..usual }, 20)).unwrap();
        let trace = dht.find_node(key(1), soon()).await.unwrap().verdict.trace;
        assert_eq!(trace.iter().filter(|asked| asked.at == trace[0].at).count(), wide);
    }
    for seeds in [1, 20] {
        dht.reload(of(usual, seeds)).unwrap();
        let trace = dht.find_node(key(2), soon()).await.unwrap().verdict.trace;
        let own = trace.iter().filter(|asked| asked.hop == 1).count();
        assert!((1..=seeds).contains(&own) && (seeds == 1 || own > 1), "{own} of {seeds}");
    }
    for (hops_max, reason) in [(1, Reason::Hops), (5, Reason::Complete)] {
        dht.reload(of(LookupSettings { hops_max, ..usual }, 3)).unwrap();
        let verdict = dht.find_node(key(3), soon()).await.unwrap().verdict;
        assert_eq!(verdict.reason, reason, "{verdict:?}");
        assert!(verdict.hops <= hops_max);
    }
    // Strangers are waited for as long as it says, before others have their places.
    let known: Vec<NodeId> = dht.peers().iter().map(|entry| entry.contact.id).collect();
    world.silence(world.peers().into_iter().filter(|id| !known.contains(id)));
    let mut took = Vec::new();
    for millis in [250, 1000] {
        let hedge_after = Duration::from_millis(millis);
        dht.reload(of(LookupSettings { hedge_after, ..usual }, 20)).unwrap();
        let before = now();
        let verdict = dht.find_node(key(4), soon()).await.unwrap().verdict;
        assert!(verdict.hedges > 0, "{verdict:?}");
        took.push(before.elapsed());
    }
    assert!(took[0] * 2 < took[1], "{took:?}");
    host.shutdown().await;
}

/// What peers do not answer is counted by what was asked of them, over links that are cut.
#[tokio::test(start_paused = true)]
async fn silence_is_counted_by_what_was_asked() {
    let (mut machines, others, counts) = (Machines::new(), Counts::new(), Counts::new());
    for number in 1..=4 {
        machines.add(lan(number), Settings::default(), &others).await;
    }
    let settings = Settings { server: false, idle_timeout: 5 * SECOND, ..Settings::default() };
    let dht = machines.add(lan(5), settings, &counts).await;
    let cut = || machines.net.partition(&[lan(5)], &[lan(1), lan(2), lan(3), lan(4)]);
    let late = |op: &str| counts.get(&format!("io_timeouts_total{{op=\"{op}\"}}"));
    cut();
    let _ = dht.find_node(key(1), soon()).await;
    assert!(late("find_node") > 0, "{}", counts.text());
    if let Ok(mut found) = dht.find_providers(key(1), 1.try_into().unwrap(), soon()) {
        while let Ok(Some(_)) = found.next().await {}
    }
    assert!(late("find_value") > 0, "{}", counts.text());

    // Without a link it is the dial that takes too long.
    machines.net.heal();
    tokio::time::sleep(300 * SECOND).await;
    ready(&dht).await;
    tokio::time::sleep(60 * SECOND).await;
    cut();
    let before = late("dial");
    let _ = dht.find_node(key(2), soon()).await;
    assert!(late("dial") > before, "{}", counts.text());
    machines.stop().await;
}

/// A client that nobody answered for a while, in a network that it takes for so small that no bucket is required, asks again by
/// itself. It used to wait for the next refresh, an hour, and to say meanwhile that no peer answers.
#[tokio::test(start_paused = true)]
async fn whoever_was_cut_off_from_a_few_finds_them_again() {
    let (mut machines, counts) = (Machines::new(), Counts::new());
    machines.add(lan(1), Settings::default(), &counts).await;
    let dht = machines.add(lan(2), Settings { server: false, ..Settings::default() }, &counts).await;
    machines.net.partition(&[lan(2)], &[lan(1)]);
    let mut searches = 0;
    while dht.find_node(key(searches), soon()).await.is_ok() {
        searches += 1;
        assert!(searches < 50, "it is silent by now");
    }
    let alone = Err(DhtError::NotReady { gate: "dht.peers" });
    assert_eq!(dht.find_node(key(1), soon()).await.map(drop), alone);
    // At once, and not when the node looks next.
    assert!(!dht.ready().reads, "{:?}", dht.ready());
    machines.net.heal();
    tokio::time::sleep(90 * SECOND).await;
    assert!(dht.ready().reads, "{:?}", dht.ready());
    let found = dht.find_node(key(1), soon()).await.unwrap();
    assert_eq!(found.peers.len(), 1);
    machines.stop().await;
}
