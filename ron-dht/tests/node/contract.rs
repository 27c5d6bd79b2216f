//! The five promises that every subsystem of the family keeps, and how exactly this one keeps time.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{Deadline, TaskSpec, now};
use ron_dht::{Dht, DhtError, Failure, LookupSettings, Outcome, Reason, Settings};

use super::world::{World, host, key, soon};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let (world, host) = (World::of(30), host());
    let settings = Settings { workers: NonZeroUsize::MIN, work_lane: 2, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    world.latency(Duration::from_secs(1));
    for number in 0..3 {
        let dht = dht.clone();
        host.spawn(CALLER, |_| async move { drop(dht.find_node(key(number), soon()).await) });
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = now();
    let refused = dht.find_node(key(9), soon()).await.unwrap_err();
    assert!(matches!(refused, DhtError::Busy { what: "work", .. }), "{refused:?}");
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(!dht.ready().writes && !dht.ready().reads, "{:?}", dht.ready());
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let (world, host) = (World::of(30), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    world.silence(world.peers());
    for millis in [100, 1000] {
        let before = now();
        let budget = Duration::from_millis(millis);
        let closest = dht.find_node(key(1), Deadline::after(budget)).await.unwrap();
        assert_eq!(closest.verdict.reason, Reason::Deadline);
        assert!(before.elapsed() <= budget.mul_f64(1.05), "{:?}", before.elapsed());
        let before = now();
        let late = dht.provide(key(1), Deadline::after(budget)).await;
        assert!(late.is_err() && before.elapsed() <= budget.mul_f64(1.05), "{late:?} {:?}", before.elapsed());
    }
    host.shutdown().await;
}

/// Also in the queue, where nobody searches yet and nobody could say what was found.
#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_in_the_queue() {
    let (world, host) = (World::of(30), host());
    let settings = Settings { workers: NonZeroUsize::MIN, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    // Half a second each for the only worker.
    world.latency(SECOND / 10);
    for number in 10..30 {
        let busy = dht.clone();
        host.spawn(CALLER, move |_| async move { drop(busy.find_node(key(number), soon()).await) });
    }
    tokio::time::sleep(SECOND / 10).await;
    for millis in [100, 1000] {
        let (before, budget) = (now(), Duration::from_millis(millis));
        let late = dht.find_node(key(2), Deadline::after(budget)).await.unwrap_err();
        assert_eq!(late, DhtError::Timeout { op: "find_node" });
        assert!(before.elapsed() <= budget.mul_f64(1.05), "{:?}", before.elapsed());
    }
    host.shutdown().await;
}

/// Every question is given up at the timeout of its peer, and no peer has longer than `rpc_timeout`.
#[tokio::test(start_paused = true)]
async fn a_question_is_given_up_at_its_timeout() {
    let (world, host) = (World::of(30), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    world.silence(world.peers());
    for millis in [1500, 400] {
        let rpc_timeout = Duration::from_millis(millis);
        // Without hedging, every silence is waited out.
        let lookup = LookupSettings { hedges: 0, ..LookupSettings::default() };
        dht.reload(Settings { rpc_timeout, lookup, ..(*dht.settings()).clone() }).unwrap();
        let closest = dht.find_node(key(millis), Deadline::after(60 * SECOND)).await.unwrap();
        assert!(!closest.verdict.trace.is_empty());
        for asked in &closest.verdict.trace {
            assert_eq!(asked.outcome, Outcome::Failed(Failure::Timeout));
            assert!(asked.took.unwrap() <= rpc_timeout.mul_f64(1.05), "{asked:?}");
        }
        let longest = closest.verdict.trace.iter().filter_map(|asked| asked.took).max().unwrap();
        println!("rpc_timeout {rpc_timeout:?}, longest {longest:?}");
    }
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_handle_says_canceled() {
    let (world, host) = (World::of(30), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    dht.shutdown().await;
    assert_eq!(dht.find_node(key(1), soon()).await.unwrap_err(), DhtError::Canceled);
    assert_eq!(dht.provide(key(1), soon()).await.unwrap_err(), DhtError::Canceled);
    assert!(dht.provide_many([key(1)], soon()).is_err());
}

#[tokio::test(start_paused = true)]
async fn shutting_down_twice_is_harmless() {
    let (world, host) = (World::of(30), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let (first, second) = tokio::join!(dht.shutdown(), dht.shutdown());
    assert_eq!((first, first.aborted), (second, 0));
    assert_eq!(dht.shutdown().await, first);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_tasks() {
    let (world, host) = (World::of(30), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let answers = world.real(&dht.node_id());
    let also = dht.clone();
    drop(dht);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(also.find_node(key(1), soon()).await.is_ok());
    drop(also);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(answers.upgrade().is_none(), "nothing of it is left");
}
