//! A client of the HTTP routes of an index (feature `client`).

use std::{
    future::{Future as _, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ron_core::{Deadline, ErrorKind, Refusal};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Key;

/// The largest answer that is read. 32 providers with all they may have take a tenth of this.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Why the index did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The URL is not `http://HOST`, with an optional port and path.
    #[error("{url:?} is not the address of an index: it is like http://127.0.0.1:4711")]
    Address {
        /// The URL.
        url: String,
    },
    /// The server cannot be reached.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// Its host and port.
        server: String,
        /// Why.
        source: std::io::Error,
    },
    /// It did not answer in time.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was asked.
        op: &'static str,
    },
    /// The connection broke.
    #[error("the connection broke")]
    Broken {
        /// Why.
        source: hyper::Error,
    },
    /// The server refused the request.
    #[error("{status} {code}: {words}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason, for programs: `code` of the problem.
        code: String,
        /// The reason, for people.
        words: String,
        /// When to ask again, if the server said so.
        retry_after: Option<Duration>,
    },
    /// The answer is not one that an index gives: something else listens there.
    #[error("not an answer of an index: {why}")]
    Stranger {
        /// What is wrong with it.
        why: String,
    },
}

impl Refusal for ClientError {
    fn kind(&self) -> ErrorKind {
        match self {
            ClientError::Timeout { .. } => ErrorKind::Timeout,
            ClientError::Refused { status: 429, .. } => ErrorKind::Busy,
            ClientError::Address { .. } | ClientError::Refused { status: 400..=499, .. } => ErrorKind::Caller,
            _ => ErrorKind::Peer,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A client of one index. The answers were verified by that index, not by this client: if you do not trust it, check names
/// against the registry, and fetched content against its address.
#[derive(Debug, Clone)]
pub struct Client {
    host: String,
    port: u16,
    base: String,
}

impl Client {
    /// A client of the index whose routes are below `url`: `http://HOST:PORT`, with an optional path.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Address { url: url.to_owned() };
        let uri: http::Uri = url.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let base = if uri.path() == "/" { String::new() } else { uri.path().to_owned() };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Client { host, port: uri.port_u16().unwrap_or(80), base })
    }

    /// Resolves `key`, with at most `limit` providers; the answer is the JSON of the route `/resolve`.
    ///
    /// # Errors
    /// A [`ClientError`].
    pub async fn resolve(
        &self,
        key: &Key,
        limit: usize,
        explain: bool,
        deadline: Deadline,
    ) -> Result<Value, ClientError> {
        let path =
            format!("{}/resolve/{}?limit={limit}&explain={explain}", self.base, escape(&key.to_string()));
        self.get("resolve", path, deadline).await
    }

    /// Finds at most `limit` providers of some content; the answer is the JSON of the route `/providers`.
    ///
    /// # Errors
    /// A [`ClientError`].
    pub async fn providers(
        &self,
        content: &Key,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Value, ClientError> {
        let path = format!("{}/providers/{}?limit={limit}", self.base, escape(&content.to_string()));
        self.get("providers", path, deadline).await
    }

    async fn get(&self, op: &'static str, path: String, deadline: Deadline) -> Result<Value, ClientError> {
        let asked = self.ask(path);
        let (status, retry_after, body) =
            deadline.limit(op, asked).await.map_err(|_| ClientError::Timeout { op })??;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| stranger(error.to_string()));
        }
        // A proxy in between may refuse with a body of its own.
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let detail = text("detail");
        let words = if detail.is_empty() { text("title") } else { detail };
        Err(ClientError::Refused { status: status.as_u16(), code: text("code"), words, retry_after })
    }

    /// The value of the header `Host`.
    fn server(&self) -> String {
        let is_v6 = self.host.contains(':');
        if is_v6 { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    async fn ask(&self, path: String) -> Result<(StatusCode, Option<Duration>, Bytes), ClientError> {
        let server = self.server();
        let unreachable = |source| ClientError::Unreachable { server: server.clone(), source };
        let broken = |source| ClientError::Broken { source };
        let request = Request::builder().uri(path).header(header::HOST, &server).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| stranger(error.to_string()))?;
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut driver = Some(driver);
        let mut asking = pin!(async move {
            let response = sender.send_request(request).await.map_err(broken)?;
            let (head, body) = response.into_parts();
            let (mut body, mut whole) = (pin!(body), BytesMut::new());
            while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                if let Ok(bytes) = frame.map_err(broken)?.into_data() {
                    if whole.len() + bytes.len() > ANSWER_BYTES_MAX {
                        return Err(stranger("its answer is too long"));
                    }
                    whole.extend_from_slice(&bytes);
                }
            }
            let retry =
                head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            Ok((head.status, retry.map(Duration::from_secs), whole.freeze()))
        });
        // The connection is driven for as long as the answer is waited for.
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(answer) = asking.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                match &mut driver {
                    Some(connection) => match Pin::new(connection).poll(cx) {
                        Poll::Ready(_) => driver = None,
                        Poll::Pending => return Poll::Pending,
                    },
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }
}

fn stranger(why: impl Into<String>) -> ClientError {
    ClientError::Stranger { why: why.into() }
}

/// A key as part of a path: names may have what a URL may not.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                escaped.push(byte.into())
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn a_server_is_named_as_http_does() {
        for (url, server) in [
            ("http://[::1]:4711", "[::1]:4711"),
            ("http://127.0.0.1:4711/x/", "127.0.0.1:4711"),
            ("http://index.test", "index.test:80"),
        ] {
            assert_eq!(Client::new(url).unwrap().server(), server);
        }
        for wrong in ["", "https://index.test", "index.test", "http://"] {
            assert!(matches!(Client::new(wrong), Err(ClientError::Address { .. })), "{wrong}");
        }
    }

    /// A refusal by a proxy in plain text was reported as `Stranger`, so its status and `retry-after` were lost.
    #[tokio::test]
    async fn who_refuses_in_words_of_its_own_has_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let proxy = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let answer = "HTTP/1.1 503 Full\r\nretry-after: 7\r\ncontent-length: 9\r\n\r\nnot today";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream
        };
        let (key, deadline) = ("tools/a".parse().unwrap(), Deadline::after(Duration::from_secs(30)));
        let (answer, _open) = tokio::join!(client.resolve(&key, 1, false, deadline), proxy);
        let refused = answer.unwrap_err();
        assert!(matches!(refused, ClientError::Refused { status: 503, .. }), "{refused:?}");
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(7)));
    }
}
