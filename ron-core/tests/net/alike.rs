//! What is the same over TCP and over QUIC, tried with nodes of the kind that the caller starts.

use bytes::Bytes;
use ron_core::{
    CallError, Counter, ErrorKind, Lane, LaneSpec,
    net::{
        Identity, KeyGroup, KeyPolicy, NetError,
        oap::{Frame, FrameReader, FrameWriter, ReadSettings},
    },
};

use super::{ALPN, EndpointSettings, Node, eventually, promptly, soon, with_policy};

/// [`Node::start`] or [`Node::quic`].
type StartNode = fn(EndpointSettings) -> Node;

pub(super) async fn a_wrong_identity_is_refused(node: StartNode) {
    let (here, there) = (node(EndpointSettings::default()), node(EndpointSettings::default()));
    let expected = Identity::from_seed(&[9; 32]).node_id();
    let error = here.endpoint.connect(expected, &[there.addr()], ALPN, soon()).await.unwrap_err();
    assert_eq!(error, NetError::WrongIdentity { expected, found: there.id() });
    assert_eq!(error.kind(), ErrorKind::Peer);
    assert_eq!(here.count(Counter::DialFailures, "wrong_identity"), 1);
    eventually("the acceptor gave up", || there.endpoint.connections() == 0).await;
    assert!(there.inbox.try_recv().is_none());
    assert_eq!(there.count(Counter::LinksOpened, "accepted"), 0);
    assert_eq!(there.count(Counter::HandshakeFailures, "no_identity"), 0, "we were fine");
    assert_eq!(there.count(Counter::HandshakeFailures, "handshake"), 1);
}

pub(super) async fn policies_are_kept_in_both_directions(node: StartNode) {
    let strict = node(with_policy(KeyPolicy::PqOnly));
    let classical = node(with_policy(KeyPolicy::ClassicalOnly));
    let either = node(EndpointSettings::default());

    assert_eq!(classical.dial(&strict).await.unwrap_err(), NetError::BelowPolicy);
    assert_eq!(strict.dial(&classical).await.unwrap_err(), NetError::BelowPolicy);
    eventually("both counted it", || {
        [&strict, &classical].iter().all(|node| node.count(Counter::HandshakeFailures, "below_policy") == 1)
    })
    .await;
    assert!(strict.inbox.try_recv().is_none() && classical.inbox.try_recv().is_none());

    assert_eq!(strict.dial(&either).await.unwrap().group, KeyGroup::X25519MlKem768);
    assert_eq!(classical.dial(&either).await.unwrap().group, KeyGroup::X25519);
    assert_eq!(either.dial(&classical).await.unwrap().group, KeyGroup::X25519);
}

pub(super) async fn places_of_an_address_come_back(node: StartNode) {
    let here = node(EndpointSettings::default());
    let there = node(EndpointSettings { connections_per_ip_max: 2, ..EndpointSettings::default() });
    let _dialled = (here.dial(&there).await.unwrap(), here.dial(&there).await.unwrap());
    let first = promptly(there.inbox.recv()).await.unwrap();
    let _second = promptly(there.inbox.recv()).await.unwrap();

    let refused = here.dial(&there).await.unwrap_err();
    assert!(matches!(refused, NetError::Handshake { .. }), "{refused:?}");
    assert!(refused.is_retryable());
    assert_eq!(there.count(Counter::BusyRejections, "net_accept"), 1);
    assert_eq!(there.endpoint.connections(), 2);

    drop(first);
    assert!(here.dial(&there).await.is_ok());
}

const EGRESS: LaneSpec = LaneSpec::new("test", "egress", 4096);

pub(super) async fn frames_cross_in_order(node: StartNode) {
    let (here, there) = (node(EndpointSettings::default()), node(EndpointSettings::default()));
    let dialled = here.dial(&there).await.unwrap();
    let accepted = promptly(there.inbox.recv()).await.unwrap();
    let (_, write) = tokio::io::split(dialled.stream);
    let (read, _keep) = tokio::io::split(accepted.stream);

    let (lane, inbox) = Lane::open(EGRESS, &here.metrics);
    let writer = FrameWriter::new(write, &here.metrics).run(inbox, here.supervisor.stop());
    let send = async {
        for corr in 0..3000_u64 {
            let size = if corr % 100 == 0 { 100_000 } else { 64 };
            lane.push(Frame::event(100, corr, vec![corr as u8; size]), soon()).await.unwrap();
        }
        lane.close();
    };
    let receive = async {
        let mut reader = FrameReader::new(read, ReadSettings::default(), &there.metrics);
        let mut next = 0;
        while let Some(frame) = reader.next().await.unwrap() {
            assert_eq!(frame.corr, next);
            assert!(frame.payload.iter().all(|byte| *byte == next as u8));
            next += 1;
        }
        next
    };
    let (written, (), received) = promptly(async { tokio::join!(writer, send, receive) }).await;
    assert_eq!((written, received), (Ok(()), 3000));
    assert_eq!(lane.try_push(Frame::event(100, 0, Bytes::new())), Err(CallError::Canceled));
}
