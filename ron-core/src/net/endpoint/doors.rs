//! What was found where somebody was looked for a moment ago.
//!
//! Addresses come from other nodes. Whoever may make up names has us look for a hundred of them at the address of somebody
//! who never asked for it; so an address is dialled for one name at a time, and what was found there is what the others
//! are told for a while. Who is really there loses nothing: its own name is the one that is still let through.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{Lock, LockSpec, Metrics, NodeId, net::NetError, now, shutdown::Latch};

pub(super) const DOORS: LockSpec = LockSpec::new("ron-core", "net.doors", 810)
    .guards("who was found at which address of late; held for a lookup, or a sweep of a thousand");

/// How long what was found is not looked for again under another name.
const REMEMBERED: Duration = Duration::from_secs(3);

/// A dial that was given up after this long was in vain; one that was given up before says nothing.
const IN_VAIN: Duration = Duration::from_secs(1);

/// Addresses that are remembered, at most. Beyond it they are dialled like before: more are on their way at once only if
/// there are more dials than that.
const DOORS_MAX: usize = 1024;

/// The addresses of late.
pub(super) struct Doors {
    known: Lock<HashMap<SocketAddr, Door>>,
}

struct Door {
    /// Who is, or was, looked for.
    name: NodeId,
    /// Set when that is over.
    over: Arc<Latch>,
    /// What came of it, and when; nothing while it is under way.
    found: Option<(NetError, Instant)>,
}

/// What to do about a dial.
enum Next {
    /// Go on, and tell what came of it if nobody else is there.
    Dial { notes: bool },
    /// Somebody else is looked for there.
    Wait(Arc<Latch>),
    /// What would come of it.
    Known(NetError),
}

impl Doors {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Doors { known: Lock::new(DOORS, HashMap::new(), metrics) }
    }

    /// Looks for `name` at `addr`: with `dial`, or by what is known of it.
    pub(super) async fn knock<T, F>(
        &self,
        addr: SocketAddr,
        name: NodeId,
        dial: impl FnOnce() -> F,
    ) -> Result<T, NetError>
    where
        F: Future<Output = Result<T, NetError>>,
    {
        loop {
            match self.next(addr, name) {
                Next::Known(error) => return Err(error),
                Next::Wait(over) => over.wait().await,
                Next::Dial { notes: false } => {
                    let dialled = dial().await;
                    if let Some(error) = dialled.as_ref().err().filter(|error| is_news(error)) {
                        self.note_again(addr, name, error);
                    }
                    return dialled;
                }
                Next::Dial { notes: true } => {
                    let mut note = Note { doors: self, addr, began: now(), found: None };
                    let dialled = dial().await;
                    note.found = Some(dialled.as_ref().err().cloned());
                    return dialled;
                }
            }
        }
    }

    fn next(&self, addr: SocketAddr, name: NodeId) -> Next {
        let mut known = self.known.lock();
        let is_old =
            |door: &Door| door.found.as_ref().is_some_and(|(_, at)| now().duration_since(*at) >= REMEMBERED);
        if let Some(door) = known.get(&addr).filter(|door| !is_old(door)) {
            return match &door.found {
                _ if door.name == name => Next::Dial { notes: false },
                None => Next::Wait(Arc::clone(&door.over)),
                Some((NetError::WrongIdentity { found, .. }, _)) if *found == name => {
                    Next::Dial { notes: false }
                }
                Some((NetError::WrongIdentity { found, .. }, _)) => {
                    Next::Known(NetError::WrongIdentity { expected: name, found: *found })
                }
                Some((error, _)) => Next::Known(error.clone()),
            };
        }
        if known.len() >= DOORS_MAX {
            known.retain(|_, door| !is_old(door));
        }
        let notes = known.len() < DOORS_MAX;
        if notes {
            known.insert(addr, Door { name, over: Arc::new(Latch::new()), found: None });
        }
        Next::Dial { notes }
    }

    /// The one name that is let through was looked for in vain once more. The others wait from now on: between them and its
    /// own tries an address would be dialled more often than for one name alone.
    fn note_again(&self, addr: SocketAddr, name: NodeId, error: &NetError) {
        let mut known = self.known.lock();
        if let Some(door) = known.get_mut(&addr).filter(|door| door.name == name && door.found.is_some()) {
            door.found = Some((error.clone(), now()));
        }
    }
}

/// Whether an error says something about who is there. What is our own doing does not, and what is spoken there is asked
/// again for another protocol.
fn is_news(error: &NetError) -> bool {
    !matches!(
        error,
        NetError::Busy { .. }
            | NetError::Canceled
            | NetError::Panicked { .. }
            | NetError::ProtocolRefused { .. }
    )
}

