//! Sessions that break: cut in the middle of a word, killed, replaced; and those that there is no room for.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use ron_core::{
    Deadline, NodeId,
    net::{BoxFuture, Link, Listener, NetError, Stream, Transport},
    sim::SimTransport,
};
use ron_overlay::{Overlay, OverlayError, Settings};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::world::{Member, SECOND, World, ip, ms, soon, stop};

/// The lines of one machine, whose streams fail after so many more bytes were read.
#[derive(Debug)]
struct Fragile {
    transport: SimTransport,
    left: Arc<AtomicI64>,
}

struct FragileStream {
    stream: Box<dyn Stream>,
    left: Arc<AtomicI64>,
    is_broken: bool,
}

impl Transport for Fragile {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        Box::pin(async move {
            let link = self.transport.dial(addr, peer, alpn, deadline).await?;
            let stream =
                FragileStream { stream: link.stream, left: Arc::clone(&self.left), is_broken: false };
            Ok(Link { stream: Box::new(stream), ..link })
        })
    }

    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        self.transport.listen(addr)
    }
}

impl AsyncRead for FragileStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = (buf.filled().len() - before) as i64;
        let left = self.left.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if left < 0 {
            // Half of a frame was read, and then nothing works any more.
            self.left.store(i64::MAX, Ordering::Relaxed);
            self.is_broken = true;
            buf.set_filled(before + bytes as usize / 2);
        }
        read
    }
}

impl AsyncWrite for FragileStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The reader dies in the middle of a message, again and again. The writer ends with it, another session takes its place,
/// and what was lost with the old one is fetched over the new.
#[tokio::test(start_paused = true)]
async fn a_reader_killed_in_the_middle_of_a_message_is_replaced() {
    let world = World::new(1);
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let one = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let fragile = Fragile { transport: world.transport(2), left: Arc::clone(&left) };
    let two = world.node_on(Arc::new(fragile), 2, Overlay::builder()).await;
    let two = Member::join(two, [one.node.overlay.contact()], false).await;
    let mut members = [one, two];
    let mut accepted = 0;
    for round in 0..5_u8 {
        for member in &members {
            member.topic.joined(Deadline::after(60 * SECOND)).await.unwrap();
        }
        // Enough rounds of digests for what was lost the last time.
        tokio::time::sleep(5 * SECOND).await;
        left.store(50_000, Ordering::Relaxed);
        for number in 0..4_u8 {
            members[0].publish(vec![round * 10 + number; 40_000]).await;
            accepted += 1;
        }
        tokio::time::sleep(ms(100)).await;
        assert_eq!(members[1].node.count("sessions_closed_total{reason=\"link\"}"), u64::from(round) + 1);
        assert!(members.iter().all(|member| member.node.overlay.peers().is_empty()), "both ends are gone");
    }
    let heard = members[1].hear(20 * SECOND).await;
    assert_eq!(heard.len(), accepted, "nothing was lost for good");
    for member in &members {
        let node = &member.node;
        let (opened, open) = (node.count("session_open_total"), node.overlay.peers().len() as u64);
        assert_eq!((opened, opened - node.sum("session_close_total")), (6, open));
        assert_eq!(node.count("tasks_spawned_total{kind=\"rpc_session\"}"), 6);
        assert_eq!(node.sum("tasks_aborted_total") + node.sum("tasks_panicked_total"), 0);
    }
    stop(members.map(|member| member.node)).await;
}

/// Whatever happens to sessions, every task is joined or cut off, and counted as that.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_killed_leaves_no_task_and_no_queue_behind() {
    let world = World::new(2);
    let mut members = world.swarm(6, &Settings::default()).await;
    let dead = members.remove(3);
    members[0].publish(vec![0; 1 << 20]).await;
    tokio::time::sleep(ms(20)).await;
    let dead_id = dead.node.id();
    dead.node.host.abort();
    dead.node.overlay.shutdown().await;
    tokio::time::sleep(12 * SECOND).await;
    assert_eq!(dead.node.overlay.peers().len(), 0);
    for member in &members {
        assert!(member.node.overlay.peers().iter().all(|peer| peer.id != dead_id));
        assert_eq!(member.node.count("queue_depth{queue=\"egress\"}"), 0);
    }
    let mut heard = 0;
    for member in &mut members[1..] {
        heard += member.hear(5 * SECOND).await.len();
    }
    assert_eq!(heard, 4);
    stop(members.into_iter().map(|member| member.node)).await;
}

