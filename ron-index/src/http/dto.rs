//! What the routes say and take, as JSON.

use serde::{Deserialize, Serialize};

use crate::{
    Answer, Key, KeyError, Ranked, Stale,
    source::{Manifest, NameRecord, Provider},
};

/// The largest body that a change may have.
pub const BODY_BYTES_MAX: u64 = 1 << 20;

/// Keys that may be purged at once.
pub const PURGE_KEYS_MAX: usize = 1024;

/// What a key resolves to, and who has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnswerDto {
    /// What was asked for.
    pub key: String,
    /// `name`, `b3` or `cid`.
    pub kind: &'static str,
    /// The content: its address, or a CID of another hash.
    pub content: String,
    /// The same as a CID.
    pub cid: String,
    /// What the name stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NameDto>,
    /// What the content is made of.
    pub manifest: Option<ManifestDto>,
    /// Who has it, the best first.
    pub providers: Vec<ProviderDto>,
    /// Whether nothing was cut short.
    pub complete: bool,
    /// Why it is not fresh; nothing if it is.
    pub stale: Option<&'static str>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NameDto {
    /// Of two answers the one with the higher number is newer.
    pub version: u64,
    /// `registry` or `signature`.
    pub proven_by: &'static str,
}

/// What content is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestDto {
    /// Its length.
    pub len: u64,
    /// Bytes of a group.
    pub group_bytes: u64,
}

/// Somebody who has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProviderDto {
    /// The id of the node, in hex.
    pub id: String,
    /// Where it can be reached.
    pub addrs: Vec<String>,
    /// When it said so, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<u64>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// How it hands content out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<String>,
    /// Who said so.
    pub source: &'static str,
    /// Its place, from 0 to 1, and why, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<RankDto>,
}

/// Why a provider is where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankDto {
    /// The weighted sum.
    pub score: f32,
    /// Whether it is near.
    pub region: f32,
    /// How lately it said so.
    pub freshness: f32,
    /// How quick it is.
    pub latency: f32,
    /// How often it delivered.
    pub success: f32,
}

/// Providers alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProvidersDto {
    /// The content.
    pub content: String,
    /// The best first.
    pub providers: Vec<ProviderDto>,
    /// Why it is not fresh; nothing if it is.
    pub stale: Option<&'static str>,
}

/// Keys to be forgotten: these, or all.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurgeDto {
    /// Names, addresses, CIDs.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Everything.
    #[serde(default)]
    pub all: bool,
}

/// Why a body does not say what to forget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PurgeError {
    /// Not JSON, or not of this form.
    #[error("{0}")]
    Form(String),
    /// Neither all nor a reasonable number of keys.
    #[error("either all, or 1 to {PURGE_KEYS_MAX} keys")]
    Number,
    /// One of them is none.
    #[error("key {at}: {error}")]
    Key {
        /// Which, from zero.
        at: usize,
        /// Why.
        error: KeyError,
    },
}

impl PurgeDto {
    /// The keys that a body names; nothing for all of them.
    ///
    /// # Errors
    /// A [`PurgeError`].
    pub fn read(body: &[u8]) -> Result<Option<Vec<Key>>, PurgeError> {
        let PurgeDto { keys, all } =
            serde_json::from_slice(body).map_err(|error| PurgeError::Form(error.to_string()))?;
        match (all, keys.len()) {
            (true, 0) => Ok(None),
            (false, 1..=PURGE_KEYS_MAX) => {
                let read = |(at, text): (usize, &String)| {
                    text.parse().map_err(|error| PurgeError::Key { at, error })
                };
                keys.iter().enumerate().map(read).collect::<Result<_, _>>().map(Some)
            }
            _ => Err(PurgeError::Number),
        }
    }
}

/// What was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PurgedDto {
    /// How many of the keys were known; nothing if all was forgotten.
    pub purged: Option<usize>,
}

/// What became of a pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinDto {
    /// The key.
    pub key: String,
    /// Whether it is pinned now.
    pub pinned: bool,
    /// Whether that is new.
    pub changed: bool,
}

/// How the index is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatusDto {
    /// Answers kept.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Lookups that wait or run.
    pub lookups: usize,
    /// Lookups that wait for a worker.
    pub waiting: usize,
    /// After how long another source is asked besides, in milliseconds.
    pub hedge_delay_ms: u64,
    /// Sources and what their breakers let happen.
    pub sources: Vec<SourceDto>,
}

/// A source, and whether it is asked now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceDto {
    /// What it is called.
    pub name: &'static str,
    /// `closed`, `open` or `half_open`.
    pub breaker: &'static str,
}

impl AnswerDto {
    /// The answer with at most so many providers, and why they are where they are.
    #[must_use]
    pub fn of(answer: &Answer, limit: usize, explains: bool) -> Self {
        let found = answer.resolution();
        AnswerDto {
            key: found.key.to_string(),
            kind: found.key.kind(),
            content: found.content.to_string(),
            cid: cid(&found.content),
            name: found.name.as_ref().map(NameDto::from),
            manifest: found.manifest.as_ref().map(ManifestDto::from),
            providers: answer
                .providers(limit)
                .iter()
                .map(|ranked| ProviderDto::ranked(ranked, explains))
                .collect(),
            complete: found.is_complete,
            stale: answer.stale.map(Stale::name),
        }
    }
}

fn cid(content: &Key) -> String {
    match content {
        Key::Content(id) => id.to_cid(),
        other => other.to_string(),
    }
}

impl From<&NameRecord> for NameDto {
    fn from(record: &NameRecord) -> Self {
        NameDto { version: record.version, proven_by: record.proven_by }
    }
}

impl From<&Manifest> for ManifestDto {
    fn from(manifest: &Manifest) -> Self {
        ManifestDto { len: manifest.len, group_bytes: manifest.group_bytes }
    }
}

impl ProviderDto {
    /// A provider without a place.
    #[must_use]
    pub fn of(provider: &Provider, source: &'static str) -> Self {
        ProviderDto {
            id: provider.id.to_string(),
            addrs: provider.addrs.iter().map(ToString::to_string).collect(),
            issued: provider.issued,
            region: provider.region.as_deref().map(ToOwned::to_owned),
            protocols: provider.protocols.iter().map(|protocol| protocol.to_string()).collect(),
            source,
            rank: None,
        }
    }

    fn ranked(ranked: &Ranked, explains: bool) -> Self {
        let why = &ranked.why;
        let rank = explains.then_some(RankDto {
            score: ranked.score,
            region: why.region,
            freshness: why.freshness,
            latency: why.latency,
            success: why.success,
        });
        ProviderDto { rank, ..ProviderDto::of(&ranked.provider, ranked.source) }
    }
}

impl ProvidersDto {
    /// The providers of an answer.
    #[must_use]
    pub fn of(answer: &Answer, limit: usize, explains: bool) -> Self {
        let AnswerDto { content, providers, stale, .. } = AnswerDto::of(answer, limit, explains);
        ProvidersDto { content, providers, stale }
    }
}

/// As the routes write it.
///
/// # Panics
/// Never: strings and numbers always serialise.
#[must_use]
pub fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialise")
}
