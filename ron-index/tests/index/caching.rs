//! What is remembered, for how long, and what is said when the world is down.

use std::{sync::atomic::Ordering, time::Duration};

use ron_core::{Event, now};
use ron_index::{Index, IndexError, Key, Settings, Stale, source::SourceError};

use super::world::{Book, Catalogue, Does, Scripted, World, content, ms, name, settle, soon};

fn finds() -> Scripted {
    Scripted::new("finds", ms(20), Does::Finds(vec![1, 2, 3]))
}

async fn sleep_secs(secs: u64) {
    tokio::time::sleep(Duration::from_secs(secs)).await;
}

/// Ten thousand callers of one key that nobody has asked for before cause one lookup, and all have the answer.
#[tokio::test(start_paused = true)]
async fn many_callers_of_one_cold_key_cause_one_lookup() {
    let source = finds();
    let world = World::of(&[&source]);
    let mut callers = Vec::new();
    for _ in 0..10_000 {
        let index = world.index.clone();
        callers.push(Box::pin(async move {
            index.resolve(&content(1), soon()).await.map(|answer| answer.is_cached)
        }));
    }
    let (mut answered, mut waiting) = (0, callers);
    let began = now();
    while !waiting.is_empty() {
        let mut left = Vec::new();
        for mut caller in waiting {
            match poll_once(caller.as_mut()).await {
                Some(answer) => {
                    answer.unwrap();
                    answered += 1;
                }
                None => left.push(caller),
            }
        }
        waiting = left;
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!((answered, source.asked()), (10_000, 1));
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
    assert_eq!(world.series("lookups_total{result=\"found\"}"), 1.0);
    assert_eq!(world.series("lookups_joined_total"), 9_999.0);
    world.host.shutdown().await;
}

/// One look at a future.
pub(crate) async fn poll_once<F: Future + ?Sized>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// A hit is answered while every worker hangs and the queue is full.
#[tokio::test(start_paused = true)]
async fn a_hit_never_enters_the_pool() {
    let source = finds();
    let settings = Settings { workers: 1.try_into().unwrap(), lane: 1, ..Settings::default() };
    let world = World::with(&[&source], settings);
    world.index.resolve(&content(1), soon()).await.unwrap();
    source.now_does(ms(0), Does::Hangs);
    let mut stuck: Vec<_> = (2..4)
        .map(|number| {
            let index = world.index.clone();
            Box::pin(async move { index.resolve(&content(number), soon()).await })
        })
        .collect();
    for caller in &mut stuck {
        assert!(poll_once(caller.as_mut()).await.is_none());
        settle().await;
    }
    assert!(matches!(world.index.resolve(&content(9), soon()).await, Err(IndexError::Busy { .. })));
    let began = now();
    let hit = world.index.resolve(&content(1), soon()).await.unwrap();
    assert!(hit.is_cached && hit.stale.is_none() && began.elapsed().is_zero());
    assert_eq!(world.series("cache_hits_total{freshness=\"fresh\"}"), 1.0);
    assert_eq!(source.asked(), 2, "the first, and the one that hangs");
    drop(stuck);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn that_there_is_nothing_is_remembered_only_if_somebody_can_say_so() {
    let source = Scripted::new("source", ms(5), Does::FindsNobody { is_final: true });
    let world = World::of(&[&source]);
    let asked = |number: u32| {
        let (index, source) = (world.index.clone(), source.clone());
        async move {
            let before = source.asked();
            let errors = [
                index.resolve(&content(number), soon()).await.unwrap_err(),
                index.resolve(&content(number), soon()).await.unwrap_err(),
            ];
            (source.asked() - before, errors)
        }
    };
    assert_eq!(asked(1).await, (1, [IndexError::NotFound, IndexError::NotFound]));
    assert_eq!(world.series("cache_hits_total{freshness=\"negative\"}"), 1.0);
    sleep_secs(16).await;
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::NotFound);
    assert_eq!(source.asked(), 2, "for fifteen seconds");
    source.now_does(ms(5), Does::FindsNobody { is_final: false });
    assert_eq!(
        asked(2).await,
        (2, [IndexError::NotFound, IndexError::NotFound]),
        "a store speaks for itself"
    );
    source.now_does(ms(5), Does::Fails(SourceError::Timeout));
    assert_eq!(asked(3).await.0, 2);
    // Never by a timeout, of the source or of the whole.
    source.now_does(ms(0), Does::Hangs);
    let late = IndexError::Timeout { op: "resolve" };
    assert_eq!(asked(4).await, (2, [late.clone(), late]));
    source.now_does(ms(1), Does::Finds(vec![1]));
    for number in 2..5 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    world.host.shutdown().await;
}

/// What is asked for often is asked for anew before it ends, so that nobody waits.
#[tokio::test(start_paused = true)]
async fn popular_answers_are_refreshed_ahead() {
    let source = finds();
    let world = World::of(&[&source]);
    for number in [1, 2] {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    for _ in 0..3 {
        world.index.resolve(&content(1), soon()).await.unwrap();
    }
    sleep_secs(275).await;
    for number in [1, 2] {
        // The first was used often, the second only now.
        let answer = world.index.resolve(&content(number), soon()).await.unwrap();
        assert!(answer.is_cached && answer.stale.is_none() && answer.age >= Duration::from_secs(275));
    }
    tokio::time::sleep(ms(100)).await;
    assert_eq!(source.asked(), 3);
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().age < Duration::from_secs(1));
    assert_eq!(world.series("refreshes_total{result=\"begun\"}"), 1.0);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_is_served_at_once_while_it_is_asked_for_again() {
    let source = finds();
    let world = World::of(&[&source]);
    world.index.resolve(&content(1), soon()).await.unwrap();
    let mut events = world.index.events();
    sleep_secs(310).await;
    source.now_does(ms(500), Does::Finds(vec![9]));
    let began = now();
    for _ in 0..5 {
        let answer = world.index.resolve(&content(1), soon()).await.unwrap();
        assert_eq!((answer.stale, answer.providers(9).len()), (Some(Stale::WhileRevalidate), 3));
    }
    assert!(began.elapsed().is_zero());
    assert_eq!(world.series("cache_hits_total{freshness=\"while_revalidate\"}"), 5.0);
    tokio::time::sleep(ms(600)).await;
    let answer = world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!((answer.stale, answer.providers(9).len(), source.asked()), (None, 1, 2), "asked once");
    assert_eq!(events.recv().await, Some(Event::Item(ron_index::Event::Refreshed { key: content(1) })));
    world.host.shutdown().await;
}

/// The world is down: what was known is said, marked, for an hour and no longer; and nobody is asked all the time.
#[tokio::test(start_paused = true)]
async fn a_stale_answer_is_served_if_asking_fails() {
    let source = finds();
    // Breakers are another test's.
    let mut settings = Settings::default();
    settings.breaker.calls_min = 1000.try_into().unwrap();
    let world = World::with(&[&source], settings);
    world.index.resolve(&content(1), soon()).await.unwrap();
    sleep_secs(331).await;
    source.now_does(ms(0), Does::Hangs);
    let began = now();
    let answer = world.index.resolve(&content(1), soon()).await.unwrap();
    assert_eq!(answer.stale, Some(Stale::IfError), "beyond the time in which it is served without asking");
    assert!((ms(1150)..=ms(1250)).contains(&began.elapsed()), "{:?}", began.elapsed());
    // Right after that it is not tried again.
    let began = now();
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap().stale, Some(Stale::IfError));
    assert!(began.elapsed().is_zero());
    assert_eq!(world.series("cache_hits_total{freshness=\"if_error\"}"), 2.0);
    source.now_does(ms(1), Does::Fails(SourceError::Failed("down".into())));
    sleep_secs(3000).await;
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap().stale, Some(Stale::IfError));
    sleep_secs(600).await;
    assert_eq!(
        world.index.resolve(&content(1), soon()).await.unwrap_err(),
        IndexError::Unavailable,
        "an hour"
    );
    // That there is nothing is never said of a time gone by.
    let nobody = Scripted::new("nobody", ms(1), Does::FindsNobody { is_final: true });
    let world = World::of(&[&nobody]);
    world.index.resolve(&content(1), soon()).await.unwrap_err();
    nobody.now_does(ms(1), Does::Fails(SourceError::Failed("down".into())));
    sleep_secs(20).await;
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::Unavailable);
}

