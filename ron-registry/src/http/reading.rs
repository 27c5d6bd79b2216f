//! What is in the log, and the proofs of it. Whatever has a version never changes, and caches may keep it for ever.

use std::sync::Arc;

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
    http::{Json, Problem, Query, accepts, deadline, has_tag},
};

use super::{
    CBOR, JSON, OCTETS,
    asking::{number, numbers},
    refusal::problem,
};
use crate::{
    Entry, Name, Registry, RegistryError, SnapshotOffer, Tile,
    json::{
        ConsistencyBody, EntriesBody, EntryBody, HeadBody, NameBody, PolicyBody, PolicyInForce, SnapshotBody,
        VersionsBody,
    },
    logic::tiles::write_bundle,
};

/// Entries in one answer, if the request does not say and at most.
pub(super) const LIMIT: u64 = 64;
pub(super) const LIMIT_MAX: u64 = 1024;

/// Bytes of entries in one answer; the first is in it whatever its size.
pub(super) const ANSWER_BYTES_MAX: usize = 1 << 20;

const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

type TextPath = Result<Path<String>, PathRejection>;

fn text(path: TextPath) -> Result<String, Problem> {
    path.map(|Path(text)| text).map_err(|_| Query::refusal("the path is not text"))
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

fn tag(digits: &str) -> HeaderValue {
    HeaderValue::try_from(format!("\"{digits}\"")).expect("hex digits are a header value")
}

/// The answer, or that the client has it: what changes is asked about often.
fn tagged(headers: &HeaderMap, tag: &HeaderValue, answer: impl FnOnce() -> Response) -> Response {
    let mut response = match has_tag(headers, tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer(),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.insert(header::CACHE_CONTROL, ASK_AGAIN);
    response
}

/// The answer about the head, as long as it is the same one: it is asked for far more often than it changes.
#[derive(Debug, Clone)]
pub(super) struct HeadWords {
    /// How often the view had been replaced, and where the log began: what they are words of.
    made_of: (u64, u64),
    tag: HeaderValue,
    words: Bytes,
}

impl HeadWords {
    /// Those of the view that is there after `made_of` was read.
    fn of(registry: &Registry, made_of: (u64, u64)) -> Self {
        // All of it of one moment: a checkpoint is of the version beside it.
        let (view, first) = (registry.view(), made_of.1);
        let head = view.state.head();
        let body = HeadBody {
            origin: registry.origin().to_owned(),
            log_key: registry.log_key().to_string(),
            version: head.version,
            hash: head.hash.to_string(),
            first,
            epoch: view.state.epoch(),
            names: view.state.names().len().saturating_sub(1) as u64,
            follows: registry.follows(),
            checkpoint: view.checkpoint.to_string(),
        };
        let words = serde_json::to_vec(&body).expect("strings and numbers can be written").into();
        let tag = tag(&format!("{}-{}", body.hash, body.first));
        HeadWords { made_of, tag, words }
    }
}

pub(super) fn head(
    registry: &Registry,
    known: &Snapshot<Option<HeadWords>>,
    request: &Request,
) -> Result<Response, Problem> {
    numbers(request, [])?;
    let now = (registry.changes(), registry.first());
    let is_new = |words: &HeadWords| words.made_of == now;
    let mut words = known.load();
    if !(*words).as_ref().is_some_and(is_new) {
        words = Arc::new(Some(HeadWords::of(registry, now)));
        known.replace_shared(Arc::clone(&words));
    }
    let HeadWords { tag, words, .. } = (*words).as_ref().expect("it was found or made above");
    Ok(tagged(request.headers(), tag, || of_kind(words.clone(), JSON, ASK_AGAIN)))
}

/// Whether it is asked for what witnesses have signed: `cosigned=1`.
fn wants_witnesses(request: &Request) -> Result<bool, Problem> {
    let [cosigned] = numbers(request, ["cosigned"])?;
    match cosigned {
        None | Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(_) => Err(Query::refusal("cosigned is 0 or 1")),
    }
}

pub(super) async fn checkpoint(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Response, Problem> {
    let note = match wants_witnesses(&request)? {
        true => registry.cosigned().ok_or_else(|| problem(RegistryError::NotFound { head: 0 }))?,
        false => registry.checkpoint(),
    };
    let words = note.to_string();
    let tag = tag(&blake3::hash(words.as_bytes()).to_hex());
    Ok(tagged(request.headers(), &tag, || of_kind(words, "text/plain; charset=utf-8", ASK_AGAIN)))
}

pub(super) async fn entry(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    let (version, deadline) = (version(path)?, deadline(&request));
    numbers(&request, [])?;
    let entry = registry.entry(version, deadline).await.map_err(problem)?;
    let response = match accepts(request.headers(), CBOR) {
        true => of_kind(entry.encoded().clone(), CBOR, FOR_EVER),
        false => Json(EntryBody::from(&entry)).into_response(),
    };
    Ok(cached(response, FOR_EVER))
}

pub(super) async fn entries(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    let (deadline, is_raw) = (deadline(&request), accepts(request.headers(), OCTETS));
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
    let version = version(path)?;
    let proof = match wants_witnesses(&request)? {
        true => registry.prove_cosigned(version),
        false => registry.prove(version),
    };
    let proof = proof.map_err(problem)?;
    Ok(of_kind(proof.to_string(), "text/plain; charset=utf-8", ASK_AGAIN))
}

pub(super) async fn consistency(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Json<ConsistencyBody>, Problem> {
    let [old, new] = numbers(&request, ["old", "new"])?;
    let old = old.ok_or_else(|| Query::refusal("old is wanted: how many entries the shorter log has"))?;
    let new = new.unwrap_or_else(|| registry.head().version);
    if old > new {
        return Err(Query::refusal(format!("old is {old} and new is {new}")));
    }
    let proof = registry.prove_consistency(old, new).map_err(problem)?;
    Ok(Json(ConsistencyBody { old, new, hashes: proof.iter().map(ToString::to_string).collect() }))
}

pub(super) async fn tile(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    serve_tile(&registry, &format!("tile/{}", text(path)?), request).await
}

/// A bundle of entries. It is far larger than a tile of hashes, so it has a place of its own.
pub(super) async fn bundle(
    State(registry): State<Registry>,
    path: TextPath,
    request: Request,
) -> Result<Response, Problem> {
    serve_tile(&registry, &format!("tile/entries/{}", text(path)?), request).await
}

async fn serve_tile(registry: &Registry, path: &str, request: Request) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let tile: Tile = path.parse().map_err(|_| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_tile", "this is no path of a tile")
            .hint("tile/<level>/<index>[.p/<width>], as C2SP tlog-tiles has it")
    })?;
    let bytes = registry.tile(tile, deadline).await.map_err(problem)?;
    Ok(of_kind(bytes, OCTETS, FOR_EVER))
}

/// Which snapshot there is: where somebody starts who comes after the beginning was pruned.
pub(super) async fn snapshot(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let offer = registry.snapshot(deadline(&request)).await.map_err(problem)?;
    let none = || {
        Problem::new(StatusCode::NOT_FOUND, "no_snapshot", "there is no snapshot")
            .hint("nothing was pruned: read the entries from the first on")
    };
    let SnapshotOffer { version, parts } = offer.ok_or_else(none)?;
    let mut response = Json(SnapshotBody { version, parts }).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, ASK_AGAIN);
    Ok(response)
}

pub(super) async fn snapshot_part(
    State(registry): State<Registry>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let refused = || {
        Problem::new(StatusCode::BAD_REQUEST, "bad_part", "this is no part of a snapshot")
            .hint("a version, and a number from 0 on")
    };
    let Path((version, part)) = path.map_err(|_| refused())?;
    let version = number(&version).filter(|version| *version > 0).ok_or_else(refused)?;
    let part = number(&part).and_then(|part| u32::try_from(part).ok()).ok_or_else(refused)?;
    let bytes = registry.snapshot_part(version, part, deadline(&request)).await.map_err(problem)?;
    Ok(of_kind(bytes, CBOR, FOR_EVER))
}
