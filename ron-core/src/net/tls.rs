//! TCP and TLS 1.3 with raw public keys on both sides: the default transport.
//!
//! A node's name is the hash of its key, so there are no certificates, no authorities and no names to check: a peer
//! shows an ed25519 key (RFC 7250) and signs the handshake with it. A dialler knows whom it wants and ends the
//! handshake on any other key, before its own is sent. There is no resumption and no early data, so every link proves
//! both keys anew and no first flight can be replayed.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    NamedGroup, OtherError, PeerIncompatible, ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{
    Identity, NetError, PublicKey,
    transport::{BoxFuture, Incoming, KeyGroup, Link, Listener, Transport},
};
use crate::{Deadline, NodeId};

/// Connections that the kernel holds for us before we accept them. Linux cuts it to `net.core.somaxconn`, 4096.
const BACKLOG: i32 = 4096;

/// A peer whose machine is gone is found out after this, and a few probes more.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(10);

/// How long what was sent may go unacknowledged.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Whether a connection that is accepted has what its listener was told.
const INHERITED: bool = cfg!(target_os = "linux");

/// An ed25519 key as a SubjectPublicKeyInfo is these bytes and the key (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Which key exchanges a link may rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyPolicy {
    /// Hybrid post-quantum first, classical with a peer that has nothing else.
    #[default]
    ClassicalOk,
    /// Hybrid post-quantum or no link: for what must stay secret for decades.
    PqOnly,
    /// Classical only: for measuring what the other costs, and for tests.
    ClassicalOnly,
}

impl KeyPolicy {
    fn provider(self) -> Arc<CryptoProvider> {
        use aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
        let kx_groups = match self {
            KeyPolicy::ClassicalOk => vec![X25519MLKEM768, X25519],
            KeyPolicy::PqOnly => vec![X25519MLKEM768],
            KeyPolicy::ClassicalOnly => vec![X25519],
        };
        Arc::new(CryptoProvider { kx_groups, ..aws_lc_rs::default_provider() })
    }
}

/// What this node brings to every handshake, whatever carries it: its key, its policy, TLS 1.3 and nothing else.
pub(super) struct Handshakes {
    client: ClientConfig,
    server: ServerConfig,
}

impl Handshakes {
    /// # Errors
    /// [`NetError::Handshake`] if the TLS library refuses its own defaults, which is a mistake in its build.
    pub(super) fn new(identity: &Identity, policy: KeyPolicy) -> Result<Self, NetError> {
        let provider = policy.provider();
        let versions = &[&rustls::version::TLS13];
        let refused = |error: Error| NetError::Handshake { message: error.to_string() };
        let key = certified(identity).map_err(refused)?;

        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerKey { expected: None }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&key))));
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        client.enable_sni = false;

        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(refused)?
            .with_client_cert_verifier(Arc::new(PeerKey { expected: None }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        Ok(Handshakes { client, server })
    }

    /// For a dial: only `peer` will do, and only `alpn` is offered.
    pub(super) fn to(&self, peer: NodeId, alpn: &'static str) -> Arc<ClientConfig> {
        let mut config = self.client.clone();
        config.dangerous().set_certificate_verifier(Arc::new(PeerKey { expected: Some(peer) }));
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        Arc::new(config)
    }

    /// For what comes in: anybody with a key, for one of `protocols`.
    pub(super) fn from(&self, protocols: &[&'static str]) -> Arc<ServerConfig> {
        let mut config = self.server.clone();
        config.alpn_protocols = protocols.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// The name that the TLS library wants for a peer. It is not sent and not checked: the key is the name.
pub(super) fn nameless(addr: SocketAddr) -> ServerName<'static> {
    ServerName::IpAddress(addr.ip().into())
}

/// TCP with TLS 1.3.
pub struct TcpTls {
    handshakes: Arc<Handshakes>,
}

impl TcpTls {
    /// The transport of this node.
    ///
    /// # Errors
    /// [`NetError::Handshake`] if the TLS library refuses its own defaults, which is a mistake in its build.
    pub fn new(identity: &Identity, policy: KeyPolicy) -> Result<Self, NetError> {
        Ok(TcpTls { handshakes: Arc::new(Handshakes::new(identity, policy)?) })
    }

    async fn connect(&self, addr: SocketAddr, peer: NodeId, alpn: &'static str) -> Result<Link, NetError> {
        let unreachable = |error: io::Error| NetError::unreachable(addr, &error);
        let tcp = TcpStream::connect(addr).await.map_err(unreachable)?;
        tune(&SockRef::from(&tcp)).map_err(unreachable)?;
        let config = self.handshakes.to(peer, alpn);
        let stream = TlsConnector::from(config).connect(nameless(addr), tcp).await;
        let stream = stream.map_err(|error| io_refusal(&error, alpn))?;
        let session = stream.get_ref().1;
        // A server may leave the choice out, and then it serves something else.
        if session.alpn_protocol() != Some(alpn.as_bytes()) {
            return Err(NetError::ProtocolRefused { alpn });
        }
        let (peer_key, group) = proved(session)?;
        Ok(Link { peer: peer_key.node_id(), peer_key, alpn, remote: addr, group, stream: Box::new(stream) })
    }
}

impl fmt::Debug for TcpTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpTls")
    }
}

