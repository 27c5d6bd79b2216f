//! Asking a registry over HTTP, and following one through it (feature `client`).
//!
//! Nothing that a server says is believed where it can be checked: [`Client::name`], [`Client::proof`] and what a
//! [follower](crate::Registry::follower) reads come with their proofs. Each request has a connection of its own, which is driven by
//! whoever waits for the answer.

use std::{
    fmt,
    future::{Future as _, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use data_encoding::BASE64;
use http::{Request, StatusCode, header};
use http_body::Body as _;
use http_body_util::Full;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use ron_core::{Deadline, ErrorKind, Refusal};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::{
    Approval, LogTrust, Name, NameAnswer, NameAnswerError, NameProof, Policy, Proposal, ProposalId,
    SnapshotOffer, Source, SourceError, TreeHash,
    json::{
        ApproveBody, ConsistencyBody, EntriesBody, FoundBody, HeadBody, NameBody, OutcomeBody, PendingBody,
        PolicyInForce, SnapshotBody, SubmitBody, WaitingBody,
    },
    logic::{checkpoint::ProofFile, names::Latest, note::NOTE_BYTES_MAX, tiles::read_bundle_up_to},
    store::{BLOCK_ENTRIES_MAX, BoxFuture},
};

/// Bytes of the largest answer that is taken: an answer with the most entries, as JSON, and a part of a snapshot.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Proposals that are listed at most: sixteen times as many as wait by default.
const PENDING_MAX: usize = 1 << 16;

/// The type of an entry, and of a part of a snapshot.
const CBOR: &str = "application/cbor";

/// Why a registry elsewhere did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address is not `http://`, a host, and perhaps a port and a path.
    #[error("{url:?} is no address of a registry: http://, a host, and perhaps a port and a path")]
    Address {
        /// What was given.
        url: String,
    },
    /// It cannot be reached.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// Who.
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
        /// How.
        source: hyper::Error,
    },
    /// It refused.
    #[error("{status} {code}: {words}")]
    Refused {
        /// The status.
        status: u16,
        /// For programs.
        code: String,
        /// For people.
        words: String,
        /// When to ask again, if that helps.
        retry_after: Option<Duration>,
    },
    /// What it answered is not what a registry answers.
    #[error("not an answer of a registry: {why}")]
    Stranger {
        /// What is wrong.
        why: String,
    },
    /// What it said about a name is not proven.
    #[error("what it said is not proven")]
    Unproven(#[from] NameAnswerError),
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

fn stranger(why: impl Into<String>) -> ClientError {
    ClientError::Stranger { why: why.into() }
}

fn broken(source: hyper::Error) -> ClientError {
    ClientError::Broken { source }
}

/// A registry elsewhere. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    host: String,
    port: u16,
    authority: String,
    /// The path before the routes, without a slash at its end.
    base: String,
    token: Option<String>,
    /// Whether heads and proofs are to be those that witnesses have signed.
    cosigned: bool,
}

impl fmt::Debug for Client {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client(http://{}{})", self.authority, self.base)
    }
}

impl Client {
    /// The registry whose routes are below `url`, such as `http://127.0.0.1:4711/registry`.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let refused = || ClientError::Address { url: url.to_owned() };
        let uri: http::Uri = url.parse().map_err(|_| refused())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(refused)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Client {
            host,
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            base: uri.path().trim_end_matches('/').to_owned(),
            token: None,
            cosigned: false,
        })
    }

    /// Asks for heads and proofs that witnesses have signed, which may be older: for a [`LogTrust`] that wants some.
    #[must_use]
    pub fn cosigned(mut self) -> Self {
        self.cosigned = true;
        self
    }

    /// The query of a request that asks for what witnesses have signed.
    fn of_witnesses(&self) -> &'static str {
        if self.cosigned { "?cosigned=1" } else { "" }
    }

    /// Shows this token with every request.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Where the log ends. Its checkpoint is signed; the rest is what the server says.
    ///
    /// # Errors
    /// A [`ClientError`], as all that follow.
    pub async fn head(&self, deadline: Deadline) -> Result<HeadBody, ClientError> {
        self.json("head", deadline).await
    }

    /// The policy in force, as the server says.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn policy(&self, deadline: Deadline) -> Result<PolicyInForce, ClientError> {
        self.json("policy", deadline).await
    }

    /// Entries to look at.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn log(
        &self,
        from: Option<u64>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<EntriesBody, ClientError> {
        let from = from.map_or(String::new(), |from| format!("from={from}&"));
        self.json(&format!("entries?{from}limit={limit}"), deadline).await
    }

    /// The bytes of an entry.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn entry(&self, version: u64, deadline: Deadline) -> Result<Bytes, ClientError> {
        self.get(&version.to_string(), CBOR, deadline).await
    }

    /// The proof that an entry is in the log.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn proof(&self, version: u64, deadline: Deadline) -> Result<ProofFile, ClientError> {
        let path = format!("proofs/{version}{}", self.of_witnesses());
        let bytes = self.get(&path, "text/plain", deadline).await?;
        ProofFile::parse(&bytes).map_err(|error| stranger(error.to_string()))
    }

    /// What a name stands for, checked against `trust`.
    ///
    /// # Errors
    /// As [`head`](Self::head), and [`ClientError::Unproven`].
    pub async fn name(
        &self,
        name: &Name,
        trust: &LogTrust,
        deadline: Deadline,
    ) -> Result<Option<Latest>, ClientError> {
        let body: NameBody = self.json(&format!("names/{}", in_path(name)), deadline).await?;
        let bytes = |text: &str| BASE64.decode(text.as_bytes()).map_err(|error| stranger(error.to_string()));
        let answer = NameAnswer {
            latest: None,
            proof: NameProof::decode(&bytes(&body.proof)?).map_err(|error| stranger(error.to_string()))?,
            entry: bytes(&body.entry)?.into(),
            inclusion: ProofFile::parse(body.inclusion.as_bytes())
                .map_err(|error| stranger(error.to_string()))?,
        };
        Ok(answer.verify(name, trust)?)
    }

    /// The proposals that wait for approvals, in the order in which they expire. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn pending(&self, deadline: Deadline) -> Result<Vec<PendingBody>, ClientError> {
        let (mut all, mut path) = (Vec::new(), "proposals?limit=1024".to_owned());
        loop {
            let WaitingBody { proposals, next } = self.json(&path, deadline).await?;
            // Whoever goes on without giving anything would never come to an end.
            let is_more = !proposals.is_empty();
            all.extend(proposals);
            match next.filter(|_| is_more) {
                Some(next) => path = format!("proposals?limit=1024&after={next}"),
                None => return Ok(all),
            }
            if all.len() > PENDING_MAX {
                return Err(stranger("more waits there than anybody could look at"));
            }
        }
    }

    /// A proposal that waits for approvals; `None` if it does not wait. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn waiting(
        &self,
        id: &ProposalId,
        deadline: Deadline,
    ) -> Result<Option<PendingBody>, ClientError> {
        match self.json(&format!("proposals/{id}"), deadline).await {
            Err(ClientError::Refused { status: 404, code, .. }) if code == "no_such_proposal" => Ok(None),
            found => found.map(Some),
        }
    }

    /// Begins the log. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn found(&self, policy: &Policy, deadline: Deadline) -> Result<OutcomeBody, ClientError> {
        self.post("found", &FoundBody { policy: BASE64.encode(policy.encoded()) }, deadline).await
    }

    /// Proposes. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn propose(&self, proposal: &Proposal, deadline: Deadline) -> Result<OutcomeBody, ClientError> {
        self.post("proposals", &submission(proposal, &[]), deadline).await
    }

    /// Approves. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn approve(&self, approval: &Approval, deadline: Deadline) -> Result<OutcomeBody, ClientError> {
        self.post("approvals", &ApproveBody { approval: BASE64.encode(&approval.encode()) }, deadline).await
    }

    /// Proposes with approvals. Needs a token.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    pub async fn commit(
        &self,
        proposal: &Proposal,
        approvals: &[Approval],
        deadline: Deadline,
    ) -> Result<OutcomeBody, ClientError> {
        self.post("commit", &submission(proposal, approvals), deadline).await
    }

    async fn json<T: DeserializeOwned>(&self, path: &str, deadline: Deadline) -> Result<T, ClientError> {
        let bytes = self.get(path, "application/json", deadline).await?;
        serde_json::from_slice(&bytes).map_err(|error| stranger(error.to_string()))
    }

    async fn get(&self, path: &str, accept: &str, deadline: Deadline) -> Result<Bytes, ClientError> {
        let request = self.request("GET", path).header(header::ACCEPT, accept);
        self.gather("get", request.body(Full::default()), deadline).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
        deadline: Deadline,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).expect("strings and lists can be written");
        let request = self.request("POST", path).header(header::CONTENT_TYPE, "application/json");
        let bytes = self.gather("post", request.body(Full::new(body.into())), deadline).await?;
        serde_json::from_slice(&bytes).map_err(|error| stranger(error.to_string()))
    }

    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}/{path}", self.base));
        let request = request.header(header::HOST, &self.authority);
        match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    /// Asks, and reads the whole answer.
    async fn gather(
        &self,
        op: &'static str,
        request: http::Result<Request<Full<Bytes>>>,
        deadline: Deadline,
    ) -> Result<Bytes, ClientError> {
        let (answer, whole) = self.gather_up_to(ANSWER_BYTES_MAX, op, request, deadline).await?;
        answer.judge(whole)
    }

    async fn gather_up_to(
        &self,
        bytes_max: usize,
        op: &'static str,
        request: http::Result<Request<Full<Bytes>>>,
        deadline: Deadline,
    ) -> Result<(Answer, Bytes), ClientError> {
        let request = request.map_err(|error| stranger(error.to_string()))?;
        let asked = async {
            let mut answer = self.ask(request).await?;
            let mut whole = BytesMut::new();
            while let Some(bytes) = answer.data().await? {
                if whole.len() + bytes.len() > bytes_max {
                    return Err(stranger("its answer is too long"));
                }
                whole.extend_from_slice(&bytes);
            }
            Ok((answer, whole.freeze()))
        };
        deadline.limit(op, asked).await.map_err(|_| ClientError::Timeout { op })?
    }

    /// Posts text, and gives the answer as it is: for servers that are no registries.
    pub(crate) async fn exchange(
        &self,
        path: &'static str,
        body: Bytes,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let request = self.request("POST", path).header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
        let request = request.body(Full::new(body));
        let (answer, whole) = self.gather_up_to(bytes_max, path, request, deadline).await?;
        Ok((answer.status, whole))
    }

    /// Sends a request, and waits for the head of the answer.
    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Answer, ClientError> {
        let unreachable = |source| ClientError::Unreachable { server: self.authority.clone(), source };
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut driver = Some(driver);
        let mut asked = pin!(sender.send_request(request));
        let response = poll_fn(|cx| {
            loop {
                if let Poll::Ready(response) = asked.as_mut().poll(cx) {
                    return Poll::Ready(response);
                }
                if poll_driver(&mut driver, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        });
        let (head, body) = response.await.map_err(broken)?.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body, driver })
    }
}

