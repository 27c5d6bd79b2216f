//! Sources that are slow, that fail, and that are asked besides.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{ContentId, Deadline, Ratio, now};
use ron_index::{
    Index, IndexError, Settings,
    source::{BoxFuture, Manifest, Manifests, SourceError},
};

use super::world::{Book, Does, Scripted, World, content, ms, name, settle, soon};

fn one_then_one() -> Settings {
    Settings { alpha: NonZeroUsize::MIN, beta: 1, ..Settings::default() }
}

/// A peer of the first wave falls silent in the middle of a lookup: another is asked, wins, and the first is called off.
#[tokio::test(start_paused = true)]
async fn beta_wins_and_alpha_is_called_off() {
    let alpha = Scripted::new("alpha", ms(0), Does::Hangs);
    let beta = Scripted::new("beta", ms(30), Does::Finds(vec![2]));
    let world = World::with(&[&alpha, &beta], one_then_one());
    let began = now();
    let answer = world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!(began.elapsed(), ms(180), "the delay to begin with, and what the other takes");
    assert_eq!(answer.providers(5)[0].source, "beta");
    settle().await;
    assert_eq!(alpha.dropped.load(Ordering::SeqCst), 1, "it is called off");
    assert_eq!((alpha.asked(), beta.asked()), (1, 1));
    assert_eq!(world.series("hedges_total{result=\"won\"}"), 1.0);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_first_wave_that_is_in_time_costs_nothing() {
    let alpha = Scripted::new("alpha", ms(100), Does::Finds(vec![1]));
    let beta = Scripted::new("beta", ms(1), Does::Finds(vec![2]));
    let world = World::with(&[&alpha, &beta], one_then_one());
    world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!(beta.asked(), 0);
    // One that is slow and still first.
    alpha.now_does(ms(160), Does::Finds(vec![1]));
    beta.now_does(ms(500), Does::Finds(vec![2]));
    world.index.resolve(&content(2), soon()).await.unwrap();
    assert_eq!((beta.asked(), world.series("hedges_total{result=\"lost\"}")), (1, 1.0));
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_fast_error_never_beats_a_slower_success() {
    let fails = Scripted::new("fails", ms(1), Does::Fails(SourceError::Failed("no".into())));
    let finds = Scripted::new("finds", ms(700), Does::Finds(vec![7]));
    let world = World::of(&[&fails, &finds]);
    let answer = world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!(answer.providers(5)[0].source, "finds");
    assert_eq!(world.series("source_errors_total{source=\"fails\"}"), 1.0);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_failed_is_replaced_without_waiting_for_the_delay() {
    let fails = Scripted::new("fails", ms(5), Does::Fails(SourceError::Failed("no".into())));
    let finds = Scripted::new("finds", ms(5), Does::Finds(vec![7]));
    let world = World::with(&[&fails, &finds], one_then_one());
    let began = now();
    world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!(began.elapsed(), ms(10));
    world.host.shutdown().await;
}

/// Hedges are at most a twentieth of the questions, after the ten that a quiet node has saved.
#[tokio::test(start_paused = true)]
async fn hedges_have_a_budget() {
    let alpha = Scripted::new("alpha", ms(200), Does::Finds(vec![1]));
    let beta = Scripted::new("beta", ms(400), Does::Finds(vec![2]));
    // The delay stays below what everybody takes, so that every question looks worth a hedge.
    let settings = Settings { budget: ms(300), hedge_after: ms(100), ..one_then_one() };
    let world = World::with(&[&alpha, &beta], settings);
    for number in 0..400 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    let hedges = beta.asked();
    assert!((20..=31).contains(&hedges), "{hedges} of 400");
    let world = World::with(
        &[&alpha, &beta],
        Settings {
            hedge_share: Ratio::percent(100),
            ..Settings { budget: ms(300), hedge_after: ms(100), ..one_then_one() }
        },
    );
    let before = beta.asked();
    for number in 0..50 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    assert_eq!(beta.asked() - before, 50);
    world.host.shutdown().await;
}

/// The delay follows what sources take.
#[tokio::test(start_paused = true)]
async fn the_delay_follows_the_sources() {
    let quick = Scripted::new("quick", ms(10), Does::Finds(vec![1]));
    let world = World::with(&[&quick], one_then_one());
    assert_eq!(world.index.status().hedge_delay, ms(150));
    for number in 0..100 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    let delay = world.index.status().hedge_delay;
    assert!((ms(9)..ms(15)).contains(&delay), "{delay:?}");
    tokio::time::sleep(ms(11_000)).await;
    let shown = world.series("hedge_delay_seconds");
    assert!((0.009..0.015).contains(&shown), "{shown}");
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn errors_that_pass_are_retried_within_the_budget() {
    let busy = Scripted::new("busy", ms(1), Does::Fails(SourceError::Transient("busy".into())));
    let world = World::of(&[&busy]);
    let index = world.index.clone();
    let (answer, ()) = tokio::join!(async { index.resolve(&content(1), soon()).await }, async {
        tokio::time::sleep(ms(120)).await;
        busy.now_does(ms(1), Does::Finds(vec![1]));
    });
    answer.unwrap();
    let retries = world.series("backoff_retries_total{op=\"busy\"}");
    assert!((1.0..=3.0).contains(&retries), "{retries}");
    // Not for ever: four tries in all.
    let never = Scripted::new("never", ms(1), Does::Fails(SourceError::NoRoute));
    let world = World::of(&[&never]);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::Unavailable);
    assert_eq!(never.asked(), 4);
    // And not at all for what asking again does not mend.
    let broken = Scripted::new("broken", ms(1), Does::Fails(SourceError::Invalid("forged".into())));
    let world = World::of(&[&broken]);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::Unavailable);
    assert_eq!((broken.asked(), world.series("invalid_answers_total{source=\"broken\"}")), (1, 1.0));
}

/// "Satisfactory" is a number that somebody stated.
#[tokio::test(start_paused = true)]
async fn enough_providers_end_a_lookup() {
    let one = Scripted::new("one", ms(10), Does::Finds(vec![1]));
    let two = Scripted::new("two", ms(50), Does::Finds(vec![2, 3]));
    let world = World::of(&[&one, &two]);
    let began = now();
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap().providers(32).len(), 1);
    assert_eq!(began.elapsed(), ms(10));
    let settings = Settings { enough: NonZeroUsize::new(3).unwrap(), ..Settings::default() };
    let world = World::with(&[&one, &two], settings);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap().providers(32).len(), 3);
    // Fewer than enough are an answer too, once everybody was asked.
    let settings = Settings { enough: NonZeroUsize::new(9).unwrap(), ..Settings::default() };
    let world = World::with(&[&one, &two], settings);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap().providers(32).len(), 3);
}

