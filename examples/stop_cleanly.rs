//! How does a host stop everything it started?
//!
//! The host owns the signals: the first Ctrl-C or SIGTERM asks everything to stop and waits, the second ends the wait. The
//! library does the rest, dependents before what they use. One of the three tasks does not listen, and is cut off after a
//! while. `--quick` presses Ctrl-C by itself.

use std::{io, time::Duration};

use ron_core::{Metrics, Stop, Supervisor, TaskSpec};
#[cfg(unix)]
use tokio::signal::unix;

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

/// Waits for Ctrl-C or, where there is one, SIGTERM. An error is that there are no signals here.
async fn signal() -> io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = unix::signal(unix::SignalKind::terminate())?;
        tokio::select! {
            pressed = tokio::signal::ctrl_c() => pressed,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

async fn asked(quick: bool) {
    if quick {
        tokio::time::sleep(Duration::from_millis(100)).await;
    } else if let Err(error) = signal().await {
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
    asked(quick).await;
    let stopped = tokio::select! {
        stopped = host.shutdown() => stopped,
        Ok(()) = signal() => {
            println!("again: cutting off");
            host.abort();
            let stopped = host.shutdown().await;
            return println!("{} drained, {} cut off", stopped.drained, stopped.aborted);
        }
    };
    println!("{} drained, {} cut off, after {:?}", stopped.drained, stopped.aborted, stopped.elapsed);
    assert_eq!((stopped.drained, stopped.aborted), (2, 1));
    println!("the one is meant to be cut off: it does not listen, and had its second");
}
