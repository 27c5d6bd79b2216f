//! QUIC with raw public keys on both sides: the same links as over TCP, on UDP ports.
//!
//! One connection carries one link, on one stream that the dialler opens. So all that an endpoint promises about links
//! (who is at the other end, one protocol each, how many there may be) holds without a second layer of counting. The
//! handshakes are those of [`TcpTls`](super::TcpTls), with the same refusals.
//!
//! The first packet of a connection can bear any sender's address. At most [`UNPROVEN_MAX`] connections per listener may
//! be in their handshake on the word of such a packet; while there are so many, a newcomer is told to come back with
//! a token that only reaches the address it gave (a retry, which costs it a round trip and us no memory). A connection
//! that the endpoint does not want is refused with one packet, smaller than the one that asked. Before its handshake is
//! done a connection costs 32 KiB and what it has sent of its ClientHello, which may be 64 KiB.

mod session;
mod stream;

use std::{
    convert::Infallible,
    fmt,
    future::Future as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use quinn::{
    ConnectError, ConnectionError, EndpointConfig, MtuDiscoveryConfig, NoneTokenStore, TokioRuntime,
    TransportConfig, ValidationTokenConfig, VarInt, crypto::rustls::QuicServerConfig,
};
use rustls::{AlertDescription, Error};
use socket2::{Domain, Protocol, Socket, Type};

use self::{
    session::{Accepting, Dialling, Initials, Proved, VERSION, Verdict, initial_suite},
    stream::{GIVEN_UP, Keeper, QuicStream},
};
use super::{
    Identity, KeyPolicy, NetError,
    tls::{Handshakes, refusal},
    transport::{BoxFuture, Incoming, Link, Listener, Transport},
};
use crate::{
    Deadline, NodeId, Spawner,
    permits::{Permit, Permits},
};

/// A link on which nothing arrives for so long is gone, and its reader is told.
const IDLE_MAX: VarInt = VarInt::from_u32(60_000);

/// Three probes may be lost before the link is; and what translates addresses on the way forgets UDP after 30 s.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// What a peer may send before our reader has taken it, and what may be on its way to a peer: 2 MiB per link at worst,
/// which the kernel would take for TCP too. At a round trip of 50 ms it allows 160 Mbit/s.
const WINDOW: u32 = 1 << 20;

/// For handshake messages that arrive out of order. Ours are under 3 KiB.
const CRYPTO_BUFFER: usize = 8 << 10;

/// Connections of one listener that nobody has decided about: on their way to the endpoint's limits, or waiting there
/// for a place among the handshakes. Further first packets are dropped, and sent again.
const UNDECIDED_MAX: usize = 4096;

/// What one of them may send meanwhile. A ClientHello with a post-quantum share has two packets.
const UNDECIDED_BYTES: u64 = 3 << 10;

/// Handshakes of a listener that may run for addresses which have not shown that they can be reached. A quarter of all
/// handshakes by default: a forger cannot take the rest, and honest peers seldom meet the limit.
const UNPROVEN_MAX: u64 = 64;

/// Asked of the kernel for each socket, which all its links share. It gives what it allows.
const SOCKET_BUFFER: usize = 2 << 20;

/// The first byte on the stream, from the dialler. Without it the acceptor would not learn that there is one.
const PREAMBLE: u8 = 1;

/// Links over QUIC. It belongs to the runtime on which it is first used, and to one endpoint.
pub struct Quic {
    handshakes: Arc<Handshakes>,
    initials: Initials,
    keeper: Arc<Keeper>,
    dialling: Arc<TransportConfig>,
    accepting: Arc<TransportConfig>,
    /// Where dials go out from, for IPv4 and IPv6: made when first needed. They take nothing in.
    four: OnceLock<quinn::Endpoint>,
    six: OnceLock<quinn::Endpoint>,
}

impl Quic {
    /// The transport of this node.
    ///
    /// # Errors
    /// [`NetError::Handshake`] if the TLS library refuses its own defaults, which is a mistake in its build.
    pub fn new(identity: &Identity, policy: KeyPolicy) -> Result<Self, NetError> {
        let handshakes = Handshakes::new(identity, policy)?;
        let config = handshakes.from(&[]);
        let initials = initial_suite(config.crypto_provider()).and_then(|suite| {
            let retries = Arc::new(QuicServerConfig::with_initial(config, suite).ok()?);
            Some(Initials { suite, retries })
        });
        let initials = initials
            .ok_or_else(|| NetError::Handshake { message: "no cipher suite for first packets".to_owned() })?;
        Ok(Quic {
            handshakes: Arc::new(handshakes),
            initials,
            keeper: Arc::new(Keeper::new()),
            dialling: Arc::new(transport_config(0)),
            accepting: Arc::new(transport_config(1)),
            four: OnceLock::new(),
            six: OnceLock::new(),
        })
    }

    async fn connect(&self, addr: SocketAddr, peer: NodeId, alpn: &'static str) -> Result<Link, NetError> {
        let unreachable = |error: io::Error| NetError::unreachable(addr, &error);
        let socket = self.socket_for(addr).map_err(unreachable)?;
        let verdict = Verdict::default();
        let mut config = quinn::ClientConfig::new(Arc::new(Dialling {
            config: self.handshakes.to(peer, alpn),
            addr,
            initials: self.initials.clone(),
            verdict: Arc::clone(&verdict),
        }));
        config.transport_config(Arc::clone(&self.dialling)).token_store(Arc::new(NoneTokenStore));
        let connecting = socket.connect_with(config, addr, "").map_err(|error| match error {
            ConnectError::InvalidRemoteAddress(_) => {
                unreachable(io::Error::new(io::ErrorKind::InvalidInput, error))
            }
            ConnectError::EndpointStopping => NetError::Canceled,
            error => NetError::Handshake { message: error.to_string() },
        })?;
        let connection = tokio::select! {
            biased;
            connected = connecting => connected.map_err(|error| failure(error, &verdict, alpn))?,
            error = nobody_there(addr) => return Err(unreachable(error)),
        };
        let (alpn, proved) = agreed(&connection, &[alpn], alpn)?;
        let opened = async {
            let (mut send, recv) = connection.open_bi().await.ok()?;
            send.write_all(&[PREAMBLE]).await.ok()?;
            Some((send, recv))
        };
        let Some((send, recv)) = opened.await else {
            return Err(closed(&connection, &verdict, alpn));
        };
        Ok(link(proved, alpn, addr, QuicStream::new(connection, send, recv, Arc::clone(&self.keeper))))
    }

    fn socket_for(&self, addr: SocketAddr) -> io::Result<&quinn::Endpoint> {
        let socket = if addr.is_ipv4() { &self.four } else { &self.six };
        if let Some(socket) = socket.get() {
            return Ok(socket);
        }
        let made = endpoint(any_like(addr), None)?;
        Ok(socket.get_or_init(|| made))
    }

    fn server_config(&self) -> quinn::ServerConfig {
        let crypto = Accepting {
            config: self.handshakes.from(&[]),
            initials: self.initials.clone(),
            verdict: Verdict::default(),
        };
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(0);
        config
            .transport_config(Arc::clone(&self.accepting))
            .validation_token_config(tokens)
            // A link keeps the address under which it was let in, and so its place among that address's links.
            .migration(false)
            .max_incoming(UNDECIDED_MAX)
            .incoming_buffer_size(UNDECIDED_BYTES)
            .incoming_buffer_size_total(UNDECIDED_BYTES * UNDECIDED_MAX as u64);
        config
    }
}

impl fmt::Debug for Quic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quic")
    }
}

