//! Floods, from one address and from a million: the others are served as before, and memory has an end.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::Pin,
    time::Duration,
};

use ron_core::{ClientKey, now};
use ron_index::{Answer, Index, IndexError, Rate, Settings};
use tokio::time::Instant;

use super::{
    caching::poll_once,
    world::{Does, Scripted, World, content, ms, soon},
};

fn address(number: u32) -> ClientKey {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)).into()
}

type Call = Pin<Box<dyn Future<Output = Result<Answer, IndexError>> + Send>>;

fn ask(index: &Index, client: ClientKey, key: u32) -> Call {
    let index = index.for_client(client);
    Box::pin(async move { index.resolve(&content(key), soon()).await })
}

/// Calls that somebody made and waits for, as far as they were let in.
#[derive(Default)]
struct Flood {
    waiting: VecDeque<(Instant, Call)>,
    refused: u64,
}

impl Flood {
    async fn call(&mut self, mut call: Call) {
        match poll_once(call.as_mut()).await {
            Some(Err(IndexError::Busy { .. })) => self.refused += 1,
            Some(_) => {}
            None => self.waiting.push_back((now(), call)),
        }
    }

    /// Those who have waited for their whole budget give up.
    fn age(&mut self) {
        while self.waiting.front().is_some_and(|(since, _)| since.elapsed() > ms(1300)) {
            self.waiting.pop_front();
        }
    }
}

/// What an honest client waits for things that nobody has asked for before, while others flood: the 99th of a hundred.
async fn honest_p99(index: &Index, keys: std::ops::Range<u32>, mut flood: impl AsyncFnMut(u32)) -> Duration {
    let honest = address(1);
    let mut took = Vec::new();
    for key in keys {
        flood(key).await;
        let began = now();
        ask(index, honest, 5_000_000 + key).await.unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    took[took.len() * 99 / 100]
}

fn slow_world() -> World {
    let source = Scripted::new("source", ms(100), Does::Finds(vec![1]));
    // Hedging is another test's.
    World::with(&[&source], Settings { beta: 0, ..Settings::default() })
}

#[tokio::test(start_paused = true)]
async fn a_flood_from_one_address_leaves_the_others_as_they_were() {
    let world = slow_world();
    let calm = honest_p99(&world.index, 0..100, async |_| {}).await;
    let mut flood = Flood::default();
    let mut key = 10_000_000;
    let index = world.index.clone();
    let stormy = honest_p99(&world.index, 100..200, async |_| {
        flood.age();
        for _ in 0..500 {
            key += 1;
            flood.call(ask(&index, address(666), key)).await;
        }
    })
    .await;
    assert!(stormy <= 2 * calm, "{stormy:?} where it was {calm:?}");
    assert!(flood.refused > 40_000, "{}", flood.refused);
    let (clients, lookups) = (
        world.series("busy_rejections_total{endpoint=\"index_clients\"}"),
        world.series("busy_rejections_total{endpoint=\"index_lookups\"}"),
    );
    assert_eq!(clients + lookups, flood.refused as f64, "every refusal is counted");
    world.host.shutdown().await;
}

/// A hundred thousand addresses, each once, or as many as `RON_FLOOD` says; a million take a minute without optimisation. What
/// they can make the index hold ends with the tables that were made at the start.
#[tokio::test(start_paused = true)]
async fn a_flood_from_many_addresses_leaves_those_who_came_before_as_they_were() {
    let world = slow_world();
    let calm = honest_p99(&world.index, 0..100, async |_| {}).await;
    let mut flood = Flood::default();
    let addresses: u32 = std::env::var("RON_FLOOD").map_or(100_000, |number| number.parse().unwrap());
    let (mut number, index) = (1000, world.index.clone());
    let bytes = [world.index.client_memory(), world.index.client_memory_max()];
    let mut held = 0;
    let stormy = honest_p99(&world.index, 100..200, async |_| {
        flood.age();
        for _ in 0..addresses / 100 {
            number += 1;
            flood.call(ask(&index, address(number), 20_000_000 + number)).await;
        }
        held = held.max(flood.waiting.len());
    })
    .await;
    assert_eq!(number, 1000 + addresses);
    assert!(stormy <= 2 * calm, "{stormy:?} where it was {calm:?}");
    assert!(held <= 64, "{held} of them hold a place: half of the workers");
    let after = world.index.client_memory();
    println!(
        "{addresses} addresses, {} refused: p99 {stormy:?} and {calm:?} before; {} bytes of clients, {after} after, {} at most; {held} places held",
        flood.refused, bytes[0], bytes[1]
    );
    assert!(bytes[0] <= after && after <= bytes[1] && bytes[1] < 4 << 20, "{bytes:?} {after}");
    let status = world.index.status();
    assert!(status.lookups <= 64 + 1, "{status:?}");
    world.host.shutdown().await;
}

/// A subscriber has a /64, and rotating within it is free: it counts as one.
#[tokio::test(start_paused = true)]
async fn a_network_of_ipv6_is_one_client() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let world = World::with(&[&source], Settings { client_lookups: 5, ..Settings::default() });
    let mut flood = Flood::default();
    for host in 0..50 {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 9, 9, 9, host);
        flood.call(ask(&world.index, IpAddr::V6(address).into(), host.into())).await;
    }
    assert_eq!((flood.waiting.len(), flood.refused), (5, 45));
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1);
    flood.call(ask(&world.index, IpAddr::V6(other).into(), 99)).await;
    assert_eq!(flood.waiting.len(), 6);
    world.host.shutdown().await;
}

