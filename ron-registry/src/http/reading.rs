//! What is in the log, and the proofs of it. Whatever has a version never changes, and caches may keep it for ever.

use axum::{
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ron_core::{
    ContentId, Snapshot,
    http::{Json, Problem},
};

use super::{
    CBOR, JSON, OCTETS,
    asking::{bad, deadline, numbers, wants},
    refusal::problem,
};
use crate::{
    Entry, Head, Name, Registry, RegistryError, Tile,
    json::{
        ConsistencyBody, EntriesBody, EntryBody, HeadBody, NameBody, PolicyBody, PolicyInForce, VersionsBody,
    },
    logic::tiles::write_bundle,
};

/// Entries in one answer, if the request does not say and at most.
const LIMIT: u64 = 64;
const LIMIT_MAX: u64 = 1024;

/// Bytes of entries in one answer; the first is in it whatever its size.
const ANSWER_BYTES_MAX: usize = 1 << 20;

const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

type TextPath = Result<Path<String>, PathRejection>;

fn text(path: TextPath) -> Result<String, Problem> {
    path.map(|Path(text)| text).map_err(|_| bad("the path is not text".to_owned()))
}

fn version(path: TextPath) -> Result<u64, Problem> {
    let refused = || {
        Problem::new(StatusCode::BAD_REQUEST, "bad_version", "this is no version").hint("a number from 1 on")
    };
    let Path(text) = path.map_err(|_| refused())?;
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|version| is_digits && *version > 0).ok_or_else(refused)
}

fn of_kind(bytes: impl Into<Bytes>, kind: &'static str, caching: HeaderValue) -> Response {
    let mut response = Response::new(Body::from(bytes.into()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, caching);
    response
}

fn cached(mut response: Response, caching: HeaderValue) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, caching);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// The answer, or that the client has it: what changes is asked about often.
fn tagged(headers: &HeaderMap, tag: &str, answer: impl FnOnce() -> Response) -> Response {
    let has_it = headers.get_all(header::IF_NONE_MATCH).iter().any(|line| {
        let tags =
            line.to_str().unwrap_or_default().split(',').map(|tag| tag.trim().trim_start_matches("W/"));
        tags.into_iter().any(|known| known == tag || known == "*")
    });
    let mut response = match has_it {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer(),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::try_from(tag).expect("hex digits are a header value"));
    headers.insert(header::CACHE_CONTROL, ASK_AGAIN);
    response
}

/// The answer about the head, as long as it is the same one: it is asked for far more often than it changes.
#[derive(Debug, Clone)]
pub(super) struct HeadWords {
    head: Head,
    first: u64,
    tag: String,
    words: Bytes,
}

impl HeadWords {
    fn of(registry: &Registry) -> Self {
        let (status, checkpoint) = (registry.status(), registry.checkpoint());
        let body = HeadBody {
            origin: registry.origin().to_owned(),
            log_key: registry.log_key().to_string(),
            version: status.head.version,
            hash: status.head.hash.to_string(),
            first: status.first,
            epoch: status.epoch,
            names: status.names as u64,
            follows: registry.follows(),
            checkpoint: checkpoint.to_string(),
        };
        let words = serde_json::to_vec(&body).expect("strings and numbers can be written").into();
        let tag = format!("\"{}-{}\"", body.hash, body.first);
        HeadWords { head: status.head, first: status.first, tag, words }
    }
}

pub(super) fn head(
    registry: &Registry,
    known: &Snapshot<Option<HeadWords>>,
    request: &Request,
) -> Result<Response, Problem> {
    numbers(request, [])?;
    let (head, first) = (registry.head(), registry.first());
    let known_words = known.load();
    let words = match &*known_words {
        Some(words) if (words.head, words.first) == (head, first) => words.clone(),
        _ => {
            let words = HeadWords::of(registry);
            known.replace(Some(words.clone()));
            words
        }
    };
    Ok(tagged(request.headers(), &words.tag, || of_kind(words.words.clone(), JSON, ASK_AGAIN)))
}

pub(super) async fn checkpoint(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let note = registry.checkpoint();
    let tag = format!("\"{}\"", blake3::hash(note.to_string().as_bytes()).to_hex());
    Ok(tagged(request.headers(), &tag, || of_kind(note.to_string(), "text/plain; charset=utf-8", ASK_AGAIN)))
}