impl Transport for TcpTls {
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
        let (tcp, local) = bind(addr).map_err(|error| NetError::listen(addr, &error))?;
        Ok(Box::new(TcpTlsListener { tcp, local, handshakes: Arc::clone(&self.handshakes) }))
    }
}

fn bind(addr: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the connections of the last run to be forgotten.
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        // So that `[::]` and `0.0.0.0` can both be listened on, whatever the system's default.
        socket.set_only_v6(true)?;
    }
    // On Linux what is accepted begins with it, which saves six system calls a connection.
    if INHERITED {
        tune(&SockRef::from(&socket))?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    let tcp = TcpListener::from_std(socket.into())?;
    let local = tcp.local_addr()?;
    Ok((tcp, local))
}

/// Small frames go out at once, and a peer that vanished is noticed.
fn tune(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_PROBE).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    // While data waits for its acknowledgement there are no probes, and the system would try for a quarter of an hour.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}

struct TcpTlsListener {
    tcp: TcpListener,
    local: SocketAddr,
    handshakes: Arc<Handshakes>,
}

impl fmt::Debug for TcpTlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpTlsListener({})", self.local)
    }
}

impl Listener for TcpTlsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let (tcp, remote) = self.tcp.accept().await?;
            let incoming = TcpTlsIncoming { tcp, remote, handshakes: Arc::clone(&self.handshakes) };
            Ok(Box::new(incoming) as Box<dyn Incoming>)
        })
    }
}

struct TcpTlsIncoming {
    tcp: TcpStream,
    remote: SocketAddr,
    handshakes: Arc<Handshakes>,
}

impl TcpTlsIncoming {
    async fn run(self, protocols: &[&'static str]) -> Result<Link, NetError> {
        let TcpTlsIncoming { tcp, remote, handshakes } = self;
        if !INHERITED {
            tune(&SockRef::from(&tcp)).map_err(|error| NetError::Handshake { message: error.to_string() })?;
        }
        let stream = TlsAcceptor::from(handshakes.from(protocols)).accept(tcp).await;
        let mut stream = stream.map_err(|error| io_refusal(&error, "any"))?;
        let session = stream.get_ref().1;
        let chosen = session.alpn_protocol().unwrap_or_default();
        // A client that names no protocol gets this far, and so does anyone while nothing is registered.
        let Some(alpn) = protocols.iter().find(|alpn| alpn.as_bytes() == chosen) else {
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
            return Err(NetError::ProtocolRefused { alpn: "any" });
        };
        let (peer_key, group) = proved(session)?;
        Ok(Link { peer: peer_key.node_id(), peer_key, alpn, remote, group, stream: Box::new(stream) })
    }
}

impl Incoming for TcpTlsIncoming {
    fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Not `readable()`, which is also true for no reason; an error counts, and the handshake will tell it.
            let _ = self.tcp.peek(&mut [0]).await;
        })
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        Box::pin(async move { self.run(&protocols).await })
    }
}

/// Whose key was shown, and what protects the session. Only asked after a handshake that checked both.
pub(super) fn proved(session: &rustls::CommonState) -> Result<(PublicKey, KeyGroup), NetError> {
    let shown = session.peer_certificates().and_then(|shown| shown.first());
    let key = shown.and_then(|shown| key_in(shown).ok()).ok_or(NetError::NoIdentity)?;
    match session.negotiated_key_exchange_group().map(|group| group.name()) {
        Some(NamedGroup::X25519MLKEM768) => Ok((key, KeyGroup::X25519MlKem768)),
        Some(NamedGroup::X25519) => Ok((key, KeyGroup::X25519)),
        _ => Err(NetError::BelowPolicy),
    }
}

/// [`refusal`] of the error of a stream.
fn io_refusal(error: &io::Error, alpn: &'static str) -> NetError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => refusal(error, alpn),
        None => NetError::Handshake { message: error.to_string() },
    }
}

