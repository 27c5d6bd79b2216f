//! The five promises that every subsystem of the family keeps.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use ron_core::{
    Deadline,
    net::{BoxFuture, rpc::Handling},
    now,
    sim::Line,
};
use ron_overlay::{Contact, Overlay, OverlayError, PeerSettings, PeerSource, Settings, TopicId};

use super::world::{Member, SECOND, World, ip, ms, soon, stop};

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let world = World::new(1);
    let member = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let before = now();
    // Nobody takes anything before this task waits.
    let mut waiting = Vec::new();
    for _ in 0..1024 {
        let topic = member.topic.clone();
        let mut publishing = Box::pin(async move { topic.publish("x", soon()).await });
        assert!(publishing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiting.push(publishing);
    }
    assert!(!member.node.overlay.ready().writes, "{:?}", member.node.overlay.ready());
    let mut refused = pin!(member.topic.publish("x", soon()));
    let refused = match refused.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(refused) => refused.unwrap_err(),
        std::task::Poll::Pending => panic!("it waits"),
    };
    assert!(matches!(refused, OverlayError::Busy { what: "engine", .. }), "{refused:?}");
    assert!(refused.is_retryable() && refused.retry_after().is_some());
    assert_eq!(now() - before, Duration::ZERO);
    assert_eq!(member.node.count("busy_rejections_total{endpoint=\"engine\"}"), 1);
    assert_eq!(member.node.count("queue_depth{queue=\"engine\"}"), 1024);
    for publishing in waiting {
        publishing.await.unwrap();
    }
    assert!(member.node.overlay.ready().writes);
    stop([member.node]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let world = World::new(2);
    let settings = Settings {
        message_bytes_max: 64 << 10,
        peer: PeerSettings { inflight_frames: 32, ..PeerSettings::default() },
        ..Settings::default()
    };
    let members = world.swarm(2, &settings).await;
    members[1].node.overlay.handle(7, |_| Handling::Pending(Box::pin(std::future::pending()))).unwrap();
    let (asked, asker) = (members[1].node.overlay.contact(), &members[0].node.overlay);
    for budget in [ms(100), SECOND] {
        let before = now();
        let late = asker.request(&asked, 7, "?", Deadline::after(budget)).await.unwrap_err();
        assert_eq!(late, OverlayError::Timeout { op: "request" });
        assert!(before.elapsed() <= budget.mul_f64(1.05), "{:?}", before.elapsed());
    }
    assert_eq!(members[0].node.count("io_timeouts_total{op=\"request\"}"), 2);
    let nobody = members[0].node.overlay.topic("nobody").join([], soon()).await.unwrap();
    let before = now();
    assert_eq!(nobody.joined(Deadline::after(SECOND)).await.unwrap_err(), OverlayError::NoNeighbour);
    assert!(before.elapsed() <= SECOND.mul_f64(1.05));

    // A line that takes next to nothing: there is no room, and waiting for it ends when it should.
    world.net.set_line(ip(1), ip(2), Line { bandwidth: Some(1000), ..Line::default() });
    let busy = loop {
        if let Err(error) = members[0].topic.publish(vec![0; 60_000], soon()).await {
            break error;
        }
    };
    assert!(matches!(busy, OverlayError::Busy { what: "egress", .. }), "{busy:?}");
    let before = now();
    let held = members[0].topic.publish_when_free(vec![0; 60_000], Deadline::after(SECOND)).await;
    assert_eq!(held.unwrap_err(), OverlayError::Backpressure { what: "egress" });
    assert!(before.elapsed() <= SECOND.mul_f64(1.05), "{:?}", before.elapsed());
    assert_eq!(members[0].node.count("backpressure_events_total{peer=\"deadline\"}"), 1);
    assert!(members[0].node.count("backpressure_events_total{peer=\"neighbour\"}") > 0);
    for member in members {
        member.node.host.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_handle_says_canceled() {
    let world = World::new(3);
    let member = Member::join(world.node(1, Settings::default()).await, [], false).await;
    let overlay = &member.node.overlay;
    overlay.shutdown().await;
    assert_eq!(member.topic.publish("x", soon()).await.unwrap_err(), OverlayError::Canceled);
    assert_eq!(member.topic.subscribe(soon()).await.unwrap_err(), OverlayError::Canceled);
    assert_eq!(member.topic.leave(soon()).await.unwrap_err(), OverlayError::Canceled);
    assert_eq!(overlay.topic("b").join([], soon()).await.unwrap_err(), OverlayError::Canceled);
    assert_eq!(overlay.connect(overlay.contact(), soon()).await.unwrap_err(), OverlayError::Canceled);
    assert!(!overlay.ready().reads);
}

#[tokio::test(start_paused = true)]
async fn shutting_down_twice_is_harmless() {
    let world = World::new(4);
    let node = world.node(1, Settings::default()).await;
    let (first, second) = tokio::join!(node.overlay.shutdown(), node.overlay.shutdown());
    assert_eq!((first, first.aborted), (second, 0));
    assert_eq!(node.overlay.shutdown().await, first);
}

/// Asked for nothing; whoever holds it is alive.
#[derive(Debug)]
struct Held(#[allow(dead_code, reason = "its count is what is looked at")] Arc<()>);

impl PeerSource for Held {
    fn find(&self, _: TopicId, _: usize) -> BoxFuture<'_, Vec<Contact>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_tasks() {
    let world = World::new(5);
    let held = Arc::new(());
    let node = world.node_with(1, Overlay::builder().source(Held(Arc::clone(&held)))).await;
    let Member { node, topic, mut heard } = Member::join(node, [], false).await;
    let also = node.overlay.clone();
    drop((node.overlay, topic));
    tokio::time::sleep(SECOND).await;
    assert_eq!(also.topics(soon()).await.unwrap().len(), 1);
    assert_eq!(Arc::strong_count(&held), 2);
    drop(also);
    assert_eq!(heard.recv().await, None);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(Arc::strong_count(&held), 1, "nothing of it is left");
}