pub(super) async fn entry(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    let (version, deadline) = (version(path)?, deadline(&request));
    numbers(&request, [])?;
    let entry = registry.entry(version, deadline).await.map_err(problem)?;
    let response = match wants(request.headers(), CBOR) {
        true => of_kind(entry.encoded().clone(), CBOR, FOR_EVER),
        false => Json(EntryBody::from(&entry)).into_response(),
    };
    Ok(cached(response, FOR_EVER))
}

pub(super) async fn entries(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    let (deadline, is_raw) = (deadline(&request), wants(request.headers(), OCTETS));
    let [from, limit] = numbers(&request, ["from", "limit"])?;
    let from = from.unwrap_or_else(|| registry.status().first).max(1);
    let limit = limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX) as usize;
    let (mut entries, mut bytes): (Vec<Bytes>, usize) = (Vec::new(), 0);
    while entries.len() < limit && bytes < ANSWER_BYTES_MAX {
        let next = from + entries.len() as u64;
        let more = registry.entries(next, limit - entries.len(), deadline).await.map_err(problem)?;
        if more.is_empty() {
            break;
        }
        for entry in more {
            if !entries.is_empty() && bytes + entry.len() > ANSWER_BYTES_MAX {
                bytes = ANSWER_BYTES_MAX;
                break;
            }
            bytes += entry.len();
            entries.push(entry);
        }
    }
    if is_raw {
        return Ok(cached(of_kind(write_bundle(&entries), OCTETS, ASK_AGAIN), ASK_AGAIN));
    }
    let next = from + entries.len() as u64;
    let decoded = entries.iter().map(Entry::decode).collect::<Result<Vec<_>, _>>();
    let decoded =
        decoded.map_err(|error| problem(RegistryError::Untrusted { message: error.to_string() }))?;
    let body = EntriesBody {
        entries: decoded.iter().map(EntryBody::from).collect(),
        next: (next <= registry.head().version).then_some(next),
    };
    Ok(cached(Json(body).into_response(), ASK_AGAIN))
}

pub(super) async fn by_content(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Json<VersionsBody>, Problem> {
    numbers(&request, [])?;
    let id = ContentId::parse_any(&text(path)?).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_id", "this is no name of content")
            .detail(error.to_string())
    })?;
    let versions = registry.versions_of(id, deadline(&request)).await.map_err(problem)?;
    Ok(Json(VersionsBody { b3: id.to_string(), versions }))
}

pub(super) async fn name(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Json<NameBody>, Problem> {
    numbers(&request, [])?;
    let name: Name = text(path)?.parse().map_err(|error| super::refusal::form("name", &error))?;
    let answer = registry.name(&name).map_err(problem)?;
    Ok(Json(NameBody {
        name: name.to_string(),
        version: answer.latest.map(|latest| latest.version),
        proposal: answer.latest.map(|latest| latest.proposal.to_string()),
        b3: answer.latest.and_then(|latest| latest.content).map(|id| id.to_string()),
        proof: BASE64.encode(&answer.proof.encode()),
        entry: BASE64.encode(&answer.entry),
        inclusion: answer.inclusion.to_string(),
    }))
}

pub(super) async fn policy(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Json<PolicyInForce>, Problem> {
    numbers(&request, [])?;
    let (epoch, policy) = registry.policy().ok_or_else(|| problem(RegistryError::NotFound { head: 0 }))?;
    let bytes = BASE64.encode(policy.encoded());
    Ok(Json(PolicyInForce { epoch, policy: PolicyBody::from(&*policy), bytes }))
}

pub(super) async fn proof(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let proof = registry.prove(version(path)?).map_err(problem)?;
    Ok(of_kind(proof.to_string(), "text/plain; charset=utf-8", ASK_AGAIN))
}

pub(super) async fn consistency(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Json<ConsistencyBody>, Problem> {
    let [old, new] = numbers(&request, ["old", "new"])?;
    let old = old.ok_or_else(|| bad("old is wanted: how many entries the shorter log has".to_owned()))?;
    let new = new.unwrap_or_else(|| registry.head().version);
    if old > new {
        return Err(bad(format!("old is {old} and new is {new}")));
    }
    let proof = registry.prove_consistency(old, new).map_err(problem)?;
    Ok(Json(ConsistencyBody { old, new, hashes: proof.iter().map(ToString::to_string).collect() }))
}

pub(super) async fn tile(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let tile: Tile = format!("tile/{}", text(path)?).parse().map_err(|_| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_tile", "this is no path of a tile")
            .hint("tile/<level>/<index>[.p/<width>], as C2SP tlog-tiles has it")
    })?;
    let bytes = registry.tile(tile, deadline(&request)).await.map_err(problem)?;
    Ok(of_kind(bytes, OCTETS, FOR_EVER))
}
