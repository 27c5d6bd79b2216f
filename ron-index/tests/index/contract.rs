//! The five promises that every subsystem of the family keeps, and those of this one about time.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{CallError, Deadline, ErrorKind, Event, Phase, TaskSpec, now};
use ron_index::{Index, IndexError, Settings, source::SourceError};

use super::world::{Book, Catalogue, Does, Scripted, World, content, ms, name, settle, soon};

const CALLER: TaskSpec = TaskSpec::new("test", "caller");

fn narrow() -> Settings {
    Settings { workers: NonZeroUsize::MIN, lane: 2, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let slow = Scripted::new("slow", ms(500), Does::Finds(vec![1]));
    let world = World::with(&[&slow], narrow());
    for number in 0..3 {
        let index = world.index.clone();
        world.host.spawn(CALLER, move |_| async move {
            let _ = index.resolve(&content(number), soon()).await;
        });
        settle().await;
    }
    let began = now();
    let refused = world.index.resolve(&content(9), soon()).await.unwrap_err();
    let IndexError::Busy { what: "work", retry_after } = refused else { panic!("{refused:?}") };
    assert!(retry_after > Duration::ZERO && began.elapsed().is_zero());
    assert_eq!(world.series("busy_rejections_total{endpoint=\"work\"}"), 1.0);
    assert_eq!(world.series("queue_depth{queue=\"work\"}"), 2.0);
    assert!(!world.index.ready().writes, "{:?}", world.index.ready());
    // The same key again needs no place of its own.
    let joined = world.index.resolve(&content(1), soon()).await;
    assert_eq!(joined.unwrap().providers(5).len(), 1);
    assert_eq!(world.series("lookups_joined_total"), 1.0);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let world = World::of(&[&hangs]);
    let began = now();
    let late = world.index.resolve(&content(1), Deadline::after(ms(100))).await.unwrap_err();
    assert_eq!(late, IndexError::Timeout { op: "resolve" });
    assert_eq!(began.elapsed(), ms(100));
    assert_eq!(world.series("resolve_deadline_hit_total"), 1.0);
    assert_eq!(world.series("io_timeouts_total{op=\"resolve\"}"), 1.0);
    world.host.shutdown().await;
}

/// Whatever sources do, the whole takes its budget and no more than fifty milliseconds beyond.
#[tokio::test(start_paused = true)]
async fn the_budget_is_kept_whatever_sources_do() {
    let transient = || Does::Fails(SourceError::Transient("busy".into()));
    for (case, of_names, of_manifest, does) in [
        ("names take all of it", 5000, 0, Does::Finds(vec![1])),
        ("names take most of it", 1100, 0, Does::Hangs),
        ("the manifest takes all of it", 0, 5000, Does::Hangs),
        ("nobody ever answers", 0, 0, Does::Hangs),
        ("everybody fails for ever", 0, 0, transient()),
        ("they panic", 0, 0, Does::Panics),
    ] {
        let sources: Vec<Scripted> =
            ["a", "b", "c", "d", "e", "f"].map(|label| Scripted::new(label, ms(10), does.clone())).into();
        let book = Book { after: ms(of_names), ..Book::default() };
        book.bind("a/name", &content(1), 1);
        let builder =
            Index::builder().names(book).manifests(Catalogue { after: ms(of_manifest), hangs: false });
        let builder = sources.iter().fold(builder, |builder, source| builder.providers(source.clone()));
        let world = World::start(builder, Settings::default());
        let began = now();
        let _ = world.index.resolve(&name("a/name"), soon()).await;
        assert!(began.elapsed() <= ms(1250), "{case}: {:?}", began.elapsed());
        let began = now();
        let late = world.index.resolve(&content(7), Deadline::after(ms(1200))).await;
        assert!(began.elapsed() <= ms(1250), "{case}: {:?}", began.elapsed());
        if case == "nobody ever answers" {
            // The manifest came, so there is something to say.
            assert!(!late.unwrap().resolution().is_complete);
            assert!(began.elapsed() >= ms(1150), "it waits for as long as it may: {:?}", began.elapsed());
        }
        world.host.shutdown().await;
    }
}

/// Time in the queue counts.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_worker_is_part_of_the_budget() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let world = World::with(&[&hangs], narrow());
    let index = world.index.clone();
    world.host.spawn(CALLER, move |_| async move {
        let _ = index.resolve(&content(1), soon()).await;
    });
    settle().await;
    let began = now();
    let late = world.index.resolve(&content(2), soon()).await.unwrap_err();
    assert_eq!(late, IndexError::Timeout { op: "resolve" });
    assert!((ms(1150)..=ms(1250)).contains(&began.elapsed()), "{:?}", began.elapsed());
    world.host.shutdown().await;
}

