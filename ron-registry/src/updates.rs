//! Updates of a log for one reader: from memory while it keeps up, from the log when it does not.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use ron_core::{Deadline, Event, Subscriber};

use crate::{
    RegistryError,
    logic::entry::Entry,
    shared::{RegistryUpdated, Shared},
};

/// Entries that updates read ahead.
const READ_AHEAD: usize = 256;

/// How long updates wait for the store.
const READING: Duration = Duration::from_secs(30);

/// Updates of a log, in order and without holes.
pub struct Updates {
    shared: Arc<Shared>,
    next: u64,
    /// Versions up to this one are read from the log: those from before the subscription, and what the feed has lost since.
    /// Later ones come from the feed, also while the head is far ahead: reading back what is still in memory would cost more
    /// than committing it did.
    behind: u64,
    live: Subscriber<RegistryUpdated>,
    ahead: VecDeque<RegistryUpdated>,
}

impl Updates {
    pub(crate) fn new(shared: &Arc<Shared>, from: u64) -> Self {
        // In this order: whatever is not shown yet is still to be published.
        let live = shared.committed.subscribe();
        let behind = shared.view.load().state.head().version;
        Updates { shared: Arc::clone(shared), next: from.max(1), behind, live, ahead: VecDeque::new() }
    }

    /// The next update as soon as there is one; `Ok(None)` when the registry has stopped. Dropping the future loses nothing.
    ///
    /// # Errors
    /// An error is not the end: [`RegistryError::Lagging`] if the next one was pruned, which [`skip_to`](Self::skip_to) gets
    /// over, and those of the store, after which it may be asked again.
    pub async fn next(&mut self) -> Result<Option<RegistryUpdated>, RegistryError> {
        loop {
            if let Some(update) = self.ahead.pop_front() {
                self.next = update.version + 1;
                return Ok(Some(update));
            }
            if self.behind >= self.next {
                // What the feed has of these comes from the log as well, so it is passed over below.
                self.read().await?;
                continue;
            }
            let Some(event) = self.live.recv().await else { return Ok(None) };
            match event {
                Event::Item(update) if update.version == self.next => {
                    self.next += 1;
                    return Ok(Some(update));
                }
                // After a loss, or a leap, the log has what is missing; older ones were read already.
                Event::Item(update) => self.behind = self.behind.max(update.version),
                Event::Missed(_) => self.behind = self.head(),
            }
        }
    }

    /// Goes on from this version.
    pub fn skip_to(&mut self, version: u64) {
        self.ahead.clear();
        self.next = version.max(1);
        self.behind = self.head();
    }

    /// Everything up to here is shown, and can be read.
    fn head(&self) -> u64 {
        self.shared.view.load().state.head().version
    }

    async fn read(&mut self) -> Result<(), RegistryError> {
        let entries = self.shared.read(self.next, READ_AHEAD, Deadline::after(READING)).await?;
        let head = self.head();
        if entries.is_empty() {
            return Err(RegistryError::untrusted_at(self.next, "it is not there"));
        }
        let mut ahead = VecDeque::with_capacity(entries.len());
        for (version, bytes) in (self.next..=head).zip(entries) {
            let entry = Entry::decode(&bytes).map_err(|error| RegistryError::untrusted_at(version, error))?;
            if entry.version() != version {
                return Err(RegistryError::untrusted_at(version, "another is in its place"));
            }
            ahead.push_back(RegistryUpdated::of(&entry));
        }
        self.ahead = ahead;
        Ok(())
    }
}

impl fmt::Debug for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").field("next", &self.next).finish_non_exhaustive()
    }
}
