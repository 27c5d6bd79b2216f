//! Endpoints on the simulated network.
//!
//! The handshake is one round trip in which each side says its key and the dialer says the protocol. Keys are said and
//! not proved: both ends are in this process, and a simulation of a thousand nodes should not spend its time on
//! signatures. What a wrong key, an unknown protocol or a silent peer does is the same as over TLS.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{SimListener, SimNet, SimStream};
use crate::{
    Deadline, NodeId,
    net::{BoxFuture, Identity, Incoming, KeyGroup, Link, Listener, NetError, PublicKey, Transport},
};

const WELCOME: u8 = 1;
const NO_SUCH_PROTOCOL: u8 = 0;

/// One machine's access to a [`SimNet`], for [`EndpointBuilder::transport`](crate::net::EndpointBuilder::transport).
#[derive(Debug, Clone)]
pub struct SimTransport {
    net: SimNet,
    ip: IpAddr,
    key: PublicKey,
}

impl SimTransport {
    /// The node `identity` on the machine `ip`.
    #[must_use]
    pub fn new(net: &SimNet, ip: IpAddr, identity: &Identity) -> Self {
        SimTransport { net: net.clone(), ip, key: identity.public_key() }
    }

    async fn introduce(
        &self,
        mut stream: SimStream,
        peer: NodeId,
        alpn: &'static str,
    ) -> Result<Link, NetError> {
        let length = u8::try_from(alpn.len()).map_err(|_| NetError::BadProtocol { alpn })?;
        let mut hello = self.key.as_bytes().to_vec();
        hello.push(length);
        hello.extend_from_slice(alpn.as_bytes());
        stream.write_all(&hello).await.map_err(broken)?;
        let (peer_key, answer) = (read_key(&mut stream).await?, stream.read_u8().await.map_err(broken)?);
        let found = peer_key.node_id();
        if found != peer {
            return Err(NetError::WrongIdentity { expected: peer, found });
        }
        if answer != WELCOME {
            return Err(NetError::ProtocolRefused { alpn });
        }
        Ok(link(stream, peer_key, alpn))
    }
}

impl Transport for SimTransport {
    fn dial<'a>(
        &'a self,
        addr: SocketAddr,
        peer: NodeId,
        alpn: &'static str,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Link, NetError>> {
        Box::pin(async move {
            let dial = async {
                let connected = self.net.connect(self.ip, addr).await;
                let stream = connected.map_err(|error| NetError::unreachable(addr, &error))?;
                self.introduce(stream, peer, alpn).await
            };
            deadline.limit("dial", dial).await?
        })
    }

    fn listen(&self, addr: SocketAddr) -> Result<Box<dyn Listener>, NetError> {
        let listener = self.net.listen(addr).map_err(|error| NetError::listen(addr, &error))?;
        Ok(Box::new(Listening { listener, key: self.key }))
    }
}

#[derive(Debug)]
struct Listening {
    listener: SimListener,
    key: PublicKey,
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let stream = self.listener.accept().await?;
            Ok(Box::new(Arrived { stream, key: self.key }) as Box<dyn Incoming>)
        })
    }
}

struct Arrived {
    stream: SimStream,
    key: PublicKey,
}

impl Incoming for Arrived {
    fn remote(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    fn spoke(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.stream.readable())
    }

    fn handshake(
        self: Box<Self>,
        protocols: Arc<[&'static str]>,
    ) -> BoxFuture<'static, Result<Link, NetError>> {
        Box::pin(async move {
            let Arrived { mut stream, key } = *self;
            let peer_key = read_key(&mut stream).await?;
            let length = stream.read_u8().await.map_err(broken)?;
            let mut asked = vec![0; usize::from(length)];
            stream.read_exact(&mut asked).await.map_err(broken)?;
            let alpn = protocols.iter().copied().find(|alpn| alpn.as_bytes() == asked);
            let mut answer = key.as_bytes().to_vec();
            answer.push(if alpn.is_some() { WELCOME } else { NO_SUCH_PROTOCOL });
            stream.write_all(&answer).await.map_err(broken)?;
            let alpn = alpn.ok_or(NetError::ProtocolRefused { alpn: "any" })?;
            Ok(link(stream, peer_key, alpn))
        })
    }
}

async fn read_key(stream: &mut SimStream) -> Result<PublicKey, NetError> {
    let mut bytes = [0; 32];
    stream.read_exact(&mut bytes).await.map_err(broken)?;
    Ok(PublicKey::from_bytes(bytes))
}

fn link(stream: SimStream, peer_key: PublicKey, alpn: &'static str) -> Link {
    let remote = stream.peer_addr();
    Link {
        stream: Box::new(stream),
        peer: peer_key.node_id(),
        peer_key,
        alpn,
        remote,
        group: KeyGroup::Memory,
    }
}

fn broken(error: io::Error) -> NetError {
    NetError::Handshake { message: error.to_string() }
}
