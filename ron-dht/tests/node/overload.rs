//! Three times as much as it was set up for: a node says no, stays small, and tells the truth about itself.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{GateLimits, TaskSpec, net::oap::Code};
use ron_dht::{
    Dht, DhtError, Settings,
    network::{Request, Sender, Served},
};

use super::world::{Counts, World, host, id, key, soon};

const SECOND: Duration = Duration::from_secs(1);

fn limits(per_second: u64, in_flight: u32) -> GateLimits {
    let settings = Settings::default();
    GateLimits { per_second, burst: per_second, in_flight, ..settings.total_limits }
}

#[tokio::test(start_paused = true)]
async fn three_times_the_rate_for_a_minute() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let settings =
        Settings { peer_limits: limits(50, 8), total_limits: limits(200, 32), ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    let (mut served, mut busy) = (0_u64, 0_u64);
    let answers = world.real(&dht.node_id()).upgrade().unwrap();
    let mut minute = || {
        // Six hundred in this second, of sixty peers.
        for number in 0..600 {
            let sender = Sender { id: id(number % 60), ip: [10, 1, 1, 1].into() };
            match answers.answer(sender, Request::FindNode { target: key(number) }, soon()) {
                Served::Now(Ok(_)) => served += 1,
                Served::Now(Err(fault)) => {
                    assert_eq!(fault.code, Code::Busy);
                    assert!(fault.retry_after.is_some_and(|pause| pause <= SECOND), "{fault:?}");
                    busy += 1;
                }
                Served::Later(_) => unreachable!("a question is answered at once"),
            }
        }
    };
    for _ in 0..10 {
        minute();
        tokio::time::sleep(SECOND).await;
    }
    let memory = allocation_counter::measure(&mut minute);
    assert!(memory.bytes_current < 1024, "an answer leaves nothing behind: {memory:?}");
    for _ in 0..50 {
        tokio::time::sleep(SECOND).await;
        minute();
        // What others ask too much is no reason not to ask.
        assert!(dht.ready().reads && dht.ready().writes, "{:?}", dht.ready());
    }
    assert!(dht.find_node(key(1), soon()).await.is_ok());
    println!("{served} served, {busy} told to come later");
    assert!((11_000..14_000).contains(&served), "{served}");
    assert_eq!(served + busy, 61 * 600);
    assert_eq!(counts.get("quota_reject_total{kind=\"rate\"}"), busy);
    assert_eq!(counts.get("busy_rejections_total{endpoint=\"dht\"}"), busy);
    drop(answers);
    host.shutdown().await;
}

