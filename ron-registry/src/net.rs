//! `ron/reg/1`: logs between nodes. Reading is for everybody; proposals and approvals need a capability.
//!
//! Bodies are deterministic CBOR with integer keys, see `docs/formats.md`. Whatever a node answers here is checked by who
//! asked, so nothing has to be believed.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use minicbor::Decoder;
use ron_core::{
    Deadline, LaneSpec, NodeId, Snapshot, Supervisor,
    auth::Authorizer,
    net::{
        Endpoint, NetError,
        cbor::{self, CborFault, read_bytes, read_list, read_only_map, required},
        oap::Code,
        rpc::{Call, Fault, Handling, Method, Peers, PeersSettings, Protocol, Request, RpcError, Service},
    },
};

use crate::{
    Approval, Outcome, Proposal, Receipt, Registry, RegistryError, SnapshotOffer, Source, SourceError,
    logic::{
        entry::APPROVALS_MAX,
        merkle::{PROOF_HASHES_MAX, TreeHash},
        note::{NOTE_BYTES_MAX, Note},
        policy::LABEL_BYTES_MAX,
        proposal::{FormError, ProposalId},
        snapshot::PART_BYTES_MAX,
        tiles::ENTRY_BYTES_MAX,
    },
    store::{BLOCK_ENTRIES_MAX, BoxFuture},
};

pub(crate) const LINKS: LaneSpec = LaneSpec::new("ron-registry", "links", 64)
    .flow("endpoint → sessions")
    .why("followers that come at once after a restart; taking one in is a task and a HELLO");

const PROTOCOL: Protocol = Protocol { alpn: "ron/reg/1", proto: 4, links: LINKS };

/// The numbers of the methods.
mod method {
    pub(super) const CHECKPOINT: u16 = 1;
    pub(super) const ENTRIES: u16 = 2;
    pub(super) const CONSISTENCY: u16 = 3;
    pub(super) const NEWS: u16 = 4;
    pub(super) const PROPOSE: u16 = 5;
    pub(super) const APPROVE: u16 = 6;
    pub(super) const SNAPSHOT: u16 = 7;
}

const CHECKPOINT: Method = Method { number: method::CHECKPOINT, name: "checkpoint" };
const ENTRIES: Method = Method { number: method::ENTRIES, name: "entries" };
const CONSISTENCY: Method = Method { number: method::CONSISTENCY, name: "consistency" };
const NEWS: Method = Method { number: method::NEWS, name: "news" };
const PROPOSE: Method = Method { number: method::PROPOSE, name: "propose" };
const APPROVE: Method = Method { number: method::APPROVE, name: "approve" };
const SNAPSHOT: Method = Method { number: method::SNAPSHOT, name: "snapshot" };

/// Bytes of entries in one answer; with the longest entry behind them it still fits what a caller gathers.
const ANSWER_BYTES: usize = 768 << 10;

/// How much before its caller gives up a question for news is answered.
const NEWS_MARGIN: Duration = Duration::from_secs(1);

/// Logs between nodes, on one endpoint. Cloning shares it; dropping the last clone asks it to stop.
#[derive(Clone)]
pub struct Links {
    peers: Peers,
    serving: Arc<Serving>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

impl Links {
    /// Speaks `ron/reg/1` on `endpoint` from now on. It refuses to answer until something is [served](Self::serve).
    ///
    /// # Errors
    /// [`NetError`], if something else speaks it there already.
    pub fn start(endpoint: &Endpoint, supervisor: &Supervisor) -> Result<Self, NetError> {
        Links::start_with(endpoint, PeersSettings::default(), supervisor)
    }

    /// [`start`](Self::start) with other limits than the default ones.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        endpoint: &Endpoint,
        settings: PeersSettings,
        supervisor: &Supervisor,
    ) -> Result<Self, NetError> {
        let serving = Arc::new(Serving { served: Snapshot::new(None) });
        let peers = Peers::start(endpoint, PROTOCOL, Arc::clone(&serving) as _, settings, supervisor)?;
        Ok(Links { peers, serving })
    }

    /// Answers for `registry`, until the node stops or something else is served. Who wants to propose or approve shows a
    /// capability, and `authorizer` is asked about `registry.propose` and `registry.approve`; without one nobody may.
    pub fn serve(&self, registry: &Registry, authorizer: Option<Arc<dyn Authorizer>>) {
        self.serving.served.replace(Some(Served { registry: registry.clone(), authorizer }));
    }

