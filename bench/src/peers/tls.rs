//! Bare tokio-rustls, with the keys and parameters that our own transport has: TLS 1.3, raw ed25519 keys on both
//! sides, X25519MLKEM768 first, no resumption.

use std::{net::SocketAddr, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::ALPN;
use crate::measure::Outcome;

/// An ed25519 seed as PKCS #8 is these bytes and the seed.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Both sides' configurations, each expecting exactly the other's key.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl Tls {
    pub(crate) fn new() -> Outcome<Self> {
        let provider = Arc::new(CryptoProvider {
            kx_groups: vec![aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        });
        let algorithms = provider.signature_verification_algorithms;
        let (ours, theirs) = (certified(1)?, certified(2)?);
        let expect = |key: &CertifiedKey| Arc::new(Expected { key: key.cert[0].clone(), algorithms });
        let versions = &[&rustls::version::TLS13];

        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(expect(&theirs))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&ours))));
        client.alpn_protocols = vec![ALPN.into()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;

        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(expect(&ours))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(theirs)));
        server.alpn_protocols = vec![ALPN.into()];
        server.send_tls13_tickets = 0;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    pub(crate) async fn dial(&self, addr: SocketAddr) -> Outcome<client::TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(addr).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::IpAddress(addr.ip().into());
        Ok(TlsConnector::from(Arc::clone(&self.client)).connect(name, tcp).await?)
    }

    pub(crate) async fn accept(&self, tcp: TcpStream) -> Outcome<server::TlsStream<TcpStream>> {
        tcp.set_nodelay(true)?;
        Ok(TlsAcceptor::from(Arc::clone(&self.server)).accept(tcp).await?)
    }

    /// Both ends of a new link over the loopback interface.
    pub(crate) async fn pair(&self) -> Outcome<(client::TlsStream<TcpStream>, server::TlsStream<TcpStream>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let accept = async { self.accept(listener.accept().await?.0).await };
        tokio::try_join!(self.dial(listener.local_addr()?), accept)
    }
}

fn certified(seed: u8) -> Outcome<Arc<CertifiedKey>> {
    let pkcs8 = [&PKCS8_PREFIX[..], &[seed; 32]].concat();
    let key = aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
    let public = key.public_key().ok_or("an ed25519 key has a public half")?;
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key)))
}

/// Checks that the other end shows the one key that is expected, and holds it.
#[derive(Debug)]
struct Expected {
    key: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if *shown == self.key { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
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
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
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
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
