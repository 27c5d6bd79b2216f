//! What a search for providers brings, and what its verdict says of it.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{NodeId, now};
use ron_dht::{Dht, DhtError, Found, LookupSettings, Reason, Settings};

use super::world::{Counts, World, host, key, soon};

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