/// Who comes when the lookup of others is nearly over has its own budget: the end of theirs is not its own.
#[tokio::test(start_paused = true)]
async fn whoever_comes_late_is_not_late() {
    let source = Scripted::new("source", ms(0), Does::Hangs);
    let world = World::of(&[&source]);
    let index = world.index.clone();
    world.host.spawn(CALLER, move |_| async move {
        assert!(matches!(index.resolve(&content(1), soon()).await, Err(IndexError::Timeout { .. })));
    });
    tokio::time::sleep(ms(1190)).await;
    // By now it would answer, but the question that is out was asked before.
    source.now_does(ms(100), Does::Finds(vec![1]));
    let began = now();
    let key = content(1);
    let calls = (0..50).map(|_| world.index.resolve(&key, soon()));
    let answers = futures_of(calls.collect()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(began.elapsed() <= ms(150), "{:?}", began.elapsed());
    assert_eq!(source.asked(), 2, "theirs is one lookup too");
    // If that is late as well, they have waited for as long as they may, and no longer.
    source.now_does(ms(0), Does::Hangs);
    let index = world.index.clone();
    world.host.spawn(CALLER, move |_| async move {
        let _ = index.resolve(&content(2), soon()).await;
    });
    tokio::time::sleep(ms(600)).await;
    let began = now();
    let late = world.index.resolve(&content(2), soon()).await.unwrap_err();
    assert_eq!((late, began.elapsed()), (IndexError::Timeout { op: "resolve" }, ms(1200)));
    let began = now();
    let late = world.index.resolve(&content(2), Deadline::after(ms(100))).await.unwrap_err();
    assert_eq!((late, began.elapsed()), (IndexError::Timeout { op: "resolve" }, ms(100)));
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_handle_says_canceled() {
    let finds = Scripted::new("finds", ms(1), Does::Finds(vec![1]));
    let world = World::of(&[&finds]);
    world.index.resolve(&content(1), soon()).await.unwrap();
    let mut events = world.index.events();
    world.index.shutdown().await;
    assert_eq!(
        world.index.resolve(&content(1), soon()).await.unwrap_err(),
        IndexError::Canceled,
        "known or not"
    );
    assert_eq!(world.index.find(&content(2), 5, soon()).unwrap_err(), IndexError::Canceled);
    assert_eq!(world.index.purge(&content(1), soon()).await, Err(IndexError::Canceled));
    assert_eq!(world.index.unpin(&content(1), soon()).await, Err(IndexError::Canceled));
    assert_eq!(world.index.clear(soon()).await, Err(IndexError::Canceled));
    assert_eq!(events.recv().await, None::<Event<_>>);
    assert_eq!(IndexError::from(CallError::Canceled), IndexError::Canceled);
}

#[tokio::test(start_paused = true)]
async fn shutting_down_twice_is_harmless() {
    let world = World::of(&[]);
    let (first, second) = tokio::join!(world.index.shutdown(), world.index.shutdown());
    assert_eq!((first, first.aborted), (second, 0));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_tasks() {
    let World { host, index, .. } = World::of(&[]);
    let mut events = index.events();
    let also = index.clone();
    drop(index);
    also.clear(soon()).await.unwrap();
    assert!(matches!(events.recv().await, Some(Event::Item(ron_index::Event::Cleared { by: "caller" }))));
    drop(also);
    assert_eq!(events.recv().await, None);
    host.shutdown().await;
    assert_eq!(host.phase(), Phase::Stopped);
}

/// What has begun is finished, what waits for a worker too, and nothing new is taken in.
#[tokio::test(start_paused = true)]
async fn what_has_begun_is_finished() {
    let slow = Scripted::new("slow", ms(400), Does::Finds(vec![1]));
    let world = World::with(&[&slow], narrow());
    let one = world.index.clone();
    let two = world.index.clone();
    let (stopped, first, second, third) = tokio::join!(
        async {
            settle().await;
            world.index.shutdown().await
        },
        async { one.resolve(&content(1), Deadline::after(ms(5000))).await },
        async { two.resolve(&content(2), Deadline::after(ms(5000))).await },
        async {
            settle().await;
            tokio::time::sleep(ms(10)).await;
            world.index.resolve(&content(3), soon()).await
        }
    );
    assert_eq!((stopped.aborted, third.unwrap_err()), (0, IndexError::Canceled));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
}

/// At the end of the drain whoever still waits is told.
#[tokio::test(start_paused = true)]
async fn what_does_not_end_is_cut_off_and_told() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let settings = Settings { budget: Duration::from_secs(30), drain: Duration::from_secs(1), ..narrow() };
    let world = World::with(&[&hangs], settings);
    let began = now();
    let index = world.index.clone();
    let (stopped, waiting, queued) = tokio::join!(
        async {
            settle().await;
            world.index.shutdown().await
        },
        async { index.resolve(&content(1), soon()).await },
        async { index.resolve(&content(2), soon()).await },
    );
    assert_eq!((waiting.unwrap_err(), queued.unwrap_err()), (IndexError::Canceled, IndexError::Canceled));
    assert!(stopped.aborted > 0 && began.elapsed() < ms(1500), "{stopped:?} {:?}", began.elapsed());
    assert_eq!(world.series("tasks_aborted_total{kind=\"resolver\"}"), 1.0);
}

/// Of many who are told at the same moment each is told at its turn. They were told in the order of a hash map, another one in each
/// process, so that a run of a simulation in which an index ended with lookups under way was not the same again.
#[tokio::test(start_paused = true)]
async fn those_who_are_cut_off_are_told_in_the_order_of_their_keys() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let settings =
        Settings { lane: 20, budget: Duration::from_secs(30), drain: Duration::from_secs(1), ..narrow() };
    let world = World::with(&[&hangs], settings);
    let told = Arc::new(Mutex::new(Vec::new()));
    for number in 0..16 {
        let (index, told) = (world.index.clone(), Arc::clone(&told));
        world.host.spawn(CALLER, move |_| async move {
            let ended = index.resolve(&content(number), Deadline::after(ms(60_000))).await;
            assert_eq!(ended.unwrap_err(), IndexError::Canceled);
            told.lock().unwrap().push(content(number));
        });
        settle().await;
    }
    world.index.shutdown().await;
    settle().await;
    // The one that a worker had ends with the worker.
    let mut told = std::mem::take(&mut *told.lock().unwrap());
    told.retain(|key| *key != content(0));
    assert_eq!(told.len(), 15);
    assert!(told.is_sorted(), "{told:?}");
}

/// A source that panics is an error of that source, and the worker lives on.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_source_is_an_error_of_that_source() {
    let panics = Scripted::new("panics", ms(1), Does::Panics);
    let world = World::of(&[&panics]);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::Unavailable);
    assert_eq!(world.series("tasks_panicked_total{kind=\"source\"}"), 1.0);
    assert_eq!(world.series("tasks_panicked_total{kind=\"resolver\"}"), 0.0);
    let finds = Scripted::new("finds", ms(20), Does::Finds(vec![1]));
    let world = World::of(&[&panics, &finds]);
    assert!(world.index.resolve(&content(1), soon()).await.is_ok());
    assert_eq!(world.host.failure(), None);
}

