//! What a request says beside its body: whose it is, which object, which parameters.

use axum::extract::{Path, Request, rejection::PathRejection};
use http::{HeaderMap, HeaderName, StatusCode, header};
use ron_core::{
    ContentId, Deadline,
    http::{ClientAddr, Problem},
};
use std::time::Duration;

use super::BAO;
use crate::Store;

/// What a request may take to its answer if the server does not say.
const DEADLINE: Duration = Duration::from_secs(30);

/// A request's id, or why it is none.
pub(super) type IdPath = Result<Path<String>, PathRejection>;

pub(super) fn id(path: IdPath) -> Result<ContentId, Problem> {
    let refused = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_id", "this is no name of an object")
            .detail(detail)
            .hint("`b3:` and 64 lowercase hex digits, or a CIDv1 of raw bytes and BLAKE3")
    };
    let Path(text) = path.map_err(|_| refused("it is not text".to_owned()))?;
    ContentId::parse_any(&text).map_err(|error| refused(error.to_string()))
}

/// The store as the client of this request may use it.
pub(super) fn for_client(store: Store, request: &Request) -> Store {
    match request.extensions().get::<ClientAddr>() {
        Some(client) => store.for_client(client.key()),
        None => store,
    }
}

/// How long the server waits for the answer to begin.
pub(super) fn deadline(request: &Request) -> Deadline {
    request.extensions().get::<Deadline>().copied().unwrap_or_else(|| Deadline::after(DEADLINE))
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
}

pub(super) fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_query", "a parameter is not what it should be").detail(detail)
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
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

/// Whether the client asks for a proof by name. `*/*` does not: nobody who takes anything means that.
pub(super) fn wants_proof(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|list| {
        list.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(BAO));
            let refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            named && !refused
        })
    })
}

/// All lines of a header.
pub(super) fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a [u8]> {
    headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn query(uri: &str) -> Result<Query, Problem> {
        let request = Request::builder().uri(uri).body(axum::body::Body::empty()).unwrap();
        Query::of(&request, &["pin", "filename"])
    }

    #[test]
    fn parameters_are_known_and_said_once() {
        let found = query("/o?pin&filename=a%20b%2F%C3%A9").unwrap();
        assert_eq!(
            (found.get("pin"), found.get("filename"), found.get("other")),
            (Some(""), Some("a b/é"), None)
        );
        assert!(found.flag("pin").unwrap() && !query("/o").unwrap().flag("pin").unwrap());
        assert!(!query("/o?pin=false").unwrap().flag("pin").unwrap());
        for (uri, why) in [
            ("/o?pni=true", "no parameter \"pni\""),
            ("/o?pin=1&pin=2", "pin is there twice"),
            ("/o?filename=%zz", "filename is not text"),
            ("/o?filename=%f", "filename is not text"),
            ("/o?filename=%ff", "filename is not text"),
        ] {
            let problem = query(uri).unwrap_err();
            assert_eq!(problem.code(), "bad_query");
            assert!(format!("{problem:?}").contains(&why.replace('"', "\\\"")), "{problem:?}");
        }
        assert!(query("/o?pin=maybe").unwrap().flag("pin").is_err());
    }

    #[test]
    fn a_proof_is_asked_for_by_name() {
        for (accept, wants) in [
            ("application/vnd.ron.bao", true),
            ("text/html, Application/Vnd.Ron.Bao;q=0.5", true),
            ("application/vnd.ron.bao;q=0", false),
            ("application/vnd.ron.bao; q=0.0", false),
            ("*/*", false),
            ("application/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(wants_proof(&headers), wants, "{accept}");
        }
    }
}
