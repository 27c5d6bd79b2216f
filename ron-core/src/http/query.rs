//! What a request says beside its path and body: parameters, which form of an answer it wants, which one it has, and until when.

use std::time::Duration;

use axum::extract::Request;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::Problem;
use crate::Deadline;

/// What a request may take to its answer if the server does not say: what such a server says by default.
const DEADLINE: Duration = Duration::from_secs(30);

/// As much of a stranger's words as a refusal repeats.
const REPEATED_CHARS_MAX: usize = 64;

/// The parameters of a request, each at most once and none that is not known: one that is misspelt is refused and not passed
/// over.
///
/// Names and values are percent-decoded; a `+` is a plus, as in every other part of a URL. What is said of a parameter is its
/// name and a value, `limit=5`; the bare name, `pin`, has none, which only [`flag`](Self::flag) understands.
///
/// ```
/// use axum::{body::Body, extract::Request};
/// use ron_core::http::Query;
///
/// let request = Request::get("/o?name=a%20b&pin").body(Body::empty())?;
/// let query = Query::of(&request, &["name", "pin"]).expect("both are known");
/// assert_eq!(query.get("name"), Some("a b"));
/// assert!(query.flag("pin").expect("a switch"));
/// assert!(Query::of(&request, &["name"]).is_err());
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    found: Vec<(&'static str, Option<String>)>,
}

impl Query {
    /// The parameters of `request`, of which these are known.
    ///
    /// # Errors
    /// 400 `bad_query`, see [`Query::refusal`], naming the parameter that is not known, said twice or no text.
    pub fn of(request: &Request, known: &[&'static str]) -> Result<Self, Problem> {
        let mut found: Vec<(&'static str, Option<String>)> = Vec::new();
        for part in request.uri().query().unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (said, value) = match part.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (part, None),
            };
            let is_it =
                |known: &&&'static str| **known == said || percent_decode(said).as_deref() == Some(**known);
            let Some(name) = known.iter().find(is_it) else {
                let said: String = said.chars().take(REPEATED_CHARS_MAX).collect();
                return Err(Query::refusal(match known {
                    [] => format!("there is no parameter {said:?} here, nor any other"),
                    known => format!("there is no parameter {said:?} here; there are {known:?}"),
                }));
            };
            if found.iter().any(|(other, _)| other == name) {
                return Err(Query::refusal(format!("{name} is there twice")));
            }
            let not_text = || Query::refusal(format!("{name} is not text"));
            let value = value.map(|value| percent_decode(value).ok_or_else(not_text)).transpose()?;
            found.push((name, value));
        }
        Ok(Query { found })
    }

    /// The value of a parameter if it is there; nothing is the value of the bare name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.found.iter().find(|(other, _)| *other == name)?;
        Some(value.as_deref().unwrap_or_default())
    }

    /// A switch: `name=true`, `name=false`, or the bare name for `true`. `name=` says nothing and is refused.
    ///
    /// # Errors
    /// 400 `bad_query` for another value.
    pub fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.found.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_deref()) {
            None | Some(Some("false")) => Ok(false),
            Some(None | Some("true")) => Ok(true),
            Some(Some(_)) => Err(Query::refusal(format!("{name} is true or false"))),
        }
    }

    /// A number, in digits and nothing else.
    ///
    /// # Errors
    /// 400 `bad_query` for another value.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_digits);
        number.map(Some).ok_or_else(|| Query::refusal(format!("{name} is a number")))
    }

    /// A number from 1 to `max`, `default` if it is not there.
    ///
    /// # Errors
    /// 400 `bad_query` for another value.
    pub fn limit(&self, name: &'static str, default: usize, max: usize) -> Result<usize, Problem> {
        let refused = || Query::refusal(format!("{name} is a number from 1 to {max}"));
        let Some(number) = self.number(name).map_err(|_| refused())? else { return Ok(default) };
        usize::try_from(number).ok().filter(|number| (1..=max).contains(number)).ok_or_else(refused)
    }

    /// What a parameter is answered with that is not what it should be: 400 `bad_query`.
    #[must_use]
    pub fn refusal(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_query", "a parameter is not what it should be")
            .detail(detail)
    }
}

/// Undoes percent-encoding; nothing if what it says is no text.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
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

/// Whether the client asks for this type by name, in `accept`. `*/*` does not: nobody who takes anything means a special form.
#[must_use]
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|list| {
        list.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(kind));
            let is_refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            is_named && !is_refused
        })
    })
}

/// Whether the client has the answer with this entity tag already, as it says in `if-none-match`. Weak tags and strong ones
/// are compared alike, as for a read they are.
#[must_use]
pub fn has_tag(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    headers.get_all(header::IF_NONE_MATCH).iter().any(|line| {
        let mut tags = line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        tags.any(|tag| tag == b"*" || opaque(tag) == opaque(etag.as_bytes()))
    })
}

