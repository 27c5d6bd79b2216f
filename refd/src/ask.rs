//! Asking a node for what is neither object nor log: one request, and an answer in JSON, whole or line by line.

use std::{error::Error, future::Future, io, pin::pin};

use axum::http::{Request, StatusCode, Uri, header};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ron_core::Deadline;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::client::of_status;

/// What an answer, or one line of it, may be long.
const ANSWER_MAX: usize = 8 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The address of the node is not one.
    #[error("{url:?} is not the address of a node: it is like http://127.0.0.1:4711")]
    Address {
        /// What was given.
        url: String,
    },
    /// Nobody answers there.
    #[error("cannot reach {server}")]
    Unreachable {
        /// The node.
        server: String,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[from] hyper::Error),
    /// The node took too long.
    #[error("{0} passed its deadline")]
    Timeout(&'static str),
    /// The node did not do it.
    #[error("the node refused: {words} ({status} {code})")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Its reason for programs.
        code: String,
        /// Its reason for people.
        words: String,
    },
    /// What answers is no node.
    #[error("what answers is no node of this kind: {0}")]
    Stranger(&'static str),
}

impl AskError {
    /// What the process ends with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            AskError::Address { .. } => 2,
            AskError::Refused { status, .. } => of_status(*status),
            AskError::Unreachable { .. } | AskError::Broken(_) | AskError::Timeout(_) => 5,
            AskError::Stranger(_) => 7,
        }
    }
}

/// A node, and the token for it if there is one.
pub(crate) struct Node {
    server: String,
    host: String,
    port: u16,
    base: String,
    token: Option<String>,
}

impl Node {
    pub(crate) fn new(url: &str, token: Option<String>) -> Result<Self, AskError> {
        let wrong = || AskError::Address { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        Ok(Node {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            server: authority.to_string(),
            base: uri.path().trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// The whole answer.
    pub(crate) async fn ask(
        &self,
        method: &'static str,
        path: &str,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Value, AskError> {
        let mut whole = BytesMut::new();
        let asked = self.exchange(method, path, body, |bytes| {
            whole.extend_from_slice(&bytes);
            if whole.len() > ANSWER_MAX {
                Err(AskError::Stranger("its answer is too long").into())
            } else {
                Ok(true)
            }
        });
        let asked = deadline.limit("the answer", asked).await.map_err(|_| AskError::Timeout("the answer"))?;
        asked.map_err(|error| *error.downcast::<AskError>().expect("nothing else fails here"))?;
        serde_json::from_slice(&whole).map_err(|_| AskError::Stranger("its answer is not JSON"))
    }

    /// Each line of an answer, as it comes, until `each` says that it is enough.
    pub(crate) async fn lines(
        &self,
        path: &str,
        mut each: impl FnMut(Value) -> Result<bool, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut rest = BytesMut::new();
        self.exchange("GET", path, Bytes::new(), |bytes| {
            rest.extend_from_slice(&bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                // An empty one only says that the node is still there.
                if line.len() > 1 {
                    let value = serde_json::from_slice(&line)
                        .map_err(|_| AskError::Stranger("a line is not JSON"))?;
                    if !each(value)? {
                        return Ok(false);
                    }
                }
            }
            if rest.len() > ANSWER_MAX {
                Err(AskError::Stranger("a line is too long").into())
            } else {
                Ok(true)
            }
        })
        .await
    }

    /// Asks, and hands the body of the answer out until `each` has enough.
    async fn exchange(
        &self,
        method: &'static str,
        path: &str,
        body: Bytes,
        mut each: impl FnMut(Bytes) -> Result<bool, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let unreachable = |source| AskError::Unreachable { server: self.server.clone(), source };
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(AskError::from)?;
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = request.header(header::HOST, &self.server);
        let request = match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        };
        let request = request
            .body(Full::new(body))
            .map_err(|_| AskError::Address { url: format!("http://{}{}{path}", self.server, self.base) })?;
        let asked = async move {
            let response = sender.send_request(request).await.map_err(AskError::from)?;
            let (head, mut body) = response.into_parts();
            let mut said = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let Ok(bytes) = frame.map_err(AskError::from)?.into_data() else { continue };
                if !head.status.is_success() {
                    said.extend_from_slice(&bytes[..bytes.len().min(ANSWER_MAX - said.len())]);
                } else if !each(bytes)? {
                    return Ok(());
                }
            }
            if head.status.is_success() { Ok(()) } else { Err(refused(head.status, &said).into()) }
        };
        drive(connection, asked).await
    }
}

/// Does `work` on a connection, which goes on meanwhile.
async fn drive<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    work: impl Future<Output = Result<T, Box<dyn Error>>>,
) -> Result<T, Box<dyn Error>> {
    let (mut connection, mut work) = (pin!(connection), pin!(work));
    let mut is_open = true;
    loop {
        tokio::select! {
            biased;
            done = work.as_mut() => return done,
            // What was wrong with it is told by who waits for its answer.
            _ = connection.as_mut(), if is_open => is_open = false,
        }
    }
}

/// What `/readyz?verbose` answers: which gates are closed, and why.
fn not_ready(status: StatusCode, gates: &[Value]) -> AskError {
    let closed = gates.iter().filter(|gate| gate["open"] == false).map(|gate| {
        let word = |key: &str| gate[key].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", word("name"), word("reason"))
    });
    let words = closed.collect::<Vec<_>>().join("; ");
    AskError::Refused { status: status.as_u16(), code: "not_ready".to_owned(), words }
}

fn refused(status: StatusCode, body: &[u8]) -> AskError {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(gates) = said["gates"].as_array() {
        return not_ready(status, gates);
    }
    let word = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
    let words = [word("title"), word("detail"), word("hint")].into_iter().filter(|word| !word.is_empty());
    let words = words.collect::<Vec<_>>().join("; ");
    AskError::Refused { status: status.as_u16(), code: word("code"), words }
}
