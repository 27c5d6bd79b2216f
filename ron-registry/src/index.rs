//! Which entries bound a name to some content: a cache of the log, made by reading it from its first entry on.
//!
//! It holds eight bytes of each hash beside the version, 16 bytes an entry and what the tree around them needs; what it
//! finds is looked up in the log before it is told, so two hashes that begin alike cost a read and no more. Nothing of it is
//! on disk: after a start it is behind for as long as reading the log takes, and says so.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ron_core::{ContentId, Deadline, Lock, LockSpec, Metrics, Restart, Snapshot, Stop, TaskSpec};
use tokio::time::sleep;

use crate::{
    Action, RegistryError, logic::entry::Entry, metrics::INDEXED_VERSION, shared::Shared, updates::Updates,
};

pub(crate) const CONTENTS: LockSpec = LockSpec::new("ron-registry", "contents", 440)
    .guards("which versions bound which content; held for one of them, or for those of one content");

pub(crate) const INDEXER: TaskSpec = TaskSpec::new("ron-registry", "indexer")
    .restart(Restart::PATIENT)
    .what("reads the log from its first entry on, and remembers which content is bound where");

/// Versions that one question is answered with at most: the newest.
const ANSWER_MAX: usize = 256;

/// How long after a failure of the store it is read again.
const PAUSE: Duration = Duration::from_secs(1);

/// The index.
#[derive(Debug)]
pub(crate) struct Contents {
    versions: Lock<BTreeSet<(u64, u64)>>,
    /// Up to which version it has read.
    cursor: Snapshot<u64>,
}

fn beginning(id: &ContentId) -> u64 {
    let (first, _) = id.as_bytes().split_first_chunk().expect("a hash has more than eight bytes");
    u64::from_be_bytes(*first)
}

impl Contents {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Contents { versions: Lock::new(CONTENTS, BTreeSet::new(), metrics), cursor: Snapshot::new(0) }
    }

    /// Forgets what was pruned.
    pub(crate) fn prune(&self, upto: u64) {
        self.versions.lock().retain(|(_, version)| *version > upto);
    }

    /// The newest versions that may have bound this content, the oldest of them first.
    fn candidates(&self, id: &ContentId) -> Vec<u64> {
        let from = beginning(id);
        let versions = self.versions.lock();
        let found = versions.range((from, 0)..=(from, u64::MAX)).rev().take(ANSWER_MAX);
        let mut found: Vec<u64> = found.map(|(_, version)| *version).collect();
        found.reverse();
        found
    }
}

pub(crate) async fn run(shared: Arc<Shared>, stop: Stop) {
    let indexed = shared.metrics.gauge(INDEXED_VERSION);
    // One that was restarted goes on where it was.
    let mut updates = Updates::new(&shared, *shared.contents.cursor.load() + 1);
    loop {
        let update = tokio::select! {
            biased;
            () = stop.requested() => return,
            update = updates.next() => update,
        };
        match update {
            Ok(None) => return,
            Ok(Some(update)) => {
                if let (Some(_), Some(id)) = (&update.name, &update.b3) {
                    shared.contents.versions.lock().insert((beginning(id), update.version));
                }
                shared.contents.cursor.replace(update.version);
                indexed.set(update.version as f64);
            }
            Err(RegistryError::Lagging { first }) => updates.skip_to(first),
            Err(error) => {
                tracing::debug!(%error, "the index waits for the store");
                sleep(PAUSE).await;
            }
        }
    }
}

/// The newest entries that bound a name to `id`, at most 256 and the oldest of them first, as of now.
pub(crate) async fn versions_of(
    shared: &Shared,
    id: ContentId,
    deadline: Deadline,
) -> Result<Vec<u64>, RegistryError> {
    let head = shared.view.load().state.head().version;
    let mut cursor = shared.contents.cursor.watch();
    while **cursor.get() < head {
        let late = deadline.limit("index", cursor.changed()).await.is_err();
        if late {
            return Err(RegistryError::NotReady { gate: "index" });
        }
    }
    let mut found = Vec::new();
    for version in shared.contents.candidates(&id) {
        let read = match shared.read(version, 1, deadline).await {
            // Gone since.
            Err(RegistryError::Lagging { .. }) => continue,
            read => read?,
        };
        let entry = read.first().and_then(|bytes| Entry::decode(bytes).ok());
        let bound = entry.is_some_and(|entry| match entry.proposal().action() {
            Action::Bind { content, .. } => content.id() == id,
            _ => false,
        });
        if bound {
            found.push(version);
        }
    }
    Ok(found)
}