/// A name is decided by the source that the host trusts most; one that is silent is not replaced by the next.
#[tokio::test(start_paused = true)]
async fn a_name_is_decided_by_the_first_source_that_serves_it() {
    let (first, second) = (Book::default(), Book::default());
    first.bind("a", &content(1), 1);
    second.bind("a", &content(2), 9);
    second.bind("b", &content(3), 1);
    let finds = Scripted::new("finds", ms(1), Does::Finds(vec![1]));
    let builder = Index::builder().names(first.clone()).names(second).providers(finds);
    let world = World::start(builder, Settings::default());
    let resolved = |text: &'static str| {
        let index = world.index.clone();
        async move { index.resolve(&name(text), soon()).await.map(|answer| answer.resolution().content.clone()) }
    };
    assert_eq!(resolved("a").await, Ok(content(1)));
    assert_eq!(resolved("b").await, Ok(content(3)), "the first is certain that it has none");
    *first.fails.lock().unwrap() = Some(SourceError::Failed("away".into()));
    world.index.clear(soon()).await.unwrap();
    assert_eq!(resolved("b").await, Err(IndexError::Unavailable));
}

/// Knows every manifest after a while, and counts who asks.
#[derive(Clone, Default)]
struct Slow(Duration, Arc<AtomicUsize>);

impl Manifests for Slow {
    fn label(&self) -> &'static str {
        "slow"
    }

    fn manifest(&self, id: ContentId, _: Deadline) -> BoxFuture<'_, Result<Option<Manifest>, SourceError>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            Ok(Some(Manifest { id, len: 1, group_bytes: 1 }))
        })
    }
}

/// A second word about the manifest is paid from the same budget.
#[tokio::test(start_paused = true)]
async fn hedges_for_manifests_have_a_budget_too() {
    let (first, second) = (Slow(ms(200), Arc::default()), Slow(ms(200), Arc::default()));
    let finds = Scripted::new("finds", ms(1), Does::Finds(vec![1]));
    let builder = Index::builder().manifests(first.clone()).manifests(second.clone()).providers(finds);
    let world = World::start(builder, Settings::default());
    for number in 0..100 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    let hedges = second.1.load(Ordering::SeqCst);
    assert_eq!(first.1.load(Ordering::SeqCst), 100);
    assert!((10..=20).contains(&hedges), "ten saved, and a twentieth of two hundred questions: {hedges}");
    world.host.shutdown().await;
}