/// One who asks after a purge is given what is true after it, even if a lookup was under way that had read the old.
#[tokio::test(start_paused = true)]
async fn a_purge_reaches_what_is_under_way() {
    let book = Book { after: ms(200), ..Book::default() };
    book.bind("a", &content(1), 1);
    let world = World::start(Index::builder().names(book.clone()).providers(finds()), Settings::default());
    let mut before = Box::pin({
        let index = world.index.clone();
        async move { index.resolve(&name("a"), soon()).await }
    });
    assert!(poll_once(before.as_mut()).await.is_none());
    tokio::time::sleep(ms(50)).await;
    book.bind("a", &content(2), 2);
    assert!(!world.index.purge(&name("a"), soon()).await.unwrap(), "nothing was known yet");
    let after = world.index.resolve(&name("a"), soon()).await.unwrap();
    assert_eq!(after.resolution().content, content(2));
    assert_eq!(before.await.unwrap().resolution().content, content(1), "it asked before");
    let kept = world.index.resolve(&name("a"), soon()).await.unwrap();
    assert_eq!((kept.is_cached, kept.resolution().content.clone()), (true, content(2)));
    assert!(world.index.purge(&name("a"), soon()).await.unwrap());
    assert_eq!(world.series("purges_total{by=\"caller\"}"), 2.0);
    world.host.shutdown().await;
}

