use std::collections::VecDeque;

use proptest::prelude::*;
use ron_core::{Event, Feed, LaneSpec, Metrics, Supervisor, TaskSpec};

use super::{registered, series};

const EVENTS: LaneSpec = LaneSpec::feed("test", "events", 4);

#[tokio::test(start_paused = true)]
async fn everybody_gets_everything_and_then_the_end() {
    let feed = Feed::open(EVENTS, &Metrics::default());
    let (mut first, mut second) = (feed.subscribe(), feed.subscribe());
    assert_eq!(feed.publish(1), 2);
    let mut third = feed.subscribe();
    feed.publish(2);
    drop(feed);
    for subscriber in [&mut first, &mut second] {
        assert_eq!(subscriber.recv().await, Some(Event::Item(1)));
    }
    for subscriber in [&mut first, &mut second, &mut third] {
        assert_eq!(subscriber.recv().await, Some(Event::Item(2)));
        assert_eq!(subscriber.recv().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_learns_how_many_it_missed() {
    let (registry, metrics) = registered();
    let feed = Feed::open(EVENTS, &metrics);
    let (mut slow, mut quick) = (feed.subscribe(), feed.subscribe());
    for event in 0..10 {
        feed.publish(event);
        assert_eq!(quick.recv().await, Some(Event::Item(event)));
    }
    assert_eq!(slow.recv().await, Some(Event::Missed(6)));
    for event in 6..10 {
        assert_eq!(slow.recv().await, Some(Event::Item(event)));
    }
    assert_eq!(series(&registry, "bus_lagged_total{topic=\"events\"}"), Some(6));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_subscriber_is_woken() {
    let supervisor = Supervisor::new("test");
    let feed = Feed::open(EVENTS, &Metrics::default());
    let mut subscriber = feed.subscribe();
    let task = supervisor.spawn(TaskSpec::new("test", "reader"), |_| async move {
        assert_eq!(subscriber.recv().await, Some(Event::Item("news")));
    });
    super::settle().await;
    feed.publish("news");
    assert_eq!(task.ended().await, ron_core::TaskEnd::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_feed_ends_with_its_supervisor_though_somebody_holds_the_handle() {
    let supervisor = Supervisor::new("test");
    let feed = Feed::open(EVENTS, supervisor.metrics());
    feed.close_on(&supervisor.stop());
    let mut subscriber = feed.subscribe();
    feed.publish("last");
    supervisor.shutdown().await;
    assert_eq!(feed.publish("too late"), 0);
    assert_eq!(subscriber.recv().await, Some(Event::Item("last")));
    assert_eq!(subscriber.recv().await, None);
}

#[test]
#[should_panic(expected = "work is declared as a lane")]
fn a_lane_is_not_a_feed() {
    let _ = Feed::<u8>::open(LaneSpec::new("test", "work", 4), &Metrics::default());
}

#[test]
#[should_panic(expected = "events is declared as a feed")]
fn a_feed_is_not_a_lane() {
    let _ = ron_core::Lane::<u8>::open(EVENTS, &Metrics::default());
}

proptest! {
    /// Against a list per subscriber: order is kept, every event is read or counted as missed, none twice, and a
    /// subscriber that leaves takes nothing from the others.
    #[test]
    fn a_feed_behaves_like_its_model(steps in proptest::collection::vec(0u8..12, 1..200)) {
        let capacity = EVENTS.capacity;
        let feed = Feed::open(EVENTS, &Metrics::default());
        let mut published = 0u64;
        // A subscriber, the next event it has not accounted for, and what it may have read ahead.
        let mut readers: VecDeque<(ron_core::Subscriber<u64>, u64)> = VecDeque::new();
        for step in steps {
            match step {
                0..=5 => {
                    prop_assert_eq!(feed.publish(published), readers.len());
                    published += 1;
                }
                6 => readers.push_back((feed.subscribe(), published)),
                7 => {
                    readers.pop_front();
                }
                _ => {
                    let Some((mut reader, mut next)) = readers.pop_front() else { continue };
                    match reader.try_recv() {
                        Some(Event::Item(event)) => {
                            prop_assert_eq!(event, next);
                            next += 1;
                        }
                        Some(Event::Missed(missed)) => {
                            prop_assert!(missed > 0);
                            next += missed;
                            prop_assert!(published - next <= capacity as u64);
                        }
                        None => prop_assert_eq!(next, published),
                    }
                    readers.push_back((reader, next));
                }
            }
        }
        drop(feed);
        for (mut reader, mut next) in readers {
            while let Some(event) = reader.try_recv() {
                match event {
                    Event::Item(event) => {
                        prop_assert_eq!(event, next);
                        next += 1;
                    }
                    Event::Missed(missed) => next += missed,
                }
            }
            prop_assert_eq!(next, published);
        }
    }
}
