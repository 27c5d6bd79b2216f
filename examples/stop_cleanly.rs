//! How does a host stop everything it started?
//!
//! The host owns the signals: the first Ctrl-C asks everything to stop and waits, the second ends the wait. The
//! library does the rest, dependents before what they use. `--quick` presses Ctrl-C by itself.

use std::time::Duration;

use ron_core::{Metrics, Stop, Supervisor, TaskSpec};

const FLUSHER: TaskSpec =
    TaskSpec::new("stop_cleanly", "flusher").what("writes what is left when told to stop");
const LISTENER: TaskSpec = TaskSpec::new("stop_cleanly", "listener").what("serves until told to stop");
const STUCK: TaskSpec = TaskSpec::new("stop_cleanly", "stuck").what("does not listen");

async fn part(name: &'static str, drains_for: Duration, stop: Stop) {
    stop.requested().await;
    println!("{name}: asked to stop, finishing what I began");
    tokio::time::sleep(drains_for).await;
    println!("{name}: done");
}

async fn ctrl_c(quick: bool) {
    if quick {
        tokio::time::sleep(Duration::from_millis(100)).await;
    } else if let Err(error) = tokio::signal::ctrl_c().await {
        eprintln!("no signals here ({error}), stopping now");
    }
}

#[tokio::main]
async fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let host = Supervisor::builder("host").drain(Duration::from_secs(1)).start();
    let store = host.child("store", Duration::from_secs(3), Metrics::default());
    store.spawn(FLUSHER, |stop| part("store", Duration::from_millis(200), stop));
    host.spawn(LISTENER, |stop| part("gateway", Duration::from_millis(300), stop));
    host.spawn(STUCK, |_| std::future::pending::<()>());

    println!("running; press Ctrl-C");
    ctrl_c(quick).await;
    let stopped = tokio::select! {
        stopped = host.shutdown() => stopped,
        () = async { tokio::signal::ctrl_c().await.unwrap_or(()) } => {
            println!("again: cutting off");
            host.abort();
            host.shutdown().await
        }
    };
    println!("{} drained, {} cut off, after {:?}", stopped.drained, stopped.aborted, stopped.elapsed);
    assert_eq!((stopped.drained, stopped.aborted), (2, 1));
}
