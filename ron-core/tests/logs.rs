//! What is said aloud, and how often. One test in a process of its own: what tracing finds interesting is decided once
//! per process, so tests that listen cannot share one with tests that do not.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use ron_core::{Event, Feed, LaneSpec, Metrics, Restart, Supervisor, TaskSpec};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The lines since the last look that contain `words`.
    fn said(&self, words: &str) -> usize {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().filter(|line| line.contains(words)).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn each_thing_is_said_once_and_not_more() {
    const EVENTS: LaneSpec = LaneSpec::feed("test", "events", 4);
    const SESSION: TaskSpec = TaskSpec::new("test", "session").restart(Restart::Expendable);

    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .without_time()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();

    // A slow subscriber: twenty losses in ten seconds, a warning at most every five.
    let feed = Feed::open(EVENTS, &Metrics::default());
    let mut slow = feed.subscribe();
    for _ in 0..20 {
        for event in 0..6 {
            feed.publish(event);
        }
        assert_eq!(slow.try_recv(), Some(Event::Missed(2)));
        while slow.try_recv().is_some() {}
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert_eq!(log.said("a subscriber is too slow"), 2);

    // A panic: once, with the kind.
    let host = Supervisor::new("host");
    let panics = |why: &'static str| {
        if !why.is_empty() {
            panic!("{why}");
        }
    };
    host.spawn(SESSION, |_| async move { panics("bad peer") }).ended().await;
    assert_eq!(log.said("task panicked"), 1);
    host.spawn(SESSION, |_| async move { panics("bad peer") }).ended().await;
    assert_eq!(log.said("session"), 1);

    // A handle that was dropped instead of shut down.
    drop(host);
    assert_eq!(log.said("dropped without shutdown"), 1);
    let host = Supervisor::new("host");
    host.shutdown().await;
    drop(host);
    assert_eq!(log.said("dropped without shutdown"), 0);
}