/// A name as a part of a path. It may have characters that end a path, or that say that others follow.
fn in_path(name: &Name) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/');
    let mut path = String::with_capacity(name.as_str().len());
    for byte in name.as_str().bytes() {
        match is_plain(byte) {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

fn submission(proposal: &Proposal, approvals: &[Approval]) -> SubmitBody {
    SubmitBody {
        proposal: BASE64.encode(proposal.encoded()),
        approvals: approvals.iter().map(|approval| BASE64.encode(&approval.encode())).collect(),
    }
}

type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// Lets the connection go on. Ready once, when it is over; what was wrong with it is told by who waits for its answer.
fn poll_driver(driver: &mut Option<Driver>, cx: &mut Context<'_>) -> Poll<()> {
    match driver {
        Some(connection) => {
            let _ = ready!(Pin::new(connection).poll(cx));
            *driver = None;
            Poll::Ready(())
        }
        None => Poll::Pending,
    }
}

/// An answer whose body is still to be read.
struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Incoming,
    driver: Option<Driver>,
}

impl Answer {
    async fn data(&mut self) -> Result<Option<Bytes>, ClientError> {
        poll_fn(|cx| {
            loop {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Ready(None) => return Poll::Ready(Ok(None)),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(broken(error))),
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            return Poll::Ready(Ok(Some(data)));
                        }
                    }
                    Poll::Pending => ready!(poll_driver(&mut self.driver, cx)),
                }
            }
        })
        .await
    }

    /// The body, if it is the answer that was hoped for.
    fn judge(&self, body: Bytes) -> Result<Bytes, ClientError> {
        if self.status.is_success() {
            return Ok(body);
        }
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let word = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
        let retry = self.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(ClientError::Refused {
            status: self.status.as_u16(),
            code: word("code"),
            words: if word("detail").is_empty() { word("title") } else { word("detail") },
            retry_after: retry.map(Duration::from_secs),
        })
    }
}

