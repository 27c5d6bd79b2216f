//! In whose name and with which right a call comes, seen from both ends.

use super::*;

/// Tells a caller what it came with, and remembers events.
#[derive(Default)]
struct Clerk {
    heard: Mutex<Vec<(u128, Bytes, Bytes)>>,
}

fn seen(tenant: u128, cap: &[u8]) -> String {
    format!("{tenant} {}", std::str::from_utf8(cap).unwrap())
}

impl Service for Clerk {
    fn call(&self, request: Request) -> Handling {
        match request.method() {
            1 => Handling::Done(Ok(seen(request.tenant(), request.cap()).into())),
            2 => Handling::Pending(Box::pin(async move {
                request.send(Bytes::from(vec![7; 3 * CHUNK])).await?;
                Ok(seen(request.tenant(), request.cap()).into())
            })),
            _ => Handling::Done(Ok(request.cap().len().to_string().into())),
        }
    }

    fn event(&self, event: Event) {
        self.heard.lock().unwrap().push((event.tenant, event.cap, event.body));
    }
}

const SIZE: Method = Method { number: 3, name: "size" };

fn clerk(net: &SimNet, number: u8) -> (Peers, Arc<Clerk>, Supervisor) {
    let host = Supervisor::new("clerk");
    let clerk = Arc::new(Clerk::default());
    let service = Arc::clone(&clerk) as Arc<dyn Service>;
    let endpoint = sim_endpoint(net, number, &host);
    (Peers::start(&endpoint, TEST, service, PeersSettings::default(), &host).unwrap(), clerk, host)
}

#[tokio::test(start_paused = true)]
async fn a_capability_and_a_tenant_arrive_as_they_were_sent() {
    let net = net();
    let ((one, _, _host1), (two, clerk, _host2)) = (clerk(&net, 1), clerk(&net, 2));
    let (id, addrs) = (two.endpoint().node_id(), two.endpoint().local_addrs());
    assert_eq!(one.call(id, addrs, ECHO, b"", soon()).await.unwrap(), "0 ");
    let right = ECHO.tenant(u128::MAX).cap(&b"token"[..]);
    let told = format!("{} token", u128::MAX);
    assert_eq!(one.call(id, addrs, right.clone(), b"", soon()).await.unwrap(), told.as_str());
    let session = one.get(id).unwrap();
    assert_eq!(session.call(right, b"", soon()).await.unwrap(), told.as_str());
    assert_eq!(session.call(ECHO.tenant(9), b"", soon()).await.unwrap(), "9 ");
    assert_eq!(session.call(ECHO.cap(&b"only"[..]), b"", soon()).await.unwrap(), "0 only");

    // An answer in chunks stays under the tenant, and credit for it arrives.
    let mut chunks = session.open(STREAM.tenant(5).cap(&b"wide"[..]), b"", soon()).await.unwrap();
    let mut last = Bytes::new();
    while let Some(chunk) = chunks.next().await.unwrap() {
        last = chunk;
    }
    assert_eq!(last, "5 wide");

    session.notify(NOTE.tenant(3).cap(&b"ring"[..]), b"door", soon()).await.unwrap();
    session.try_notify(NOTE, b"nobody").unwrap();
    settle().await;
    let heard = std::mem::take(&mut *clerk.heard.lock().unwrap());
    assert_eq!(heard, [(3, "ring".into(), "door".into()), (0, Bytes::new(), "nobody".into())]);
    assert_eq!(session.open_exchanges(), 0);
}

/// A capability makes its frame an end, and the end of an answer, which takes no room, gives none back: after 32 events
/// the session sent neither events nor chunks.
#[tokio::test(start_paused = true)]
async fn events_with_a_capability_give_their_room_back() {
    let net = net();
    let ((one, _, _host1), (two, clerk, _host2)) = (clerk(&net, 1), clerk(&net, 2));
    let (id, addrs) = (two.endpoint().node_id(), two.endpoint().local_addrs());
    let session = one.session(id, addrs, soon()).await.unwrap();
    for number in 0..100u8 {
        session.notify(NOTE.cap(&b"token"[..]), &[number], soon()).await.unwrap();
    }
    settle().await;
    let heard = std::mem::take(&mut *clerk.heard.lock().unwrap());
    let expected: Vec<_> = (0..100u8).map(|number| (0, "token".into(), Bytes::from(vec![number]))).collect();
    assert_eq!(heard, expected);
}

#[tokio::test(start_paused = true)]
async fn a_capability_has_its_own_limit_and_takes_from_that_of_the_request() {
    let net = net();
    let ((one, _, _host1), (two, _, _host2)) = (clerk(&net, 1), clerk(&net, 2));
    let (id, addrs) = (two.endpoint().node_id(), two.endpoint().local_addrs());
    let session = one.session(id, addrs, soon()).await.unwrap();
    let longest = SIZE.cap(vec![b'x'; 65_535]);
    let room = (256 << 10) - 65_535;
    assert_eq!(session.call(longest.clone(), &vec![0; room], soon()).await.unwrap(), "65535");
    let refused = session.call(longest, &vec![0; room + 1], soon()).await.unwrap_err();
    let (bytes, max) = (room as u64 + 1, room as u64);
    assert_eq!(refused, RpcError::TooLarge { what: "request", bytes, max });
    let refused = session.try_notify(NOTE.cap(vec![b'x'; 65_536]), b"").unwrap_err();
    assert_eq!(refused, RpcError::TooLarge { what: "capability", bytes: 65_536, max: 65_535 });
    assert!(session.is_open(), "nothing of it was sent");
}

/// What is printed of a call ends up in logs.
#[test]
fn a_capability_is_not_printed() {
    let call = format!("{:?}", ECHO.tenant(0xab).cap(&b"hush"[..]));
    assert_eq!(call, "Call(echo, tenant ab, cap 4 B)");
    let event = Event {
        peer: Identity::from_seed(&[1; 32]).node_id(),
        remote: "127.0.0.1:1".parse().unwrap(),
        method: 5,
        tenant: 0,
        cap: Bytes::from_static(b"hush"),
        body: Bytes::from_static(b"hush"),
    };
    assert!(!format!("{event:?}").contains("hush"));
}
