//! The TLS half of a QUIC connection: our handshakes inside quinn.
//!
//! quinn has such an adapter for rustls, and it keeps two things to itself that a link must know: which key exchange
//! was negotiated, and why a handshake failed, which it turns into text. This one keeps both. It has no early data,
//! as nothing here has, and it speaks version 1 of QUIC only.

use std::{
    any::Any,
    io::Cursor,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use quinn::{
    ConnectError, ConnectionId, Side, TransportErrorCode,
    crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion},
};
use quinn_proto::{TransportError, transport_parameters::TransportParameters};
use rustls::{
    CipherSuite, Error,
    crypto::CryptoProvider,
    quic::{
        ClientConnection, Connection, KeyChange, Keys as TlsKeys, Secrets, ServerConnection, Suite, Version,
    },
};

use crate::net::{
    KeyGroup, PublicKey,
    tls::{nameless, proved},
};

/// RFC 9000.
pub(super) const VERSION: u32 = 1;

/// Why the TLS half failed, for who waits for the connection.
pub(super) type Verdict = Arc<OnceLock<Error>>;

/// What a handshake established, as quinn hands it on.
#[derive(Debug)]
pub(super) struct Proved {
    pub(super) key: PublicKey,
    pub(super) group: KeyGroup,
    pub(super) alpn: Vec<u8>,
}

/// The suite that protects first packets, whatever is agreed on later. `None` if the TLS library was built without.
pub(super) fn initial_suite(provider: &CryptoProvider) -> Option<Suite> {
    let suite = provider.cipher_suites.iter().find(|s| s.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)?;
    suite.tls13()?.quic_suite()
}

/// The public constants of version 1, with which anybody can make and check first packets.
#[derive(Clone)]
pub(super) struct Initials {
    pub(super) suite: Suite,
    /// Knows how to seal a retry, which takes a cipher that rustls does not lend.
    pub(super) retries: Arc<crypto::rustls::QuicServerConfig>,
}

impl Initials {
    fn keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        boxed(self.suite.keys(dst_cid, side.into(), Version::V1))
    }

    fn retry_tag(&self, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        crypto::ServerConfig::retry_tag(&*self.retries, VERSION, orig_dst_cid, packet)
    }
}

/// One dial.
pub(super) struct Dialling {
    pub(super) config: Arc<rustls::ClientConfig>,
    pub(super) addr: SocketAddr,
    pub(super) initials: Initials,
    pub(super) verdict: Verdict,
}

impl crypto::ClientConfig for Dialling {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        _: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        if version != VERSION {
            return Err(ConnectError::UnsupportedVersion);
        }
        let name = nameless(self.addr);
        let tls = ClientConnection::new(Arc::clone(&self.config), Version::V1, name, encoded(params));
        let tls = tls.map_err(|error| {
            let _ = self.verdict.set(error);
            ConnectError::EndpointStopping
        })?;
        Ok(Box::new(Session::new(Connection::Client(tls), &self.initials, &self.verdict)))
    }
}

/// What comes in, with the protocols of the moment.
pub(super) struct Accepting {
    pub(super) config: Arc<rustls::ServerConfig>,
    pub(super) initials: Initials,
    pub(super) verdict: Verdict,
}

impl crypto::ServerConfig for Accepting {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        if version != VERSION {
            return Err(UnsupportedVersion);
        }
        Ok(self.initials.keys(dst_cid, Side::Server))
    }

    fn retry_tag(&self, _: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initials.retry_tag(orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn crypto::Session> {
        let tls = ServerConnection::new(Arc::clone(&self.config), Version::V1, encoded(params));
        let tls =
            tls.expect("the configuration has TLS 1.3 and no early data, which is all that is asked of it");
        Box::new(Session::new(Connection::Server(tls), &self.initials, &self.verdict))
    }
}

struct Session {
    tls: Connection,
    initials: Initials,
    verdict: Verdict,
    /// For the keys after the present ones.
    next: Option<Secrets>,
    told: bool,
}

impl Session {
    fn new(tls: Connection, initials: &Initials, verdict: &Verdict) -> Self {
        let (initials, verdict) = (initials.clone(), Arc::clone(verdict));
        Session { tls, initials, verdict, next: None, told: false }
    }

    fn side(&self) -> Side {
        match self.tls {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        }
    }
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.initials.keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if self.tls.is_handshaking() {
            return None;
        }
        let (key, group) = proved(&self.tls).ok()?;
        let alpn = self.tls.alpn_protocol().unwrap_or_default().to_vec();
        Some(Box::new(Proved { key, group, alpn }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.handshake_data()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let Err(error) = self.tls.read_hs(bytes) {
            let reason = error.to_string();
            let _ = self.verdict.set(error);
            let code = self.tls.alert().map(|alert| TransportErrorCode::crypto(alert.into()));
            let code = code.unwrap_or(TransportErrorCode::PROTOCOL_VIOLATION);
            return Err(TransportError { code, frame: None, reason });
        }
        let first = !self.told && !self.tls.is_handshaking();
        self.told |= first;
        Ok(first)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.tls.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(self.side(), &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, into: &mut Vec<u8>) -> Option<Keys> {
        Some(boxed(match self.tls.write_hs(into)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        }))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some((rest, tag)) = payload.split_last_chunk::<16>() else { return false };
        // The key is public, so there is no secret that the comparison could give away.
        self.initials.retry_tag(orig_dst_cid, &[header, rest].concat()) == *tag
    }

    fn export_keying_material(
        &self,
        into: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let exported = self.tls.export_keying_material(into, label, Some(context));
        exported.map(drop).map_err(|_| ExportKeyingMaterialError)
    }
}

fn boxed(keys: TlsKeys) -> Keys {
    let TlsKeys { local, remote } = keys;
    Keys {
        header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
        packet: KeyPair { local: Box::new(local.packet), remote: Box::new(remote.packet) },
    }
}

fn encoded(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    params.write(&mut bytes);
    bytes
}
