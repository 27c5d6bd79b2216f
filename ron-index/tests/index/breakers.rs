//! Sources that keep failing are left alone, and tried again in nobody's name.

use std::{sync::atomic::Ordering, time::Duration};

use ron_core::{BreakerState, Event, NodeId, now};
use ron_index::{IndexError, source::SourceError};

use super::{
    contract::futures_of,
    world::{Does, Scripted, World, content, ms, settle, soon},
};

fn broken() -> Does {
    Does::Fails(SourceError::Failed("broken".into()))
}

/// By the book: closed until half of ten calls in ten seconds failed; open for a second, in which nobody is asked; then three
/// probes, none of them a caller's; all good closes it, one bad opens it again.
#[tokio::test(start_paused = true)]
async fn a_breaker_goes_by_the_book() {
    let source = Scripted::new("source", ms(1), broken());
    let world = World::of(&[&source]);
    let mut events = world.index.events();
    for number in 0..10 {
        assert_eq!(world.index.resolve(&content(number), soon()).await.unwrap_err(), IndexError::Unavailable);
    }
    settle().await;
    assert_eq!(world.index.status().sources, [("source", BreakerState::Open)]);
    assert_eq!(world.series("breaker_state{target=\"source\",state=\"open\"}"), 1.0);
    assert!(!world.index.ready().reads, "nobody is left to ask");

    let refused = world.index.resolve(&content(50), soon()).await.unwrap_err();
    let IndexError::BreakerOpen { target: "source", retry_after } = refused else { panic!("{refused:?}") };
    assert!(retry_after > Duration::ZERO && retry_after <= ms(1000), "{retry_after:?}");
    assert_eq!(world.series("breaker_open_total{target=\"source\"}"), 1.0);
    assert_eq!((source.asked(), source.probed.load(Ordering::SeqCst)), (10, 0), "it is left alone");

    // The probe fails, and it stays open. No caller was spent on finding out.
    tokio::time::sleep(ms(1100)).await;
    assert!(source.probed.load(Ordering::SeqCst) >= 1);
    assert_eq!(world.index.status().sources[0].1, BreakerState::Open);
    assert!(matches!(world.index.resolve(&content(51), soon()).await, Err(IndexError::BreakerOpen { .. })));
    assert_eq!(source.asked(), 10);

    source.now_does(ms(1), Does::Finds(vec![1]));
    tokio::time::sleep(ms(2500)).await;
    assert_eq!(world.index.status().sources[0].1, BreakerState::Closed);
    assert_eq!(world.series("breaker_state{target=\"source\",state=\"closed\"}"), 1.0);
    assert_eq!(world.series("breaker_state{target=\"source\",state=\"open\"}"), 0.0);
    assert!(world.index.ready().reads);
    assert_eq!(source.asked(), 10, "nobody paid for the probes");
    world.index.resolve(&content(52), soon()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(Event::Item(event)) = events.try_recv() {
        if let ron_index::Event::BreakerMoved { state, .. } = event {
            seen.push(state);
        }
    }
    use BreakerState::{Closed, HalfOpen, Open};
    assert_eq!(seen, [Open, HalfOpen, Open, HalfOpen, Closed]);
    world.host.shutdown().await;
}

/// Fewer than half, or fewer than ten: nothing happens.
#[tokio::test(start_paused = true)]
async fn a_breaker_does_not_trip_too_early() {
    let source = Scripted::new("source", ms(1), broken());
    let world = World::of(&[&source]);
    for number in 0..9 {
        world.index.resolve(&content(number), soon()).await.unwrap_err();
    }
    settle().await;
    assert_eq!(world.index.status().sources[0].1, BreakerState::Closed, "nine are no trend");
    source.now_does(ms(1), Does::Finds(vec![1]));
    for number in 100..120 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    source.now_does(ms(1), broken());
    for number in 200..208 {
        world.index.resolve(&content(number), soon()).await.unwrap_err();
    }
    settle().await;
    assert_eq!(world.index.status().sources[0].1, BreakerState::Closed, "17 of 37 are less than half");
    world.host.shutdown().await;
}

/// One that never says anything, beside one that does: it is left alone in time, and costs nothing from then on.
#[tokio::test(start_paused = true)]
async fn silence_is_a_failure_too() {
    let silent = Scripted::new("silent", ms(0), Does::Hangs);
    let world = World::of(&[&silent]);
    for number in 0..10 {
        let late = world.index.resolve(&content(number), soon()).await.unwrap_err();
        assert_eq!(late, IndexError::Timeout { op: "resolve" });
    }
    settle().await;
    // Ten took twelve seconds, so the first has left the window; a few more are needed than by the book.
    for number in 10..14 {
        let _ = world.index.resolve(&content(number), soon()).await;
    }
    assert!(world.series("io_timeouts_total{op=\"silent\"}") >= 8.0, "{}", world.counters());
    let other = Scripted::new("other", ms(600), Does::Finds(vec![1]));
    let silent = Scripted::new("silent", ms(0), Does::Hangs);
    let world = World::of(&[&silent, &other]);
    for number in 0..16 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    settle().await;
    assert_ne!(world.index.status().sources[0].1, BreakerState::Closed, "always slower than the delay");
    assert_eq!(world.index.status().sources[1].1, BreakerState::Closed);
    world.host.shutdown().await;
}

/// Where nodes are was asked of sources as if nothing could be learned from it: one that failed every time was asked for ever, and
/// each caller waited for it. Now it is left alone after as many failures as in lookups.
#[tokio::test(start_paused = true)]
async fn one_that_cannot_locate_is_left_alone() {
    let node = NodeId::from_bytes([3; 32]);
    for (does, error) in [
        (broken(), IndexError::Unavailable),
        (Does::Panics, IndexError::Unavailable),
        (Does::Hangs, IndexError::Timeout { op: "locate" }),
    ] {
        let source = Scripted::new("source", ms(1), does.clone());
        let world = World::of(&[&source]);
        // At once: ten that hang, one after the other, would not be in one window.
        let calls = (0..10).map(|_| world.index.locate(node, soon()));
        for said in futures_of(calls.collect()).await {
            assert_eq!(said.unwrap_err(), error, "{does:?}");
        }
        settle().await;
        let refused = world.index.locate(node, soon()).await.unwrap_err();
        assert!(matches!(refused, IndexError::BreakerOpen { target: "source", .. }), "{does:?}: {refused:?}");
        assert!(world.series("source_errors_total{source=\"source\"}") >= 10.0, "{}", world.counters());
        world.host.shutdown().await;
    }

    // Answers count as well: half of them must be failures, and that somebody is not known is an answer.
    let source = Scripted::new("source", ms(1), Does::Finds(vec![1]));
    let world = World::of(&[&source]);
    for number in 0..40 {
        source.now_does(ms(1), if number % 4 == 0 { broken() } else { Does::Finds(vec![1]) });
        let _ = world
            .index
            .locate(if number % 2 == 0 { node } else { NodeId::from_bytes([78; 32]) }, soon())
            .await;
    }
    settle().await;
    assert_eq!(world.index.status().sources[0].1, BreakerState::Closed);
    world.host.shutdown().await;
}

/// A source that cannot know yet has not failed: it is asked once for each lookup, never left alone, and heard as soon as it can.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_ready_has_not_failed() {
    let gate = "dht.seeds";
    let source = Scripted::new("source", ms(1), Does::Fails(SourceError::NotReady { gate }));
    let world = World::of(&[&source]);
    for number in 0..100 {
        let began = now();
        let error = world.index.resolve(&content(number), soon()).await.unwrap_err();
        assert_eq!((error, began.elapsed()), (IndexError::NotReady { gate }, ms(1)));
    }
    assert_eq!((source.asked(), world.index.status().sources[0].1), (100, BreakerState::Closed));
    assert_eq!(world.series("source_errors_total{source=\"source\"}"), 100.0, "it is counted all the same");
    assert_eq!(
        world.index.locate(NodeId::from_bytes([9; 32]), soon()).await,
        Err(IndexError::NotReady { gate })
    );
    source.now_does(ms(1), Does::Finds(vec![1]));
    world.index.resolve(&content(0), soon()).await.unwrap();
    world.host.shutdown().await;

    // Where another one did fail, waiting for the first is not all there is to do.
    let source = Scripted::new("source", ms(1), Does::Fails(SourceError::NotReady { gate }));
    let failing = Scripted::new("failing", ms(1), Does::Fails(SourceError::Failed("down".into())));
    let world = World::of(&[&source, &failing]);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::Unavailable);
    // And nobody's word that nobody has it is a no while one could not be heard.
    failing.now_does(ms(1), Does::FindsNobody { is_final: true });
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::NotReady { gate });
    assert_eq!(world.index.status().entries, 0);
    world.host.shutdown().await;
}

/// One that tells whom it has found before it is done, as a search of a DHT does, and is called off because that is enough, has
/// answered: slow or not, it is not left alone for it, and the delay follows it.
#[tokio::test(start_paused = true)]
async fn one_that_won_before_it_was_done_has_not_failed() {
    let source = Scripted::new("source", ms(250), Does::FindsAndGoesOn(vec![1]));
    let world = World::of(&[&source]);
    for number in 0..40 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    settle().await;
    assert_eq!(world.index.status().sources, [("source", BreakerState::Closed)]);
    assert_eq!(source.dropped.load(Ordering::SeqCst), 40, "all were called off");
    let delay = world.index.status().hedge_delay;
    assert!((ms(250)..ms(300)).contains(&delay), "{delay:?}");
    source.now_does(ms(20), Does::FindsAndGoesOn(vec![1]));
    for number in 100..1200 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    let delay = world.index.status().hedge_delay;
    assert!((ms(20)..ms(30)).contains(&delay), "it comes down again: {delay:?}");
    world.host.shutdown().await;
}
