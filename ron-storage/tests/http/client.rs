//! The client against our server, and against servers that lie, break off and stand still.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{ContentId, Supervisor, TaskSpec};
use ron_storage::client::{Client, ClientError, Connection, Fetch, PutOptions};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{GROUP, Host, PATIENCE, content, soon};

fn client(host: &Host) -> Client {
    Client::builder(format!("http://{}/at/", host.address)).token(&*host.token).build().unwrap()
}

async fn all(fetch: &mut Fetch) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    while let Some(piece) = fetch.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A stream of pieces.
struct Pieces(std::collections::VecDeque<Result<Bytes, std::io::Error>>);

impl futures_core::Stream for Pieces {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

fn pieces(content: &[u8]) -> Pieces {
    Pieces(content.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_fetched() {
    let host = Host::start().await;
    let client = client(&host);
    for (len, is_known) in
        [(0, true), (0, false), (5, true), (GROUP, false), (3 * GROUP + 1, true), (4 << 20, false)]
    {
        let content = content(len);
        let options =
            PutOptions { len: is_known.then_some(len as u64), pin: len == 5, ..PutOptions::default() };
        let stored = client.put(pieces(&content), options, soon()).await.unwrap();
        assert_eq!((stored.id, stored.size), (ContentId::of(&content), len as u64));
        let mut fetch = client.get(stored.id, .., soon()).await.unwrap();
        assert_eq!((fetch.position(), fetch.id()), (0, stored.id));
        assert!(all(&mut fetch).await.unwrap() == content, "{len}");
        assert_eq!((fetch.size(), fetch.position()), (Some(len as u64), len as u64));
        assert!(fetch.next().await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_fetched() {
    let host = Host::start().await;
    let content = content(5 * GROUP + 7);
    let (id, client) = (host.put(&content).await, client(&host));
    for (start, end) in [(0, 1), (GROUP - 1, GROUP + 1), (3 * GROUP, content.len()), (70_000, 200_000)] {
        let mut fetch = client.get(id, start as u64..end as u64, soon()).await.unwrap();
        assert!(all(&mut fetch).await.unwrap() == content[start..end], "{start}..{end}");
    }
    let mut tail = client.get(id, 4 * GROUP as u64 + 9.., soon()).await.unwrap();
    assert!(all(&mut tail).await.unwrap() == content[4 * GROUP + 9..]);
    let mut none = client.get(id, 9..9, soon()).await.unwrap();
    assert!(none.next().await.unwrap().is_none());
    let behind = client.get(id, 9_999_999.., soon()).await.unwrap_err();
    assert!(matches!(behind, ClientError::Refused { status: 416, .. }), "{behind}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_calls() {
    let host = Host::start().await;
    let client = client(&host);
    let (one, two) = (host.put(b"one").await, host.put(b"two").await);
    assert_eq!(client.stat(one, soon()).await.unwrap().size, 3);
    assert!(client.pin(one, soon()).await.unwrap() && !client.pin(one, soon()).await.unwrap());
    let page = client.list(None, 1, soon()).await.unwrap();
    assert_eq!(page.next, Some(page.objects[0].id));
    let rest = client.list(page.next, 10, soon()).await.unwrap();
    let mut listed = [page.objects[0].id, rest.objects[0].id];
    listed.sort();
    assert!(listed == [one.min(two), one.max(two)] && rest.next.is_none());
    assert_eq!(client.usage(soon()).await.unwrap().objects, 2);
    let pinned = client.delete(one, soon()).await.unwrap_err();
    assert!(
        matches!(&pinned, ClientError::Refused { status: 409, code, .. } if code == "pinned"),
        "{pinned}"
    );
    assert!(client.unpin(one, soon()).await.unwrap());
    client.delete(one, soon()).await.unwrap();
    let absent = client.stat(one, soon()).await.unwrap_err();
    assert!(matches!(absent, ClientError::NotFound { id } if id == one), "{absent}");
    let absent = client.get(one, .., soon()).await.unwrap_err();
    assert!(matches!(absent, ClientError::NotFound { id } if id == one), "{absent}");

    let stranger = Client::builder(format!("http://{}/at", host.address)).build().unwrap();
    let denied = stranger.delete(two, soon()).await.unwrap_err();
    assert!(matches!(&denied, ClientError::Refused { status: 401, .. }), "{denied}");
    assert!(denied.to_string().contains("credentials are needed"), "{denied}");
    // Far more than is read before the refusal: the answer arrives all the same.
    let denied = stranger.put(pieces(&content(600_000)), PutOptions::default(), soon()).await.unwrap_err();
    assert!(matches!(&denied, ClientError::Refused { status: 401, .. }), "{denied}");
    assert!(!format!("{client:?}").contains(&host.token));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_stores_nothing() {
    let host = Host::start().await;
    let client = client(&host);
    let mut source = pieces(&content(30_000));
    source.0.push_back(Err(std::io::Error::other("the tape tore")));
    let failed = client.put(source, PutOptions::default(), soon()).await.unwrap_err();
    assert!(matches!(&failed, ClientError::Source { message } if message == "the tape tore"), "{failed}");
    assert_eq!(host.store.usage().objects, 0);
}

/// What came behind the announced length was dropped without a word if it began a new piece, so that something else was stored
/// than was given. Now it is an error, as it was within a piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_another_length_than_announced_stores_nothing() {
    let host = Host::start().await;
    let client = client(&host);
    for len in [0, 1, 10_000, 20_000, 29_999, 30_001, 90_000] {
        let options = PutOptions { len: Some(len), ..PutOptions::default() };
        let failed = client.put(pieces(&content(30_000)), options, soon()).await.unwrap_err();
        assert!(
            matches!(&failed, ClientError::Source { message } if message.contains(&format!("{len}"))),
            "{failed}"
        );
    }
    assert_eq!(host.store.usage().objects, 0);
    // Empty pieces are no bytes, wherever they come.
    for len in [0, 30_000] {
        let mut source = pieces(&content(len));
        source.0.push_front(Ok(Bytes::new()));
        source.0.push_back(Ok(Bytes::new()));
        let options = PutOptions { len: Some(len as u64), ..PutOptions::default() };
        let stored = client.put(source, options, soon()).await.unwrap();
        assert_eq!((stored.id, stored.size), (ContentId::of(&content(len)), len as u64));
    }
}

#[test]
fn addresses_are_checked() {
    for (address, why) in [
        ("127.0.0.1:80", "begins with http"),
        ("https://localhost", "connector"),
        ("http://", "no URL"),
        ("http://user@localhost", "credentials"),
        ("http://localhost/?x", "query"),
        ("ftp://localhost", "begins with http"),
    ] {
        let error = Client::builder(address).build().unwrap_err();
        assert!(matches!(error, ClientError::Address { .. }) && error.to_string().contains(why), "{error}");
    }
    let token = Client::builder("http://localhost").token("a\nb").build().unwrap_err();
    assert!(matches!(token, ClientError::Argument { what: "token", .. }), "{token}");
    assert!(token.to_string().contains("token") && !token.to_string().contains('\n'), "{token}");
}

/// What cannot be sent was said to be a bad address, which is where nobody would look for it.
#[tokio::test]
async fn an_argument_that_cannot_be_sent_is_named() {
    let client = Client::builder("http://127.0.0.1:1").build().unwrap();
    let refused = client.fetch(ContentId::of(b"x"), Some("not a contact"), soon()).await.unwrap_err();
    assert!(matches!(refused, ClientError::Argument { what: "from", .. }), "{refused}");
}

/// Something between client and server that does to the server's bytes what it likes.
async fn between(
    host: &Host,
    meddle: impl Fn(usize, u64, &mut Vec<u8>) -> bool + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    const PROXY: TaskSpec = TaskSpec::new("tests", "proxy").what("meddles");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (server, count, meddle) = (host.address, Arc::new(AtomicUsize::new(0)), Arc::new(meddle));
    let connections = Arc::clone(&count);
    let spawner = host.supervisor.spawner();
    host.supervisor.spawn(PROXY, move |stop| async move {
        loop {
            let mut near = tokio::select! {
                biased;
                () = stop.requested() => return,
                accepted = listener.accept() => accepted.unwrap().0,
            };
            let number = connections.fetch_add(1, Ordering::SeqCst);
            let meddle = Arc::clone(&meddle);
            spawner.spawn(PROXY, move |_| async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                let mut request = vec![0; 8192];
                let read = near.read(&mut request).await.unwrap();
                far.write_all(&request[..read]).await.unwrap();
                let mut passed = 0;
                loop {
                    let mut bytes = vec![0; 16 << 10];
                    let read = far.read(&mut bytes).await.unwrap();
                    bytes.truncate(read);
                    if read == 0
                        || !meddle(number, passed, &mut bytes)
                        || near.write_all(&bytes).await.is_err()
                    {
                        return;
                    }
                    passed += read as u64;
                }
            });
        }
    });
    (address, count)
}

/// A flipped bit in the third group: two groups are handed out, and then it is over. No other attempt is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_liar_is_caught_at_the_first_bad_group() {
    let host = Host::start().await;
    let content = content(8 * GROUP);
    let id = host.put(&content).await;
    let (address, connections) = between(&host, |_, passed, bytes| {
        let target = 2 * GROUP as u64 + 5000;
        if (passed..passed + bytes.len() as u64).contains(&target) {
            bytes[usize::try_from(target - passed).unwrap()] ^= 1;
        }
        true
    })
    .await;
    let client = Client::builder(format!("http://{address}/at")).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    let mut got = Vec::new();
    let lie = loop {
        match fetch.next().await {
            Ok(Some(bytes)) => got.extend_from_slice(&bytes),
            Ok(None) => panic!("nobody noticed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(lie, ClientError::Lied { id: of, .. } if of == id), "{lie}");
    assert!(std::error::Error::source(&lie).unwrap().to_string().contains("131072"), "{lie:?}");
    assert!(got == content[..2 * GROUP]);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert!(fetch.next().await.unwrap().is_none(), "it is over");
}

/// Connections that break every few groups: the fetch goes on behind what it has, and all of it is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_taken_up_again() {
    let host = Host::start().await;
    let content = content(20 * GROUP + 3);
    let id = host.put(&content).await;
    let (address, connections) = between(&host, |_, passed, _| passed < 5 * GROUP as u64).await;
    let client = Client::builder(format!("http://{address}/at")).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    assert!(all(&mut fetch).await.unwrap() == content);
    assert!(connections.load(Ordering::SeqCst) >= 4);

    let client = Client::builder(format!("http://{address}/at")).retries(0).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    let broken = all(&mut fetch).await.unwrap_err();
    assert!(matches!(broken, ClientError::Broken { .. }), "{broken}");
    // Where it broke is known, so another one can go on from there.
    let position = fetch.position();
    assert!(position > 0 && position % GROUP as u64 == 0);
    let client = super::client::client(&host);
    let mut rest = client.get(id, position.., soon()).await.unwrap();
    assert!(all(&mut rest).await.unwrap() == content[usize::try_from(position).unwrap()..]);
}

/// A server that stops sending is given up, and one that never sends is too.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_given_up() {
    let host = Host::start().await;
    let id = host.put(&content(1 << 20)).await;
    let supervisor = Supervisor::new("silent");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    let stall = Duration::from_millis(100);
    let client = Client::builder(format!("http://{silent}")).stall_timeout(stall).retries(1).build().unwrap();
    let error = client.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let error = client.stat(id, ron_core::Deadline::after(stall)).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { op: "stat" }), "{error}");
    drop(listener);
    let error = client.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    supervisor.shutdown().await;
}

/// A server that has no proofs, as every ordinary one, is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_proofs_is_a_stranger() {
    let host = Host::start().await;
    let (address, _) = between(&host, |_, passed, bytes| {
        if passed == 0 {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 5\r\n\r\nhello";
            *bytes = head.to_vec();
        }
        true
    })
    .await;
    let id = host.put(b"hello").await;
    let client = Client::builder(format!("http://{address}/at")).build().unwrap();
    let error = client.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Stranger { .. }), "{error}");
    let error = client.usage(soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Stranger { .. }), "{error}");
}

