//! Forgets names as soon as a registry changes them (feature `registry`).

use std::{sync::Arc, time::Duration};

use ron_core::{Deadline, Restart, Stop, TaskSpec};
use ron_registry::{Registry, RegistryError};

use crate::{Key, inner::Inner, janitor::Write};

pub(crate) const FOLLOWER: TaskSpec = TaskSpec::new("ron-index", "purger")
    .restart(Restart::PATIENT)
    .what("reads the updates of a registry and has the names forgotten that they change");

/// How long the janitor may take for a purge. If it takes longer it is gone, and so is what was to be forgotten.
const PURGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a store that could not be read.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// Reads updates behind version `since` until the stop or the end of the registry; after a failure of its own, what it may have
/// missed is forgotten with everything else.
pub(crate) async fn follow(inner: Arc<Inner>, registry: Registry, since: Option<u64>, stop: Stop) {
    let mut updates = registry.updates(since.unwrap_or_else(|| registry.head().version) + 1);
    if since.is_none() {
        forget(&inner, Write::Clear("registry", None)).await;
    }
    loop {
        let update = tokio::select! {
            biased;
            () = stop.requested() => return,
            update = updates.next() => update,
        };
        match update {
            None => return,
            Some(Ok(update)) => {
                let name = update.name.and_then(|name| name.as_str().parse().ok());
                if let Some(name) = name {
                    forget(&inner, Write::Purge(Key::Name(name), "registry", None)).await;
                }
            }
            // Which names changed in what was pruned nobody knows any more.
            Some(Err(RegistryError::Lagging { first })) => {
                updates.skip_to(first);
                forget(&inner, Write::Clear("registry", None)).await;
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "updates of the registry cannot be read");
                tokio::time::sleep(READ_PAUSE).await;
            }
        }
    }
}

async fn forget(inner: &Inner, write: Write) {
    let _ = inner.writes.push(write, Deadline::after(PURGE_TIMEOUT)).await;
}