/// Records are checked on other threads, and whoever sends them waits. How many may is bounded, for one peer and in all.
#[tokio::test(start_paused = true)]
async fn records_on_the_way_are_bounded() {
    let (world, host) = (World::of(40), host());
    let settings =
        Settings { peer_limits: limits(1_000, 4), total_limits: limits(10_000, 10), ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    let answers = world.real(&dht.node_id()).upgrade().unwrap();
    let mut waiting = Vec::new();
    for number in 0..1000 {
        let sender = Sender { id: id(number % 5), ip: [10, 1, 1, 1].into() };
        let request = Request::Provide { records: vec![vec![0; 1000].into(); 100] };
        if let Served::Later(answer) = answers.answer(sender, request, soon()) {
            waiting.push(answer);
        }
    }
    assert_eq!(waiting.len(), 10);
    // Giving up makes room.
    waiting.clear();
    let sender = Sender { id: id(1), ip: [10, 1, 1, 1].into() };
    let request = Request::Provide { records: Vec::new() };
    assert!(matches!(answers.answer(sender, request, soon()), Served::Later(_)));
    drop(answers);
    host.shutdown().await;
}

/// Our own callers: what waits is bounded, the rest is refused, readiness says so first for writes and then for all, and
/// takes it back when the queue is empty.
#[tokio::test(start_paused = true)]
async fn readiness_follows_the_queue_of_searches() {
    let (world, host, counts) = (World::of(40), host(), Counts::new());
    let settings = Settings { workers: NonZeroUsize::MIN, work_lane: 20, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    world.latency(SECOND / 10);
    let mut refused = 0;
    for number in 0..60_u64 {
        let mut call = {
            let dht = dht.clone();
            Box::pin(async move { dht.find_node(key(number), soon()).await })
        };
        let now = tokio::time::timeout(Duration::from_millis(1), &mut call).await;
        match now {
            Ok(Err(DhtError::Busy { what, retry_after })) => {
                assert!(what == "work" && retry_after <= 5 * SECOND);
                refused += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => {
                host.spawn(TaskSpec::new("test", "caller"), |_| async move { drop(call.await) });
            }
        }
        let (ready, waiting) = (dht.ready(), dht.status().waiting);
        assert_eq!((ready.writes, ready.reads), (waiting < 16, waiting < 19), "{waiting} {ready:?}");
    }
    assert!((35..=39).contains(&refused), "{refused}");
    assert_eq!(counts.get("busy_rejections_total{endpoint=\"work\"}"), refused);
    assert!(!dht.ready().reads);
    tokio::time::sleep(60 * SECOND).await;
    assert!(dht.ready().reads && dht.ready().writes);
    assert!(dht.find_node(key(1), soon()).await.is_ok());
    host.shutdown().await;
}

/// Workers die under load, over and over: whoever waited for one is told, nobody is forgotten, readiness tells of the
/// queue while nothing gets done, and when it is over everything is found again.
#[tokio::test(start_paused = true)]
async fn workers_that_die_under_load_cost_only_what_they_were_doing() {
    const CALLER: TaskSpec = TaskSpec::new("test", "caller");
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let settings = Settings { workers: NonZeroUsize::new(4).unwrap(), work_lane: 20, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    // So many searches, so many a second: found, busy, died, and how often it was not ready for writes.
    let load = async |count: u64, per_second: u32| {
        let tally = Arc::new(Mutex::new([0_u64; 3]));
        let mut unready = 0;
        for number in 0..count {
            let (caller, tally) = (dht.clone(), Arc::clone(&tally));
            host.spawn(CALLER, move |_| async move {
                let outcome = match caller.find_node(key(number), soon()).await {
                    Ok(closest) => usize::from(closest.peers.is_empty()) * 9,
                    Err(DhtError::Busy { .. }) => 1,
                    Err(DhtError::Panicked { op: "find_node" }) => 2,
                    Err(other) => panic!("{other:?}"),
                };
                tally.lock().unwrap()[outcome] += 1;
            });
            tokio::time::sleep(SECOND / per_second).await;
            unready += u64::from(!dht.ready().writes);
        }
        tokio::time::sleep(15 * SECOND).await;
        let [found, busy, died] = *tally.lock().unwrap();
        assert_eq!(found + busy + died, count, "everybody has an answer");
        (found, busy, died, unready)
    };
    // A search takes half a second and more, so four workers do about six a second.
    world.latency(SECOND / 10);
    assert_eq!(load(100, 4).await, (100, 0, 0, 0));

    world.panic_at(30);
    let (found, busy, died, unready) = load(600, 40).await;
    println!("{found} found, {busy} busy, {died} died, {unready} looks not ready");
    assert!(died > 20 && busy > 20 && unready > 20, "{found} {busy} {died} {unready}");
    assert_eq!(counts.get("tasks_panicked_total{kind=\"lookup\"}"), died);
    assert_eq!(counts.get("busy_rejections_total{endpoint=\"work\"}"), busy);

    world.panic_at(0);
    assert!(dht.ready().reads && dht.ready().writes, "{:?}", dht.ready());
    assert_eq!(load(100, 4).await, (100, 0, 0, 0));
    assert!(host.failure().is_none());
    host.shutdown().await;
}