/// What a failed handshake means to who asked for it.
pub(super) fn refusal(error: &Error, alpn: &'static str) -> NetError {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
            match inner.downcast_ref::<SomebodyElse>() {
                Some(&SomebodyElse { expected, found }) => NetError::WrongIdentity { expected, found },
                None => NetError::NoIdentity,
            }
        }
        // The last: somebody who has certificates, or nothing, where we have keys.
        Error::InvalidCertificate(_)
        | Error::NoCertificatesPresented
        | Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => {
            NetError::NoIdentity
        }
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            NetError::ProtocolRefused { alpn }
        }
        // The only thing that two of our own kind can disagree about without an alert of its own.
        Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon)
        | Error::AlertReceived(AlertDescription::HandshakeFailure) => NetError::BelowPolicy,
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        )
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => NetError::NotTls13,
        other => NetError::Handshake { message: other.to_string() },
    }
}

/// Carried through the TLS library from the check of the key to who dialled.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected node {expected}, found {found}")]
struct SomebodyElse {
    expected: NodeId,
    found: NodeId,
}

/// The node's key as handshakes show it and sign with it.
fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, Error> {
    let key = aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(&identity.pkcs8()[..]))?;
    let shown = [&SPKI_PREFIX[..], identity.public_key().as_bytes()].concat();
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(shown)], key)))
}

/// Checks the key that a peer shows: that it is one, that it is the expected one, and that the peer holds it.
#[derive(Debug)]
struct PeerKey {
    expected: Option<NodeId>,
}

impl PeerKey {
    fn check(&self, shown: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), Error> {
        if !more.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let found = key_in(shown)?.node_id();
        match self.expected {
            Some(expected) if expected != found => {
                let why = SomebodyElse { expected, found };
                Err(CertificateError::Other(OtherError(Arc::new(why))).into())
            }
            _ => Ok(()),
        }
    }
}

/// The key in exactly the one encoding that an ed25519 key has.
fn key_in(shown: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    let key = shown.strip_prefix(&SPKI_PREFIX).and_then(|key| <[u8; 32]>::try_from(key).ok());
    key.map(PublicKey::from_bytes).ok_or(CertificateError::BadEncoding.into())
}

/// By the TLS library, which is faster at it than the code behind [`PublicKey::verify_strict`]. What that refuses beyond
/// a wrong signature is refused here, too: a key of small order would prove itself to anyone.
fn check_signature(
    message: &[u8],
    shown: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    if signed.scheme != SignatureScheme::ED25519 || key_in(shown)?.has_small_order() {
        return Err(CertificateError::BadSignature.into());
    }
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let key = SubjectPublicKeyInfoDer::from(&shown[..]);
    verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms)
}

