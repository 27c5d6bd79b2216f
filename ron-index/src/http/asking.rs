//! What a request says beside its body: whose it is, which key, which parameters.

use std::time::Duration;

use axum::extract::{Path, Request, rejection::PathRejection};
use http::{HeaderMap, StatusCode};
use ron_core::{
    ClientKey, Deadline,
    http::{ClientAddr, Problem, Query, accepts},
};

use super::NDJSON;
use crate::{Index, IndexError, Key, KeyError, LIMIT_DEFAULT, PROVIDERS_LIMIT, Settings};

/// The part of a path that should be a key, or why it is none.
pub(super) type KeyPath = Result<Path<String>, PathRejection>;

pub(super) fn key(path: KeyPath) -> Result<Key, Problem> {
    let Path(text) = path.map_err(|_| bad_key(&KeyError::Name))?;
    text.parse().map_err(|error| bad_key(&error))
}

/// The key in the rest of a path, as it came.
pub(super) fn key_in(rest: &str) -> Result<Key, Problem> {
    let parsed = if rest.contains('%') {
        decoded(rest).ok_or(KeyError::Name).and_then(|text| text.parse())
    } else {
        rest.parse()
    };
    parsed.map_err(|error| bad_key(&error))
}

/// Undoes percent-encoding as the router does for the other routes: a `%` that no two digits follow is one.
fn decoded(text: &str) -> Option<String> {
    let (mut plain, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let escaped = || u8::try_from(digit(0)? << 4 | digit(1)?).ok();
        (rest, _) = match escaped().filter(|_| *byte == b'%') {
            Some(escaped) => (&after[2..], plain.push(escaped)),
            None => (after, plain.push(*byte)),
        };
    }
    String::from_utf8(plain).ok()
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

/// Whose request it is; nobody's if the server does not say.
pub(super) fn client(request: &Request) -> Option<ClientKey> {
    request.extensions().get::<ClientAddr>().map(|client| client.key())
}

/// The index as the client of this request may use it.
pub(super) fn for_client(index: Index, request: &Request) -> Index {
    match client(request) {
        Some(client) => index.into_client(client),
        None => index,
    }
}

/// How long an answer may take: the budget, or less if the server says so.
pub(super) fn deadline(settings: &Settings, request: &Request) -> Deadline {
    let budget: Duration = settings.budget;
    match request.extensions().get::<Deadline>() {
        Some(deadline) => deadline.within(budget),
        None => Deadline::after(budget),
    }
}

/// The same errors as everywhere, but for those that have a status of their own here.
pub(super) fn problem(error: IndexError) -> Problem {
    match error {
        IndexError::Unavailable => Problem::from(error)
            .as_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "no source could answer")
            .retry_after(Duration::from_secs(1)),
        IndexError::BreakerOpen { .. } => Problem::from(error).as_status(
            StatusCode::SERVICE_UNAVAILABLE,
            "breaker_open",
            "a part this needs keeps failing",
        ),
        // Those that everybody meets on the first day, and what to do about them.
        IndexError::NotReady { gate: "registry.log" } => Problem::from(error)
            .detail("the log of names has not begun here, so nobody can say what a name stands for")
            .hint("begin a log, or follow one that others keep"),
        IndexError::NotReady { gate: "dht.seeds" } => Problem::from(error)
            .detail("this node has it not and knows no other that it could ask")
            .hint("start a second node with this one as its seed, or give it seeds"),
        IndexError::PinsFull { .. } | IndexError::PinsHeavy { .. } => {
            Problem::from(error).as_status(StatusCode::CONFLICT, "pins_full", "as much is pinned as may be")
        }
        error => Problem::from(error),
    }
}

/// The same, for a question about `key`: of what is not known the code says which part, so that a program can tell it from a
/// route that is not there.
pub(super) fn problem_of(key: &Key, error: IndexError) -> Problem {
    match (error, key) {
        (IndexError::NotFound, Key::Name(_)) => {
            Problem::new(StatusCode::NOT_FOUND, "no_such_name", "no source of names knows this name")
        }
        (IndexError::NotFound, Key::Content(_) | Key::Foreign(_)) => {
            Problem::new(StatusCode::NOT_FOUND, "no_providers", "nobody is known who has it")
        }
        (error, _) => problem(error),
    }
}

/// Whether the client asks for lines by name.
pub(super) fn wants_lines(headers: &HeaderMap) -> bool {
    accepts(headers, NDJSON)
}

/// How many providers, and whether with what their places are made of.
pub(super) fn limit_and_explain(request: &Request) -> Result<(usize, bool), Problem> {
    // As nearly everybody asks.
    if request.uri().query().is_none() {
        return Ok((LIMIT_DEFAULT, false));
    }
    let query = Query::of(request, &["limit", "explain"])?;
    Ok((query.limit("limit", LIMIT_DEFAULT, PROVIDERS_LIMIT)?, query.flag("explain")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path is read by hand where the router used to do it, so it must be read the same.
    #[test]
    fn keys_are_read_out_of_paths_as_the_router_reads_them() {
        let read = |rest: &str| key_in(rest).map(|key| key.to_string()).map_err(|problem| problem.status());
        for (rest, key) in [
            ("site/a", "site/a"),
            ("site%2Fa", "site/a"),
            ("site%2fa", "site/a"),
            ("100%25", "100%"),
            ("100%", "100%"),
            ("a%zz", "a%zz"),
            ("a%2", "a%2"),
        ] {
            assert_eq!(read(rest), Ok(key.to_owned()), "{rest}");
        }
        for rest in ["", "a%20b", "a%ff", "a%00", "b3:12", "b3%3A12"] {
            assert_eq!(read(rest), Err(StatusCode::BAD_REQUEST), "{rest}");
        }
        let id = format!("b3:{}", "0a".repeat(32));
        assert_eq!(read(&id.replace(':', "%3A")), Ok(id));
    }
}
