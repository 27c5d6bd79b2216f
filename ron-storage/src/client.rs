//! Asking a store over HTTP, and believing nothing (feature `client`).
//!
//! [`Client::get`] asks for an object with its proof and verifies every group of 64 KiB against the name before it hands it
//! out. It does not matter who answers or what lies between: a server that lies is found out at the first wrong group, and a
//! connection that breaks is made again and goes on behind the last byte that was verified. The other calls are the routes
//! of the module `http` as functions.
//!
//! ```no_run
//! use std::time::Duration;
//! use ron_core::{ContentId, Deadline};
//! use ron_storage::client::Client;
//!
//! # async fn example(id: ContentId) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("http://127.0.0.1:4711").build()?;
//! let mut fetch = client.get(id, .., Deadline::after(Duration::from_secs(10))).await?;
//! while let Some(bytes) = fetch.next().await? {
//!     println!("{} bytes that are what they should be", bytes.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each call has a connection of its own: plain TCP, unless [`Builder::connect`] makes others.

mod exchange;
mod fetch;

use std::{
    error::Error,
    fmt, io,
    ops::{Bound, RangeBounds},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use ron_core::{ContentId, Deadline, ErrorKind, Refusal};
use serde::{Deserialize, de::DeserializeOwned};

use crate::logic::tree::{TreeError, TreeHasher};

use self::exchange::{Answer, Outgoing, Uploading};
pub use self::{exchange::Connection, fetch::Fetch};

/// What a JSON answer may be long. A page of a thousand objects is a third of it.
const JSON_MAX: usize = 1 << 20;

/// The longest that a server is believed to be busy, whatever it says.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Why a call came back without what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address of the server is not one.
    #[error("{address:?} is not the address of a server: {why}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What was given beside the address cannot be sent. Nothing was asked.
    #[error("{what}: {why}")]
    Argument {
        /// Which of it: `token`, or `from`.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody answers there. Is it running?
    #[error("cannot reach {server}")]
    Unreachable {
        /// The server.
        server: String,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke, and trying again did not help.
    #[error("the connection broke")]
    Broken {
        /// How.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server did not go on in time.
    #[error("{op} passed its deadline")]
    Timeout {
        /// What was waited for.
        op: &'static str,
    },
    /// The server has too much to do, or is stopping. Retry after the pause.
    #[error("the server is busy: {code}")]
    Busy {
        /// What it said.
        code: String,
        /// How long it asked to wait.
        retry_after: Duration,
    },
    /// It is stored, and fewer nodes have it than were asked for. It is copied when others answer; putting it again is harmless.
    #[error("{id} is kept there, and {acknowledged} of the {wanted} nodes that were asked for have it")]
    Unacknowledged {
        /// What was put.
        id: ContentId,
        /// How many have it.
        acknowledged: u64,
        /// How many were asked for.
        wanted: u64,
    },
    /// There is no such object there.
    #[error("{id} is not there")]
    NotFound {
        /// What was asked for.
        id: ContentId,
    },
    /// The server did not do it.
    #[error("the server refused: {title} ({status} {code}){}", fmt_detail(detail.as_deref()))]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Its reason for programs.
        code: String,
        /// Its reason for people.
        title: String,
        /// What is special about this case.
        detail: Option<String>,
    },
    /// The server sent bytes that are not those of the object. None of them was handed out.
    #[error("the server lies about {id}")]
    Lied {
        /// What was asked for.
        id: ContentId,
        /// Where it does.
        source: TreeError,
    },
    /// The object is larger than [`Builder::object_bytes_max`] allows. None of it was fetched.
    #[error("{id} has {size} bytes, and {limit} is the limit (object_bytes_max)")]
    TooLarge {
        /// What was asked for.
        id: ContentId,
        /// What the server says it is long.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The server stored something under another name than its content has.
    #[error("the server calls {sent} by the name {answered:?}")]
    Misnamed {
        /// What was sent.
        sent: ContentId,
        /// What it answered.
        answered: String,
    },
    /// What answers is no server of this kind: it sends no proofs, or its answer is not understood.
    #[error("what answers is no object store of this kind: {why}")]
    Stranger {
        /// What was missed.
        why: &'static str,
    },
    /// The bytes to send stopped coming. Nothing was stored.
    #[error("the source failed: {message}")]
    Source {
        /// What it said.
        message: String,
    },
}

fn fmt_detail(detail: Option<&str>) -> String {
    detail.map(|detail| format!(": {detail}")).unwrap_or_default()
}

impl Refusal for ClientError {
    fn kind(&self) -> ErrorKind {
        match self {
            ClientError::Busy { .. } | ClientError::Unacknowledged { .. } => ErrorKind::Busy,
            ClientError::Timeout { .. } => ErrorKind::Timeout,
            ClientError::Address { .. }
            | ClientError::Argument { .. }
            | ClientError::NotFound { .. }
            | ClientError::Source { .. }
            | ClientError::TooLarge { .. } => ErrorKind::Caller,
            ClientError::Refused { status: 400..=499, .. } => ErrorKind::Caller,
            _ => ErrorKind::Peer,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Busy { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

/// An object as a server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RemoteStat {
    /// Its name.
    #[serde(deserialize_with = "named")]
    pub id: ContentId,
    /// Its length.
    pub size: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Whether it is damaged and not served.
    pub quarantined: bool,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RemotePage {
    /// The objects, in the order of names.
    pub objects: Vec<RemoteStat>,
    /// Where to go on, if there is more.
    #[serde(default, deserialize_with = "maybe_named")]
    pub next: Option<ContentId>,
}

/// What a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RemoteUsage {
    /// Objects.
    pub objects: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// Objects that are pinned.
    pub pinned: u64,
    /// Objects that are damaged and not served.
    pub quarantined: u64,
    /// Bytes on its disk.
    pub disk_bytes: u64,
    /// Bytes of those that could be given back.
    pub garbage_bytes: u64,
    /// Bytes that are free there, if it has a disk.
    pub free_bytes: Option<u64>,
}

/// An object that a server has stored.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RemoteStored {
    /// Its name, as computed on both sides.
    #[serde(deserialize_with = "named")]
    pub id: ContentId,
    /// Its length.
    pub size: u64,
    /// What the acknowledgement stands for: `durable` or `buffered`.
    pub durability: String,
    /// Whether it was there before.
    pub existed: bool,
    /// How it is kept, if the server keeps objects with others.
    #[serde(default)]
    pub policy: Option<String>,
    /// How many nodes had it durably when the server answered, if it keeps objects with others.
    #[serde(default)]
    pub acknowledged: Option<u64>,
}

/// A value as it is in a query.
fn encoded(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+".contains(byte);
    value
        .bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[derive(Deserialize)]
struct Pinned {
    changed: bool,
}

#[derive(Deserialize)]
struct FetchedThere {
    received: u64,
}

fn named<'de, D: serde::Deserializer<'de>>(from: D) -> Result<ContentId, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn maybe_named<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<ContentId>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

/// How to put. The default is durable and unpinned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PutOptions {
    /// Pins it as it is stored.
    pub pin: bool,
    /// Does not wait for the server's disk.
    pub buffered: bool,
    /// How long it is, if that is known: the server can refuse what is too large at once. A source that gives more or fewer
    /// bytes is an error, and nothing is kept of it.
    pub len: Option<u64>,
    /// How it is kept, as in `2` or `6+3`, by a server that keeps objects with others; as that usually does without it.
    pub policy: Option<String>,
    /// When such a server answers: `local`, or a number of nodes.
    pub ack: Option<String>,
}

/// How a client is made. See [`Client::builder`].
pub struct Builder {
    address: String,
    token: Option<String>,
    connect: Option<Arc<exchange::Connect>>,
    stall: Duration,
    retries: u32,
    object_bytes_max: u64,
}

impl Builder {
    /// The token that changes need, sent with every request. Blanks and line ends around it, as a file has them, do not
    /// count.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().trim().to_owned());
        self
    }

    /// Makes connections in another way than over plain TCP: through TLS, a proxy, a Unix socket. It is given the host and
    /// the port of the address.
    #[must_use]
    pub fn connect<F, C>(mut self, connect: F) -> Self
    where
        F: Fn(String, u16) -> C + Send + Sync + 'static,
        C: Future<Output = io::Result<Box<dyn Connection>>> + Send + 'static,
    {
        self.connect = Some(Arc::new(move |host, port| Box::pin(connect(host, port))));
        self
    }

    /// How long a body may stand still before its connection is given up. Default 30 s.
    #[must_use]
    pub fn stall_timeout(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// How often in a row a broken fetch is resumed without having got any further. Default 4; with 0 it ends when its
    /// connection does.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// The largest object that is fetched. Default 1 TiB.
    #[must_use]
    pub fn object_bytes_max(mut self, bytes: u64) -> Self {
        self.object_bytes_max = bytes;
        self
    }

    /// The client. Nothing is asked yet.
    ///
    /// # Errors
    /// [`ClientError::Address`], and [`ClientError::Argument`] for the token.
    pub fn build(self) -> Result<Client, ClientError> {
        let wrong = |why| ClientError::Address { address: self.address.clone(), why };
        let uri: Uri = self.address.parse().map_err(|_| wrong("it is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            // Whoever speaks TLS has to be given; the address alone would be a promise that is not kept.
            Some("https") if self.connect.is_some() => true,
            Some("https") => return Err(wrong("https needs a connector, see Builder::connect")),
            _ => return Err(wrong("it begins with http://")),
        };
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it has no host"))?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err(wrong("credentials do not belong there"));
        }
        let token = match &self.token {
            None => None,
            Some(token) => {
                let value = http::HeaderValue::try_from(format!("Bearer {token}"));
                let unfit =
                    ClientError::Argument { what: "token", why: "it has characters that no token has" };
                let mut value = value.map_err(|_| unfit)?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let inner = Inner {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            authority,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            token,
            connect: self
                .connect
                .unwrap_or_else(|| Arc::new(|host, port| Box::pin(exchange::tcp(host, port)))),
            stall: self.stall,
            retries: self.retries,
            object_bytes_max: self.object_bytes_max,
        };
        Ok(Client { inner: Arc::new(inner) })
    }
}

impl fmt::Debug for Builder {
    /// Never the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("address", &self.address).finish_non_exhaustive()
    }
}

struct Inner {
    host: String,
    port: u16,
    authority: String,
    prefix: String,
    token: Option<http::HeaderValue>,
    connect: Arc<exchange::Connect>,
    stall: Duration,
    retries: u32,
    object_bytes_max: u64,
}

/// A server that is asked. Cloning shares it; it holds no connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// A client of the server at `address`, a URL below which the routes are: `http://127.0.0.1:4711` or
    /// `http://node.example/storage`.
    #[must_use]
    pub fn builder(address: impl Into<String>) -> Builder {
        Builder {
            address: address.into(),
            token: None,
            connect: None,
            stall: Duration::from_secs(30),
            retries: 4,
            object_bytes_max: 1 << 40,
        }
    }

    /// Begins to fetch an object, or the part of it in `range`. The deadline is for the first verified bytes; from then on
    /// each piece has the stall timeout. Dropping the future or the fetch ends it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get(
        &self,
        id: ContentId,
        range: impl RangeBounds<u64>,
        deadline: Deadline,
    ) -> Result<Fetch, ClientError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => Some(end.saturating_add(1)),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => None,
        };
        Fetch::begin(self.clone(), id, start, end, deadline).await
    }

    /// Stores what `source` yields, and checks that the server calls it what it is called. `deadline` is for all of it.
    ///
    /// # Errors
    /// [`ClientError`]. Whether it is stored after [`ClientError::Broken`] or [`ClientError::Timeout`] is not known; putting
    /// it again is harmless.
    pub async fn put<S, E>(
        &self,
        source: S,
        options: PutOptions,
        deadline: Deadline,
    ) -> Result<RemoteStored, ClientError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut query = String::new();
        let mut ask = |key: &str, value: &str| {
            query += if query.is_empty() { "?" } else { "&" };
            query += &format!("{key}={value}");
        };
        if options.pin {
            ask("pin", "true");
        }
        if options.buffered {
            ask("durability", "buffered");
        }
        for (key, value) in [("policy", &options.policy), ("ack", &options.ack)] {
            if let Some(value) = value {
                ask(key, &encoded(value));
            }
        }
        let (mut upload, sent) = Uploading::new(source, options.len);
        if options.len == Some(0) {
            let seen = deadline.limit("put", upload.see_empty()).await;
            seen.map_err(|_| ClientError::Timeout { op: "put" })?;
            if let Some(message) = sent.failed() {
                return Err(ClientError::Source { message });
            }
        }
        let request = self.request(Method::POST, &format!("/o{query}"), Outgoing::new(upload));
        let answer = deadline.limit("put", self.inner.ask(request, deadline)).await;
        if let Some(message) = sent.failed() {
            return Err(ClientError::Source { message });
        }
        let answer = answer.map_err(|_| ClientError::Timeout { op: "put" })??;
        let stored: Result<RemoteStored, _> = self.json("put", answer, None, deadline).await;
        let sent = sent.name();
        let stored = match stored {
            // Whatever the server calls it, it is what was sent.
            Err(ClientError::Unacknowledged { acknowledged, wanted, .. }) if sent.is_some() => {
                let id = sent.expect("it is some");
                return Err(ClientError::Unacknowledged { id, acknowledged, wanted });
            }
            stored => stored?,
        };
        if sent != Some(stored.id) {
            let sent = sent.unwrap_or_else(|| TreeHasher::new().finish().id);
            return Err(ClientError::Misnamed { sent, answered: stored.id.to_string() });
        }
        Ok(stored)
    }

    /// What the server knows of an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stat(&self, id: ContentId, deadline: Deadline) -> Result<RemoteStat, ClientError> {
        self.call("stat", Method::GET, &format!("/stat/{id}"), Some(id), deadline).await
    }

    /// Up to `limit` objects behind `after`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(
        &self,
        after: Option<ContentId>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<RemotePage, ClientError> {
        let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
        self.call("list", Method::GET, &format!("/o?limit={limit}{after}"), None, deadline).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete(&self, id: ContentId, deadline: Deadline) -> Result<(), ClientError> {
        let answer = self.send("delete", Method::DELETE, &format!("/o/{id}"), deadline).await?;
        self.body("delete", answer, Some(id), deadline).await.map(drop)
    }

    /// Pins an object, and says whether that is new.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pin(&self, id: ContentId, deadline: Deadline) -> Result<bool, ClientError> {
        let pinned: Pinned =
            self.call("pin", Method::PUT, &format!("/pins/{id}"), Some(id), deadline).await?;
        Ok(pinned.changed)
    }

    /// Takes a pin back, and says whether there was one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unpin(&self, id: ContentId, deadline: Deadline) -> Result<bool, ClientError> {
        let pinned: Pinned =
            self.call("unpin", Method::DELETE, &format!("/pins/{id}"), Some(id), deadline).await?;
        Ok(pinned.changed)
    }

    /// Makes the server fetch an object from other nodes: from the one named as `NODE_ID@IP:PORT`, or else from those that it
    /// finds. Returns how many bytes came; 0 if the object was there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fetch(
        &self,
        id: ContentId,
        from: Option<&str>,
        deadline: Deadline,
    ) -> Result<u64, ClientError> {
        // Of what a contact is written with, only the brackets of an address have to be told.
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@.:,-".contains(&byte));
        let from = from.map(|from| from.replace('[', "%5B").replace(']', "%5D"));
        let query = match &from {
            Some(from) if is_plain(&from.replace('%', "")) => format!("?from={from}"),
            Some(_) => {
                return Err(ClientError::Argument { what: "from", why: "it is no contact of a node" });
            }
            None => String::new(),
        };
        let fetched: FetchedThere =
            self.call("fetch", Method::POST, &format!("/fetch/{id}{query}"), Some(id), deadline).await?;
        Ok(fetched.received)
    }

    /// What the server keeps.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn usage(&self, deadline: Deadline) -> Result<RemoteUsage, ClientError> {
        self.call("usage", Method::GET, "/usage", None, deadline).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        op: &'static str,
        method: Method,
        path: &str,
        id: Option<ContentId>,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let answer = self.send(op, method, path, deadline).await?;
        self.json(op, answer, id, deadline).await
    }

    async fn send(
        &self,
        op: &'static str,
        method: Method,
        path: &str,
        deadline: Deadline,
    ) -> Result<Answer, ClientError> {
        let request = self.request(method, path, Outgoing::new(Empty::new().map_err(|never| match never {})));
        let asked = deadline.limit(op, self.inner.ask(request, deadline)).await;
        asked.map_err(|_| ClientError::Timeout { op })?
    }

    fn request(&self, method: Method, path: &str, body: Outgoing) -> Request<Outgoing> {
        let inner = &self.inner;
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", inner.prefix).parse().expect("a path and a name are a URI");
        let headers = request.headers_mut();
        let host = http::HeaderValue::try_from(&*inner.authority).expect("an authority is a header value");
        headers.insert(header::HOST, host);
        headers.insert(header::CONNECTION, http::HeaderValue::from_static("close"));
        if let Some(token) = &inner.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        request
    }

    async fn json<T: DeserializeOwned>(
        &self,
        op: &'static str,
        answer: Answer,
        id: Option<ContentId>,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let bytes = self.body(op, answer, id, deadline).await?;
        serde_json::from_slice(&bytes)
            .map_err(|_| ClientError::Stranger { why: "its answer is not the JSON that was expected" })
    }

    /// The body of an answer that succeeded, or the problem that it is.
    async fn body(
        &self,
        op: &'static str,
        answer: Answer,
        id: Option<ContentId>,
        deadline: Deadline,
    ) -> Result<Bytes, ClientError> {
        let (status, headers) = (answer.status, answer.headers.clone());
        let collected = deadline.limit(op, answer.collect(JSON_MAX)).await;
        let bytes = collected.map_err(|_| ClientError::Timeout { op })??;
        if status.is_success() { Ok(bytes) } else { Err(refused(status, &headers, &bytes, id)) }
    }
}