    /// The log of a peer, to [follow](Registry::follower).
    #[must_use]
    pub fn source(&self, peer: NodeId, addrs: &[SocketAddr]) -> PeerSource {
        PeerSource { links: self.clone(), peer, addrs: addrs.to_vec(), cosigned: false }
    }

    /// Proposes to a peer, with the capability that it wants.
    ///
    /// # Errors
    /// An [`RpcError`]; what the peer says about a proposal that it refuses is its reason.
    pub async fn propose(
        &self,
        to: (NodeId, &[SocketAddr]),
        proposal: &Proposal,
        cap: impl Into<Bytes>,
        deadline: Deadline,
    ) -> Result<Outcome, RpcError> {
        let told = self.ask(to, PROPOSE.cap(cap), proposal.encoded().clone(), deadline).await?;
        read_outcome(&told, proposal.id()).map_err(|_| stranger())
    }

    /// Approves a proposal at a peer, with the capability that it wants.
    ///
    /// # Errors
    /// As [`propose`](Self::propose).
    pub async fn approve(
        &self,
        to: (NodeId, &[SocketAddr]),
        approval: &Approval,
        cap: impl Into<Bytes>,
        deadline: Deadline,
    ) -> Result<Outcome, RpcError> {
        let told = self.ask(to, APPROVE.cap(cap), approval.encode().into(), deadline).await?;
        read_outcome(&told, approval.statement().proposal).map_err(|_| stranger())
    }