/// A server that is full says when to come again, and is asked again then.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_is_asked_again() {
    let host = Host::start().await;
    let (address, connections) = between(&host, |number, passed, bytes| {
        if number == 0 && passed == 0 {
            *bytes = b"HTTP/1.1 429 Too Many\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_vec();
        }
        true
    })
    .await;
    let id = host.put(b"patience").await;
    let client = Client::builder(format!("http://{address}/at")).build().unwrap();
    let mut fetch = client.get(id, .., soon()).await.unwrap();
    assert_eq!(all(&mut fetch).await.unwrap(), b"patience");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    let busy = Client::builder(format!("http://{address}/at")).retries(0).build().unwrap();
    connections.store(0, Ordering::SeqCst);
    let error = busy.get(id, .., soon()).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Busy { retry_after, .. } if retry_after == Duration::from_secs(1)),
        "{error}"
    );
}

/// Objects above the limit are not begun.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_not_fetched() {
    let host = Host::start().await;
    let id = host.put(&content(1001)).await;
    let client =
        Client::builder(format!("http://{}/at", host.address)).object_bytes_max(1000).build().unwrap();
    let error = client.get(id, .., soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { size: 1001, limit: 1000, .. }), "{error}");
}

/// Connections of another kind, here through a pipe in memory to the real server.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_may_connect_in_its_own_way() {
    let host = Host::start().await;
    let id = host.put(b"elsewhere").await;
    let address = host.address;
    let client = Client::builder("https://name.example/at").connect(move |name, port| async move {
        assert_eq!((&*name, port), ("name.example", 443));
        let stream = TcpStream::connect(address).await?;
        Ok(Box::new(stream) as Box<dyn Connection>)
    });
    let mut fetch = client.build().unwrap().get(id, .., soon()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, all(&mut fetch)).await.unwrap().unwrap(), b"elsewhere");
}
