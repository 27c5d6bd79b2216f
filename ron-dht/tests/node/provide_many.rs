//! Many keys brought to their places, and said again in time.

use std::time::Duration;

use ron_core::{Deadline, Event as Told};
use ron_dht::{Dht, Event, Key, ProvideProgress, Settings};

use super::world::{Counts, World, host, key, soon};

const FIND_NODE: u16 = 2;
const PROVIDE: u16 = 4;
const HOUR: Duration = Duration::from_secs(3600);

fn keys(count: u64) -> Vec<Key> {
    (0..count).map(key).collect()
}

fn minutes(count: u64) -> Deadline {
    Deadline::after(Duration::from_secs(count * 60))
}

/// Whether each of the key's twenty closest peers has it.
fn is_placed(world: &World, dht: &Dht, key: &Key) -> bool {
    world.closest(key, 20, &dht.node_id()).iter().all(|peer| world.kept_by(key, peer).is_some())
}

#[tokio::test(start_paused = true)]
async fn every_key_reaches_its_twenty_closest_with_few_searches() {
    let (world, host) = (World::of(200), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let mut events = dht.events();
    let (keys, before) = (keys(2000), world.asked(PROVIDE));
    let mut many = dht.provide_many(keys.clone(), minutes(10)).unwrap();
    assert_eq!(many.progress(), ProvideProgress { total: 2000, ..ProvideProgress::default() });
    let mut steps = 0;
    while let Some(progress) = many.next().await.unwrap() {
        steps += 1;
        assert!(progress.done + progress.left <= 2000);
    }
    let progress = many.progress();
    println!("{progress:?} in {steps} steps, {} messages", world.asked(PROVIDE) - before);
    assert_eq!((progress.total, progress.done, progress.left, progress.kept), (2000, 2000, 0, 40_000));
    assert!(progress.lookups * 100 <= 3 * keys.len(), "{}", progress.lookups);
    assert!(keys.iter().all(|key| is_placed(&world, &dht, key)));
    // Many records in each message: one by one it would be forty thousand.
    assert!(world.asked(PROVIDE) - before < 1000, "{}", world.asked(PROVIDE) - before);
    let lookups = progress.lookups;
    assert_eq!(events.recv().await, Some(Told::Item(Event::Swept { keys: 2000, left: 0, lookups })));
    assert_eq!(dht.status().provided, 2000);

    // The same again is no work at all.
    let asked = world.asked(FIND_NODE);
    let again = dht.provide_many(keys, minutes(10)).unwrap().finish().await.unwrap();
    assert_eq!((again.done, again.lookups, world.asked(FIND_NODE)), (2000, 0, asked));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_it_stops_and_goes_on_where_it_was() {
    let (world, host) = (World::of(600), host());
    world.latency(Duration::from_millis(20));
    let dht = world.node(1000, &host, Dht::builder()).await;
    let mut many = dht.provide_many(keys(600), minutes(10)).unwrap();
    let first = many.next().await.unwrap().unwrap();
    assert!(first.done > 0 && first.done < 600, "{first:?}");
    drop(many);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = world.asked(FIND_NODE);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.asked(FIND_NODE), asked, "nothing runs on");
    let rest = dht.provide_many(keys(600), minutes(10)).unwrap().finish().await.unwrap();
    assert_eq!((rest.total, rest.done, rest.left), (600, 600, 0));
    assert!(rest.kept < 600 * 20, "what was said is not said again: {rest:?}");
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_is_left_to_the_republisher() {
    let (world, host) = (World::of(100), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    drop(dht.provide_many(keys(300), minutes(10)).unwrap());
    assert_eq!(world.copies(), 0);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(keys(300).iter().all(|key| is_placed(&world, &dht, key)));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_and_the_rest_is_said_later() {
    let (world, host) = (World::of(300), host());
    world.latency(Duration::from_millis(200));
    let dht = world.node(1000, &host, Dht::builder()).await;
    let began = ron_core::now();
    let done = dht.provide_many(keys(3000), Deadline::after(Duration::from_secs(2))).unwrap();
    let done = done.finish().await.unwrap();
    assert!(began.elapsed() <= Duration::from_millis(2100), "{:?}", began.elapsed());
    assert!(done.left > 0 && done.done + done.left == 3000, "{done:?}");
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert!(keys(3000).iter().step_by(37).all(|key| is_placed(&world, &dht, key)));
    host.shutdown().await;
}

/// Every key is said again in every cycle, well before its holders forget it, whether there are few or many.
#[tokio::test(start_paused = true)]
async fn keys_are_said_again_before_they_are_forgotten() {
    for count in [3, 60] {
        let (world, host) = (World::of(100), host());
        let counts = Counts::new();
        let settings = Settings { republish: 2 * HOUR, ..Settings::default() };
        let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
        dht.provide_many(keys(count), minutes(10)).unwrap().finish().await.unwrap();
        let searched = world.asked(FIND_NODE);
        for _ in 0..5 {
            tokio::time::sleep(HOUR).await;
            for key in keys(count) {
                for peer in world.closest(&key, 20, &dht.node_id()) {
                    // The number is the second in which it was signed; it lives for four hours.
                    let age = world.unix() - world.kept_by(&key, &peer).unwrap();
                    assert!(age <= 3 * 3600, "{age} s old with {count} keys");
                }
            }
        }
        assert!(world.asked(FIND_NODE) > searched);
        // A turn of the republisher is a 144th of the cycle here.
        let turn = 2 * HOUR / 144 * 2;
        assert!(dht.status().provide_lag < turn, "{:?}", dht.status());
        assert!(counts.get("provide_lag_seconds") < turn.as_secs());
        host.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_lag_is_told_while_nobody_keeps_anything() {
    let (world, host) = (World::of(25), host());
    let counts = Counts::new();
    let settings = Settings { republish: HOUR, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    dht.provide(key(1), soon()).await.unwrap();
    world.refuse_records(true);
    tokio::time::sleep(2 * HOUR).await;
    assert!(dht.status().provide_lag > HOUR / 2, "{:?}", dht.status());
    assert!(counts.get("provide_lag_seconds") > 1800);
    // And made up for as soon as somebody listens again.
    world.refuse_records(false);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(dht.status().provide_lag, Duration::ZERO);
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_withdrawn_is_not_said_again() {
    let (world, host) = (World::of(60), host());
    let settings = Settings { republish: HOUR, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings)).await;
    dht.provide_many(keys(40), minutes(5)).unwrap().finish().await.unwrap();
    dht.withdraw(key(3), soon()).await.unwrap();
    let nearest = world.closest(&key(3), 1, &dht.node_id())[0];
    let number = world.kept_by(&key(3), &nearest).unwrap();
    tokio::time::sleep(3 * HOUR).await;
    assert_eq!(world.kept_by(&key(3), &nearest), Some(number));
    assert_eq!(dht.status().provided, 39);
    host.shutdown().await;
}

/// A key that is withdrawn while the republisher is about to say it stays withdrawn, also after its turn came.
#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_during_a_turn_is_not_said_again() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let settings = Settings { republish: HOUR, ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().settings(settings).metrics(counts.metrics())).await;
    // Nobody keeps anything at first, so all three stay due and are said one after the other.
    world.refuse_records(true);
    dht.provide_many(keys(3), minutes(5)).unwrap().finish().await.unwrap();
    world.refuse_records(false);
    world.latency(Duration::from_millis(20));
    let mut withdrawn = None;
    while counts.get("provided_total") < 3 && withdrawn.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let left = keys(3).into_iter().find(|key| !is_placed(&world, &dht, key));
        if counts.get("provided_total") == 1 {
            withdrawn = left;
        }
    }
    let key = withdrawn.expect("said one by one");
    dht.withdraw(key, soon()).await.unwrap();
    world.latency(Duration::from_millis(1));
    let nearest = world.closest(&key, 1, &dht.node_id())[0];
    let number = world.kept_by(&key, &nearest).unwrap();
    tokio::time::sleep(3 * HOUR).await;
    assert_eq!((world.kept_by(&key, &nearest), dht.status().provided), (Some(number), 2));
    host.shutdown().await;
}
