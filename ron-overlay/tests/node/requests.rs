//! One peer asks another.

use std::time::Duration;

use bytes::Bytes;
use ron_core::{
    net::{
        NetError,
        oap::Code,
        rpc::{Fault, Handling},
    },
    now,
};
use ron_overlay::{Contact, Event, OverlayError, Settings};

use super::world::{SECOND, World, real, soon, stop};

#[tokio::test(start_paused = true)]
async fn requests_are_answered_refused_and_streamed() {
    let world = World::new(1);
    let (one, two) = (world.node(1, Settings::default()).await, world.node(2, Settings::default()).await);
    let echo = |request: ron_core::net::rpc::Request| Handling::Done(Ok(request.body().clone()));
    two.overlay.handle(1, echo).unwrap();
    assert_eq!(two.overlay.handle(1, echo).unwrap_err(), OverlayError::Handled { proto: 1 });
    let parts = |request: ron_core::net::rpc::Request| {
        Handling::Pending(Box::pin(async move {
            for number in 0..5_u8 {
                request.send(Bytes::from(vec![number; 100_000])).await?;
            }
            Ok(Bytes::new())
        }))
    };
    two.overlay.handle(2, parts).unwrap();
    let forbids = |_| Handling::Done(Err(Fault::forbidden("not you")));
    two.overlay.handle(3, forbids).unwrap();

    let peer = two.overlay.contact();
    assert_eq!(one.overlay.request(&peer, 1, "hello", soon()).await.unwrap(), "hello");
    // Once there is a session, the name is enough; and the other end uses the same one.
    assert_eq!(one.overlay.request(two.id(), 1, "again", soon()).await.unwrap(), "again");
    one.overlay.handle(9, echo).unwrap();
    assert_eq!(two.overlay.request(one.id(), 9, "back", soon()).await.unwrap(), "back");
    let mut stream = one.overlay.stream(two.id(), 2, "", soon()).await.unwrap();
    let mut bytes = 0;
    while let Some(part) = stream.next().await.unwrap() {
        bytes += part.len();
    }
    assert_eq!(bytes, 500_000);
    let refused = one.overlay.request(two.id(), 3, "", soon()).await.unwrap_err();
    assert_eq!(refused, OverlayError::Refused { code: Code::Forbidden, reason: "not you".into() });
    two.overlay.unhandle(3);
    for proto in [3, 4] {
        let refused = one.overlay.request(two.id(), proto, "", soon()).await.unwrap_err();
        assert!(matches!(refused, OverlayError::Refused { code: Code::NotFound, .. }), "{refused:?}");
    }
    let large = one.overlay.request(two.id(), 1, vec![0; 2 << 20], soon()).await.unwrap_err();
    assert!(matches!(large, OverlayError::FrameTooLarge { what: "request", .. }), "{large:?}");

    let (ones, twos) = (one.overlay.peers(), two.overlay.peers());
    assert_eq!((ones.len(), ones[0].id, ones[0].is_incoming), (1, two.id(), false));
    assert_eq!((twos.len(), twos[0].id, twos[0].is_incoming), (1, one.id(), true));
    assert_eq!((one.count("session_open_total"), two.count("session_open_total")), (1, 1));
    stop([one, two]).await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_not_there_is_unreachable() {
    let world = World::new(2);
    let (one, two) = (world.node(1, Settings::default()).await, world.node(2, Settings::default()).await);
    let mut events = one.overlay.events();
    let unknown = one.overlay.request(two.id(), 1, "", soon()).await.unwrap_err();
    let nowhere =
        |error: &OverlayError| matches!(error, OverlayError::Unreachable { error: NetError::NoAddress, .. });
    assert!(nowhere(&unknown), "{unknown:?}");
    let wrong = Contact { id: two.id(), addrs: one.overlay.contact().addrs };
    let error = one.overlay.connect(wrong, soon()).await.unwrap_err();
    assert!(matches!(error, OverlayError::Unreachable { .. }) && !nowhere(&error), "{error:?}");

    let peer = two.overlay.contact();
    one.overlay.connect(&peer, soon()).await.unwrap();
    let event = events.recv().await.unwrap();
    assert_eq!(event, ron_core::Event::Item(Event::SessionOpened { peer: two.id() }));
    two.host.shutdown().await;
    let event = events.recv().await.unwrap();
    let closed = |reason| ron_core::Event::Item(Event::SessionClosed { peer: two.id(), reason });
    assert_eq!(event, closed("peer"));
    assert_eq!(one.count("session_close_total{reason=\"peer\"}"), 1);
    assert_eq!(two.count("session_close_total{reason=\"shutdown\"}"), 1);
    stop([one]).await;
}

/// A session that nobody uses ends after the idle timeout; one between neighbours stays.
#[tokio::test(start_paused = true)]
async fn idle_sessions_end_and_neighbours_keep_theirs() {
    let world = World::new(3);
    let settings = Settings { idle_timeout: 15 * SECOND, ..Settings::default() };
    let members = world.swarm(2, &settings).await;
    let (one, stranger) = (&members[0].node, world.node(9, settings).await);
    stranger.overlay.connect(one.overlay.contact(), soon()).await.unwrap();
    assert_eq!(one.overlay.peers().len(), 2);
    let before = now();
    while one.overlay.peers().len() > 1 {
        tokio::time::sleep(SECOND / 10).await;
    }
    assert!((14 * SECOND..17 * SECOND).contains(&before.elapsed()), "{:?}", before.elapsed());
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(one.overlay.peers().len(), 1, "pings keep it open");
    assert_eq!(one.sum("session_close_total"), 1);
    stop(members.into_iter().map(|member| member.node).chain([stranger])).await;
}

#[tokio::test]
async fn over_tls_too() {
    let (one, two) = (real(1, Settings::default()).await, real(2, Settings::default()).await);
    two.overlay.handle(1, |request| Handling::Done(Ok(request.body().clone()))).unwrap();
    let answer = one.overlay.request(two.overlay.contact(), 1, vec![7; 100_000], soon()).await.unwrap();
    assert_eq!(answer, vec![7; 100_000]);
    assert!(one.overlay.peers()[0].group.is_post_quantum());
    stop([one, two]).await;
}

/// Nobody knows whether the other end has done what it was asked.
#[tokio::test(start_paused = true)]
async fn a_request_whose_session_ends_says_so() {
    let world = World::new(5);
    let (one, two) = (world.node(1, Settings::default()).await, world.node(2, Settings::default()).await);
    two.overlay.handle(1, |_| Handling::Pending(Box::pin(std::future::pending()))).unwrap();
    let contact = two.overlay.contact();
    let killed = async {
        tokio::time::sleep(SECOND).await;
        two.host.abort();
    };
    let (asked, ()) = tokio::join!(one.overlay.request(contact, 1, "", soon()), killed);
    assert_eq!(asked.unwrap_err(), OverlayError::Closed);
    stop([one]).await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_has_one_overlay() {
    let world = World::new(6);
    let host = ron_core::Supervisor::new("test");
    let endpoint = world.endpoint(1, &host);
    let first = ron_overlay::Overlay::builder().start(&endpoint, &host).await.unwrap();
    let second = ron_overlay::Overlay::builder().start(&endpoint, &host).await.unwrap_err();
    assert!(matches!(second, OverlayError::Net(_)), "{second:?}");
    first.shutdown().await;
    host.shutdown().await;
}