/// A name and its content share what is known, and a newer version is never replaced by an older one.
#[tokio::test(start_paused = true)]
async fn a_name_tells_about_its_content_too() {
    let (source, book) = (finds(), Book::default());
    for (text, version) in [("a", 5), ("b", 1)] {
        book.bind(text, &content(1), version);
    }
    let builder =
        Index::builder().names(book.clone()).manifests(Catalogue::default()).providers(source.clone());
    let world = World::start(builder, Settings::default());
    let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
    let found = answer.resolution();
    assert_eq!((found.name.as_ref().unwrap().version, found.manifest.unwrap().len), (5, 42));
    assert!(found.is_complete && answer.ttl() == Duration::from_secs(60));
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().is_cached);
    let other = world.index.resolve(&name("b"), soon()).await.unwrap();
    assert!(!other.is_cached && other.providers(9).len() == 3);
    assert_eq!(source.asked(), 1, "three keys, one search");
    assert_eq!(world.index.status().entries, 3);
    // A source that has fallen behind says less than is known.
    book.bind("a", &content(2), 4);
    sleep_secs(61).await;
    world.index.resolve(&name("a"), soon()).await.unwrap();
    tokio::time::sleep(ms(100)).await;
    let kept = world.index.cached(&name("a")).unwrap();
    assert_eq!(kept.resolution().name.as_ref().unwrap().version, 5);
    world.host.shutdown().await;
}

/// What a name stands for is known though nobody has it: that is an answer, for a short time, and says nothing about the content.
#[tokio::test(start_paused = true)]
async fn a_name_of_what_nobody_has_is_an_answer() {
    let nobody = Scripted::new("nobody", ms(1), Does::FindsNobody { is_final: true });
    let book = Book::default();
    book.bind("a", &content(1), 7);
    let builder = Index::builder().names(book.clone()).providers(nobody.clone());
    let world = World::start(builder, Settings::default());
    let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
    let found = answer.resolution();
    assert_eq!((&found.content, found.name.as_ref().unwrap().version), (&content(1), 7));
    assert!(answer.providers(9).is_empty() && found.manifest.is_none() && found.is_complete);
    assert_eq!(answer.ttl(), Duration::from_secs(15), "somebody may have it soon");
    assert!(world.index.resolve(&name("a"), soon()).await.unwrap().is_cached);
    assert_eq!(world.index.resolve(&content(1), soon()).await.unwrap_err(), IndexError::NotFound);
    assert_eq!(world.index.resolve(&name("b"), soon()).await.unwrap_err(), IndexError::NotFound);

    // Nobody who can say so said so: it is told and not kept.
    nobody.now_does(ms(1), Does::FindsNobody { is_final: false });
    world.index.clear(soon()).await.unwrap();
    let before = nobody.asked();
    for _ in 0..2 {
        let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
        assert!(answer.providers(9).is_empty() && !answer.resolution().is_complete && !answer.is_cached);
    }
    assert_eq!(nobody.asked() - before, 2);

    // Sources that fail are no word about anything: the caller is told that, or what was known before.
    for (does, error) in [
        (Does::Fails(SourceError::Failed("away".into())), IndexError::Unavailable),
        (Does::Hangs, IndexError::Timeout { op: "resolve" }),
    ] {
        nobody.now_does(ms(1), does);
        assert_eq!(world.index.resolve(&name("a"), soon()).await.unwrap_err(), error);
    }
    nobody.now_does(ms(1), Does::Finds(vec![1]));
    assert_eq!(world.index.resolve(&name("a"), soon()).await.unwrap().providers(9).len(), 1);
    world.host.shutdown().await;
}

