//! Bare quinn, with the same keys and its own defaults.

use std::sync::Arc;

use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};

use super::tls::Tls;
use crate::measure::Outcome;

/// One stream, from the end that opened it to the end that accepted it.
pub(crate) struct OneWay {
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
    /// The stream lives as long as these.
    pub(crate) _alive: ([Endpoint; 2], [Connection; 2]),
}

impl OneWay {
    /// Over a new connection on the loopback interface.
    pub(crate) async fn open(tls: &Tls) -> Outcome<Self> {
        let server = QuicServerConfig::try_from(Arc::clone(&tls.server))?;
        let client = QuicClientConfig::try_from(Arc::clone(&tls.client))?;
        let there = Endpoint::server(ServerConfig::with_crypto(Arc::new(server)), "127.0.0.1:0".parse()?)?;
        let here = Endpoint::client("127.0.0.1:0".parse()?)?;
        let config = ClientConfig::new(Arc::new(client));
        let dial = async { Ok(here.connect_with(config, there.local_addr()?, "peer")?.await?) };
        let accept = async { Ok(there.accept().await.ok_or("the endpoint is closed")?.await?) };
        let (dialled, accepted): (Connection, Connection) = tokio::try_join!(dial, accept)
            .map_err(|error: Box<dyn std::error::Error + Send + Sync>| error)?;
        let mut send = dialled.open_uni().await?;
        // The other end hears of a stream with its first byte.
        send.write_all(&[0]).await?;
        let mut receive = accepted.accept_uni().await?;
        receive.read_exact(&mut [0]).await?;
        Ok(OneWay { send, receive, _alive: ([here, there], [dialled, accepted]) })
    }
}
