//! JSON in and out: what does not fit its type is refused with the path of the field that is wrong.

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};

use super::{Problem, body};

/// A JSON body, as an argument of a handler and as its answer.
///
/// Unknown fields are refused when the type says so (`#[serde(deny_unknown_fields)]`, and every request type of this
/// family does). Nesting is refused beyond 128 levels. What is wrong comes back with its path, such as
/// `peers[2].address`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "this route takes JSON",
            )
            .hint("send `content-type: application/json`"));
        }
        let bytes = body::collect(request).await?;
        parse(&bytes).map(Json)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        refused(&path, error.inner())
    })?;
    reader.end().map_err(|error| refused(".", &error))?;
    Ok(value)
}

/// The words of a type are ours and those of the input the client's own, so both may go back.
fn refused(path: &str, error: &serde_json::Error) -> Problem {
    let (code, title) = match error.classify() {
        serde_json::error::Category::Data => ("json_data", "a field is not what it should be"),
        _ => ("json_syntax", "not JSON"),
    };
    let detail = if path == "." { error.to_string() } else { format!("{path}: {error}") };
    Problem::new(StatusCode::BAD_REQUEST, code, title).detail(detail)
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => {
                let mut response = Response::new(Body::from(bytes));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written as JSON");
                Problem::panicked().into_response()
            }
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Order {
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Item {
        count: u8,
    }

    fn check(text: &str, code: &str, says: &str) {
        let problem = parse::<Order>(&Bytes::copy_from_slice(text.as_bytes())).expect_err(text);
        let told = String::from_utf8(problem.to_json()).expect("UTF-8");
        assert_eq!((problem.status(), problem.code()), (StatusCode::BAD_REQUEST, code), "{text}: {told}");
        assert!(told.contains(says), "{told} does not say {says}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        check(r#"{"items":[{"count":1},{"count":300}]}"#, "json_data", "items[1].count");
        check(r#"{"items":[],"extra":1}"#, "json_data", "unknown field `extra`");
        check(r#"{"items":[],"items":[]}"#, "json_data", "duplicate field");
        check(r#"{"items":[]} {}"#, "json_syntax", "trailing");
        check(r#"{"items":"#, "json_syntax", "EOF");
        check("", "json_syntax", "EOF");
        check(r#"{"items":[{"count":1e400}]}"#, "json_syntax", "number out of range");
        assert!(parse::<Order>(&Bytes::from_static(br#"{"items":[{"count":1}]}"#)).is_ok());
    }

    /// Abuse case 61: a bomb of brackets costs a problem and no stack.
    #[test]
    fn depth_is_limited() {
        let bomb = "[".repeat(500_000);
        let problem = parse::<serde_json::Value>(&Bytes::from(bomb)).expect_err("too deep");
        assert!(String::from_utf8_lossy(&problem.to_json()).contains("recursion limit"));
    }

    #[test]
    fn only_json_is_json() {
        for (kind, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("text/plain", false),
            ("application/jsonp", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(is_json(&headers), json, "{kind}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
