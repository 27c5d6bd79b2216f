//! Where a server listens, and whom it believes about its clients.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use axum::{Extension, Router, routing::get};
use ron_core::{
    Supervisor,
    http::{ClientAddr, ForwardHeader, HttpError, Server, Stream, TrustedProxies},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::{Client, Host, counting, short};

fn who() -> Router {
    Router::new().route("/who", get(async |Extension(client): Extension<ClientAddr>| format!("{client:?}")))
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

const WHO: &str = "GET /who HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn a_unix_socket_is_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/http.sock");
    let supervisor = Supervisor::new("host");
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let server =
        Server::builder(who()).listen(&*path).listen(local).listen(local).start(&supervisor).await.unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(server.local_addrs().len(), 2);
    let mut client = Client::new(UnixStream::connect(&path).await.unwrap());
    client.send(WHO).await;
    assert_eq!(client.answer().await.text(), "Local");
    for address in server.local_addrs() {
        let mut client = Client::new(tokio::net::TcpStream::connect(address).await.unwrap());
        client.send(WHO).await;
        assert_eq!(client.answer().await.text(), "Ip(127.0.0.1)");
    }
    // A second one is refused and does not disturb the first.
    let second = Server::builder(who()).listen(&*path).start(&supervisor).await;
    assert!(matches!(second, Err(HttpError::InUse { .. })), "{second:?}");
    client.send(WHO).await;
    assert_eq!(client.answer().await.status, 200);
    server.shutdown().await;
    assert!(!path.exists(), "removed with its listener");
}

#[tokio::test]
async fn only_a_stale_socket_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::new("host");
    let path = dir.path().join("http.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left by a process that is gone");
    let server = Server::builder(who()).listen(&*path).start(&supervisor).await.unwrap();
    assert_eq!(mode(&path), 0o600);
    server.shutdown().await;

    std::fs::write(&path, "precious").unwrap();
    let refused = Server::builder(who()).listen(&*path).start(&supervisor).await;
    assert!(matches!(refused, Err(HttpError::NotASocket { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    let host = Host::start(who(), short()).await;
    let taken = Server::builder(who()).listen(host.address).start(&host.supervisor).await;
    assert!(matches!(taken, Err(HttpError::Bind { address, .. }) if address == host.address), "{taken:?}");
    let nowhere = Server::builder(who()).start(&host.supervisor).await;
    assert!(matches!(nowhere, Err(HttpError::Nowhere)));
    let mut settings = short();
    settings.head_bytes_max = 100;
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let wrong = Server::builder(who()).settings(settings).listen(local).start(&host.supervisor).await;
    assert!(matches!(wrong, Err(HttpError::Config(_))), "{wrong:?}");
    host.supervisor.shutdown().await;
    let late = Server::builder(who()).listen(local).start(&host.supervisor).await;
    assert!(matches!(late, Err(HttpError::Canceled)), "{late:?}");
}

/// Spoofed addresses: believed from a listed proxy, in the listed header, and from nobody else.
#[tokio::test]
async fn only_a_trusted_proxy_names_the_client() {
    let spoofed = "GET /who HTTP/1.1\r\nhost: localhost\r\nforwarded: for=6.6.6.6\r\n\
                   x-forwarded-for: 6.6.6.6, 198.51.100.7\r\n\r\n";
    let host = Host::start(who(), short()).await;
    assert_eq!(host.ask(spoofed).await.text(), "Ip(127.0.0.1)");

    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let proxies = TrustedProxies::new([loopback.into()], ForwardHeader::XForwardedFor);
    let host = Host::build(Server::builder(who()).trusted_proxies(proxies)).await;
    assert_eq!(host.ask(spoofed).await.text(), "Ip(198.51.100.7)");

    let proxies = TrustedProxies::new(["10.0.0.0/8".parse().unwrap()], ForwardHeader::XForwardedFor);
    let host = Host::build(Server::builder(who()).trusted_proxies(proxies)).await;
    assert_eq!(host.ask(spoofed).await.text(), "Ip(127.0.0.1)");
}

/// The place where TLS goes: a stand-in that wants one byte first, within its time.
#[tokio::test]
async fn a_connection_can_be_wrapped() {
    let mut settings = short();
    settings.handshake_timeout = Duration::from_millis(200);
    let wrap = |mut stream: Box<dyn Stream>| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
        Box::pin(async move {
            let hello = stream.read_u8().await?;
            stream.write_u8(hello).await?;
            Ok(stream)
        })
    };
    let builder = Server::builder(counting(&Arc::new(AtomicUsize::new(0))));
    let host = Host::build(builder.settings(settings).wrap(wrap)).await;
    let mut client = host.send("!GET /count HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    while client.rest.is_empty() {
        client.more().await;
    }
    assert_eq!(client.rest.remove(0), b'!');
    assert_eq!(client.answer().await.text(), "counted");

    let silent = host.connect().await;
    assert!(silent.closed().await < Duration::from_secs(2));
    assert_eq!(host.series("io_timeouts_total{op=\"http_handshake\"}"), 1);
}