#[tokio::test(start_paused = true)]
async fn sessions_beyond_the_limit_are_refused_and_readiness_says_so() {
    let world = World::new(3);
    let one = world.node(1, Settings { max_conns: 3, ..Settings::default() }).await;
    one.overlay
        .handle(1, |_| ron_core::net::rpc::Handling::Pending(Box::pin(std::future::pending())))
        .unwrap();
    let mut others = Vec::new();
    for number in 2..=6 {
        let other = world.node(number, Settings::default()).await;
        let (asking, contact) = (other.overlay.clone(), one.overlay.contact());
        // Each has a request at work, so none of the first three makes room.
        const ASKER: ron_core::TaskSpec = ron_core::TaskSpec::new("test", "asker");
        other.host.spawn(ASKER, |_| async move {
            let _ = asking.request(contact, 1, "", Deadline::after(Duration::from_secs(9))).await;
        });
        tokio::time::sleep(ms(100)).await;
        others.push(other);
    }
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(one.overlay.peers().len(), 3);
    // Each of the two tried again at once when its session was closed.
    assert_eq!(one.count("busy_rejections_total{endpoint=\"rpc_sessions\"}"), 4);
    let ready = one.overlay.ready();
    assert!(!ready.writes && ready.reads, "{ready:?}");
    let late = one.overlay.connect(others[4].overlay.contact(), soon()).await;
    assert!(late.is_ok(), "what this node dials itself has a place: {late:?}");
    tokio::time::sleep(60 * SECOND).await;
    assert!(one.overlay.ready().writes);
    stop(others.into_iter().chain([one])).await;
}

/// A peer that connects and says nothing is let go.
#[tokio::test(start_paused = true)]
async fn a_peer_without_hello_is_cut_off_in_time() {
    let world = World::new(4);
    let one = world.node(1, Settings::default()).await;
    let host = ron_core::Supervisor::new("silent");
    let silent = world.endpoint(2, &host);
    let (id, addrs) = (one.id(), one.overlay.contact().addrs);
    let link = silent.connect(id, &addrs, ron_overlay::ALPN, soon()).await.unwrap();
    tokio::time::sleep(ms(2_900)).await;
    assert_eq!(one.count("handshake_timeouts_total"), 0);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(one.count("handshake_timeouts_total"), 1);
    assert!(one.overlay.peers().is_empty());
    drop(link);
    // And one that we dial, too.
    const LINKS: ron_core::LaneSpec = ron_core::LaneSpec::new("test", "links", 4);
    let _links = silent.register(ron_overlay::ALPN, LINKS).unwrap();
    let peer = ron_overlay::Contact { id: silent.node_id(), addrs: silent.local_addrs().into() };
    let error = one.overlay.connect(peer, soon()).await.unwrap_err();
    assert!(matches!(error, OverlayError::Unreachable { .. }), "{error:?}");
    assert_eq!(one.count("handshake_timeouts_total"), 2);
    host.shutdown().await;
    stop([one]).await;
}

/// A peer that takes nothing is disconnected after the write timeout; what waited for it is counted.
#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_disconnected() {
    let world = World::new(5);
    let members = world.swarm(2, &Settings::default()).await;
    world.net.partition(&[ip(1)], &[ip(2)]);
    for number in 0..100_u8 {
        if members[0].topic.publish(vec![number; 60_000], soon()).await.is_err() {
            break;
        }
    }
    tokio::time::sleep(8 * SECOND).await;
    let one = &members[0].node;
    assert!(one.overlay.peers().is_empty());
    assert!(one.sum("io_timeouts_total") >= 1);
    assert!(one.count("queue_dropped_total{queue=\"egress\"}") > 0);
    assert_eq!(one.count("queue_depth{queue=\"egress\"}"), 0);
    for member in members {
        member.node.host.shutdown().await;
    }
}
