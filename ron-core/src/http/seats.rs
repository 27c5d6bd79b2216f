//! Who may hold a connection, decided before a byte is read.
//!
//! There are seats for work, limited in all and for each client, and a small lobby for everybody else. In the lobby
//! only the health routes are answered, once, and when it is full the newcomer takes the place of whoever has waited
//! longest. So a flood of silent connections fills the seats and churns through the lobby, while a health check,
//! which needs a millisecond, gets in and out between two of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::Notify;

use super::METRIC_LABEL;
use crate::{ClientKey, Counter, Lock, LockSpec, Metrics, Tally, shutdown::Latch};

pub(super) const SEATS: LockSpec = LockSpec::new("ron-core", "http.seats", 800)
    .guards("who holds a connection; held for one look into a map of at most all connections");

/// The sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeatLimits {
    pub(super) total: usize,
    pub(super) per_client: usize,
    pub(super) lobby: usize,
}

/// The connections of one server.
#[derive(Debug)]
pub(super) struct Seats {
    limits: SeatLimits,
    state: Lock<State>,
    /// Told whenever the last worker has left.
    empty: Notify,
    crowded: Tally,
}

#[derive(Debug, Default)]
struct State {
    working: usize,
    by_client: HashMap<ClientKey, usize>,
    lobby: VecDeque<(u64, Arc<Latch>)>,
    arrivals: u64,
}

/// A place for a connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    kind: SeatKind,
}

#[derive(Debug)]
enum SeatKind {
    Work(Option<ClientKey>),
    Lobby(u64, Arc<Latch>),
}

impl Seats {
    pub(super) fn new(limits: SeatLimits, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Seats {
            limits,
            state: Lock::new(SEATS, State::default(), metrics),
            empty: Notify::new(),
            crowded: metrics.tally(Counter::BusyRejections, METRIC_LABEL),
        })
    }

    /// A seat for work if there is one and `work` is still taken in, or else a place in the lobby. `client` is `None`
    /// for those who are not limited one by one.
    pub(super) fn admit(self: &Arc<Self>, client: Option<ClientKey>, work: bool) -> Seat {
        let mut state = self.state.lock();
        let own = client.map_or(0, |client| state.by_client.get(&client).copied().unwrap_or(0));
        if work && state.working < self.limits.total && own < self.limits.per_client {
            state.working += 1;
            if let Some(client) = client {
                *state.by_client.entry(client).or_default() += 1;
            }
            drop(state);
            return Seat { seats: Arc::clone(self), kind: SeatKind::Work(client) };
        }
        let crowded_out = if state.lobby.len() >= self.limits.lobby { state.lobby.pop_front() } else { None };
        state.arrivals += 1;
        let (id, kick) = (state.arrivals, Arc::new(Latch::new()));
        state.lobby.push_back((id, Arc::clone(&kick)));
        drop(state);
        if work {
            self.crowded.add(1);
        }
        if let Some((_, kick)) = crowded_out {
            kick.set();
        }
        Seat { seats: Arc::clone(self), kind: SeatKind::Lobby(id, kick) }
    }

    pub(super) fn working(&self) -> usize {
        self.state.lock().working
    }

    /// Resolves when nobody works.
    pub(super) async fn empty(&self) {
        loop {
            // Enlisted before looking: whoever leaves after the look wakes it.
            let left = self.empty.notified();
            if self.working() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Seat {
    pub(super) fn is_lobby(&self) -> bool {
        matches!(self.kind, SeatKind::Lobby(..))
    }

    /// Resolves when somebody else takes this place. Never for a worker.
    pub(super) async fn taken(&self) {
        match &self.kind {
            SeatKind::Work(_) => std::future::pending().await,
            SeatKind::Lobby(_, kick) => kick.wait().await,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.seats.state.lock();
        match &self.kind {
            SeatKind::Lobby(id, _) => state.lobby.retain(|(other, _)| other != id),
            SeatKind::Work(client) => {
                state.working -= 1;
                if let Some(client) = client {
                    match state.by_client.get_mut(client) {
                        Some(count) if *count > 1 => *count -= 1,
                        _ => {
                            state.by_client.remove(client);
                        }
                    }
                }
                if state.working == 0 {
                    drop(state);
                    self.seats.empty.notify_waiters();
                }
            }
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const LIMITS: SeatLimits = SeatLimits { total: 4, per_client: 2, lobby: 2 };

    fn client(number: u8) -> Option<ClientKey> {
        Some(Ipv4Addr::new(192, 0, 2, number).into())
    }

    #[test]
    fn each_client_and_all_together_are_limited() {
        let seats = Seats::new(LIMITS, &Metrics::default());
        let first: Vec<Seat> = (0..3).map(|_| seats.admit(client(1), true)).collect();
        assert_eq!(first.iter().map(Seat::is_lobby).collect::<Vec<_>>(), [false, false, true]);
        let second: Vec<Seat> = (0..2).map(|_| seats.admit(client(2), true)).collect();
        assert!(second.iter().all(|seat| !seat.is_lobby()));
        assert!(seats.admit(client(3), true).is_lobby(), "four in all");
        drop(first);
        assert!(!seats.admit(client(3), true).is_lobby());
        assert_eq!(seats.crowded.get(), 2);
        drop(second);
        assert_eq!((seats.working(), seats.state.lock().by_client.len()), (0, 0));
    }

    #[test]
    fn a_network_of_addresses_is_one_client() {
        let seats = Seats::new(LIMITS, &Metrics::default());
        let held: Vec<Seat> = (1..=8_u16)
            .map(|host| seats.admit(Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, host).into()), true))
            .collect();
        assert_eq!(held.iter().filter(|seat| !seat.is_lobby()).count(), 2);
    }

    #[tokio::test]
    async fn the_lobby_keeps_the_newest() {
        let seats = Seats::new(SeatLimits { total: 0, ..LIMITS }, &Metrics::default());
        let [first, second, third] = [(); 3].map(|()| seats.admit(None, true));
        first.taken().await;
        for seat in [&second, &third] {
            assert_eq!(crate::deadline::poll_once(std::pin::pin!(seat.taken())).await, None);
        }
        assert_eq!(seats.state.lock().lobby.len(), 2);
        drop((first, second, third));
        assert_eq!(seats.state.lock().lobby.len(), 0);
    }

    #[tokio::test]
    async fn empty_is_told() {
        let seats = Seats::new(LIMITS, &Metrics::default());
        seats.empty().await;
        let seat = seats.admit(None, true);
        let mut empty = std::pin::pin!(seats.empty());
        assert_eq!(crate::deadline::poll_once(empty.as_mut()).await, None);
        drop(seat);
        empty.await;
    }
}
