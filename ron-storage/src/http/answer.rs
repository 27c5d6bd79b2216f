//! The answer to a request for an object: its head, and which bytes follow.

use std::ops::Range;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use ron_core::{
    ContentId, Deadline,
    http::{Problem, Query, deadline},
};

use super::{
    BAO,
    asking::{IdPath, for_client, id, lines, wants_proof},
    refusal::{no_range, problem},
    sending::{Part, Sending},
};
use crate::{
    Store,
    logic::range::{self, Asked, Conditions, RangeError, Selection, Verdict},
};

/// A name stands for the same bytes for ever. Nobody on the way may change them, or the tag would lie.
const FOR_EVER: &str = "public, max-age=31536000, immutable, no-transform";

/// `Accept` chooses between bytes and proof. Encodings are not chosen from: the header says that they were considered.
const VARY: &str = "accept, accept-encoding";

/// Bytes that somebody stored are not to be run by a browser that finds them here.
const SANDBOX: &str = "default-src 'none'; sandbox";

/// The longest name for a download, in bytes. More is refused by file systems.
const FILENAME_MAX: usize = 255;

pub(super) async fn object(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Response, Problem> {
    let id = id(path)?;
    let query = Query::of(&request, &["filename", "bytes"])?;
    let (store, until) = (for_client(store, &request), deadline(&request));
    let is_head = request.method() == Method::HEAD;
    let stat = store.readable(id, until).map_err(problem)?;
    // An answer with a body is counted when the body is begun.
    if is_head || request.headers().contains_key(header::IF_NONE_MATCH) {
        store.stat(id, until).await.map_err(problem)?;
    }
    let wanted = Wanted { id, len: stat.len, is_head, until };
    if wants_proof(request.headers()) {
        return wanted.proof(&store, request.headers(), query.get("bytes")).await;
    }
    if query.get("bytes").is_some() {
        return Err(Query::refusal(format!("bytes is for answers with a proof: accept: {BAO}")));
    }
    wanted.bytes(store, request.headers(), query.get("filename")).await
}

/// An object that is here and asked for.
struct Wanted {
    id: ContentId,
    len: u64,
    is_head: bool,
    until: Deadline,
}

impl Wanted {
    async fn bytes(
        self,
        store: Store,
        asked: &HeaderMap,
        filename: Option<&str>,
    ) -> Result<Response, Problem> {
        let etag = format!("\"{}\"", self.id);
        let verdict = judge(asked, &etag);
        let mut response = head(&etag);
        let headers = response.headers_mut();
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if let Some(done) = unanswered(verdict) {
            return done.map(|status| with_status(response, status));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_DISPOSITION, disposition(filename)?);
        let ranges =
            if verdict == Verdict::Answer && !self.is_head { asked.get(header::RANGE) } else { None };
        let selection = match ranges.map(|ranges| self.select(ranges.as_bytes())) {
            None => Selection::Whole,
            // A header that may stand once stands twice: nobody can say which was meant.
            Some(_) if asked.get_all(header::RANGE).iter().count() > 1 => {
                return Ok(no_range(RangeError::Malformed, self.len));
            }
            Some(Ok(selection)) => selection,
            Some(Err(error)) => return Ok(no_range(error, self.len)),
        };
        let parts = match selection {
            Selection::Whole => vec![Part::Object(0..self.len)],
            Selection::One(range) => {
                headers.insert(header::CONTENT_RANGE, value(content_range(&range, self.len)));
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                vec![Part::Object(range)]
            }
            Selection::Many(ranges) => {
                let (kind, parts) = multipart(self.id, self.len, &ranges);
                headers.insert(header::CONTENT_TYPE, value(kind));
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                parts
            }
        };
        self.send(response, store, parts).await
    }

    fn select(&self, ranges: &[u8]) -> Result<Selection, RangeError> {
        match range::parse(ranges)? {
            Some(asked) => range::select(&asked, self.len),
            None => Ok(Selection::Whole),
        }
    }

    async fn proof(
        self,
        store: &Store,
        asked: &HeaderMap,
        ranges: Option<&str>,
    ) -> Result<Response, Problem> {
        // Another representation, so another tag.
        let etag = format!("\"{}+bao\"", self.id);
        let mut response = head(&etag);
        let headers = response.headers_mut();
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
        if let Some(done) = unanswered(judge(asked, &etag)) {
            return done.map(|status| with_status(response, status));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(BAO));
        headers.insert(header::CONTENT_DISPOSITION, disposition(None)?);
        let ranges = match ranges.map(|ranges| range::parse_set(ranges.as_bytes())).transpose() {
            Ok(ranges) => ranges.unwrap_or_else(|| vec![Asked::From(0, None)]),
            Err(error) => return Ok(no_range(error, self.len)),
        };
        let ranges: Vec<Range<u64>> = ranges.iter().map(|asked| asked.within(self.len)).collect();
        if self.len > 0 && ranges.iter().all(Range::is_empty) {
            return Ok(no_range(RangeError::Outside { size: self.len }, self.len));
        }
        let proof = store.get_proof(self.id, &ranges, self.until).await.map_err(problem)?;
        let len = proof.len();
        headers.insert(header::CONTENT_LENGTH, len.into());
        if !self.is_head {
            let mut sending = Sending::proof(proof);
            sending.begin(self.until).await.map_err(problem)?;
            *response.body_mut() = Body::new(sending);
        }
        Ok(response)
    }

    /// Reads the first bytes before the head is sent, so that whatever is wrong with them still has a status.
    async fn send(self, mut response: Response, store: Store, parts: Vec<Part>) -> Result<Response, Problem> {
        let len: u64 = parts.iter().map(Part::len).sum();
        response.headers_mut().insert(header::CONTENT_LENGTH, len.into());
        if !self.is_head {
            let mut sending = Sending::parts(store, self.id, parts);
            sending.begin(self.until).await.map_err(problem)?;
            *response.body_mut() = Body::new(sending);
        }
        Ok(response)
    }
}

/// What every answer about an object says.
fn head(etag: &str) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.reserve(12);
    headers.insert(header::ETAG, value(etag.to_owned()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
    headers.insert(header::VARY, HeaderValue::from_static(VARY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    response
}

fn judge(asked: &HeaderMap, etag: &str) -> Verdict {
    Conditions {
        if_match: &lines(asked, &header::IF_MATCH),
        if_none_match: &lines(asked, &header::IF_NONE_MATCH),
        if_range: asked.get(header::IF_RANGE).map(HeaderValue::as_bytes),
    }
    .judge(etag)
}

/// The status of an answer that conditions leave without a body.
fn unanswered(verdict: Verdict) -> Option<Result<StatusCode, Problem>> {
    match verdict {
        Verdict::Answer | Verdict::AnswerWhole => None,
        Verdict::NotModified => Some(Ok(StatusCode::NOT_MODIFIED)),
        Verdict::Failed => Some(Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition",
            "the object is not one of those named in if-match",
        ))),
    }
}

fn with_status(mut response: Response, status: StatusCode) -> Response {
    *response.status_mut() = status;
    response
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("names and numbers are a header value")
}

fn content_range(range: &Range<u64>, len: u64) -> String {
    format!("bytes {}-{}/{len}", range.start, range.end - 1)
}

/// The parts of a `multipart/byteranges` and their type. No object holds its own hash, so that is the boundary; and the same
/// request has the same answer.
fn multipart(id: ContentId, len: u64, ranges: &[Range<u64>]) -> (String, Vec<Part>) {
    let boundary = &id.to_string()[3..];
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for (number, range) in ranges.iter().enumerate() {
        let line = if number == 0 { "" } else { "\r\n" };
        let head = format!(
            "{line}--{boundary}\r\ncontent-type: application/octet-stream\r\ncontent-range: {}\r\n\r\n",
            content_range(range, len),
        );
        parts.push(Part::Bytes(Bytes::from(head)));
        parts.push(Part::Object(range.clone()));
    }
    parts.push(Part::Bytes(Bytes::from(format!("\r\n--{boundary}--\r\n"))));
    (format!("multipart/byteranges; boundary={boundary}"), parts)
}

/// Always an attachment. A name is said twice: in what every client can read, and in full.
fn disposition(filename: Option<&str>) -> Result<HeaderValue, Problem> {
    let Some(name) = filename else { return Ok(HeaderValue::from_static("attachment")) };
    let is_plain = |c: char| {
        !c.is_control() && !matches!(c, '/' | '\\' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if name.is_empty() || name.len() > FILENAME_MAX || !name.chars().all(is_plain) || name.starts_with('.') {
        return Err(Query::refusal(format!(
            "filename is the name of a file: up to {FILENAME_MAX} bytes, no path, no control characters, not hidden"
        )));
    }
    let simple: String =
        name.chars().map(|c| if c.is_ascii() && !matches!(c, '"' | '%') { c } else { '_' }).collect();
    let mut full = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => full.push(char::from(byte)),
            _ => full.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(value(format!("attachment; filename=\"{simple}\"; filename*=UTF-8''{full}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_out_of_its_header() {
        let said = |name| disposition(Some(name)).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(disposition(None).unwrap(), "attachment");
        assert_eq!(said("a b.txt").unwrap(), "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt");
        assert_eq!(
            said("é\";x=\"%41.txt").unwrap(),
            "attachment; filename=\"__;x=__41.txt\"; filename*=UTF-8''%C3%A9%22%3Bx%3D%22%2541.txt"
        );
        let long = "x".repeat(256);
        for name in ["", "a/b", "a\\b", "..", ".hidden", "a\r\nb: c", "a\u{202e}fdp.exe", &long] {
            assert_eq!(said(name).unwrap_err().code(), "bad_query", "{name:?}");
        }
    }
}