impl Transport for Quic {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        Box::pin(async move { deadline.limit("dial", self.connect(addr, peer, alpn)).await? })
    }

    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        let config = self.server_config();
        let bound =
            endpoint(addr, Some(config.clone())).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (local, socket) = bound.map_err(|error| NetError::listen(addr, &error))?;
        Ok(Box::new(QuicListener {
            socket,
            local,
            acceptor: Arc::new(Acceptor {
                handshakes: Arc::clone(&self.handshakes),
                initials: self.initials.clone(),
                keeper: Arc::clone(&self.keeper),
                config,
            }),
            unproven: Permits::new(UNPROVEN_MAX),
        }))
    }

    fn attach(&self, tasks: Spawner) {
        self.keeper.attach(tasks);
    }
}

fn transport_config(streams: u32) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0_u32.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IDLE_MAX.into()))
        .keep_alive_interval(Some(KEEPALIVE))
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(WINDOW.into())
        .crypto_buffer_size(CRYPTO_BUFFER)
        .mtu_discovery_config(Some(MtuDiscoveryConfig::default()));
    config
}

/// A UDP socket and quinn's task that reads it. The task ends when all its connections and handles are gone.
fn endpoint(addr: SocketAddr, server: Option<quinn::ServerConfig>) -> io::Result<quinn::Endpoint> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // So that `[::]` and `0.0.0.0` can both be listened on, whatever the system's default.
        socket.set_only_v6(true)?;
    }
    let _ = (socket.set_recv_buffer_size(SOCKET_BUFFER), socket.set_send_buffer_size(SOCKET_BUFFER));
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![VERSION]);
    quinn::Endpoint::new(config, server, UdpSocket::from(socket), Arc::new(TokioRuntime))
}

