//! How a node comes to its end: signals, the pause before a stop, parts that fail, and what the process ends with.

use std::{future::Future, io, time::Duration};

use ron_core::{Affects, Fatal, ReadyGate, Stopped, Supervisor, now};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What `refd run` ends with, for `--help`.
pub(crate) const CODES: &str = "\
Exit codes:
   0  stopped as asked
   1  could not start
   2  the arguments are wrong
   8  the settings are wrong
   9  a part failed for good, and the rest was stopped in order
  10  cut off by a second request to stop";

/// How long after a signal the same one may still come in. Nobody decides in this time that the stop takes too long.
const ECHO_MAX: Duration = Duration::from_millis(500);

/// An end that nobody asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// A second signal came while the first was being obeyed.
    #[error("cut off by a second request to stop")]
    CutOff,
    /// Restarting did not mend it.
    #[error("a part failed for good, and the rest was stopped in order")]
    Failed(#[source] Fatal),
}

impl Ended {
    /// What the process ends with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Ended::Failed(_) => 9,
            Ended::CutOff => 10,
        }
    }
}

/// Requests to stop, by SIGTERM or Ctrl-C.
pub(crate) struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Stops { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Until the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.terminate.recv() => {}
            Some(()) = self.interrupt.recv() => {}
            else => std::future::pending().await,
        }
    }

    /// Until the next one that is meant: what comes right behind the first is the first once more. Programs that pass signals on
    /// send them to their child and to its group, which `timeout` does, and a terminal sends its own besides.
    pub(crate) async fn again(&mut self) {
        let first = now();
        loop {
            self.next().await;
            if first.elapsed() >= ECHO_MAX {
                return;
            }
        }
    }
}

/// The gate of the whole: closed until everything has started, and again before anything stops.
pub(crate) fn gate(host: &Supervisor) -> ReadyGate {
    host.ready().gate("refd", Affects::Reads)
}

/// For tests of what a failure does: with `RON_PLANT=fatal` in the environment, SIGUSR1 makes a part fail for good, and with
/// `RON_PLANT=panic` it makes a part panic that can be started again. Only builds with debug assertions have it.
#[cfg(debug_assertions)]
pub(crate) fn plant(host: &Supervisor) -> io::Result<()> {
    const PLANTED: ron_core::TaskSpec = ron_core::TaskSpec::new("refd", "planted");
    let planted = std::env::var_os("RON_PLANT");
    if planted.as_ref().is_some_and(|what| what == "fatal") {
        let mut told = signal(SignalKind::user_defined1())?;
        let _ = host.spawn(PLANTED, |stop| async move {
            tokio::select! {
                () = stop.requested() => Ok(()),
                _ = told.recv() => Err(io::Error::other("planted by a test")),
            }
        });
    }
    if planted.is_some_and(|what| what == "panic") {
        // One for all of its lives: a signal that comes between two of them is for the next.
        let told = std::sync::Arc::new(tokio::sync::Mutex::new(signal(SignalKind::user_defined1())?));
        let _ = host.spawn_restarting(PLANTED.restart(ron_core::Restart::PROMPT), move |stop| {
            let told = std::sync::Arc::clone(&told);
            async move {
                tokio::select! {
                    () = stop.requested() => {}
                    _ = async { told.lock().await.recv().await } => panic!("planted by a test"),
                }
            }
        });
    }
    Ok(())
}

/// For tests of a stop that comes early: with `RON_PLANT=start` in the environment, a start never ends.
#[cfg(debug_assertions)]
pub(crate) async fn plant_start() {
    if std::env::var_os("RON_PLANT").is_some_and(|what| what == "start") {
        std::future::pending::<()>().await;
    }
}

/// Stops a node in order: first it says that it is not ready and goes on for a while, so that whoever sends it work looks
/// elsewhere; then it drains. A `second` request cuts this off. `fatal` is why it stops, if nobody asked.
pub(crate) async fn stop(
    host: &Supervisor,
    gate: &ReadyGate,
    pause: Duration,
    fatal: Option<Fatal>,
    second: impl Future<Output = ()>,
) -> Result<Stopped, Ended> {
    gate.close("stopping");
    let stop = async {
        // A node that has failed is not worth waiting for.
        if fatal.is_none() {
            tokio::time::sleep(pause).await;
        }
        host.shutdown().await
    };
    let stopped = tokio::select! {
        stopped = stop => stopped,
        () = second => {
            host.abort();
            return Err(Ended::CutOff);
        }
    };
    println!(
        "stopped: {} tasks drained, {} cut off, {:?}",
        stopped.drained, stopped.aborted, stopped.elapsed
    );
    match fatal {
        None => Ok(stopped),
        Some(fatal) => Err(Ended::Failed(fatal)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use ron_core::{Snapshot, TaskSpec};

    use super::*;

    const FAILING: TaskSpec = TaskSpec::new("test", "failing");
    const WORKING: TaskSpec = TaskSpec::new("test", "working");

    /// A part that fails for good ends the process, and what the others had begun is finished first.
    #[tokio::test]
    async fn a_failed_part_ends_the_rest_in_order() {
        let host = Supervisor::new("host");
        let gate = gate(&host);
        gate.open();
        let done = Snapshot::new(false);
        let finished = done.clone();
        let _ = host.spawn(WORKING, |stop| async move {
            stop.requested().await;
            tokio::task::yield_now().await;
            done.replace(true);
        });
        let _ = host.spawn(FAILING, |_| async { Err::<(), _>(io::Error::other("the disk is gone")) });
        let fatal = host.fatal().await;
        let ended = stop(&host, &gate, Duration::from_secs(60), Some(fatal), std::future::pending()).await;
        let ended = ended.unwrap_err();
        assert_eq!(ended.code(), 9);
        let words = crate::with_causes(&ended);
        assert!(words.contains("task failing of host failed for good: the disk is gone"), "{words}");
        assert!(*finished.load());
    }

    /// The balancers are told first, and served until they have heard it; a second request ends that.
    #[tokio::test]
    async fn readiness_ends_before_service_does() {
        let host = Supervisor::new("host");
        let gate = gate(&host);
        assert!(!host.ready().status().reads, "it has not started");
        gate.open();
        assert!(host.ready().status().reads);
        let second = async {
            while host.ready().status().reads {
                tokio::task::yield_now().await;
            }
            assert_eq!(host.phase(), ron_core::Phase::Running);
        };
        let ended = stop(&host, &gate, Duration::from_secs(3600), None, second).await.unwrap_err();
        assert_eq!(ended.code(), 10);
        // Without the pause it is over at once.
        let host = Supervisor::new("host");
        let stopped =
            stop(&host, &super::gate(&host), Duration::ZERO, None, std::future::pending()).await.unwrap();
        assert_eq!(stopped.aborted, 0);
    }
}
