//! Which of a peer's addresses to try, in which order, and when to try the next (after RFC 8305).
//!
//! An address that does not answer must not cost the dial: after a short pause the next one is tried beside it, and
//! the first that completes its handshake wins. A fast error never beats a slower success.

use std::{future::poll_fn, net::SocketAddr, pin::pin, task::Poll, time::Duration};

use tokio::time::sleep;

use crate::net::{BoxFuture, Link, NetError};

/// Addresses tried for one dial. Address lists come from other nodes; a long one is a way to make us knock on doors.
const ADDRESSES_MAX: usize = 16;

/// Each address once, the families in turn, IPv6 first: if one family is broken, the second try is the other one.
pub(super) fn in_order(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let (mut six, mut four) = (Vec::new(), Vec::new());
    for addr in addrs {
        let family = if addr.is_ipv6() { &mut six } else { &mut four };
        if family.len() < ADDRESSES_MAX && !family.contains(addr) {
            family.push(*addr);
        }
    }
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    let mut ordered = Vec::new();
    while ordered.len() < ADDRESSES_MAX {
        let before = ordered.len();
        ordered.extend(six.next());
        ordered.extend(four.next());
        if ordered.len() == before {
            break;
        }
    }
    ordered.truncate(ADDRESSES_MAX);
    ordered
}

/// Dials the addresses in their order, the next one when `stagger` has passed or the last has failed.
///
/// # Errors
/// The most telling error of all, once every address has failed.
pub(super) async fn race<'a>(
    addrs: &[SocketAddr],
    stagger: Duration,
    dial: impl Fn(SocketAddr) -> BoxFuture<'a, Result<Link, NetError>>,
) -> Result<Link, NetError> {
    let mut waiting = addrs.iter();
    let mut running: Vec<BoxFuture<'a, Result<Link, NetError>>> = Vec::new();
    let mut failed: Option<NetError> = None;
    loop {
        match waiting.next() {
            Some(addr) => running.push(dial(*addr)),
            None if running.is_empty() => return Err(failed.unwrap_or(NetError::NoAddress)),
            None => {}
        }
        let mut pause = pin!(sleep(stagger));
        let more = waiting.len() > 0;
        let ended = poll_fn(|cx| {
            for at in 0..running.len() {
                if let Poll::Ready(result) = running[at].as_mut().poll(cx) {
                    drop(running.swap_remove(at));
                    return Poll::Ready(Some(result));
                }
            }
            if more && pause.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        let Some(result) = ended else { continue };
        let error = match result {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        if failed.as_ref().is_none_or(|told| told.telling() < error.telling()) {
            failed = Some(error);
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{io, sync::Mutex};

    use super::*;
    use crate::{
        NodeId,
        net::{Identity, KeyGroup},
        now,
    };

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn six(port: u16) -> SocketAddr {
        SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))
    }

    fn link(addr: SocketAddr) -> Link {
        let key = Identity::from_seed(&[1; 32]).public_key();
        Link {
            stream: Box::new(tokio::io::join(tokio::io::empty(), tokio::io::sink())),
            peer: key.node_id(),
            peer_key: key,
            alpn: "t",
            remote: addr,
            group: KeyGroup::Memory,
        }
    }

    /// Ports below 100 fail after so many milliseconds, below 1000 answer after them, and above never do.
    async fn run(ports: &[u16]) -> (Result<u16, NetError>, Vec<(u16, u64)>, u64) {
        let began = now();
        let since = || u64::try_from((now() - began).as_millis()).expect("short");
        let log = Mutex::new(Vec::new());
        let addrs: Vec<SocketAddr> = ports.iter().map(|port| addr(*port)).collect();
        let result = race(&addrs, Duration::from_millis(250), |addr| {
            let port = addr.port();
            log.lock().expect("one thread").push((port, since()));
            Box::pin(async move {
                if port >= 1000 {
                    std::future::pending::<()>().await;
                }
                sleep(Duration::from_millis(port.into())).await;
                if port >= 100 {
                    return Ok(link(addr));
                }
                let id = NodeId::from_bytes([port as u8; 32]);
                Err(match port % 2 {
                    0 => NetError::WrongIdentity { expected: id, found: id },
                    _ => NetError::Unreachable {
                        addr,
                        kind: io::ErrorKind::ConnectionRefused,
                        message: String::new(),
                    },
                })
            })
        });
        let result = tokio::time::timeout(Duration::from_secs(10), result).await;
        let result = result.unwrap_or(Err(NetError::Timeout { op: "test" }));
        let took = since();
        (result.map(|link| link.remote.port()), log.into_inner().expect("one thread"), took)
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_address_is_tried_after_a_pause_and_the_first_answer_wins() {
        assert_eq!(run(&[100]).await, (Ok(100), vec![(100, 0)], 100));
        assert_eq!(run(&[1000, 100]).await, (Ok(100), vec![(1000, 0), (100, 250)], 350));
        assert_eq!(run(&[900, 100, 100]).await, (Ok(100), vec![(900, 0), (100, 250)], 350));
        assert_eq!(run(&[300, 900]).await, (Ok(300), vec![(300, 0), (900, 250)], 300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_starts_the_next_at_once_and_beats_no_success() {
        assert_eq!(run(&[11, 100]).await, (Ok(100), vec![(11, 0), (100, 11)], 111));
        assert_eq!(run(&[900, 11, 13]).await, (Ok(900), vec![(900, 0), (11, 250), (13, 261)], 900));
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_fail_the_most_telling_error_is_told() {
        let (result, _, took) = run(&[11, 12, 13]).await;
        assert_eq!((result.unwrap_err().reason(), took), ("wrong_identity", 36));
        assert_eq!(run(&[]).await.0, Err(NetError::NoAddress));
    }

    #[test]
    fn families_take_turns_and_long_lists_are_cut() {
        assert_eq!(in_order(&[addr(1), addr(2), six(1), addr(1)]), [six(1), addr(1), addr(2)]);
        let many: Vec<SocketAddr> = (1..100).map(addr).collect();
        assert_eq!(in_order(&many).len(), ADDRESSES_MAX);
        let both: Vec<SocketAddr> = (1..100).flat_map(|port| [addr(port), six(port)]).collect();
        assert_eq!(in_order(&both).iter().filter(|addr| addr.is_ipv6()).count(), ADDRESSES_MAX / 2);
    }
}