/// Told at the end of a dial, also of one that is called off.
struct Note<'a> {
    doors: &'a Doors,
    addr: SocketAddr,
    began: Instant,
    /// What it came to, if it came to an end.
    found: Option<Option<NetError>>,
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        let found = match self.found.take() {
            Some(found) => found,
            None if now().duration_since(self.began) >= IN_VAIN => Some(NetError::Timeout { op: "connect" }),
            None => None,
        };
        let mut known = self.doors.known.lock();
        let over = match found.filter(is_news) {
            Some(error) => known.get_mut(&self.addr).map(|door| {
                door.found = Some((error, now()));
                Arc::clone(&door.over)
            }),
            None => known.remove(&self.addr).map(|door| door.over),
        };
        drop(known);
        if let Some(over) = over {
            over.set();
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{cell::Cell, io, pin::pin, task::Poll};

    use super::*;

    fn name(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn nobody(port: u16) -> NetError {
        let (kind, message) = (io::ErrorKind::ConnectionRefused, "refused".to_owned());
        NetError::Unreachable { addr: addr(port), kind, message }
    }

    /// Looks for `wanted` where `there` is, if anybody, after a tenth of a second.
    async fn look(
        doors: &Doors,
        port: u16,
        wanted: u8,
        there: Option<u8>,
        dials: &Cell<u32>,
    ) -> Result<(), NetError> {
        let dial = || async {
            dials.set(dials.get() + 1);
            tokio::time::sleep(Duration::from_millis(100)).await;
            match there {
                None => Err(nobody(port)),
                Some(there) if there == wanted => Ok(()),
                Some(there) => Err(NetError::WrongIdentity { expected: name(wanted), found: name(there) }),
            }
        };
        doors.knock(addr(port), name(wanted), dial).await
    }

    /// Twenty names that a liar made up at the address of somebody else were twenty dials of it, and every search brought
    /// as many more.
    #[tokio::test(start_paused = true)]
    async fn made_up_names_at_one_address_are_one_dial_in_a_while() {
        for there in [Some(1), None] {
            let (doors, dials) = (Doors::new(&Metrics::default()), Cell::new(0));
            for wanted in 2..22 {
                let expected = match there {
                    Some(there) => NetError::WrongIdentity { expected: name(wanted), found: name(there) },
                    None => nobody(1),
                };
                assert_eq!(look(&doors, 1, wanted, there, &dials).await, Err(expected));
            }
            assert_eq!(dials.get(), 1);
            // Who is there is reached, and another address is another door.
            if let Some(there) = there {
                assert_eq!(look(&doors, 1, there, Some(there), &dials).await, Ok(()));
                assert_eq!(dials.replace(1), 2);
            }
            let _ = look(&doors, 2, 2, None, &dials).await;
            assert_eq!(dials.get(), 2);
            // The first name is the business of who dials it: peers have a pause of their own. Others wait from then on.
            tokio::time::sleep(REMEMBERED / 2).await;
            let _ = look(&doors, 1, 2, there, &dials).await;
            assert_eq!(dials.get(), 3);
            tokio::time::sleep(REMEMBERED / 2).await;
            let _ = look(&doors, 1, 3, there, &dials).await;
            assert_eq!(dials.get(), 3);
            tokio::time::sleep(REMEMBERED / 2).await;
            let _ = look(&doors, 1, 3, there, &dials).await;
            assert_eq!(dials.get(), 4);
        }
    }

    /// While a made-up name is looked for, who is really there waits for that and no longer.
    #[tokio::test(start_paused = true)]
    async fn at_once_they_wait_for_each_other() {
        let (doors, dials, began) = (Doors::new(&Metrics::default()), Cell::new(0), now());
        let (one, two) = (look(&doors, 1, 2, Some(1), &dials), look(&doors, 1, 3, Some(1), &dials));
        let (one, two, three) = tokio::join!(one, two, look(&doors, 1, 1, Some(1), &dials));
        assert!(one.is_err() && two.is_err() && three.is_ok());
        assert_eq!((dials.get(), now() - began), (2, Duration::from_millis(200)));
    }

    /// Who lets nobody in and says nothing is knocked at by one after the other, and not again for a while.
    #[tokio::test(start_paused = true)]
    async fn silence_is_found_too() {
        let (doors, dials) = (Doors::new(&Metrics::default()), Cell::new(0));
        for wanted in 1..10 {
            let dial = || async {
                dials.set(dials.get() + 1);
                std::future::pending::<Result<(), NetError>>().await
            };
            let dialled = tokio::time::timeout(IN_VAIN, doors.knock(addr(1), name(wanted), dial)).await;
            match wanted {
                1 => assert!(dialled.is_err()),
                _ => assert_eq!(dialled, Ok(Err(NetError::Timeout { op: "connect" }))),
            }
        }
        assert_eq!(dials.get(), 1);
    }

    /// A dial that is called off, or that found whom it looked for, leaves nothing behind.
    #[tokio::test(start_paused = true)]
    async fn what_was_called_off_is_not_known() {
        let (doors, dials) = (Doors::new(&Metrics::default()), Cell::new(0));
        {
            let mut first = pin!(look(&doors, 1, 2, Some(1), &dials));
            assert!(std::future::poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_pending())).await);
        }
        assert_eq!(look(&doors, 1, 1, Some(1), &dials).await, Ok(()));
        assert_eq!((dials.get(), doors.known.lock().len()), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_has_a_bound() {
        let (doors, dials) = (Doors::new(&Metrics::default()), Cell::new(0));
        let nobody =
            |port| doors.knock(addr(port), name(1), move || async move { Err::<(), _>(nobody(port)) });
        for port in 0..3000 {
            assert!(nobody(port).await.is_err());
        }
        assert_eq!(doors.known.lock().len(), DOORS_MAX);
        // Beyond it addresses are dialled as if they were new.
        let _ = look(&doors, 2000, 2, None, &dials).await;
        let _ = look(&doors, 2000, 3, None, &dials).await;
        assert_eq!(dials.get(), 2);
        tokio::time::sleep(REMEMBERED).await;
        let _ = look(&doors, 2000, 4, None, &dials).await;
        assert_eq!((dials.get(), doors.known.lock().len()), (3, 1));
    }
}
