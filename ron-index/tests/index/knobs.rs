//! What each setting does that no other test shows, and which are refused.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{ConfigError, Event, NodeId, Ratio, Supervisor};
use ron_index::{
    Index, IndexError, Rate, Settings,
    source::{FixedProviders, SourceError},
};

use super::world::{Does, Scripted, World, content, ms, provider, settle, soon};

fn refused(change: impl FnOnce(&mut Settings)) -> String {
    let mut settings = Settings::default();
    change(&mut settings);
    match settings.check().unwrap_err() {
        ConfigError::OutOfRange { key, .. } => key.to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(refused(|settings| settings.lane = 0), "lane");
    assert_eq!(refused(|settings| settings.events_lane = 0), "events_lane");
    assert_eq!(refused(|settings| settings.workers = NonZeroUsize::new(5000).unwrap()), "workers");
    assert_eq!(refused(|settings| settings.alpha = NonZeroUsize::new(17).unwrap()), "alpha");
    assert_eq!(refused(|settings| settings.beta = 17), "beta");
    assert_eq!(refused(|settings| settings.retries = 4), "retries");
    assert_eq!(refused(|settings| settings.enough = NonZeroUsize::new(33).unwrap()), "enough");
    assert_eq!(refused(|settings| settings.cache_bytes = 1000), "cache_bytes");
    assert_eq!(refused(|settings| settings.pins_max = 1 << 17), "pins_max");
    assert_eq!(refused(|settings| settings.reputation_max = 0), "reputation_max");
    assert_eq!(refused(|settings| settings.warmup = vec![content(1); 70_000]), "warmup");
    assert_eq!(refused(|settings| settings.budget = ms(1)), "budget");
    assert_eq!(refused(|settings| settings.hedge_after = ms(1300)), "hedge_after");
    assert_eq!(refused(|settings| settings.hedge_min = ms(200)), "hedge_min");
    assert_eq!(refused(|settings| settings.name_ttl = 8 * day), "name_ttl");
    assert_eq!(refused(|settings| settings.content_ttl = Duration::ZERO), "content_ttl");
    assert_eq!(refused(|settings| settings.negative_ttl = Duration::ZERO), "negative_ttl");
    assert_eq!(refused(|settings| settings.stale_while_revalidate = 8 * day), "stale_while_revalidate");
    assert_eq!(refused(|settings| settings.stale_if_error = 8 * day), "stale_if_error");
    assert_eq!(refused(|settings| settings.failure_pause = day), "failure_pause");
    assert_eq!(refused(|settings| settings.sweep_interval = Duration::ZERO), "sweep_interval");
    assert_eq!(refused(|settings| settings.amnesia = Some(Duration::ZERO)), "amnesia");
    assert_eq!(refused(|settings| settings.probe_timeout = Duration::ZERO), "probe_timeout");
    assert_eq!(refused(|settings| settings.breaker.window = Duration::ZERO), "breaker.window");
    assert_eq!(refused(|settings| settings.breaker.cooldown = Duration::ZERO), "breaker.cooldown");
    assert_eq!(refused(|settings| settings.client_in_flight = 0), "gate.client.in_flight");
    assert_eq!(refused(|settings| settings.client_lookups = 0), "gate.client.in_flight");
    assert_eq!(refused(|settings| settings.total_rate = 0), "gate.client.per_second");
    assert_eq!(refused(|settings| settings.clients_remembered = 0), "gate.clients");
    let no_rate = Rate { per_second: 0, burst: 1 };
    assert_eq!(refused(|settings| settings.client_rate = Some(no_rate)), "gate.client.per_second");
    assert_eq!(refused(|settings| settings.rank.half_life = Duration::ZERO), "rank.half_life");
    assert_eq!(refused(|settings| settings.rank.success_weight = -1.0), "rank.success_weight");
    assert_eq!(refused(|settings| settings.drain = Duration::from_secs(9)), "drain");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_change_is_refused_by_name_and_everything_stays() {
    let world = World::of(&[]);
    let fixed = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        match world.index.reload(settings).unwrap_err() {
            IndexError::Config(ConfigError::NeedsRestart { key }) => key,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fixed(|settings| settings.lane = 9), "lane");
    assert_eq!(fixed(|settings| settings.events_lane = 9), "events_lane");
    assert_eq!(fixed(|settings| settings.workers = NonZeroUsize::MIN), "workers");
    assert_eq!(fixed(|settings| settings.clients_remembered = 9), "clients_remembered");
    assert_eq!(fixed(|settings| settings.reputation_max = 9), "reputation_max");
    assert_eq!(fixed(|settings| settings.breaker.cooldown = ms(50)), "breaker");
    assert_eq!(fixed(|settings| settings.adaptive = true), "adaptive");
    assert_eq!(fixed(|settings| settings.warmup = vec![content(1)]), "warmup");
    assert_eq!(fixed(|settings| settings.drain = Duration::from_secs(2)), "drain");
    assert!(world.index.reload(Settings { retries: 9, ..Settings::default() }).is_err());
    assert_eq!(*world.index.settings(), Settings::default());
    assert!(
        Index::builder()
            .settings(Settings { retries: 9, ..Settings::default() })
            .start(&Supervisor::new("h"))
            .is_err()
    );
}

/// Two reloads at once could leave the limits of one and the settings of the other in force, so that what an operator read was
/// not what held.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "two callers that no runtime puts one after the other")]
async fn of_two_reloads_at_once_one_holds_whole() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let world = World::of(&[&source]);
    let with = |client_in_flight| Settings { client_in_flight, ..Settings::default() };
    let client = world.index.for_client(std::net::IpAddr::from([192, 0, 2, 1]).into());
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for cap in [1, 2] {
                let (index, settings) = (world.index.clone(), with(cap));
                scope.spawn(move || index.reload(settings).unwrap());
            }
        });
        let mut open = Vec::new();
        while let Ok(found) = client.find(&content(1), 1, soon()) {
            open.push(found);
        }
        assert_eq!(open.len(), world.index.settings().client_in_flight as usize);
    }
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn workers_and_lanes_are_as_many_as_the_settings_say() {
    let settings = Settings {
        workers: NonZeroUsize::new(3).unwrap(),
        lane: 20,
        events_lane: 7,
        drain: Duration::from_secs(1),
        ..Settings::default()
    };
    let world = World::with(&[], settings);
    let text = world.counters();
    for line in [
        "tasks_spawned_total{kind=\"resolver\"} 3",
        "tasks_spawned_total{kind=\"cache_janitor\"} 1",
        "tasks_spawned_total{kind=\"breaker_janitor\"} 1",
        "queue_capacity{queue=\"work\"} 20",
        "queue_capacity{queue=\"events\"} 7",
        "queue_capacity{queue=\"writes\"} 1024",
        "queue_capacity{queue=\"behaviour\"} 1024",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // A subscriber that is too slow is told how much it missed, and that is counted.
    let mut slow = world.index.events();
    for _ in 0..10 {
        world.index.clear(soon()).await.unwrap();
    }
    assert_eq!(slow.recv().await, Some(Event::Missed(3)));
    assert_eq!(world.series("bus_lagged_total{topic=\"events\"}"), 3.0);
    world.host.shutdown().await;
    assert!(world.counters().contains("tasks_canceled_total{kind=\"resolver\"} 3"), "{}", world.counters());
}

#[tokio::test(start_paused = true)]
async fn lifetimes_are_what_the_settings_say() {
    let source = Scripted::new("source", ms(1), Does::Finds(vec![1]));
    let second = Duration::from_secs(1);
    let settings = Settings {
        content_ttl: 10 * second,
        stale_while_revalidate: Duration::ZERO,
        stale_if_error: 20 * second,
        failure_pause: 5 * second,
        refresh_hits: 1000,
        ..Settings::default()
    };
    let world = World::with(&[&source], settings);
    world.index.resolve(&content(1), soon()).await.unwrap();
    tokio::time::sleep(ms(9500)).await;
    world.index.resolve(&content(1), soon()).await.unwrap();
    tokio::time::sleep(ms(400)).await;
    assert_eq!(source.asked(), 1, "it is not popular enough to be asked for ahead");
    tokio::time::sleep(ms(200)).await;
    source.now_does(ms(1), Does::Fails(ron_index::source::SourceError::Failed("x".into())));
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().stale.is_some());
    let asked = source.asked();
    tokio::time::sleep(4 * second).await;
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().stale.is_some());
    assert_eq!(source.asked(), asked, "it is left alone for five seconds");
    tokio::time::sleep(2 * second).await;
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().stale.is_some());
    assert!(source.asked() > asked);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn refreshes_leave_most_workers_to_those_who_wait() {
    let source = Scripted::new("source", ms(1), Does::Finds(vec![1]));
    let settings = Settings { workers: NonZeroUsize::new(8).unwrap(), ..Settings::default() };
    let world = World::with(&[&source], settings);
    for number in 0..20 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(310)).await;
    source.now_does(ms(500), Does::Finds(vec![2]));
    for number in 0..20 {
        assert!(world.index.resolve(&content(number), soon()).await.unwrap().stale.is_some());
    }
    settle().await;
    assert_eq!(world.series("refreshes_total{result=\"begun\"}"), 2.0, "a quarter of the workers");
    assert_eq!(world.series("refreshes_total{result=\"no_room\"}"), 18.0);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_order_follows_the_region_and_what_was_delivered() {
    let near = ron_index::source::Provider { region: Some("eu".into()), ..provider(3) };
    let fixed = FixedProviders::new().mirror(provider(1)).mirror(provider(2)).of(content(1), near);
    let mut settings = Settings::default();
    settings.rank.region = Some("eu".into());
    settings.enough = NonZeroUsize::new(3).unwrap();
    let world = World::start(Index::builder().providers(fixed), settings.clone());
    let order = || async {
        let answer = world.index.reindex(&content(1), soon()).await.unwrap();
        answer.providers(9).iter().map(|ranked| ranked.provider.id.as_bytes()[0]).collect::<Vec<u8>>()
    };
    assert_eq!(order().await, [3, 1, 2]);
    for _ in 0..10 {
        world.index.report(NodeId::from_bytes([2; 32]), true, Some(ms(5)));
        world.index.report(NodeId::from_bytes([3; 32]), false, Some(ms(900)));
    }
    assert_eq!(order().await, [2, 1, 3]);
    settings.rank.success_weight = 0.0;
    settings.rank.latency_weight = 0.0;
    world.index.reload(settings).unwrap();
    assert_eq!(order().await, [3, 1, 2], "by the new weights");
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shares_of_zero_hedge_only_what_was_saved() {
    let (alpha, beta) = (
        Scripted::new("alpha", ms(200), Does::Finds(vec![1])),
        Scripted::new("beta", ms(300), Does::Finds(vec![2])),
    );
    let settings = Settings {
        alpha: NonZeroUsize::MIN,
        hedge_share: Ratio::percent(0),
        budget: ms(400),
        hedge_after: ms(100),
        ..Settings::default()
    };
    let world = World::with(&[&alpha, &beta], settings);
    for number in 0..100 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    assert!(beta.asked() <= 10, "{}", beta.asked());
    world.host.shutdown().await;
}

/// Where a node is, whichever source knows.
#[tokio::test(start_paused = true)]
async fn a_node_is_located_by_whoever_knows() {
    let source = Scripted::new("source", ms(1), Does::Finds(vec![1]));
    let fixed = FixedProviders::new().mirror(provider(77));
    let world = World::start(Index::builder().providers(source).providers(fixed), Settings::default());
    let locate = |id: u8| {
        let index = world.index.clone();
        async move { index.locate(NodeId::from_bytes([id; 32]), soon()).await.unwrap().map(|known| known.addrs) }
    };
    assert_eq!(locate(3).await, Some(provider(3).addrs));
    assert_eq!(locate(77).await, Some(provider(77).addrs));
    assert_eq!(locate(78).await, None);
    world.host.shutdown().await;
}

/// The shortest delay may be longer than half of the budget; the delay is then what it was to begin with.
#[tokio::test(start_paused = true)]
async fn a_short_budget_and_a_long_delay_go_together() {
    let source = Scripted::new("source", ms(70), Does::Finds(vec![1]));
    let settings = Settings {
        budget: ms(100),
        hedge_after: ms(90),
        hedge_min: ms(80),
        sweep_interval: ms(10),
        ..Settings::default()
    };
    let world = World::with(&[&source], settings);
    for number in 0..30 {
        world.index.resolve(&content(number), soon()).await.unwrap();
        assert!((ms(80)..=ms(90)).contains(&world.index.status().hedge_delay));
    }
    assert_eq!(world.series("tasks_panicked_total{kind=\"cache_janitor\"}"), 0.0);
    world.host.shutdown().await;
}

/// One that is silent, fails or panics does not keep another from saying where a node is.
#[tokio::test(start_paused = true)]
async fn a_node_is_located_though_others_cannot_say() {
    let fixed = FixedProviders::new().mirror(provider(77));
    let (id, stranger) = (NodeId::from_bytes([77; 32]), NodeId::from_bytes([78; 32]));
    for (does, of_stranger) in [
        (Does::Hangs, Err(IndexError::Timeout { op: "locate" })),
        (Does::Panics, Ok(None)),
        (Does::Fails(SourceError::NoRoute), Ok(None)),
    ] {
        let other = Scripted::new("other", ms(1), does.clone());
        let builder = Index::builder().providers(other).providers(fixed.clone());
        let world = World::start(builder, Settings::default());
        let found = world.index.locate(id, soon()).await.unwrap().unwrap();
        assert_eq!(found.addrs, provider(77).addrs, "{does:?}");
        assert_eq!(world.index.locate(stranger, soon()).await, of_stranger, "{does:?}");
        world.host.shutdown().await;
    }
    let broken = Scripted::new("broken", ms(1), Does::Fails(SourceError::NoRoute));
    let world = World::of(&[&broken]);
    assert_eq!(world.index.locate(id, soon()).await, Err(IndexError::Unavailable));
    world.host.shutdown().await;
}
