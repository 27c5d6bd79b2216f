//! Having the heads of a log signed by witnesses (C2SP `tlog-witness`), which sign only heads that continue what they have
//! seen.
//!
//! A log alone can show two different histories to two readers. A witness that both readers rely on cannot be shown two: it
//! remembers the last head that it has signed, and wants proof that the next one continues it. How far it has seen need not
//! be known here: a witness that is told wrong answers what it has seen.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use ron_core::{Deadline, ErrorKind, Refusal, Restart, Stop, TaskSpec};
use tokio::time::sleep;

use crate::{
    CheckpointError, KeyKind, LogTrust, Note, NoteError, NoteVerifier, Registry, RegistryError,
    client::{Client, ClientError},
    logic::checkpoint::{Checkpoint, witness_request},
    metrics::{COSIGNED_VERSION, WITNESS_ERRORS},
    shared::Shared,
};

pub(crate) const WITNESSES: TaskSpec = TaskSpec::new("ron-registry", "witnesses")
    .restart(Restart::PATIENT)
    .what("shows the head to witnesses, and keeps what they have signed");

/// How long one witness may take.
const ASKING: Duration = Duration::from_secs(10);

/// Times that a witness is asked for one head: what it has seen is not known at first, and others may ask it, too.
const ATTEMPTS: usize = 3;

/// Bytes of the longest answer: a size, or some signatures.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Why a witness did not sign.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// The key is that of a log and not of a witness: its signatures have no time.
    #[error("{name} is not the key of a witness")]
    NotAWitness {
        /// What it is called.
        name: String,
    },
    /// It cannot be asked, or refused for a reason of its own: it does not know the log, or not its key.
    #[error("the witness {name}")]
    Client {
        /// Which.
        name: String,
        /// Why.
        source: ClientError,
    },
    /// It has seen a longer log than this one is. This log was rolled back, or another one has its key.
    #[error("the witness {name} has seen {seen} entries, and there are {size}")]
    Ahead {
        /// Which.
        name: String,
        /// What it has seen.
        seen: u64,
        /// What there is.
        size: u64,
    },
    /// It has seen another log: what it was shown does not go on from it.
    #[error("the witness {name} has seen another log of {seen} entries")]
    Split {
        /// Which.
        name: String,
        /// How long that was.
        seen: u64,
    },
    /// The proof that it wants cannot be made: what it takes was pruned here.
    #[error("no proof for the witness {name}")]
    Proof {
        /// Which.
        name: String,
        /// Why.
        source: RegistryError,
    },
    /// What it answered is not its signature.
    #[error("the answer of the witness {name}")]
    Answer {
        /// Which.
        name: String,
        /// What is wrong with it.
        source: CheckpointError,
    },
}

impl WitnessError {
    fn label(&self) -> &'static str {
        match self {
            WitnessError::NotAWitness { .. } | WitnessError::Client { .. } => "away",
            WitnessError::Ahead { .. } => "ahead",
            WitnessError::Split { .. } => "split",
            WitnessError::Proof { .. } => "proof",
            WitnessError::Answer { .. } => "answer",
        }
    }
}

impl Refusal for WitnessError {
    fn kind(&self) -> ErrorKind {
        match self {
            WitnessError::NotAWitness { .. } => ErrorKind::Caller,
            WitnessError::Client { source, .. } => source.kind(),
            WitnessError::Proof { source, .. } => source.kind(),
            WitnessError::Ahead { .. } | WitnessError::Split { .. } | WitnessError::Answer { .. } => {
                ErrorKind::Peer
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            WitnessError::Client { source, .. } => source.retry_after(),
            _ => None,
        }
    }
}

/// A server that signs the heads of logs that have only grown.
#[derive(Clone)]
pub struct Witness {
    at: Client,
    trusted: NoteVerifier,
    /// What it has seen, as far as is known here.
    seen: Arc<AtomicU64>,
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness({} at {:?})", self.trusted, self.at)
    }
}