/// Every counter that the model of concurrency names is there, under the names of this family, from the first moment or once it
/// has happened.
#[tokio::test(start_paused = true)]
async fn everything_that_should_be_counted_is() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let busy = Scripted::new("busy", ms(1), Does::Fails(SourceError::Transient("busy".into())));
    let settings = Settings { workers: 1.try_into().unwrap(), lane: 1, ..Settings::default() };
    let world = World::with(&[&hangs, &busy], settings);
    let mut slow = world.index.events();
    // One is looked up, one waits, and one is refused; the first two run out of time.
    let calls = (0..3).map(|number| {
        let index = world.index.clone();
        async move { index.resolve(&content(number), soon()).await.unwrap_err() }
    });
    let refused = futures_of(calls.collect()).await;
    assert!(refused.iter().any(|error| matches!(error, IndexError::Busy { .. })), "{refused:?}");
    // Enough failures for the breakers, and then a refusal by them.
    for number in 10..60 {
        let _ = world.index.resolve(&content(number), soon()).await;
    }
    // More events than a subscriber may be behind.
    for number in 0..1100 {
        world.index.purge(&content(number), soon()).await.unwrap();
    }
    while slow.try_recv().is_some() {}
    let counted = world.counters();
    for name in [
        "queue_depth{queue=\"work\"}",
        "queue_capacity{queue=\"work\"} 1",
        "busy_rejections_total{endpoint=\"work\"}",
        "bus_lagged_total{topic=\"events\"}",
        "tasks_spawned_total{kind=\"resolver\"} 1",
        "tasks_spawned_total{kind=\"cache_janitor\"} 1",
        "tasks_spawned_total{kind=\"breaker_janitor\"} 1",
        "tasks_aborted_total{kind=\"resolver\"} 0",
        "tasks_canceled_total{kind=\"resolver\"} 0",
        "resolve_latency_seconds_count",
        "dht_lookup_seconds_count",
        "backoff_retries_total{op=\"busy\"}",
        "breaker_state{target=\"busy\",state=\"open\"}",
        "breaker_open_total{target=\"busy\"}",
        "io_timeouts_total{op=\"resolve\"}",
        "resolve_deadline_hit_total",
        "cache_misses_total",
        "purges_total{by=\"caller\"}",
    ] {
        assert!(counted.contains(&format!("ron_index_{name}")), "{name} is not in {counted}");
    }
    for at_least_one in [
        "busy_rejections_total{endpoint=\"work\"}",
        "bus_lagged_total{topic=\"events\"}",
        "resolve_deadline_hit_total",
        "breaker_open_total{target=\"busy\"}",
    ] {
        assert!(world.series(at_least_one) >= 1.0, "{at_least_one}: {counted}");
    }
    world.host.shutdown().await;
}

/// Questions whose answers come one by one, and those for a node, ran out of time without being counted: an operator saw a
/// quiet index while every streaming client was told 504.
#[tokio::test(start_paused = true)]
async fn whatever_is_asked_counts_when_its_budget_is_spent() {
    let hangs = Scripted::new("hangs", ms(0), Does::Hangs);
    let world = World::of(&[&hangs]);
    let mut found = world.index.find(&content(1), 5, soon()).unwrap();
    assert_eq!(found.next().await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(found.next().await.unwrap(), None, "told once");
    assert_eq!(world.series("io_timeouts_total{op=\"find\"}"), 1.0);
    assert_eq!(world.series("resolve_deadline_hit_total"), 1.0);
    let node = ron_core::NodeId::from_bytes([1; 32]);
    assert_eq!(world.index.locate(node, soon()).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(world.series("io_timeouts_total{op=\"locate\"}"), 1.0);
    assert_eq!(world.series("resolve_deadline_hit_total"), 2.0);
    world.host.shutdown().await;
}

/// All of them at once.
pub(crate) async fn futures_of<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none() {
                if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
                    *done = Some(output);
                }
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