/// Resolves when the system knows that nobody is at this address: there is no way to it, or its host says that nothing
/// listens there. The socket of a dial serves many and is not told, so this knocks from one of its own.
async fn nobody_there(addr: SocketAddr) -> io::Error {
    match knock(addr).await {
        Err(error) if is_telling(error.kind()) => error,
        // Of what else can go wrong with a socket, the dial itself will tell.
        _ => std::future::pending().await,
    }
}

async fn knock(addr: SocketAddr) -> io::Result<Infallible> {
    let socket = tokio::net::UdpSocket::bind(any_like(addr)).await?;
    socket.connect(addr).await?;
    // Nothing in QUIC begins like this, so it is dropped without an answer.
    socket.send(&[0]).await?;
    loop {
        socket.recv(&mut [0]).await?;
    }
}

/// A free port on all addresses of the same family.
fn any_like(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn is_telling(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::AddrNotAvailable
    )
}

struct QuicListener {
    socket: quinn::Endpoint,
    local: SocketAddr,
    acceptor: Arc<Acceptor>,
    unproven: Permits,
}

/// What a handshake needs of the transport.
struct Acceptor {
    handshakes: Arc<Handshakes>,
    initials: Initials,
    keeper: Arc<Keeper>,
    config: quinn::ServerConfig,
}

impl fmt::Debug for QuicListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicListener({})", self.local)
    }
}

impl Listener for QuicListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            loop {
                let incoming = self.socket.accept().await.ok_or(io::ErrorKind::NotConnected)?;
                let unproven = match incoming.remote_address_validated() {
                    true => None,
                    false => match self.unproven.try_take(1) {
                        Some(place) => Some(place),
                        None => {
                            let _ = incoming.retry();
                            continue;
                        }
                    },
                };
                let acceptor = Arc::clone(&self.acceptor);
                return Ok(Box::new(QuicIncoming { incoming, acceptor, unproven }) as Box<dyn Incoming>);
            }
        })
    }
}

impl Drop for QuicListener {
    /// Links that are open keep the socket, and with it the port; but nobody new comes in.
    fn drop(&mut self) {
        self.socket.set_server_config(None);
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(late)) = pin!(self.socket.accept()).poll(&mut cx) {
            late.refuse();
        }
    }
}