/// What is not complete is good for a short time only.
#[tokio::test(start_paused = true)]
async fn what_was_cut_short_is_not_kept_for_long() {
    let builder =
        Index::builder().manifests(Catalogue { hangs: true, ..Catalogue::default() }).providers(finds());
    let world = World::start(builder, Settings::default());
    let began = now();
    let answer = world.index.resolve(&content(1), soon()).await.unwrap();
    assert!((ms(1150)..=ms(1250)).contains(&began.elapsed()), "{:?}", began.elapsed());
    let found = answer.resolution();
    assert!(!found.is_complete && found.manifest.is_none() && found.providers.len() == 3);
    assert_eq!(answer.ttl(), Duration::from_secs(15));
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn memory_has_a_bound_and_what_is_over_is_swept() {
    let source = Scripted::new("source", ms(0), Does::Finds((0..32).collect()));
    let settings = Settings { cache_bytes: 1 << 20, stale_if_error: Duration::ZERO, ..Settings::default() };
    let world = World::with(&[&source], settings.clone());
    for number in 0..1000 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    let status = world.index.status();
    assert!(status.bytes <= 1 << 20 && status.bytes > 1 << 19, "{status:?}");
    tokio::time::sleep(ms(50)).await;
    assert_eq!(world.series("cache_entries"), status.entries as f64);
    assert_eq!(world.series("cache_bytes"), status.bytes as f64);
    sleep_secs(345).await;
    assert_eq!(world.index.status().entries, 0);
    assert_eq!(world.series("swept_total"), status.entries as f64);
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_pinned_is_kept_and_kept_fresh() {
    let source = finds();
    let settings = Settings { cache_bytes: 1 << 20, pins_max: 1, ..Settings::default() };
    let world = World::with(&[&source], settings);
    assert!(world.index.pin(&content(0), soon()).await.unwrap());
    assert!(!world.index.pin(&content(0), soon()).await.unwrap(), "it was");
    assert_eq!(world.index.pin(&content(1), soon()).await, Err(IndexError::PinsFull { max: 1 }));
    for number in 10..2000 {
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    assert!(world.index.resolve(&content(0), soon()).await.unwrap().is_cached);
    for _ in 0..20 {
        sleep_secs(100).await;
        let answer = world.index.resolve(&content(0), soon()).await.unwrap();
        assert!(answer.is_cached && answer.stale.is_none(), "{:?}", answer.age);
    }
    assert!(world.index.unpin(&content(0), soon()).await.unwrap());
    assert!(!world.index.unpin(&content(0), soon()).await.unwrap());
    sleep_secs(400).await;
    assert!(!world.index.resolve(&content(0), soon()).await.unwrap().is_cached, "nobody kept it fresh");
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn with_amnesia_everything_is_forgotten_in_time() {
    let source = finds();
    let settings = Settings { amnesia: Some(Duration::from_secs(20)), ..Settings::default() };
    let world = World::with(&[&source], settings);
    world.index.report(ron_core::NodeId::from_bytes([1; 32]), false, None);
    world.index.resolve(&content(1), soon()).await.unwrap();
    sleep_secs(10).await;
    assert!(world.index.cached(&content(1)).is_some());
    sleep_secs(11).await;
    assert!(world.index.cached(&content(1)).is_none());
    assert_eq!(world.series("purges_total{by=\"amnesia\"}"), 1.0);
    let again = world.index.resolve(&content(1), soon()).await.unwrap();
    let success: Vec<f32> = again.providers(9).iter().map(|ranked| ranked.why.success).collect();
    assert_eq!(success, [0.5; 3], "who delivered is forgotten too");
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_settings_name_is_looked_up_at_the_start() {
    let source = finds();
    let foreign: Key = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n".parse().unwrap();
    let warmup = vec![content(1), content(2), foreign.clone()];
    let world = World::with(&[&source], Settings { warmup, ..Settings::default() });
    sleep_secs(2).await;
    for key in [content(1), content(2), foreign] {
        assert!(world.index.cached(&key).is_some(), "{key}");
    }
    assert_eq!((source.asked(), world.series("tasks_spawned_total{kind=\"warmer\"}")), (3, 1.0));
    // What cannot be had is tried three times, and the rest all the same.
    let book = Book::default();
    *book.fails.lock().unwrap() = Some(SourceError::Failed("away".into()));
    let warmup = vec![name("a"), content(1)];
    let builder = Index::builder().names(book.clone()).providers(source);
    let world = World::start(builder, Settings { warmup, ..Settings::default() });
    sleep_secs(10).await;
    assert_eq!(book.asked.load(Ordering::SeqCst), 3);
    assert!(world.index.cached(&content(1)).is_some());
    world.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn other_settings_leave_the_cache_as_it_is() {
    let source = finds();
    let world = World::of(&[&source]);
    world.index.resolve(&content(1), soon()).await.unwrap();
    let mut events = world.index.events();
    let new = Settings { budget: ms(300), cache_bytes: 2 << 20, ..Settings::default() };
    world.index.reload(new.clone()).unwrap();
    assert_eq!(
        (events.recv().await, &*world.index.settings()),
        (Some(Event::Item(ron_index::Event::Reloaded)), &new)
    );
    assert!(world.index.resolve(&content(1), soon()).await.unwrap().is_cached);
    source.now_does(ms(0), Does::Hangs);
    let began = now();
    world.index.resolve(&content(2), soon()).await.unwrap_err();
    assert!(began.elapsed() <= ms(350), "the new budget is in force: {:?}", began.elapsed());
    for number in 10..4000 {
        source.now_does(ms(0), Does::Finds(vec![1, 2, 3]));
        world.index.resolve(&content(number), soon()).await.unwrap();
    }
    assert!(world.index.status().bytes <= 2 << 20, "the new size too");
    world.host.shutdown().await;
}

/// Providers are told as they are found, and those of a known answer the best first.
#[tokio::test(start_paused = true)]
async fn providers_are_told_as_they_are_found() {
    let early = Scripted::new("early", ms(10), Does::Finds(vec![5]));
    let late = Scripted::new("late", ms(100), Does::Finds(vec![6, 7]));
    let settings = Settings { enough: 3.try_into().unwrap(), ..Settings::default() };
    let world = World::with(&[&early, &late], settings);
    let began = now();
    let mut found = world.index.find(&content(1), 5, soon()).unwrap();
    assert_eq!(found.next().await.unwrap().unwrap().1, "early");
    assert_eq!(began.elapsed(), ms(10), "long before the search is over");
    let mut ids = vec![5];
    while let Some((provider, _)) = found.next().await.unwrap() {
        ids.push(provider.id.as_bytes()[0]);
    }
    assert_eq!((ids, began.elapsed()), (vec![5, 6, 7], ms(100)));
    let mut known = world.index.find(&content(1), 2, soon()).unwrap();
    assert!(known.next().await.unwrap().is_some() && known.age().is_some());
    assert!(
        known.next().await.unwrap().is_some() && known.next().await.unwrap().is_none(),
        "two were wanted"
    );
    // What cannot be found is an error once, and not an empty list.
    early.now_does(ms(1), Does::FindsNobody { is_final: true });
    late.now_does(ms(1), Does::FindsNobody { is_final: true });
    let mut nobody = world.index.find(&content(2), 2, soon()).unwrap();
    assert_eq!(nobody.next().await, Err(IndexError::NotFound));
    assert_eq!(nobody.next().await, Ok(None));
    assert_eq!(world.index.find(&content(2), 2, soon()).unwrap_err(), IndexError::NotFound);
    world.host.shutdown().await;
}

/// Whoever asks for providers one by one is told of a stale answer too, and that it is one.
#[tokio::test(start_paused = true)]
async fn providers_of_a_stale_answer_are_told_as_such() {
    let source = finds();
    let world = World::of(&[&source]);
    world.index.resolve(&content(1), soon()).await.unwrap();
    source.now_does(ms(0), Does::Hangs);
    sleep_secs(301).await;
    let mut found = world.index.find(&content(1), 5, soon()).unwrap();
    assert!(found.next().await.unwrap().is_some());
    assert_eq!(found.stale(), Some(Stale::WhileRevalidate));
    sleep_secs(60).await;
    let began = now();
    let mut found = world.index.find(&content(1), 5, soon()).unwrap();
    assert_eq!(found.stale(), None, "nobody knows yet");
    let mut told = 0;
    while found.next().await.unwrap().is_some() {
        told += 1;
    }
    assert_eq!((told, found.stale()), (3, Some(Stale::IfError)));
    assert!((ms(1150)..=ms(1250)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(found.age().is_some_and(|(age, ttl)| age > ttl));
    world.host.shutdown().await;
}

/// What is known of content is not made younger by a name that leads to it.
#[tokio::test(start_paused = true)]
async fn a_name_lives_no_longer_than_what_it_was_made_of() {
    let (source, book) = (finds(), Book::default());
    book.bind("a", &content(1), 1);
    let world = World::start(Index::builder().names(book).providers(source.clone()), Settings::default());
    world.index.resolve(&content(1), soon()).await.unwrap();
    sleep_secs(280).await;
    let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
    assert_eq!((source.asked(), answer.ttl().as_secs()), (1, 20));
    world.host.shutdown().await;
}

/// A source that has fallen behind is not believed: the newer answer is served, marked, for as long as a stale one may be.
/// The versions of another source are another matter.
#[tokio::test(start_paused = true)]
async fn an_older_version_is_never_told_while_a_newer_one_is_known() {
    let (source, book) = (finds(), Book::default());
    book.bind("a", &content(1), 5);
    let world = World::start(Index::builder().names(book.clone()).providers(source), Settings::default());
    world.index.resolve(&name("a"), soon()).await.unwrap();
    book.bind("a", &content(2), 4);
    sleep_secs(120).await;
    let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
    assert_eq!((&answer.resolution().content, answer.stale), (&content(1), Some(Stale::IfError)));
    sleep_secs(3600).await;
    let answer = world.index.resolve(&name("a"), soon()).await.unwrap();
    assert_eq!(
        (&answer.resolution().content, answer.stale),
        (&content(2), None),
        "in the end it is all there is"
    );
    world.host.shutdown().await;
}

/// What is pinned has a bound too: the cache could not make room in it.
#[tokio::test(start_paused = true)]
async fn pins_take_half_of_the_cache_at_most() {
    let source = Scripted::new("source", ms(0), Does::Finds((0..32).collect()));
    let world = World::with(&[&source], Settings { cache_bytes: 1 << 20, ..Settings::default() });
    let mut pinned = 0;
    let refused = loop {
        match world.index.pin(&content(pinned), soon()).await {
            Ok(is_new) => assert!(is_new && pinned < 1000),
            Err(error) => break error,
        }
        pinned += 1;
    };
    assert_eq!(refused, IndexError::PinsHeavy { max_bytes: 1 << 19 });
    assert!(pinned > 20 && world.index.status().bytes <= 1 << 20, "{pinned} {:?}", world.index.status());
    // One that goes makes room for another, and one that was forgotten takes none until it is there again.
    assert!(world.index.unpin(&content(0), soon()).await.unwrap());
    assert!(world.index.pin(&content(5000), soon()).await.unwrap());
    world.index.clear(soon()).await.unwrap();
    assert!(world.index.pin(&content(5001), soon()).await.unwrap());
    sleep_secs(600).await;
    assert!(world.index.status().bytes <= 1 << 20, "{:?}", world.index.status());
    world.host.shutdown().await;
}

/// Content that is purged while a name that leads to it is looked up is not known again by that.
#[tokio::test(start_paused = true)]
async fn a_purge_reaches_what_a_name_finds_by_the_way() {
    let (source, book) = (finds(), Book::default());
    book.bind("a", &content(1), 1);
    let world = World::start(Index::builder().names(book).providers(source.clone()), Settings::default());
    let named = name("a");
    let (answer, ()) = tokio::join!(world.index.resolve(&named, soon()), async {
        tokio::time::sleep(ms(10)).await;
        world.index.purge(&content(1), soon()).await.unwrap();
    });
    answer.unwrap();
    assert!(world.index.cached(&content(1)).is_none(), "it was read before the purge");
    world.index.purge(&name("a"), soon()).await.unwrap();
    tokio::time::sleep(ms(1)).await;
    world.index.resolve(&name("a"), soon()).await.unwrap();
    assert!(world.index.cached(&content(1)).is_some(), "and this after it");
    world.host.shutdown().await;
}