impl ServerCertVerifier for PeerKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown, more).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PeerKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown, more).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use rustls::{
        SignatureAlgorithm,
        sign::{Signer, SigningKey},
    };

    use super::*;

    const PROTOCOLS: [&str; 1] = ["test/1"];

    fn node(seed: u8) -> (Identity, TcpTls) {
        let identity = Identity::from_seed(&[seed; 32]);
        let transport = TcpTls::new(&identity, KeyPolicy::default()).expect("the library's own defaults");
        (identity, transport)
    }

    /// Without them small frames wait for each other, and a link to a machine that is gone stays.
    #[tokio::test]
    async fn both_ends_notice_a_peer_that_vanished() {
        let (listener, addr) = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (dialled, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
        let (dialled, (accepted, _)) = (dialled.unwrap(), accepted.unwrap());
        tune(&SockRef::from(&dialled)).unwrap();
        if !INHERITED {
            tune(&SockRef::from(&accepted)).unwrap();
        }
        for end in [SockRef::from(&dialled), SockRef::from(&accepted)] {
            assert!(end.tcp_nodelay().unwrap() && end.keepalive().unwrap());
            #[cfg(target_os = "linux")]
            {
                assert_eq!(end.tcp_keepalive_time().unwrap(), KEEPALIVE);
                assert_eq!(end.tcp_keepalive_interval().unwrap(), KEEPALIVE_PROBE);
                assert_eq!(end.tcp_keepalive_retries().unwrap(), 3);
                assert_eq!(end.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED_MAX));
            }
        }
    }

    /// What the accepting end says of a client with this configuration.
    async fn accept(client: ClientConfig) -> Result<Link, NetError> {
        let (_, server) = node(1);
        let listener = server.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let addr = listener.local_addr();
        let dial = async {
            let tcp = TcpStream::connect(addr).await.expect("it listens");
            let name = ServerName::IpAddress(addr.ip().into());
            // In TLS 1.3 a client is done before the server has judged it.
            let _ = TlsConnector::from(Arc::new(client)).connect(name, tcp).await;
        };
        let accept = async {
            let incoming = listener.accept().await.expect("somebody dials");
            incoming.handshake(Arc::new(PROTOCOLS)).await
        };
        let both = async { tokio::join!(accept, dial).0 };
        Deadline::after(Duration::from_secs(5)).limit("test", both).await.expect("in time")
    }

    fn client() -> ClientConfig {
        let mut client = node(2).1.handshakes.client.clone();
        client.alpn_protocols = vec![b"test/1".to_vec()];
        client
    }

    /// One identity's key on show, another's behind it.
    fn forged() -> Arc<CertifiedKey> {
        let key = |seed| certified(&node(seed).0).expect("a key");
        Arc::new(CertifiedKey::new(key(3).cert.clone(), Arc::clone(&key(4).key)))
    }

    /// The control: the same path with nothing wrong.
    #[tokio::test]
    async fn an_honest_client_is_known() {
        assert_eq!(accept(client()).await.unwrap().peer, node(2).0.node_id());
    }

    #[tokio::test]
    async fn a_client_that_names_no_protocol_is_refused() {
        let mut client = client();
        client.alpn_protocols.clear();
        assert_eq!(accept(client).await.unwrap_err(), NetError::ProtocolRefused { alpn: "any" });
    }

    #[tokio::test]
    async fn a_client_without_a_key_is_refused() {
        let mut client = ClientConfig::builder_with_provider(KeyPolicy::default().provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerKey { expected: None }))
            .with_no_client_auth();
        client.alpn_protocols = vec![b"test/1".to_vec()];
        assert_eq!(accept(client).await.unwrap_err(), NetError::NoIdentity);
    }

    #[tokio::test]
    async fn a_client_that_shows_a_key_it_does_not_hold_is_refused() {
        let mut client = client();
        client.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(forged()));
        assert_eq!(accept(client).await.unwrap_err(), NetError::NoIdentity);
    }

    /// The identity point as key and as half of the signature: to who does not refuse small order it proves anything.
    #[derive(Debug)]
    struct NobodysKey;

    impl SigningKey for NobodysKey {
        fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
            Some(Box::new(NobodysKey))
        }

        fn algorithm(&self) -> SignatureAlgorithm {
            SignatureAlgorithm::ED25519
        }
    }

    impl Signer for NobodysKey {
        fn sign(&self, _: &[u8]) -> Result<Vec<u8>, Error> {
            Ok([&[1][..], &[0; 63]].concat())
        }

        fn scheme(&self) -> SignatureScheme {
            SignatureScheme::ED25519
        }
    }

    #[tokio::test]
    async fn a_key_that_anyone_can_sign_for_is_refused() {
        let mut client = client();
        let shown = CertificateDer::from([&SPKI_PREFIX[..], &[1], &[0; 31]].concat());
        let key = Arc::new(CertifiedKey::new(vec![shown], Arc::new(NobodysKey)));
        client.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(key));
        assert_eq!(accept(client).await.unwrap_err(), NetError::NoIdentity);
    }

    #[tokio::test]
    async fn a_server_that_shows_a_key_it_does_not_hold_is_refused() {
        let mut handshakes = Handshakes::new(&node(1).0, KeyPolicy::default()).unwrap();
        handshakes.server.cert_resolver = Arc::new(AlwaysResolvesServerRawPublicKeys::new(forged()));
        let server = TcpTls { handshakes: Arc::new(handshakes) };
        let listener = server.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let accept = async { listener.accept().await.unwrap().handshake(Arc::new(PROTOCOLS)).await };
        let (_, dialler) = node(2);
        let soon = Deadline::after(Duration::from_secs(5));
        // Even though it is the key that was asked for.
        let dial = dialler.dial(listener.local_addr(), node(3).0.node_id(), PROTOCOLS[0], soon);
        let (accepted, dialled) = tokio::join!(accept, dial);
        assert_eq!(dialled.unwrap_err(), NetError::NoIdentity);
        assert!(accepted.is_err());
    }

    #[test]
    fn a_key_has_one_encoding() {
        let honest = certified(&node(1).0).unwrap().cert[0].to_vec();
        assert_eq!(key_in(&honest.clone().into()), Ok(node(1).0.public_key()));
        for wrong in [Vec::new(), honest[..43].to_vec(), [&honest[..], &[0]].concat(), vec![0; 44]] {
            assert!(key_in(&wrong.into()).is_err());
        }
        let mut other_algorithm = honest;
        other_algorithm[8] = 0x6e; // x25519
        assert!(key_in(&other_algorithm.into()).is_err());
    }
}