impl Witness {
    /// The witness with this key, whose `add-checkpoint` is below `url`.
    ///
    /// # Errors
    /// [`WitnessError::NotAWitness`], and [`ClientError::Address`] for an address that is none.
    pub fn new(url: &str, key: NoteVerifier) -> Result<Self, WitnessError> {
        let name = key.name().to_owned();
        if key.kind() != KeyKind::Cosignature {
            return Err(WitnessError::NotAWitness { name });
        }
        let at = Client::new(url).map_err(|source| WitnessError::Client { name, source })?;
        Ok(Witness { at, trusted: key, seen: Arc::default() })
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &NoteVerifier {
        &self.trusted
    }

    /// Has the head of `registry` signed, and keeps the signature there: see [`Registry::cosigned`]. Returns how many entries
    /// the head covers.
    ///
    /// # Errors
    /// A [`WitnessError`].
    pub async fn cosign(&self, registry: &Registry, deadline: Deadline) -> Result<u64, WitnessError> {
        let note = registry.checkpoint();
        let trust = LogTrust::new(registry.log_key()).witnessed_by([self.trusted.clone()], 1);
        let (head, lines) = self.ask(registry.shared(), &note, deadline).await?;
        let added = registry.add_cosignatures(&note, &lines, &trust);
        added.map_err(|source| self.bad_answer(source)).map(|_| head.size)
    }

    fn bad_answer(&self, source: CheckpointError) -> WitnessError {
        WitnessError::Answer { name: self.trusted.name().to_owned(), source }
    }

    /// Asks it to sign a head of this log. What it answers is a signature by its key.
    async fn ask(
        &self,
        shared: &Shared,
        note: &Note,
        deadline: Deadline,
    ) -> Result<(Checkpoint, String), WitnessError> {
        let name = || self.trusted.name().to_owned();
        let client = |source| WitnessError::Client { name: name(), source };
        let head = shared.trust.open(note).map_err(|source| self.bad_answer(source))?;
        let mut old = self.seen.load(Ordering::Relaxed).min(head.size);
        for _ in 0..ATTEMPTS {
            let proof = shared.prove_consistency(old, head.size);
            let proof = proof.map_err(|source| WitnessError::Proof { name: name(), source })?;
            let request = witness_request(old, &proof, note);
            let answer = self.at.exchange("add-checkpoint", request.into(), ANSWER_BYTES_MAX, deadline);
            let (status, body) = answer.await.map_err(client)?;
            match status {
                StatusCode::OK => {
                    let lines = self.signature(note, &body)?;
                    self.seen.store(head.size, Ordering::Relaxed);
                    return Ok((head, lines));
                }
                // It says what it has seen.
                StatusCode::CONFLICT => {
                    let said = std::str::from_utf8(&body).ok().and_then(|text| text.trim_end().parse().ok());
                    let Some(seen) = said else {
                        let why = "it says 409, and not what it has seen".to_owned();
                        return Err(client(ClientError::Stranger { why }));
                    };
                    self.seen.store(seen, Ordering::Relaxed);
                    if seen > head.size {
                        return Err(WitnessError::Ahead { name: name(), seen, size: head.size });
                    }
                    // As much as it was told that it has seen, and yet another log.
                    if seen == old {
                        return Err(WitnessError::Split { name: name(), seen });
                    }
                    old = seen;
                }
                StatusCode::UNPROCESSABLE_ENTITY => {
                    return Err(WitnessError::Split { name: name(), seen: old });
                }
                other => {
                    let words = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
                    let (status, code) = (other.as_u16(), String::new());
                    return Err(client(ClientError::Refused { status, code, words, retry_after: None }));
                }
            }
        }
        let why = "it has seen something else each time it was asked".to_owned();
        Err(client(ClientError::Stranger { why }))
    }

    /// The lines of an answer, if one of them is its signature for this note.
    fn signature(&self, note: &Note, body: &Bytes) -> Result<String, WitnessError> {
        let bad = |source: NoteError| self.bad_answer(source.into());
        let lines = std::str::from_utf8(body).map_err(|_| bad(NoteError::Malformed { what: "not UTF-8" }))?;
        let answered = Note::parse(format!("{}\n{lines}", note.text()).as_bytes()).map_err(bad)?;
        if answered.text() != note.text() {
            return Err(bad(NoteError::Malformed { what: "more than signatures" }));
        }
        answered.verify(std::slice::from_ref(&self.trusted)).map_err(bad)?;
        Ok(lines.to_owned())
    }
}

/// Witnesses that are asked again and again.
#[derive(Debug)]
pub(crate) struct Witnesses {
    pub(crate) all: Vec<Witness>,
    /// How many must have signed a head before it is kept.
    pub(crate) needed: usize,
    /// How often the head is shown.
    pub(crate) every: Duration,
}

pub(crate) async fn run(shared: Arc<Shared>, witnesses: Arc<Witnesses>, stop: Stop) {
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = round(&shared, &witnesses) => {}
        }
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = sleep(witnesses.every) => {}
        }
    }
}

/// Shows the head to all of them, the same one, and keeps it as soon as enough have signed.
async fn round(shared: &Shared, witnesses: &Witnesses) {
    let view = shared.view.load();
    let size = view.state.head().version;
    if size == 0 {
        return;
    }
    let known = shared.cosigned.load();
    let has_signed = |witness: &Witness| {
        let (name, id) = (witness.trusted.name(), witness.trusted.id());
        let is_its = |note: &Note| note.signatures().iter().any(|one| (one.name(), one.id()) == (name, id));
        (*known).as_ref().is_some_and(|(seen, note)| *seen == size && is_its(note))
    };
    let keys = witnesses.all.iter().map(|witness| witness.trusted.clone());
    let trust = LogTrust::new(shared.trust.log().clone()).witnessed_by(keys, witnesses.needed);
    let (mut lines, mut signed) = (String::new(), 0);
    for witness in &witnesses.all {
        if has_signed(witness) {
            signed += 1;
            continue;
        }
        match witness.ask(shared, &view.checkpoint, Deadline::after(ASKING)).await {
            Ok((_, more)) => {
                lines.push_str(&more);
                signed += 1;
            }
            Err(error) => {
                shared.metrics.tally(WITNESS_ERRORS, error.label()).add(1);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                match error {
                    WitnessError::Ahead { .. } | WitnessError::Split { .. } => {
                        tracing::error!(%error, "a witness has seen another face of this log");
                    }
                    error => tracing::warn!(%error, cause, "a witness did not sign"),
                }
            }
        }
        if signed >= witnesses.needed && !lines.is_empty() {
            match shared.add_cosignatures(&view.checkpoint, &lines, &trust) {
                Ok(_) => shared.metrics.gauge(COSIGNED_VERSION).set(size as f64),
                Err(error) => tracing::warn!(%error, "what witnesses have signed was not kept"),
            }
        }
    }
}