fn away(error: ClientError) -> SourceError {
    let message = match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    match error {
        ClientError::Stranger { .. } => SourceError::Malformed { message },
        ClientError::Refused { status: 400..=499, .. } => SourceError::Refused { message },
        _ => SourceError::Away { message },
    }
}

impl Source for Client {
    fn checkpoint(&self, deadline: Deadline) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let path = format!("checkpoint{}", self.of_witnesses());
            let note = self.get(&path, "text/plain", deadline).await.map_err(away)?;
            let message = "a checkpoint that is too long".to_owned();
            if note.len() > NOTE_BYTES_MAX { Err(SourceError::Malformed { message }) } else { Ok(note) }
        })
    }

    fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>> {
        Box::pin(async move {
            let path = format!("entries?from={from}&limit={}", max.min(BLOCK_ENTRIES_MAX));
            let bundle = match self.get(&path, "application/octet-stream", deadline).await {
                Err(ClientError::Refused { status: 410, .. }) => {
                    let first = self.head(deadline).await.map_err(away)?.first;
                    return Err(SourceError::Pruned { first });
                }
                bundle => bundle.map_err(away)?,
            };
            let malformed = || SourceError::Malformed { message: "a bundle of entries".to_owned() };
            let entries = read_bundle_up_to(&bundle, BLOCK_ENTRIES_MAX).ok_or_else(malformed)?;
            Ok(entries.into_iter().map(|entry| bundle.slice_ref(entry)).collect())
        })
    }

    fn consistency(
        &self,
        old: u64,
        new: u64,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>> {
        Box::pin(async move {
            let path = format!("consistency?old={old}&new={new}");
            let body: ConsistencyBody = self.json(&path, deadline).await.map_err(away)?;
            let hashes: Option<Vec<TreeHash>> =
                body.hashes.iter().map(|text| TreeHash::from_base64(text)).collect();
            hashes.ok_or_else(|| SourceError::Malformed { message: "a proof".to_owned() })
        })
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<SnapshotOffer>, SourceError>> {
        Box::pin(async move {
            match self.json::<SnapshotBody>("snapshot", deadline).await {
                Ok(SnapshotBody { version, parts }) => Ok(Some(SnapshotOffer { version, parts })),
                Err(ClientError::Refused { status: 404, .. }) => Ok(None),
                Err(error) => Err(away(error)),
            }
        })
    }

    fn snapshot_part(
        &self,
        version: u64,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            self.get(&format!("snapshot/{version}/{part}"), CBOR, deadline).await.map_err(away)
        })
    }

    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            let request = self.request("GET", &format!("stream?from={}", after.saturating_add(1)));
            let request = request.body(Full::default());
            let request = request.map_err(|error| away(stranger(error.to_string())))?;
            let first = async {
                let mut answer = self.ask(request).await?;
                let mut seen = Vec::new();
                while let Some(bytes) = answer.data().await? {
                    // A comment is only a sign of life.
                    seen.extend_from_slice(&bytes);
                    if seen.windows(5).any(|five| five == b"data:") || seen.len() > NOTE_BYTES_MAX {
                        return Ok(());
                    }
                }
                answer.judge(Bytes::new()).map(drop)
            };
            match deadline.limit("news", first).await {
                Ok(heard) => heard.map_err(away),
                Err(_) => Ok(()),
            }
        })
    }
}