    async fn ask(
        &self,
        (peer, addrs): (NodeId, &[SocketAddr]),
        call: impl Into<Call>,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, RpcError> {
        self.peers.call(peer, addrs, call, body, deadline).await
    }
}

fn stranger() -> RpcError {
    RpcError::Refused { code: Code::Failed, reason: "its answer is none of a registry".to_owned() }
}

/// What a node answers with.
#[derive(Clone)]
struct Served {
    registry: Registry,
    authorizer: Option<Arc<dyn Authorizer>>,
}

struct Serving {
    served: Snapshot<Option<Served>>,
}

impl Service for Serving {
    fn call(&self, request: Request) -> Handling {
        let Some(Served { registry, authorizer }) = (*self.served.load()).clone() else {
            return Handling::Done(Err(Fault::new(Code::Unavailable, "no log is served here")));
        };
        let action = match request.method() {
            method::PROPOSE => Some("registry.propose"),
            method::APPROVE => Some("registry.approve"),
            _ => None,
        };
        // Before anything is decoded or queued.
        if let Some(action) = action {
            if let Err(fault) = request.authorize(authorizer.as_deref(), action) {
                return Handling::Done(Err(fault));
            }
        }
        match request.method() {
            method::CHECKPOINT => Handling::Done(checkpoint(&registry, &request)),
            method::ENTRIES => Handling::Pending(Box::pin(async move { entries(&registry, &request).await })),
            method::CONSISTENCY => Handling::Done(consistency(&registry, &request)),
            method::NEWS => Handling::Pending(Box::pin(async move { news(&registry, &request).await })),
            method::PROPOSE => Handling::Pending(Box::pin(async move {
                let proposal = Proposal::decode(request.body()).map_err(|error| form(&error))?;
                let outcome = registry.propose(proposal, request.deadline()).await;
                outcome.map(|outcome| write_outcome(&outcome)).map_err(fault)
            })),
            method::APPROVE => Handling::Pending(Box::pin(async move {
                let approval = Approval::decode(request.body()).map_err(|error| form(&error))?;
                let outcome = registry.approve(approval, request.deadline()).await;
                outcome.map(|outcome| write_outcome(&outcome)).map_err(fault)
            })),
            method::SNAPSHOT => {
                Handling::Pending(Box::pin(async move { snapshot(&registry, &request).await }))
            }
            _ => Handling::Done(Err(Fault::no_such_method())),
        }
    }
}

fn form(error: &FormError) -> Fault {
    Fault::bad_request(error.to_string())
}

fn fault(error: RegistryError) -> Fault {
    let words = error.to_string();
    match error {
        RegistryError::Busy { what, retry_after } => Fault::busy(what, retry_after),
        RegistryError::Timeout { .. } => Fault::new(Code::Timeout, words),
        RegistryError::NotFound { .. } | RegistryError::Lagging { .. } | RegistryError::NoSnapshot { .. } => {
            Fault::new(Code::NotFound, words)
        }
        RegistryError::ChainMismatch { .. } | RegistryError::Refused(_) | RegistryError::ReadOnly => {
            Fault::new(Code::Conflict, words)
        }
        RegistryError::Form(_) | RegistryError::BadApproval(_) | RegistryError::Proof(_) => {
            Fault::bad_request(words)
        }
        // Its words are for the owner of the disk.
        _ => {
            tracing::debug!(words, "refused");
            Fault::new(Code::Unavailable, "the store takes or gives nothing now")
        }
    }
}

/// Two numbers, as questions have them.
fn read_pair(body: &Bytes) -> Result<(u64, u64), Fault> {
    let (mut first, mut second) = (None, None);
    let read = read_only_map(body, |key, cbor| {
        match key {
            0 => first = Some(cbor.u64()?),
            1 => second = Some(cbor.u64()?),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    });
    let pair = read.and_then(|()| Ok((required(first, 0)?, required(second, 1)?)));
    pair.map_err(|_| Fault::bad_request("two numbers are wanted"))
}

fn write_pair(first: u64, second: u64) -> Bytes {
    cbor::encode(24, |cbor| cbor.map(2)?.u64(0)?.u64(first)?.u64(1)?.u64(second)?.ok()).into()
}

/// The first entry that is left, and entries from where it was asked.
async fn entries(registry: &Registry, request: &Request) -> Result<Bytes, Fault> {
    let (from, max) = read_pair(request.body())?;
    let max = usize::try_from(max).unwrap_or(usize::MAX).min(BLOCK_ENTRIES_MAX);
    let (mut found, mut bytes): (Vec<Bytes>, usize) = (Vec::new(), 0);
    'reading: while found.len() < max && bytes < ANSWER_BYTES {
        let next = from.max(1) + found.len() as u64;
        let more = match registry.entries(next, max - found.len(), request.deadline()).await {
            // Said by what is first.
            Err(RegistryError::Lagging { .. }) if found.is_empty() => break,
            more => more.map_err(fault)?,
        };
        if more.is_empty() {
            break;
        }
        for entry in more {
            if bytes + entry.len() > ANSWER_BYTES && !found.is_empty() {
                break 'reading;
            }
            bytes += entry.len();
            found.push(entry);
        }
    }
    let answer = cbor::encode(bytes + 8 * found.len() + 32, |cbor| {
        cbor.map(2)?.u64(0)?.u64(registry.status().first)?.u64(1)?.array(found.len() as u64)?;
        found.iter().try_for_each(|entry| cbor.bytes(entry).map(drop))
    });
    Ok(answer.into())
}

/// Which snapshot there is, if it is not said which is wanted; or bytes of a part of it from an offset on.
async fn snapshot(registry: &Registry, request: &Request) -> Result<Bytes, Fault> {
    let (mut version, mut part, mut offset) = (None, None, None);
    let read = read_only_map(request.body(), |key, cbor| {
        match key {
            0 => version = Some(cbor.u64()?),
            1 => part = Some(cbor.u32()?),
            2 => offset = Some(cbor.u64()?),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    });
    read.map_err(|_| Fault::bad_request("a version, a part and an offset are wanted, or nothing"))?;
    let answer = match version {
        None => {
            let offer = registry.snapshot(request.deadline()).await.map_err(fault)?;
            let SnapshotOffer { version, parts } = offer.unwrap_or(SnapshotOffer { version: 0, parts: 0 });
            cbor::encode(32, |cbor| cbor.map(2)?.u64(0)?.u64(version)?.u64(1)?.u32(parts)?.ok())
        }
        Some(version) => {
            let found = registry.snapshot_part(version, part.unwrap_or(0), request.deadline()).await;
            let bytes = found.map_err(fault)?;
            let from = usize::try_from(offset.unwrap_or(0)).unwrap_or(usize::MAX).min(bytes.len());
            let some = &bytes[from..bytes.len().min(from + ANSWER_BYTES)];
            cbor::encode(some.len() + 32, |cbor| {
                cbor.map(2)?.u64(2)?.u64(bytes.len() as u64)?.u64(3)?.bytes(some)?.ok()
            })
        }
    };
    Ok(answer.into())
}

/// What is asked about a snapshot: which, which part, from where on.
fn write_snapshot_question(version: u64, part: u32, offset: u64) -> Bytes {
    let question = cbor::encode(32, |cbor| {
        cbor.map(3)?.u64(0)?.u64(version)?.u64(1)?.u32(part)?.u64(2)?.u64(offset)?.ok()
    });
    question.into()
}

fn read_offer(body: &Bytes) -> Result<Option<SnapshotOffer>, SourceError> {
    let (mut version, mut parts) = (None, None);
    let read = read_only_map(body, |key, cbor| {
        match key {
            0 => version = Some(cbor.u64()?),
            1 => parts = Some(cbor.u32()?),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    });
    let offer = read.and_then(|()| Ok((required(version, 0)?, required(parts, 1)?)));
    let (version, parts) = offer.map_err(|_| malformed("a snapshot"))?;
    Ok((version > 0).then_some(SnapshotOffer { version, parts }))
}

/// How long the part is, and bytes of it.
fn read_piece(body: &Bytes) -> Result<(usize, Bytes), SourceError> {
    let (mut total, mut piece) = (None, None);
    let read = read_only_map(body, |key, cbor| {
        match key {
            2 => total = Some(cbor.u64()?),
            3 => piece = Some(body.slice_ref(read_bytes(cbor, ("snapshot", ANSWER_BYTES))?)),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    });
    let found = read.and_then(|()| Ok((required(total, 2)?, required(piece, 3)?)));
    let (total, piece) = found.map_err(|_| malformed("a part of a snapshot"))?;
    let total = usize::try_from(total).ok().filter(|total| *total <= PART_BYTES_MAX);
    Ok((total.ok_or_else(|| malformed("a part of a snapshot"))?, piece))
}

/// The head; with a body the last one that witnesses have signed.
fn checkpoint(registry: &Registry, request: &Request) -> Result<Bytes, Fault> {
    if request.body().is_empty() {
        return Ok(registry.checkpoint().to_string().into());
    }
    let mut cosigned = None;
    let read = read_only_map(request.body(), |key, cbor| {
        if key == 0 {
            cosigned = Some(cbor.u64()?);
        }
        Ok::<bool, CborFault>(key == 0)
    });
    if read.is_err() || cosigned != Some(1) {
        return Err(Fault::bad_request("nothing is wanted, or that it was cosigned"));
    }
    let none = || Fault::new(Code::NotFound, "no witness has signed a head yet");
    registry.cosigned().map(|note| note.to_string().into()).ok_or_else(none)
}

fn consistency(registry: &Registry, request: &Request) -> Result<Bytes, Fault> {
    let (old, new) = read_pair(request.body())?;
    let proof = registry.prove_consistency(old, new).map_err(fault)?;
    Ok(proof.iter().flat_map(|hash| *hash.as_bytes()).collect::<Vec<u8>>().into())
}

/// The head, as soon as it is farther than the caller knows, or when its time is nearly over.
async fn news(registry: &Registry, request: &Request) -> Result<Bytes, Fault> {
    let (after, _) = read_pair(request.body())?;
    let patience = request.deadline().remaining().saturating_sub(NEWS_MARGIN);
    // Who is behind is not read to from the log: whatever is there, the head says more.
    if registry.head().version <= after {
        let mut updates = registry.updates(after.saturating_add(1));
        let _ = Deadline::after(patience).limit("news", updates.next()).await;
    }
    Ok(registry.checkpoint().to_string().into())
}

fn write_outcome(outcome: &Outcome) -> Bytes {
    let told = cbor::encode(512, |cbor| match outcome {
        Outcome::Pending { missing, .. } => {
            cbor.map(1)?.u64(0)?.array(missing.len() as u64)?;
            missing.iter().try_for_each(|name| cbor.str(name).map(drop))
        }
        Outcome::Committed(receipt) => {
            cbor.map(2)?.u64(1)?.u64(receipt.version)?.u64(2)?.str(&receipt.checkpoint.to_string())?.ok()
        }
    });
    told.into()
}

fn read_outcome(body: &Bytes, proposal: ProposalId) -> Result<Outcome, CborFault> {
    let (mut missing, mut version, mut note) = (None, None, None);
    read_only_map(body, |key, cbor| {
        match key {
            0 => missing = Some(read_list(cbor, ("missing", APPROVALS_MAX), read_label)?),
            1 => version = Some(cbor.u64()?),
            2 => note = Some(cbor.str()?.to_owned()),
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    })?;
    if let Some(missing) = missing {
        return Ok(Outcome::Pending { proposal, missing });
    }
    let note = Note::parse(required(note, 2)?.as_bytes()).map_err(|_| CborFault::Malformed)?;
    Ok(Outcome::Committed(Receipt { version: required(version, 1)?, proposal, checkpoint: Arc::new(note) }))
}

fn read_label(cbor: &mut Decoder<'_>) -> Result<String, CborFault> {
    let label = cbor.str()?;
    if label.len() > LABEL_BYTES_MAX { Err(CborFault::Malformed) } else { Ok(label.to_owned()) }
}

/// A peer's log.
#[derive(Debug, Clone)]
pub struct PeerSource {
    links: Links,
    peer: NodeId,
    addrs: Vec<SocketAddr>,
    cosigned: bool,
}

impl PeerSource {
    /// Asks for heads that witnesses have signed, which may be older: for a [`LogTrust`](crate::LogTrust) that wants some.
    #[must_use]
    pub fn cosigned(mut self) -> Self {
        self.cosigned = true;
        self
    }

    async fn ask(&self, method: Method, body: Bytes, deadline: Deadline) -> Result<Bytes, SourceError> {
        let answer = self.links.ask((self.peer, &self.addrs), method, body, deadline).await;
        answer.map_err(|error| match error {
            RpcError::Refused { .. } => SourceError::Refused { message: error.to_string() },
            error => SourceError::Away { message: error.to_string() },
        })
    }
}

fn malformed(what: &str) -> SourceError {
    SourceError::Malformed { message: what.to_owned() }
}

fn read_entries(body: &Bytes, from: u64) -> Result<Vec<Bytes>, SourceError> {
    let (mut first, mut entries) = (None, None);
    let read = read_only_map(body, |key, cbor| {
        match key {
            0 => first = Some(cbor.u64()?),
            1 => {
                let entry = |cbor: &mut Decoder<'_>| {
                    Ok::<_, CborFault>(Bytes::copy_from_slice(read_bytes(cbor, ("entry", ENTRY_BYTES_MAX))?))
                };
                entries = Some(read_list(cbor, ("entries", BLOCK_ENTRIES_MAX), entry)?);
            }
            _ => return Ok(false),
        }
        Ok::<bool, CborFault>(true)
    });
    let found = read.and_then(|()| Ok((required(first, 0)?, required(entries, 1)?)));
    match found.map_err(|_| malformed("entries"))? {
        (first, entries) if entries.is_empty() && first > from => Err(SourceError::Pruned { first }),
        (_, entries) => Ok(entries),
    }
}

/// Hashes behind each other.
fn read_hashes(body: &Bytes) -> Result<Vec<TreeHash>, SourceError> {
    let hashes = body.chunks_exact(TreeHash::BYTES);
    if !hashes.remainder().is_empty() || hashes.len() > PROOF_HASHES_MAX {
        return Err(malformed("a proof"));
    }
    Ok(hashes.map(|hash| TreeHash::from_bytes(hash.try_into().expect("32 bytes"))).collect())
}

impl Source for PeerSource {
    fn checkpoint(&self, deadline: Deadline) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            // A map with the one key there is.
            let question = if self.cosigned { &[0xa1, 0x00, 0x01][..] } else { &[] };
            let note = self.ask(CHECKPOINT, Bytes::from_static(question), deadline).await?;
            if note.len() > NOTE_BYTES_MAX { Err(malformed("a checkpoint")) } else { Ok(note) }
        })
    }

    fn entries(
        &self,
        from: u64,
        max: usize,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, SourceError>> {
        Box::pin(async move {
            read_entries(&self.ask(ENTRIES, write_pair(from, max as u64), deadline).await?, from)
        })
    }

    fn consistency(
        &self,
        old: u64,
        new: u64,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<TreeHash>, SourceError>> {
        Box::pin(async move { read_hashes(&self.ask(CONSISTENCY, write_pair(old, new), deadline).await?) })
    }

    fn snapshot(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<SnapshotOffer>, SourceError>> {
        Box::pin(async move { read_offer(&self.ask(SNAPSHOT, Bytes::from_static(&[0xa0]), deadline).await?) })
    }

    fn snapshot_part(
        &self,
        version: u64,
        part: u32,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(async move {
            let mut whole: Vec<u8> = Vec::new();
            loop {
                let question = write_snapshot_question(version, part, whole.len() as u64);
                let (total, piece) = read_piece(&self.ask(SNAPSHOT, question, deadline).await?)?;
                let is_more = !piece.is_empty() && whole.len() + piece.len() <= total;
                if !is_more && whole.len() < total {
                    return Err(malformed("a part of a snapshot"));
                }
                whole.extend_from_slice(&piece);
                if whole.len() >= total {
                    return Ok(whole.into());
                }
            }
        })
    }

    fn news(&self, after: u64, deadline: Deadline) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async move { self.ask(NEWS, write_pair(after, 0), deadline).await.map(drop) })
    }
}