/// So many questions of one client may be open, and so many a second, if the host says so.
#[tokio::test(start_paused = true)]
async fn a_client_has_a_cap_and_a_rate() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let world = World::of(&[&source]);
    let mut flood = Flood::default();
    for _ in 0..300 {
        // The same key: it takes one lookup, and many places.
        flood.call(ask(&world.index, address(7), 1)).await;
    }
    assert_eq!((flood.waiting.len(), flood.refused), (256, 44));
    flood.waiting.clear();
    let rated = Settings { client_rate: Some(Rate { per_second: 10, burst: 20 }), ..Settings::default() };
    let finds = Scripted::new("source", ms(0), Does::Finds(vec![1]));
    let world = World::with(&[&finds], rated);
    world.index.resolve(&content(1), soon()).await.unwrap();
    let mut served = 0;
    for _ in 0..100 {
        served += u32::from(ask(&world.index, address(7), 1).await.is_ok());
    }
    assert_eq!(served, 20);
    let Err(IndexError::Busy { what: "index_clients", retry_after }) = ask(&world.index, address(7), 1).await
    else {
        panic!("it has spent its burst")
    };
    assert_eq!(retry_after, ms(100));
    tokio::time::sleep(retry_after).await;
    ask(&world.index, address(7), 1).await.unwrap();
    ask(&world.index, address(8), 1).await.unwrap();
    world.index.resolve(&content(1), soon()).await.unwrap();
    world.host.shutdown().await;
}

/// Looking for nodes goes past the resolver pool and had places for all clients together only: one that asked for nodes which
/// nobody knows took them all, and `/routing/v1/peers` was 429 for everybody else.
#[tokio::test(start_paused = true)]
async fn one_who_looks_for_nodes_leaves_places_to_the_others() {
    let source = Scripted::new("source", ms(0), Does::FindsNobody { is_final: false });
    let world = World::of(&[&source]);
    let locate = |client, node| {
        let index = world.index.for_client(address(client));
        async move { index.locate(ron_core::NodeId::from_bytes([node; 32]), soon()).await }
    };
    locate(8, 1).await.unwrap().unwrap();
    source.now_does(ms(0), Does::Hangs);
    let (mut waiting, mut refused) = (Vec::new(), 0);
    for _ in 0..100 {
        let mut call = Box::pin(locate(7, 9));
        match poll_once(call.as_mut()).await {
            Some(said) => refused += u32::from(matches!(said, Err(IndexError::Busy { .. }))),
            None => waiting.push(call),
        }
    }
    assert_eq!((waiting.len(), refused), (64, 36));
    let mut other = Box::pin(locate(8, 9));
    assert!(poll_once(other.as_mut()).await.is_none(), "it was let in, and waits for the source");
    drop((waiting, other));
    source.now_does(ms(0), Does::FindsNobody { is_final: false });
    locate(7, 1).await.unwrap().unwrap();
    world.host.shutdown().await;
}

/// With the option on, fewer are let in while lookups take long, and more again when they do not.
#[tokio::test(start_paused = true)]
async fn the_number_of_lookups_adapts_if_it_is_told_to() {
    let source = Scripted::new("source", ms(10), Does::Finds(vec![1]));
    let mut settings = Settings { adaptive: true, beta: 0, ..Settings::default() };
    settings.breaker.calls_min = 100_000.try_into().unwrap();
    let world = World::with(&[&source], settings);
    world.index.resolve(&content(0), soon()).await.unwrap();
    source.now_does(ms(0), Does::Hangs);
    let mut key = 1;
    for _ in 0..60 {
        key += 1;
        world.index.resolve(&content(key), soon()).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(world.series("lookups_limit"), 8.0);
    let mut flood = Flood::default();
    for _ in 0..20 {
        key += 1;
        flood.call(ask(&world.index, address(key), key)).await;
    }
    assert_eq!((flood.waiting.len(), flood.refused), (8, 12));
    assert_eq!(world.series("busy_rejections_total{endpoint=\"index_adaptive\"}"), 12.0);
    flood.waiting.clear();
    tokio::time::sleep(ms(1500)).await;
    source.now_does(ms(10), Does::Finds(vec![1]));
    for _ in 0..500 {
        key += 1;
        world.index.resolve(&content(key), soon()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(world.series("lookups_limit") > 20.0, "{}", world.series("lookups_limit"));
    world.host.shutdown().await;
}