/// A connection that was asked for. Dropping it refuses it.
struct QuicIncoming {
    incoming: quinn::Incoming,
    acceptor: Arc<Acceptor>,
    unproven: Option<Permit>,
}

impl QuicIncoming {
    async fn run(self, protocols: &[&'static str]) -> Result<Link, NetError> {
        let QuicIncoming { incoming, acceptor, unproven } = self;
        let remote = incoming.remote_address();
        let verdict = Verdict::default();
        let mut config = acceptor.config.clone();
        config.crypto = Arc::new(Accepting {
            config: acceptor.handshakes.from(protocols),
            initials: acceptor.initials.clone(),
            verdict: Arc::clone(&verdict),
        });
        let failed = |error| failure(error, &verdict, "any");
        let connection = incoming.accept_with(Arc::new(config)).map_err(failed)?.await.map_err(failed)?;
        // Its address is proved by now.
        drop(unproven);
        let (alpn, proved) = agreed(&connection, protocols, "any")?;
        let accepted = async {
            let (send, mut recv) = connection.accept_bi().await.ok()?;
            let mut first = [0];
            recv.read_exact(&mut first).await.ok()?;
            (first == [PREAMBLE]).then_some((send, recv))
        };
        let Some((send, recv)) = accepted.await else {
            return Err(closed(&connection, &verdict, "any"));
        };
        let stream = QuicStream::new(connection, send, recv, Arc::clone(&acceptor.keeper));
        Ok(link(proved, alpn, remote, stream))
    }
}

impl Incoming for QuicIncoming {
    fn remote(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        // It is its first packet that made it.
        Box::pin(std::future::ready(()))
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        Box::pin(async move { self.run(&protocols).await })
    }
}

/// Who is at the other end and which of `protocols` was agreed on. A connection without either is closed.
fn agreed(
    connection: &quinn::Connection,
    protocols: &[&'static str],
    asked: &'static str,
) -> Result<(&'static str, Proved), NetError> {
    let proved = connection.handshake_data().and_then(|data| data.downcast::<Proved>().ok());
    let agreed = proved.ok_or(NetError::NoIdentity).and_then(|proved| {
        let alpn = protocols.iter().find(|alpn| alpn.as_bytes() == proved.alpn);
        // The TLS library sees to it that there is one, unless nothing is registered.
        let alpn = alpn.ok_or(NetError::ProtocolRefused { alpn: asked })?;
        Ok((*alpn, *proved))
    });
    agreed.inspect_err(|_| connection.close(GIVEN_UP, b""))
}

fn link(proved: Proved, alpn: &'static str, remote: SocketAddr, stream: QuicStream) -> Link {
    let Proved { key, group, .. } = proved;
    Link { peer: key.node_id(), peer_key: key, alpn, remote, group, stream: Box::new(stream) }
}

/// Why a connection that was ready has no stream.
fn closed(connection: &quinn::Connection, verdict: &Verdict, alpn: &'static str) -> NetError {
    match connection.close_reason() {
        Some(reason) => failure(reason, verdict, alpn),
        None => NetError::Handshake { message: "the peer opened no stream of ours".to_owned() },
    }
}

/// What a failed connection means to who asked for it: the same as over TCP.
fn failure(error: ConnectionError, verdict: &Verdict, alpn: &'static str) -> NetError {
    if let Some(error) = verdict.get() {
        return refusal(error, alpn);
    }
    match error {
        ConnectionError::TimedOut => NetError::Timeout { op: "dial" },
        ConnectionError::ConnectionClosed(close) => match u64::from(close.error_code) {
            // An alert of TLS, as QUIC carries them.
            code @ 0x100..=0x1ff => {
                refusal(&Error::AlertReceived(AlertDescription::from((code & 0xff) as u8)), alpn)
            }
            _ => NetError::Handshake { message: close.to_string() },
        },
        error => NetError::Handshake { message: error.to_string() },
    }
}