/// An entity tag without its mark of weakness.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// How long the server waits for the answer to begin: as long as it said, or 30 s if it did not.
#[must_use]
pub fn deadline(request: &Request) -> Deadline {
    request.extensions().get::<Deadline>().copied().unwrap_or_else(|| Deadline::after(DEADLINE))
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use axum::body::Body;
    use http::HeaderValue;

    use super::*;

    fn query(text: &str) -> Result<Query, Problem> {
        let request = Request::builder().uri(format!("/o?{text}")).body(Body::empty()).expect("a request");
        Query::of(&request, &["pin", "filename", "limit"])
    }

    fn refused(problem: &Problem, why: &str) {
        let told = String::from_utf8(problem.to_json()).expect("JSON is text");
        assert_eq!((problem.status().as_u16(), problem.code()), (400, "bad_query"), "{told}");
        assert!(told.contains(&why.replace('"', "\\\"")), "{told} does not say {why}");
    }

    #[test]
    fn parameters_are_known_and_said_once() {
        let found = query("pin&filename=a%20b%2F%C3%A9").expect("good");
        assert_eq!(
            (found.get("pin"), found.get("filename"), found.get("other")),
            (Some(""), Some("a b/é"), None)
        );
        for (text, why) in [
            ("pni=true", "no parameter \"pni\" here; there are [\"pin\", \"filename\", \"limit\"]"),
            ("pin=1&pin=2", "pin is there twice"),
            ("pin&pin", "pin is there twice"),
            ("pin&%70in", "pin is there twice"),
            ("filename=%zz", "filename is not text"),
            ("filename=%f", "filename is not text"),
            ("filename=%+1", "filename is not text"),
            ("filename=%ff", "filename is not text"),
            ("%zz=1", "no parameter \"%zz\""),
            ("=1", "no parameter \"\""),
            ("PIN", "no parameter \"PIN\""),
        ] {
            refused(&query(text).expect_err(text), why);
        }
        let bare = Request::get("/o?x").body(Body::empty()).expect("a request");
        refused(&Query::of(&bare, &[]).expect_err("nothing is known"), "nor any other");
    }

    #[test]
    fn what_is_empty_is_not_what_is_left_out() {
        for text in ["", "&", "&&"] {
            assert_eq!(query(text), Ok(Query::default()), "{text:?}");
        }
        let found = query("&filename=&limit").expect("good");
        assert_eq!((found.get("filename"), found.get("limit"), found.get("pin")), (Some(""), Some(""), None));
        refused(&found.number("limit").expect_err("no digits"), "limit is a number");
    }

    #[test]
    fn what_is_encoded_is_what_it_stands_for() {
        let found = query("%66ile%6Eame=%41+%26%3d=%25").expect("good");
        assert_eq!(found.get("filename"), Some("A+&==%"), "a plus is a plus, and the first = counts");
        assert_eq!(percent_decode("plain").as_deref(), Some("plain"));
        assert_eq!(percent_decode("%"), None);
    }

    #[test]
    fn a_switch_is_true_false_or_there() {
        for (text, pin) in [("", false), ("pin", true), ("pin=true", true), ("pin=false", false)] {
            assert_eq!(query(text).and_then(|found| found.flag("pin")), Ok(pin), "{text}");
        }
        for text in ["pin=", "pin=1", "pin=maybe", "pin=TRUE", "pin=%00"] {
            refused(&query(text).expect("known").flag("pin").expect_err(text), "pin is true or false");
        }
    }

    #[test]
    fn a_number_is_digits() {
        let number = |text: &str| query(&format!("limit={text}")).and_then(|found| found.number("limit"));
        assert_eq!(number("18446744073709551615"), Ok(Some(u64::MAX)));
        assert_eq!(number("%35"), Ok(Some(5)));
        assert_eq!(query("").and_then(|found| found.number("limit")), Ok(None));
        for text in ["", "+5", "-1", "5x", "0x5", "5.0", "18446744073709551616", "%D9%A3", "%205"] {
            refused(&number(text).expect_err(text), "limit is a number");
        }
        let limit = |text: &str| query(text).and_then(|found| found.limit("limit", 5, 32));
        assert_eq!((limit(""), limit("limit=1"), limit("limit=32")), (Ok(5), Ok(1), Ok(32)));
        for text in ["limit=0", "limit=33", "limit=99999999999999999999", "limit=", "limit"] {
            refused(&limit(text).expect_err(text), "limit is a number from 1 to 32");
        }
    }

    #[test]
    fn a_refusal_repeats_only_so_much() {
        let long = "x".repeat(5000);
        let problem = query(&format!("{long}=1")).expect_err("not known");
        assert!(problem.to_json().len() < 500, "{problem:?}");
    }

    #[test]
    fn a_form_is_asked_for_by_name() {
        for (accept, wants) in [
            ("application/x-ndjson", true),
            ("text/html, Application/X-NDJSON;q=0.5", true),
            ("application/x-ndjson;q=0", false),
            ("application/x-ndjson; q=0.0", false),
            ("application/x-ndjson2", false),
            ("*/*", false),
            ("application/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(accepts(&headers, "application/x-ndjson"), wants, "{accept}");
        }
    }

    #[test]
    fn what_the_client_has_is_known_by_its_tag() {
        let tag = HeaderValue::from_static("\"a\"");
        for (told, has) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", W/\"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("a", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(header::IF_NONE_MATCH, HeaderValue::from_static("\"z\""));
            headers.append(header::IF_NONE_MATCH, HeaderValue::from_static(told));
            assert_eq!(has_tag(&headers, &tag), has, "{told}");
            // The server's may be weak too: then it was answered in full for ever.
            assert_eq!(has_tag(&headers, &HeaderValue::from_static("W/\"a\"")), has, "{told}");
        }
        assert!(!has_tag(&HeaderMap::new(), &tag));
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_says_how_long_it_waits_or_it_is_half_a_minute() {
        let mut request = Request::new(Body::empty());
        assert_eq!(deadline(&request).remaining(), DEADLINE);
        for secs in [2, 600] {
            request.extensions_mut().insert(Deadline::after(Duration::from_secs(secs)));
            assert_eq!(deadline(&request).remaining(), Duration::from_secs(secs));
        }
    }
}
