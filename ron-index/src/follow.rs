//! Forgets names as soon as a registry changes them (feature `registry`).

use std::{sync::Arc, time::Duration};

use ron_core::{CallError, Deadline, Lane, Restart, Stop, TaskSpec};
use ron_registry::{Registry, RegistryError};

use crate::{Key, inner::Inner, janitor::Write};

pub(crate) const FOLLOWER: TaskSpec = TaskSpec::new("ron-index", "purger")
    .restart(Restart::PATIENT)
    .what("reads the updates of a registry and has the names forgotten that they change");

/// How long the janitor may take for a purge before that is logged: until then, a changed name is answered as it was.
const PURGE_PATIENCE: Duration = Duration::from_secs(5);

/// The pause after the store of the registry could not be read.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// Reads updates behind version `since` until the stop or the end of the registry; after a failure of its own, what it may have
/// missed is forgotten with everything else.
pub(crate) async fn follow(inner: Arc<Inner>, registry: Registry, since: Option<u64>, stop: Stop) {
    let mut updates = registry.updates(since.unwrap_or_else(|| registry.head().version) + 1);
    let forget = |write| forget(&inner.writes, &stop, write);
    if since.is_none() {
        forget(Stale::Everything).await;
    }
    loop {
        let update = tokio::select! {
            biased;
            () = stop.requested() => return,
            update = updates.next() => update,
        };
        match update {
            Ok(None) => return,
            Ok(Some(update)) => {
                let name = update.name.and_then(|name| name.as_str().parse().ok());
                if let Some(name) = name {
                    forget(Stale::Name(Key::Name(name))).await;
                }
            }
            // Which names changed in the pruned entries is not known any more.
            Err(RegistryError::Lagging { first }) => {
                updates.skip_to(first);
                forget(Stale::Everything).await;
            }
            Err(error) => {
                tracing::warn!(%error, "updates of the registry cannot be read");
                tokio::time::sleep(READ_PAUSE).await;
            }
        }
    }
}

/// What is no longer so.
#[derive(Debug, Clone)]
enum Stale {
    Name(Key),
    Everything,
}

impl Stale {
    fn to_write(&self) -> Write {
        match self {
            Stale::Name(key) => Write::Purge(key.clone(), "registry", None),
            Stale::Everything => Write::Clear("registry", None),
        }
    }
}

/// Has it purged, however long that takes, because the registry reports a change only once. The lane counts each time that it
/// takes too long. Ends early only when the index stops.
async fn forget(writes: &Lane<Write>, stop: &Stop, stale: Stale) {
    let told = async {
        loop {
            match writes.push(stale.to_write(), Deadline::after(PURGE_PATIENCE)).await {
                Ok(()) | Err(CallError::Canceled) => return,
                Err(error) => tracing::warn!(%error, ?stale, "what a registry has changed is still answered"),
            }
        }
    };
    tokio::select! {
        biased;
        () = told => {}
        () = stop.requested() => {}
    }
}

#[cfg(test)]
mod tests {
    use ron_core::{Capacity, Counter, Metrics, Supervisor, now};

    use super::*;
    use crate::janitor::WRITES;

    /// A purge that found no room within five seconds was dropped, and the name was answered as it had been until its time was
    /// over. It waits now, and that is counted.
    #[tokio::test(start_paused = true)]
    async fn a_purge_waits_for_a_janitor_that_is_slow() {
        let (host, metrics) = (Supervisor::new("test"), Metrics::default());
        let spec = WRITES.with_capacity(Capacity::new("writes", 1).expect("not zero"));
        let (writes, inbox) = Lane::open(spec, &metrics);
        writes.try_push(Write::Clear("test", None)).expect("there is room for one");
        let (name, stop, began) = ("a/b".parse().expect("a name"), host.stop(), now());
        let janitor = async {
            tokio::time::sleep(2 * PURGE_PATIENCE + Duration::from_secs(1)).await;
            assert!(matches!(inbox.recv().await, Some(Write::Clear("test", None))));
            inbox.recv().await
        };
        let ((), write) = tokio::join!(forget(&writes, &stop, Stale::Name(Key::Name(name))), janitor);
        assert!(
            matches!(write, Some(Write::Purge(Key::Name(name), "registry", None)) if name.as_str() == "a/b")
        );
        assert_eq!(began.elapsed(), 2 * PURGE_PATIENCE + Duration::from_secs(1));
        assert_eq!(metrics.tally(Counter::IoTimeouts, WRITES.name).get(), 2);

        // Where the index stops, nobody is told anything any more, and it waits for nobody.
        writes.try_push(Write::Clear("test", None)).expect("there is room for one");
        let (_, ()) = tokio::join!(host.shutdown(), forget(&writes, &stop, Stale::Everything));
    }
}
