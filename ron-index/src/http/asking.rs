//! What a request says beside its body: whose it is, which key, which parameters.

use std::time::Duration;

use axum::extract::{Path, Request, rejection::PathRejection};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ron_core::{
    Deadline,
    http::{ClientAddr, Problem},
};

use super::NDJSON;
use crate::{Index, IndexError, Key, KeyError, LIMIT_DEFAULT, PROVIDERS_LIMIT};

/// The part of a path that should be a key, or why it is none.
pub(super) type KeyPath = Result<Path<String>, PathRejection>;

pub(super) fn key(path: KeyPath) -> Result<Key, Problem> {
    let Path(text) = path.map_err(|_| bad_key(&KeyError::Name))?;
    text.parse().map_err(|error| bad_key(&error))
}

pub(super) fn content(path: KeyPath) -> Result<Key, Problem> {
    let Path(text) = path.map_err(|_| bad_key(&KeyError::Name))?;
    Key::content(&text).map_err(|error| bad_key(&error))
}

fn bad_key(error: &KeyError) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_key", "this is no key")
        .detail(error.to_string())
        .hint("a name, `b3:` and 64 lowercase hex digits, or a CID")
}

/// The index as the client of this request may use it.
pub(super) fn for_client(index: &Index, request: &Request) -> Index {
    match request.extensions().get::<ClientAddr>() {
        Some(client) => index.for_client(client.key()),
        None => index.clone(),
    }
}

/// How long an answer may take: the budget, or less if the server says so.
pub(super) fn deadline(index: &Index, request: &Request) -> Deadline {
    let budget: Duration = index.settings().budget;
    match request.extensions().get::<Deadline>() {
        Some(deadline) => deadline.within(budget),
        None => Deadline::after(budget),
    }
}

/// The same errors as everywhere, but for those that have a status of their own here.
pub(super) fn problem(error: IndexError) -> Problem {
    match error {
        IndexError::NotFound => Problem::from(error).as_status(
            StatusCode::NOT_FOUND,
            "not_found",
            "nothing is known under this key",
        ),
        IndexError::Unavailable => Problem::from(error)
            .as_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "no source could answer")
            .retry_after(Duration::from_secs(1)),
        IndexError::BreakerOpen { .. } => Problem::from(error).as_status(
            StatusCode::SERVICE_UNAVAILABLE,
            "breaker_open",
            "a part this needs keeps failing",
        ),
        IndexError::PinsFull { .. } | IndexError::PinsHeavy { .. } => {
            Problem::from(error).as_status(StatusCode::CONFLICT, "pins_full", "as much is pinned as may be")
        }
        error => Problem::from(error),
    }
}

/// Whether the client asks for lines by name. `*/*` does not: nobody who takes anything means a stream.
pub(super) fn wants_lines(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|list| {
        list.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(NDJSON));
            let is_refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            is_named && !is_refused
        })
    })
}

/// Whether the client has this already.
pub(super) fn has(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let weak = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    headers.get_all(header::IF_NONE_MATCH).iter().any(|line| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|tag| tag == b"*" || weak(tag) == etag.as_bytes())
    })
}

/// The parameters of a request, each at most once and none that is not known.
#[derive(Debug, Default)]
pub(super) struct Query {
    found: Vec<(&'static str, String)>,
}

impl Query {
    pub(super) fn of(request: &Request, known: &[&'static str]) -> Result<Self, Problem> {
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for part in request.uri().query().unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                return Err(bad(format!("there is no parameter {name:?} here; there are {known:?}")));
            };
            if found.iter().any(|(other, _)| other == name) {
                return Err(bad(format!("{name} is there twice")));
            }
            let value = decode(value).ok_or_else(|| bad(format!("{name} is not text")))?;
            found.push((name, value));
        }
        Ok(Query { found })
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.found.iter().find(|(other, _)| *other == name).map(|(_, value)| &**value)
    }

    /// A switch: `true`, `false`, or the bare name for `true`.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(_) => Err(bad(format!("{name} is true or false"))),
        }
    }

    /// How many providers.
    pub(super) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.get("limit") else { return Ok(LIMIT_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=PROVIDERS_LIMIT).contains(limit));
        limit.ok_or_else(|| bad(format!("limit is a number from 1 to {PROVIDERS_LIMIT}")))
    }
}

pub(super) fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_query", "a parameter is not what it should be").detail(detail)
}

/// Undoes percent-encoding.
pub(super) fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(plain).ok()
}