impl fmt::Debug for Client {
    /// Never the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}{})", self.inner.authority, self.inner.prefix)
    }
}

/// The error that a problem stands for.
fn refused(status: StatusCode, headers: &http::HeaderMap, body: &[u8], id: Option<ContentId>) -> ClientError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Told {
        code: String,
        title: String,
        detail: Option<String>,
        id: Option<String>,
        acknowledged: Option<u64>,
        wanted: Option<u64>,
    }
    let told: Told = serde_json::from_slice(body).unwrap_or_default();
    // A server that is not ours may refuse in words of its own.
    let code = if told.code.is_empty() { status.as_u16().to_string() } else { told.code };
    let stored = told.id.as_deref().and_then(|id| id.parse().ok()).filter(|_| code == "unacknowledged");
    if let (Some(id), Some(acknowledged), Some(wanted)) = (stored, told.acknowledged, told.wanted) {
        return ClientError::Unacknowledged { id, acknowledged, wanted };
    }
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let asked = Duration::from_secs(seconds.unwrap_or(1));
        return ClientError::Busy { code, retry_after: asked.min(RETRY_AFTER_MAX) };
    }
    match id {
        Some(id) if code == "no_such_object" => ClientError::NotFound { id },
        _ => {
            let title = if told.title.is_empty() { status.to_string() } else { told.title };
            ClientError::Refused { status: status.as_u16(), code, title, detail: told.detail }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test a step that fails is the failure")]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_wait_for_ever() {
        for (told, waits) in [("7", 7), ("18446744073709551615", 60), ("99999999999999999999", 1), ("-1", 1)]
        {
            let headers = [(header::RETRY_AFTER, told.parse().unwrap())].into_iter().collect();
            let error = refused(StatusCode::TOO_MANY_REQUESTS, &headers, b"", None);
            let ClientError::Busy { retry_after, .. } = error else { panic!("{error}") };
            assert_eq!(retry_after, Duration::from_secs(waits), "{told}");
        }
    }
}
