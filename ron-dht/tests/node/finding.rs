//! What a search for providers brings, and what its verdict says of it.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{NodeId, net::Identity, now};
use ron_dht::{
    Dht, DhtError, Found, Key, LookupSettings, ProviderRecord, Reason, Settings,
    network::{self as wire, Answer, Request},
};

use super::world::{Counts, START, World, host, id, key, soon};

async fn ids(found: &mut Found) -> Vec<NodeId> {
    let mut ids = Vec::new();
    while let Some(provider) = found.next().await.unwrap() {
        ids.push(provider.id);
    }
    ids
}

/// What a node keeps itself was answered by a search without time whose verdict was written over afterwards: counted as a
/// search that ran out of time, and of no worth to a caller who wanted one more than was at home. Now it counts, and
/// nobody is asked for it.
#[tokio::test(start_paused = true)]
async fn what_is_kept_at_home_counts_and_is_asked_of_nobody() {
    let (world, host, counts) = (World::of(60), host(), Counts::new());
    let dht = world.node(1000, &host, Dht::builder().metrics(counts.metrics())).await;
    let other = world.node(1001, &host, Dht::builder().client()).await;
    dht.provide(key(1), soon()).await.unwrap();
    other.provide(key(1), soon()).await.unwrap();
    let searches = |reason: &str| counts.get(&format!("lookups_total{{reason=\"{reason}\"}}"));
    let all = || ["enough", "complete", "deadline", "requests", "hops", "canceled"].map(searches);
    let (asked, before) = (world.asked(3), all());

    let mut found = dht.find_providers(key(1), NonZeroUsize::MIN, soon()).unwrap();
    assert_eq!(ids(&mut found).await, [dht.node_id()]);
    let verdict = found.verdict().unwrap();
    assert_eq!((verdict.reason, verdict.found, verdict.rpcs), (Reason::Enough, 1, 0));
    assert_eq!((world.asked(3), all()), (asked, before), "nobody was asked, so nothing was searched");

    let mut found = dht.find_providers(key(1), NonZeroUsize::new(2).unwrap(), soon()).unwrap();
    assert_eq!(ids(&mut found).await, [dht.node_id(), other.node_id()]);
    let verdict = found.verdict().unwrap();
    assert_eq!((verdict.reason, verdict.found), (Reason::Enough, 2));
    assert!((1..=5).contains(&verdict.rpcs), "{verdict:?}");
    assert_eq!(searches("enough"), 1);
    host.shutdown().await;
}

/// Anybody may send a node records for any key. They are handed out, and others are asked all the same: a stranger who
/// sends as many as somebody will ask for does not decide what that one finds.
#[tokio::test(start_paused = true)]
async fn what_strangers_sent_does_not_end_a_search() {
    let (world, host) = (World::of(60), host());
    let dht = world.node(1000, &host, Dht::builder()).await;
    let honest = world.node(1001, &host, Dht::builder().client()).await;
    honest.provide(key(1), soon()).await.unwrap();
    let records: Vec<_> = (1..=3).map(|who| forged(who, key(1))).collect();
    let records = records.iter().map(|record| record.encoded().clone()).collect();
    let kept = world.ask(dht.node_id(), id(7), Request::Provide { records }).await.unwrap();
    assert_eq!(kept, Answer::Provided { results: vec![wire::RecordOutcome::Kept; 3] });
    for enough in 1..=3 {
        let mut found = dht.find_providers(key(1), NonZeroUsize::new(enough).unwrap(), soon()).unwrap();
        let ids = ids(&mut found).await;
        assert!(ids.contains(&honest.node_id()) && ids.len() == 4, "{enough}: {ids:?}");
        let verdict = found.verdict().unwrap();
        assert!(verdict.rpcs > 0 && verdict.found == 4, "{enough}: {verdict:?}");
    }
    host.shutdown().await;
}

