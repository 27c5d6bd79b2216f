//! Who is writing about which object.
//!
//! What the journal says last about an object is what counts, so no two may write about the same one at a time. Whoever
//! wants to takes a hold on its name, looks how things stand, writes, and notes in the table what was written. A holder
//! that is called off in between leaves the name in doubt: the journal may say what the table does not. The next holder is
//! told from where on to read the journal before it relies on the table.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use ron_core::{ContentId, Lock, LockSpec, Metrics};

use crate::logic::table::Spot;

pub(crate) const HOLDS: LockSpec = LockSpec::new("ron-storage", "holds", 705)
    .guards("who is writing about which object; held while one comes or goes");

/// The names that are held or in doubt.
pub(crate) struct Holds {
    names: Lock<BTreeMap<ContentId, Name>>,
}

#[derive(Default)]
struct Name {
    is_held: bool,
    doubt: Option<Doubt>,
    waiting: Vec<Waker>,
}

/// Something that may have been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// What was acknowledged before: it is behind this.
    pub(crate) since: Spot,
    /// The file that it says belongs to the object.
    pub(crate) file: Option<u64>,
}

impl Holds {
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(Holds { names: Lock::new(HOLDS, BTreeMap::new(), metrics) })
    }

    /// Waits until nobody else holds `id`. Dropping the future leaves no trace.
    pub(crate) async fn take(self: &Arc<Self>, id: ContentId) -> Hold {
        let doubt = poll_fn(|cx| {
            let mut names = self.names.lock();
            let name = names.entry(id).or_default();
            if name.is_held {
                if !name.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    name.waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            name.is_held = true;
            Poll::Ready(name.doubt)
        })
        .await;
        Hold { holds: Arc::clone(self), id, doubt, is_settled: false }
    }

    /// The earliest place in the journal from which on the table may not know everything.
    pub(crate) fn floor(&self) -> Option<Spot> {
        self.names.lock().values().filter_map(|name| name.doubt).map(|doubt| doubt.since).min()
    }

    /// Names that are in doubt and that nobody holds.
    pub(crate) fn doubtful(&self) -> Vec<ContentId> {
        let names = self.names.lock();
        names.iter().filter(|(_, name)| name.doubt.is_some() && !name.is_held).map(|(id, _)| *id).collect()
    }

    /// Whether nobody holds anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.names.lock().values().all(|name| !name.is_held)
    }

    fn release(&self, id: &ContentId, is_settled: bool) {
        let mut names = self.names.lock();
        let Some(name) = names.get_mut(id) else { return };
        name.is_held = false;
        if is_settled {
            name.doubt = None;
        }
        let woken = std::mem::take(&mut name.waiting);
        // Whoever waits makes it anew, and one that gave up waiting leaves nothing behind.
        if name.doubt.is_none() {
            names.remove(id);
        }
        drop(names);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holds({})", self.names.lock().len())
    }
}

/// The right to write about one object.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Arc<Holds>,
    id: ContentId,
    doubt: Option<Doubt>,
    is_settled: bool,
}

impl Hold {
    /// What the journal may say and the table does not.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Notes that the table says what the journal says.
    pub(crate) fn clear(&mut self) {
        self.doubt = None;
        self.set(None);
    }

    /// Notes that something is about to be written, behind everything that was acknowledged so far.
    pub(crate) fn begin(&mut self, acknowledged: Spot, file: Option<u64>) {
        self.set(Some(Doubt { since: acknowledged, file }));
    }

    fn set(&mut self, doubt: Option<Doubt>) {
        if let Some(name) = self.holds.names.lock().get_mut(&self.id) {
            name.doubt = doubt;
        }
    }

    /// Notes that the table knows what was written, or that nothing was, and lets go.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.release(&self.id, self.is_settled);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut std::task::Context::from_waker(Waker::noop()))
    }

    #[test]
    fn one_at_a_time_and_doubt_stays_until_settled() {
        let holds = Holds::new(&Metrics::default());
        let id = ContentId::of(b"x");
        let Poll::Ready(mut first) = poll(pin!(holds.take(id))) else { panic!("nobody holds it") };
        let mut second = pin!(holds.take(id));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(pin!(holds.take(ContentId::of(b"y")))).is_ready());
        first.begin(Spot::from_number(5), Some(7));
        assert_eq!(holds.floor(), Some(Spot::from_number(5)));
        drop(first);
        assert_eq!(holds.doubtful(), [id]);
        let Poll::Ready(mut second) = poll(second) else { panic!("it was let go") };
        assert_eq!(second.doubt(), Some(Doubt { since: Spot::from_number(5), file: Some(7) }));
        assert!(holds.doubtful().is_empty() && !holds.is_idle());
        second.clear();
        assert_eq!(holds.floor(), None);
        second.begin(Spot::from_number(9), None);
        assert_eq!(holds.floor(), Some(Spot::from_number(9)));
        second.settle();
        assert_eq!(holds.floor(), None);
        assert!(holds.names.lock().is_empty());
        let Poll::Ready(third) = poll(pin!(holds.take(id))) else { panic!("nobody holds it") };
        assert_eq!(third.doubt(), None);
        // One that waits and gives up.
        assert!(poll(pin!(holds.take(id))).is_pending());
        drop(third);
        assert!(holds.names.lock().is_empty());
    }
}
