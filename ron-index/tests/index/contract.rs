//! The five promises that every subsystem of the family keeps, and those of this one about time.

use std::{num::NonZeroUsize, time::Duration};

use ron_core::{CallError, Deadline, Event, Phase, TaskSpec, now};
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
