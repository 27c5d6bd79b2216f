//! Every limit says no in its own words and counts it, and what can change while a node runs does.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{
    ConfigError, Deadline, Event as Told, GateLimits, NodeId, TaskSpec,
    net::{Identity, oap::Code},
    now,
};
use ron_dht::{
    Dht, DhtError, Key, Limits, LookupSettings, ProviderRecord, Reason, Settings, Value,
    network::{Answer, Put, RecordOutcome, Request, Sender, Served, Want},
};

use super::world::{Counts, START, World, host, id, key, soon};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");
const ONE: NonZeroUsize = NonZeroUsize::MIN;
const SECOND: Duration = Duration::from_secs(1);

/// A node was ready before anybody was in its table: the first search found nobody to ask and took the network for
/// empty, for which an empty table is enough. Ready is now said of a table that was filled.
#[tokio::test(start_paused = true)]
async fn ready_means_that_the_table_is_filled() {
    let (world, host) = (World::of(200), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    assert!(dht.peers().len() > 60, "{}", dht.peers().len());
    let size = dht.network_size().unwrap();
    assert!((100.0..400.0).contains(&size), "{size}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn before_and_after_its_life_a_node_is_not_ready() {
    let (world, host, counts) = (World::of(0), host(), Counts::new());
    let settings = Settings { drain: 2 * SECOND, ..Settings::default() };
    let builder = Dht::builder().settings(settings).metrics(counts.metrics());
    let dht = world.node(1000, &host, builder).await;
    let alone = dht.find_node(key(1), soon()).await.unwrap_err();
    assert_eq!(alone, DhtError::NotReady { gate: "dht.seeds" });
    assert!(alone.is_retryable());
    assert_eq!(dht.provide_many([key(1)], soon()).unwrap_err(), alone);
    assert_eq!(counts.get("not_ready_total{phase=\"bootstrap\"}"), 2);

    // Something that takes a while keeps it draining.
    world.add(40);
    for number in 0..5 {
        let listening = super::world::contact(&id(number)).addrs.to_vec();
        world.ask(dht.node_id(), id(number), Request::Ping { listening }).await.unwrap();
    }
    tokio::time::sleep(70 * SECOND).await;
    super::world::ready(&dht).await;
    world.silence_storage();
    let busy = dht.clone();
    host.spawn(CALLER, |_| async move { drop(busy.provide(key(1), soon()).await) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = dht.clone();
    let draining = host.spawn(CALLER, |_| async move {
        stopping.shutdown().await;
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(dht.find_node(key(1), soon()).await.unwrap_err(), DhtError::NotReady { gate: "dht tasks" });
    let refused = world.ask(dht.node_id(), id(1), Request::FindNode { target: key(1) }).await.unwrap_err();
    assert_eq!(refused.code, ron_core::net::oap::Code::Unavailable);
    assert_eq!(counts.get("not_ready_total{phase=\"drain\"}"), 2);
    assert!(!dht.ready().reads);
    draining.ended().await;
    assert_eq!(dht.find_node(key(1), soon()).await.unwrap_err(), DhtError::Canceled);
}

/// Who had no time to ask was told that nothing was found, or that none of 0 peers kept it.
#[tokio::test(start_paused = true)]
async fn without_time_to_ask_it_is_the_time_that_was_missing() {
    let (world, host) = (World::of(40), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let spent = || Deadline::after(Duration::ZERO);
    let timeout = |op| DhtError::Timeout { op };
    assert_eq!(dht.get(key(1), spent()).await.unwrap_err(), timeout("get"));
    let mutable = dht.get_mutable(&dht.public_key(), b"salt", spent()).await.unwrap_err();
    assert_eq!(mutable, timeout("get_mutable"));
    assert_eq!(dht.put(b"value", spent()).await.unwrap_err(), timeout("put"));
    assert_eq!(dht.provide(key(2), spent()).await.unwrap_err(), timeout("provide"));
    assert_eq!(dht.withdraw(key(2), spent()).await.unwrap_err(), timeout("withdraw"));
    let swap = dht.put_mutable(b"salt", b"value", 1, Some(0), spent()).await.unwrap_err();
    assert_eq!(swap, timeout("put_mutable"));
    // With time, nothing is an answer.
    assert_eq!(dht.get(key(1), soon()).await.unwrap_err(), DhtError::NotFound);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_trace_counts_from_the_start_of_its_search() {
    let (world, host) = (World::of(40), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    tokio::time::sleep(100 * SECOND).await;
    let trace = dht.find_node(key(1), soon()).await.unwrap().verdict.trace;
    assert_eq!(trace[0].at, Duration::ZERO);
    assert!(trace.iter().all(|asked| asked.at < SECOND), "{trace:?}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn queues_are_measured_and_tasks_are_counted() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let settings = Settings { workers: ONE, work_lane: 4, drain: SECOND / 5, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    assert_eq!(counts.get("tasks_spawned_total{kind=\"lookup\"}"), 1);
    assert!(counts.get("tasks_spawned_total{kind=\"bucket_writer\"}") >= 4);
    for kind in ["bootstrapper", "republisher", "keeper", "pinger"] {
        assert_eq!(counts.get(&format!("tasks_spawned_total{{kind=\"{kind}\"}}")), 1);
    }
    assert_eq!(counts.get("queue_depth{queue=\"route\"}"), 0);
    assert!(counts.get("queue_capacity{queue=\"route\"}") >= 1024);

    world.silence_storage();
    let mut calls = Vec::new();
    for number in 0..3 {
        let dht = dht.clone();
        calls.push(host.spawn(CALLER, move |_| async move {
            let failed = dht.provide(key(number), soon()).await.unwrap_err();
            assert_eq!(failed, DhtError::Canceled);
        }));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(counts.get("queue_depth{queue=\"work\"}"), 2);
    assert_eq!(dht.status().waiting, 2);
    // Waiting for a worker is part of the budget.
    let late = dht.find_node(key(9), Deadline::after(SECOND / 10)).await.unwrap_err();
    assert_eq!(late, DhtError::Timeout { op: "find_node" });
    assert_eq!(counts.get("io_timeouts_total{op=\"find_node\"}"), 1);
    // One is at work beyond the drain, the others wait.
    let stopped = dht.shutdown().await;
    assert_eq!(stopped.aborted, 1);
    assert_eq!(counts.get("tasks_aborted_total{kind=\"lookup\"}"), 1);
    assert!(counts.get("tasks_canceled_total{kind=\"bootstrapper\"}") == 1);
    for call in calls {
        call.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_stops_its_search() {
    let (world, host, counts) = (World::of(100), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    world.latency(SECOND / 5);
    let found = tokio::time::timeout(SECOND / 2, dht.find_node(key(1), soon())).await;
    assert!(found.is_err());
    tokio::time::sleep(SECOND / 10).await;
    let asked = world.asked(2);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(world.asked(2), asked);
    assert_eq!(counts.get("tasks_canceled_total{kind=\"lookup\"}"), 1);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_busy_are_asked_again_and_only_what_may_be_asked_twice() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    world.busy(1);
    let began = now();
    let closest = dht.find_node(key(1), soon()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert!(!closest.peers.is_empty());
    let retries = counts.get("backoff_retries_total{op=\"find_node\"}");
    // The budget lets a handful through and no storm.
    assert!((1..=20).contains(&retries), "{retries}");

    world.busy(0);
    tokio::time::sleep(60 * SECOND).await;
    world.busy_storage(true);
    let asked = world.asked(4);
    let refused = dht.provide(key(1), soon()).await.unwrap_err();
    assert_eq!(refused, DhtError::NotKept { asked: 20 });
    assert_eq!(world.asked(4) - asked, 20, "each of them once");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_silent_are_hedged_and_the_losers_canceled() {
    let (world, host, counts) = (World::of(200), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    world.silence(world.peers().into_iter().step_by(4));
    for number in 0..5 {
        let began = now();
        let closest = dht.find_node(key(number), soon()).await.unwrap();
        assert_eq!(closest.verdict.reason, Reason::Complete);
        assert!(began.elapsed() < 5 * SECOND);
    }
    let (spawned, canceled) = (counts.get("hedge_spawned_total"), counts.get("hedge_canceled_total"));
    assert!(spawned > 0 && canceled <= spawned, "{spawned} {canceled}");
    assert!(canceled > 0, "{spawned} {canceled}");
    assert!(spawned as usize <= world.asked(2), "{spawned} {canceled}");
    assert_eq!(
        counts.get("lookups_total{reason=\"complete\"}") as usize,
        counts.get("lookup_seconds_count") as usize
    );
    // A search that asked somebody came one hop far at least, and none farther than it may.
    let (searches, hops) = (counts.get("lookup_hops_count"), counts.get("lookup_hops_sum"));
    assert_eq!(searches, counts.get("lookup_seconds_count"));
    assert!((searches..=searches * 5).contains(&hops), "{hops} hops of {searches} searches");
    assert_eq!(counts.get("lookup_hops_bucket{le=\"5.0\"}"), searches);
    host.shutdown().await;
}

/// Everybody has become slower than anybody was ever known to be, so every question looks worth a hedge. Each search asks
/// some more than it would, and far less than it might.
#[tokio::test(start_paused = true)]
async fn hedges_are_within_their_budget_when_everybody_is_slow() {
    const SEARCHES: u64 = 10;
    let (world, host, counts) = (World::of(200), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    let most = usize::from(dht.settings().lookup.requests_max);
    let mut asked = Vec::new();
    for latency in [Duration::from_millis(1), SECOND] {
        world.latency(latency);
        let (before, hedged) = (world.asked(2), counts.get("hedge_spawned_total"));
        for number in 0..SEARCHES {
            let before = world.asked(2);
            let closest = dht.find_node(key(number), Deadline::after(30 * SECOND)).await.unwrap();
            assert_eq!(closest.verdict.reason, Reason::Complete);
            let asked = world.asked(2) - before;
            assert!(asked <= most, "{asked} questions");
        }
        asked.push(world.asked(2) - before);
        let hedged = (counts.get("hedge_spawned_total") - hedged) as usize;
        println!("{} questions, {hedged} hedges with a latency of {latency:?}", asked[asked.len() - 1]);
        assert_eq!(hedged > 0, latency == SECOND);
    }
    assert!(asked[1] <= 2 * asked[0], "{asked:?}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_cannot_keep_up_costs_news_and_no_time() {
    let (world, host, counts) = (World::of(200), host(), Counts::new());
    let settings = Settings { route_lane: 1, route_timeout: Duration::ZERO, ..Settings::default() };
    world.latency(Duration::ZERO);
    let dht =
        world.start(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert!(counts.get("route_dropped_total") > 0);
    assert!(dht.find_node(key(1), soon()).await.is_ok());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_told_what_it_missed() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let settings = Settings { events_lane: 2, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    let mut events = dht.events();
    for number in 0..5 {
        dht.provide(key(number), soon()).await.unwrap();
    }
    assert_eq!(events.recv().await, Some(Told::Missed(3)));
    assert_eq!(counts.get("bus_lagged_total{topic=\"events\"}"), 3);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn introductions_beyond_measure_are_shed() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    for number in 0..400_u64 {
        let listening = vec!["10.9.9.9:1".parse().unwrap()];
        let pong = world.ask(dht.node_id(), id(5000 + number), Request::Ping { listening }).await;
        assert_eq!(pong.unwrap(), Answer::Pong);
    }
    let dropped = counts.get("queue_dropped_total{queue=\"introduced\"}");
    assert!((100..=144).contains(&dropped), "{dropped}");
    host.shutdown().await;
}

/// One peer that introduces itself all the time, each time from another place where nobody answers, and a newcomer.
#[tokio::test(start_paused = true)]
async fn who_introduces_itself_all_the_time_keeps_nobody_out() {
    let (world, host, counts) = (World::of(10), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    let (flooder, newcomer) = (id(5000), id(6000));
    world.silence([flooder]);
    world.join([newcomer]);
    let knows = |who| dht.peers().iter().any(|entry| entry.contact.id == who);
    assert!(!knows(newcomer));
    let introduce = |who, addr: String| {
        let listening = vec![addr.parse().unwrap()];
        world.ask(dht.node_id(), who, Request::Ping { listening })
    };
    let (asked, began) = (world.asked(1), now());
    for number in 0..20_000_u32 {
        let _ = introduce(flooder, format!("10.9.{}.{}:1", number / 250 % 250, number % 250)).await;
        if number == 5_000 {
            introduce(newcomer, "10.8.8.8:1".to_owned()).await.unwrap();
        }
        if number % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let seconds = began.elapsed().as_secs() as usize;
    assert!(knows(newcomer) && seconds >= 9);
    let dials = world.asked(1) - asked;
    assert!(dials <= seconds / 3 + 5, "{dials} dials in {seconds} s");
    assert_eq!(counts.get("queue_dropped_total{queue=\"introduced\"}"), 0);
    host.shutdown().await;
}

/// Slower than a search likes to wait is not gone: whoever could have somebody leave the table by making it late for a
/// moment would need no more to fill the table with its own.
#[tokio::test(start_paused = true)]
async fn who_is_late_stays_in_the_table() {
    let (world, host) = (World::of(200), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let before: Vec<_> = dht.peers().into_iter().map(|entry| entry.contact.id).collect();
    let late: Vec<_> = before.iter().copied().step_by(4).collect();
    // They are known to answer within a millisecond, and others wait for their places.
    world.delay(late.iter().copied(), Duration::from_millis(100));
    for number in 0..30 {
        dht.find_node(key(number), soon()).await.unwrap();
        tokio::time::sleep(2 * SECOND).await;
    }
    let after = dht.peers();
    for peer in &late {
        let entry = after.iter().find(|entry| entry.contact.id == *peer);
        assert!(entry.is_some_and(|entry| !entry.is_silent()), "{peer:?}: {entry:?}");
    }
    // Who does not answer at all leaves.
    world.silence(late.iter().copied());
    for number in 0..60 {
        dht.find_node(key(100 + number), soon()).await.unwrap();
        tokio::time::sleep(2 * SECOND).await;
    }
    let after = dht.peers();
    let is_there =
        |peer: &&NodeId| after.iter().any(|entry| entry.contact.id == **peer && !entry.is_silent());
    let left = late.iter().filter(is_there).count();
    assert!(left * 2 < late.len(), "{left} of {}", late.len());
    host.shutdown().await;
}

/// Who asks to be left alone for a while is, and questions that are asked once more are questions.
#[tokio::test(start_paused = true)]
async fn the_busy_are_left_alone_for_as_long_as_they_ask_and_counted() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    world.busy(1);
    world.busy_for(SECOND);
    let (asked, began) = (world.asked(2), now());
    let closest = dht.find_node(key(1), soon()).await.unwrap();
    let retries = counts.get("backoff_retries_total{op=\"find_node\"}");
    assert!(retries == 0 || began.elapsed() >= SECOND, "{retries} after {:?}", began.elapsed());
    assert_eq!(closest.verdict.rpcs, world.asked(2) - asked);

    // Within the cap, whatever is asked again.
    let lookup = LookupSettings { requests_max: 6, ..LookupSettings::default() };
    dht.reload(Settings { lookup, ..(*dht.settings()).clone() }).unwrap();
    world.busy_for(Duration::ZERO);
    for number in 0..20 {
        world.busy(1);
        let asked = world.asked(2);
        let closest = dht.find_node(key(number), soon()).await.unwrap();
        assert!(world.asked(2) - asked <= 6 && closest.verdict.rpcs <= 6, "{:?}", closest.verdict);
    }
    host.shutdown().await;
}

/// What is no request is counted, and limited like any other.
#[tokio::test(start_paused = true)]
async fn garbage_is_counted_and_limited() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let limits = Settings::default().peer_limits;
    let peer_limits = GateLimits { per_second: 5, burst: 5, ..limits };
    let settings = Settings { peer_limits, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    let real = world.real(&dht.node_id()).upgrade().unwrap();
    let from = Sender { id: id(1), ip: [10, 9, 9, 9].into() };
    let garbage = bytes::Bytes::from(vec![0xff; 1000]);
    let mut refused = 0;
    for method in [1, 2, 3, 4, 5, 99, 1, 1] {
        let Served::Now(Err(fault)) = real.answer_encoded(from, method, &garbage, soon()) else { panic!() };
        refused += u64::from(fault.code == Code::Busy);
    }
    assert_eq!((refused, counts.get("quota_reject_total{kind=\"rate\"}")), (3, 3));
    assert_eq!(counts.get("record_rejects_total{reason=\"message_malformed\"}"), 5);
    tokio::time::sleep(2 * SECOND).await;
    let Served::Now(Err(fault)) = real.answer_encoded(from, 99, &garbage, soon()) else { panic!() };
    assert_eq!(fault.code, Code::NotFound);
    assert_eq!(counts.get("record_rejects_total{reason=\"message_method\"}"), 1);
    host.shutdown().await;
}

/// A short question for a long answer is paid for by the answer.
#[tokio::test(start_paused = true)]
async fn long_answers_count_against_whoever_asks() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let limits = Settings::default().peer_limits;
    let peer_limits = GateLimits { bytes_per_second: 40 << 10, bytes_burst: 64 << 10, ..limits };
    let settings = Settings { peer_limits, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    let value = Value::immutable(&[7; 16 << 10], 3600 * SECOND).unwrap();
    let what = value.key();
    let put = Put { value: value.encoded().clone(), expected: None };
    world.ask(dht.node_id(), id(2), Request::Store { values: vec![put] }).await.unwrap();
    let ask =
        || world.ask(dht.node_id(), id(1), Request::FindValue { key: what, want: Want::Immutable, limit: 1 });
    assert!(ask().await.is_ok() && ask().await.is_ok() && ask().await.is_ok());
    assert_eq!(ask().await.unwrap_err().code, Code::Busy);
    assert_eq!(counts.get("quota_reject_total{kind=\"rate\"}"), 1);
    tokio::time::sleep(2 * SECOND).await;
    assert!(ask().await.is_ok());

    // A key full of the longest records there can be: a few of them.
    let addrs: Vec<_> = (1..=8).map(|at| format!("[2606::{at}]:1").parse().unwrap()).collect();
    for who in 1..=200 {
        let stranger = Identity::from_seed(&[who; 32]);
        let record = ProviderRecord::sign(&stranger, key(5), &addrs, 1, START, 3600 * SECOND);
        let request = Request::Provide { records: vec![record.encoded().clone()] };
        world.ask(dht.node_id(), stranger.node_id(), request).await.unwrap();
    }
    tokio::time::sleep(9 * SECOND).await;
    let request = Request::FindValue { key: key(5), want: Want::Providers, limit: 256 };
    match world.ask(dht.node_id(), id(3), request).await {
        Ok(Answer::Found { providers, .. }) => {
            let bytes: usize = providers.iter().map(bytes::Bytes::len).sum();
            assert!((40 << 10..=48 << 10).contains(&bytes), "{} of {bytes} bytes", providers.len());
        }
        other => panic!("{other:?}"),
    }
    host.shutdown().await;
}

async fn give(world: &World, dht: &Dht, who: u8, what: Key) -> RecordOutcome {
    let stranger = Identity::from_seed(&[who; 32]);
    let addrs = ["10.9.9.9:1".parse().unwrap()];
    let record = ProviderRecord::sign(&stranger, what, &addrs, 1, START, 3600 * SECOND);
    let request = Request::Provide { records: vec![record.encoded().clone()] };
    match world.ask(dht.node_id(), stranger.node_id(), request).await.unwrap() {
        Answer::Provided { results } => results[0],
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn quotas_refuse_and_say_which() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let records =
        Limits { publisher_records_max: 3, providers_per_key_max: 2, records_max: 6, ..Limits::default() };
    let settings = Settings { records, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    for number in 0..3 {
        assert_eq!(give(&world, &dht, 1, key(number)).await, RecordOutcome::Kept);
    }
    assert_eq!(give(&world, &dht, 1, key(3)).await, RecordOutcome::Full);
    assert_eq!(counts.get("quota_reject_total{kind=\"records_per_publisher\"}"), 1);
    assert_eq!(give(&world, &dht, 2, key(0)).await, RecordOutcome::Kept);
    assert_eq!(give(&world, &dht, 3, key(0)).await, RecordOutcome::Full);
    assert_eq!(counts.get("quota_reject_total{kind=\"records_per_key\"}"), 1);
    assert_eq!(dht.status().records, 4);
    tokio::time::sleep(120 * SECOND).await;
    let bytes = counts.get("record_bytes");
    assert_eq!((counts.get("records"), (400..8000).contains(&bytes)), (4, true), "{bytes} bytes");
    // What is not signed by whom it says is no record at all.
    let mut forged = ProviderRecord::sign(&Identity::from_seed(&[4; 32]), key(9), &[], 1, START, SECOND)
        .encoded()
        .to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let request = Request::Provide { records: vec![forged.into()] };
    let answer = world.ask(dht.node_id(), id(1), request).await.unwrap();
    assert_eq!(answer, Answer::Provided { results: vec![RecordOutcome::Invalid] });
    assert_eq!(counts.get("record_rejects_total{reason=\"record_signature\"}"), 1);
    assert_eq!(counts.get("requests_total{method=\"provide\"}"), 7);
    host.shutdown().await;
}

/// The name of the first setting that would need a restart.
fn refused(dht: &Dht, change: impl FnOnce(&mut Settings)) -> Option<&'static str> {
    let mut settings = (*dht.settings()).clone();
    change(&mut settings);
    match dht.reload(settings) {
        Ok(()) => None,
        Err(DhtError::Config(ConfigError::NeedsRestart { key })) => Some(key),
        Err(DhtError::Config(ConfigError::OutOfRange { key, .. })) => Some(key),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_change_while_running_does_and_the_rest_is_named() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    let before = dht.settings();
    let one = GateLimits { per_second: 1, burst: 1, in_flight: 1, ..before.total_limits };
    assert_eq!(refused(&dht, |s| (s.workers, s.peer_limits) = (ONE, one)), Some("workers"));
    assert_eq!(refused(&dht, |s| s.records.records_max = 1), Some("records"));
    assert_eq!(refused(&dht, |s| s.republish = SECOND), Some("republish"));
    assert_eq!(refused(&dht, |s| s.server = false), Some("server"));
    assert_eq!(refused(&dht, |s| s.drain = SECOND), Some("drain"));
    assert_eq!(refused(&dht, |s| s.work_lane = 0), Some("work_lane"));
    assert_eq!(refused(&dht, |s| s.rpc_timeout = Duration::ZERO), Some("rpc_timeout"));
    assert_eq!(refused(&dht, |s| s.peer_limits.burst = 0), Some("gate.client.burst"));
    assert_eq!(dht.settings(), before, "a refused change changes nothing");

    // Searches: at most one question.
    assert_eq!(refused(&dht, |s| s.lookup = LookupSettings { requests_max: 1, ..s.lookup }), None);
    let short = dht.find_node(key(1), soon()).await.unwrap();
    assert_eq!((short.verdict.reason, short.verdict.rpcs), (Reason::Requests, 1));
    // Timeouts: silence is over sooner.
    world.silence(world.peers());
    assert_eq!(refused(&dht, |s| (s.lookup, s.rpc_timeout) = (before.lookup, SECOND / 10)), None);
    let began = now();
    let nobody = dht.find_node(key(2), Deadline::after(60 * SECOND)).await.unwrap();
    assert!(nobody.peers.is_empty() && began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());
    // Limits: one request a second of each peer.
    assert_eq!(refused(&dht, |s| s.peer_limits = one), None);
    let ask = || world.ask(dht.node_id(), id(1), Request::FindNode { target: key(1) });
    assert!(ask().await.is_ok());
    let fault = ask().await.unwrap_err();
    assert_eq!(fault.code, ron_core::net::oap::Code::Busy);
    assert!(fault.retry_after.is_some());
    assert_eq!(counts.get("quota_reject_total{kind=\"rate\"}"), 1);
    assert_eq!(counts.get("busy_rejections_total{endpoint=\"dht\"}"), 1);
    tokio::time::sleep(2 * SECOND).await;
    assert!(ask().await.is_ok());
    host.shutdown().await;
}

/// Workers that die under load: their callers are told, the next ones are served.
#[tokio::test(start_paused = true)]
async fn a_search_that_panics_is_an_answer_and_the_worker_lives_on() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let settings = Settings { workers: ONE, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    world.panics(true);
    for number in 0..20 {
        let failed = dht.find_node(key(number), soon()).await.unwrap_err();
        assert_eq!(failed, DhtError::Panicked { op: "find_node" });
    }
    world.panics(false);
    assert_eq!(counts.get("tasks_panicked_total{kind=\"lookup\"}"), 20);
    assert_eq!(dht.find_node(key(1), soon()).await.unwrap().verdict.reason, Reason::Complete);
    assert!(dht.ready().reads && host.failure().is_none());
    host.shutdown().await;
}