/// One peer with a crowd of providers of its own making: the rest is asked all the same.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_one_answer_does_not_end_a_search() {
    let (world, host) = (World::of(60), host());
    let dht = world.node(1000, &host, Dht::builder().client()).await;
    let near = world.closest(&key(1), 20, &dht.node_id());
    let honest = forged(200, key(1));
    let (liars, others) = near.split_first().unwrap();
    let crowd: Vec<_> = (1..=100).map(|who| forged(who, key(1)).encoded().clone()).collect();
    world.tell(*liars, key(1), crowd);
    for peer in others {
        world.tell(*peer, key(1), vec![honest.encoded().clone()]);
    }
    for enough in [2, 8, 64] {
        let mut found = dht.find_providers(key(1), NonZeroUsize::new(enough).unwrap(), soon()).unwrap();
        assert!(ids(&mut found).await.contains(&honest.publisher()), "{enough}");
    }
    // Who are told of by two are found as soon as two have answered.
    let mut found = dht.find_providers(key(1), NonZeroUsize::MIN, soon()).unwrap();
    assert!(!ids(&mut found).await.is_empty());
    host.shutdown().await;
}

/// Readers that stop reading hold up neither their searches nor those of others, and miss nothing of what was found.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_nobody_up() {
    let (world, host) = (World::of(60), host());
    let settings = Settings { workers: NonZeroUsize::new(2).unwrap(), ..Settings::default() };
    let dht = world.node(1000, &host, Dht::builder().client().settings(settings)).await;
    let crowd: Vec<_> = (1..=200).map(|who| forged(who, key(1)).encoded().clone()).collect();
    for peer in world.closest(&key(1), 20, &dht.node_id()) {
        world.tell(peer, key(1), crowd.clone());
    }
    let far = || ron_core::Deadline::after(Duration::from_secs(60));
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut found = dht.find_providers(key(1), NonZeroUsize::new(256).unwrap(), far()).unwrap();
        assert!(found.next().await.unwrap().is_some());
        slow.push(found);
    }
    let began = now();
    dht.find_node(key(2), soon()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    for mut found in slow {
        assert_eq!(ids(&mut found).await.len(), 199);
    }
    host.shutdown().await;
}

fn forged(who: u8, what: Key) -> ProviderRecord {
    let addrs = ["10.9.9.9:1".parse().unwrap()];
    ProviderRecord::sign(&Identity::from_seed(&[who; 32]), what, &addrs, 1, START, Duration::from_secs(3600))
}

/// Peers that answer anything at all: failures, answers to other questions, sixty names of whom half do not exist and the
/// other half is whoever was asked. Each search ends by itself, within its requests and long before its deadline, and
/// brings nothing that was not proven.
#[tokio::test(start_paused = true)]
async fn every_search_ends_within_its_requests_whatever_peers_answer() {
    for seed in 0..40 {
        let (world, host) = (World::of(100), host());
        let paths = NonZeroUsize::new(1 + seed as usize % 4).unwrap();
        let lookup = LookupSettings { paths, requests_max: 40, ..LookupSettings::default() };
        let settings = Settings { lookup, regions: seed % 2 == 0, ..Settings::default() };
        let dht = world.node(1000, &host, Dht::builder().settings(settings.clone())).await;
        world.lie(seed);
        for number in 0..5 {
            let before = now();
            let closest = dht.find_node(key(number), soon()).await.unwrap();
            assert!(closest.verdict.rpcs <= 40, "seed {seed}: {:?}", closest.verdict);
            assert_ne!(closest.verdict.reason, Reason::Deadline, "seed {seed}: {:?}", closest.verdict);
            let mut found = dht.find_providers(key(number), NonZeroUsize::MIN, soon()).unwrap();
            assert_eq!(ids(&mut found).await, []);
            // One search for the key, and one for each of the five cells of its region.
            let most = if settings.regions { 6 * 40 } else { 40 };
            let verdict = found.verdict().unwrap();
            assert!(verdict.rpcs <= most && verdict.found == 0, "seed {seed}: {verdict:?}");
            assert_eq!(dht.get(key(number), soon()).await, Err(DhtError::NotFound), "seed {seed}");
            assert!(before.elapsed() < Duration::from_secs(20), "seed {seed}: {:?}", before.elapsed());
        }
        host.shutdown().await;
    }
}
