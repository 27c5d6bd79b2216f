//! IPFS Delegated Routing V1: who has a CID and where a peer is, as IPFS clients ask it.
//!
//! Our nodes are peers with the id that libp2p gives their ed25519 key, where the key is known, with addresses as multiaddrs.
//! That nobody is known is an empty list with 200, which is what clients of today expect; only what is no CID is an error.

use std::{net::SocketAddr, time::Duration};

use axum::{
    body::Body,
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ron_core::http::{Problem, has_tag, percent_decode};
use serde::Serialize;

use super::{
    NDJSON,
    answer::{STALE, cache_control, line, render},
    asking::{KeyPath, deadline, for_client, problem, wants_lines},
    stream::chosen_lines,
};
use crate::{
    Index, IndexError, Key, KeyError, PROVIDERS_LIMIT,
    logic::key::{node_of_peer, peer_id, to_peer_id},
    source::Provider,
};

/// Filters that one request may have of each kind; more is not a question but an attack on it.
pub(super) const FILTERS_MAX: usize = 64;

/// The longest name of a protocol, by the specification, and a `!` before it.
pub(super) const WORD_BYTES_MAX: usize = 63 + 1;

/// A peer in the schema `peer`.
#[derive(Debug, Serialize)]
struct Peer {
    #[serde(rename = "Schema")]
    schema: &'static str,
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Addrs")]
    addrs: Vec<String>,
    #[serde(rename = "Protocols")]
    protocols: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ProviderList {
    #[serde(rename = "Providers")]
    providers: Vec<Peer>,
}

#[derive(Debug, Serialize)]
struct PeerList {
    #[serde(rename = "Peers")]
    peers: Vec<Peer>,
}

/// `GET /routing/v1/providers/{cid}`.
pub(super) async fn providers(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path(text) = path.map_err(|_| unprocessable(&KeyError::Cid { why: "it is not text" }))?;
    let content = Key::content(&text).map_err(|error| unprocessable(&error))?;
    let filters = Filters::of(&request)?;
    let settings = index.settings();
    let deadline = deadline(&settings, &request);
    let ours = for_client(index.clone(), &request);
    if wants_lines(request.headers()) {
        let found = match ours.find(&content, PROVIDERS_LIMIT, deadline) {
            Ok(found) => {
                chosen_lines(found, move |provider| filters.choose(provider).map(|peer| line(&peer))).await
            }
            Err(error) => Err(error),
        };
        let (mut response, ttl) = match found {
            Ok(found) => found,
            Err(IndexError::NotFound) => (Response::new(Body::empty()), None),
            Err(error) => return Err(problem(error)),
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        // Of what is looked up that is known when it is over, and then its head is gone.
        let ttl = ttl.unwrap_or(settings.negative_ttl);
        headers.insert(header::CACHE_CONTROL, cache_control(ttl, &settings.staleness()));
        return Ok(response);
    }
    match ours.resolve(&content, deadline).await {
        Ok(answer) => {
            let chosen = answer
                .providers(PROVIDERS_LIMIT)
                .iter()
                .filter_map(|ranked| filters.choose(&ranked.provider));
            let list = ProviderList { providers: chosen.collect() };
            let ttl = if list.providers.is_empty() { settings.negative_ttl } else { answer.ttl() };
            let mut response = json(&list, request.headers());
            let headers = response.headers_mut();
            headers.insert(header::CACHE_CONTROL, cache_control(ttl, &settings.staleness()));
            headers.insert(header::AGE, HeaderValue::from(answer.age.as_secs()));
            headers.insert(header::LAST_MODIFIED, http_date(answer.entry.born_unix));
            if let Some(stale) = answer.stale {
                headers.insert(STALE, HeaderValue::from_static(stale.name()));
            }
            Ok(response)
        }
        Err(IndexError::NotFound) => {
            let mut response = json(&ProviderList { providers: Vec::new() }, request.headers());
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, cache_control(settings.negative_ttl, &settings.staleness()));
            Ok(response)
        }
        Err(error) => Err(problem(error)),
    }
}

/// `GET /routing/v1/peers/{id}`.
pub(super) async fn peers(
    State(index): State<Index>,
    path: KeyPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path(text) = path.map_err(|_| unprocessable(&KeyError::Cid { why: "it is not text" }))?;
    let peer = peer_id(&text).map_err(|error| unprocessable(&error))?;
    let filters = Filters::of(&request)?;
    let settings = index.settings();
    let found = match node_of_peer(&peer) {
        Some((node, key)) => {
            let (ours, deadline) = (for_client(index.clone(), &request), deadline(&settings, &request));
            let found = ours.locate(node, deadline).await.map_err(problem)?;
            // Whoever asked by the key is answered by the key.
            found.map(|found| match key {
                Some(key) => found.with_public_key(key),
                None => found,
            })
        }
        None => None,
    };
    let chosen: Vec<Peer> = found.iter().filter_map(|provider| filters.choose(provider)).collect();
    let ttl: Duration = if chosen.is_empty() { settings.negative_ttl } else { settings.content_ttl };
    let mut response = if wants_lines(request.headers()) {
        let body: Vec<u8> = chosen.iter().flat_map(|peer| line(peer).to_vec()).collect();
        let mut response = Response::new(Body::from(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        response
    } else {
        json(&PeerList { peers: chosen }, request.headers())
    };
    response.headers_mut().insert(header::CACHE_CONTROL, cache_control(ttl, &settings.staleness()));
    Ok(response)
}

/// What a browser asks before it asks.
pub(super) async fn preflight() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Whatever else the specification has and this does not: publishing and names of IPNS.
pub(super) async fn not_implemented() -> Problem {
    Problem::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", "this part of the protocol is not here")
}

fn unprocessable(error: &KeyError) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_key", "this is no CID, or no peer")
        .detail(error.to_string())
}

fn json(value: &impl Serialize, asked: &HeaderMap) -> Response {
    let (body, etag) = render(value);
    let mut response = if has_tag(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(Body::from(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    response.headers_mut().insert(header::ETAG, etag);
    response
}

/// Any page may ask and read what it is told, refusals too, and caches keep the two forms apart.
pub(super) async fn open_to_browsers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, OPTIONS"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Which addresses and which peers the client wants (IPIP-484).
#[derive(Debug, Clone, Default)]
struct Filters {
    /// Names of protocols in multiaddrs that one address must have, in lower case.
    addrs: Vec<String>,
    /// Names that it must not have.
    not_addrs: Vec<String>,
    /// Whether peers without addresses are wanted.
    unknown_addrs: bool,
    protocols: Vec<String>,
    unknown_protocols: bool,
}

impl Filters {
    fn of(request: &Request) -> Result<Self, Problem> {
        let mut filters = Filters::default();
        for part in request.uri().query().unwrap_or_default().split('&') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if !matches!(name, "filter-addrs" | "filter-protocols") {
                // The specification may grow: what is not known yet is not refused.
                continue;
            }
            let value = percent_decode(value).ok_or_else(|| unfit("a filter is not text"))?;
            let words = value.split(',').map(|word| word.trim().to_ascii_lowercase());
            let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
            let is_name = |word: &String| {
                word.len() <= WORD_BYTES_MAX && word.bytes().all(|byte| matches!(byte, b' '..=b'~'))
            };
            if words.len() > FILTERS_MAX || !words.iter().all(is_name) {
                return Err(unfit("at most 64 names of at most 63 printable characters"));
            }
            for word in words {
                match (name, word.as_str()) {
                    ("filter-addrs", "unknown") => filters.unknown_addrs = true,
                    ("filter-addrs", word) => match word.strip_prefix('!') {
                        Some(word) => filters.not_addrs.push(word.to_owned()),
                        None => filters.addrs.push(word.to_owned()),
                    },
                    (_, "unknown") => filters.unknown_protocols = true,
                    (_, word) => filters.protocols.push(word.to_owned()),
                }
            }
        }
        Ok(filters)
    }

    /// The peer with those of its addresses that are wanted, if it is wanted at all.
    fn choose(&self, provider: &Provider) -> Option<Peer> {
        let filters_protocols = !self.protocols.is_empty() || self.unknown_protocols;
        let has_protocol = provider
            .protocols
            .iter()
            .any(|protocol| self.protocols.iter().any(|wanted| wanted.eq_ignore_ascii_case(protocol)));
        let is_unknown = provider.protocols.is_empty() && self.unknown_protocols;
        if filters_protocols && !has_protocol && !is_unknown {
            return None;
        }
        let filters_addrs = !self.addrs.is_empty() || !self.not_addrs.is_empty() || self.unknown_addrs;
        let all = provider.addrs.iter().map(multiaddr);
        let addrs: Vec<String> = all
            .filter(|addr| {
                let has = |name: &String| addr.split('/').any(|part| part == name);
                // Only peers without addresses are wanted if that is all that was said.
                let is_positive = self.addrs.iter().any(has)
                    || (self.addrs.is_empty() && !self.unknown_addrs)
                    || (self.addrs.is_empty() && !self.not_addrs.is_empty());
                !filters_addrs || (is_positive && !self.not_addrs.iter().any(has))
            })
            .collect();
        let is_wanted =
            !filters_addrs || !addrs.is_empty() || (provider.addrs.is_empty() && self.unknown_addrs);
        is_wanted.then(|| Peer {
            schema: "peer",
            id: to_peer_id(&provider.id, provider.public_key.as_ref()),
            addrs,
            protocols: provider.protocols.iter().map(|protocol| protocol.to_string()).collect(),
        })
    }
}

fn unfit(why: &'static str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_filter", "a filter is not what it should be")
        .detail(why)
}

fn multiaddr(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::V4(addr) => format!("/ip4/{}/tcp/{}", addr.ip(), addr.port()),
        SocketAddr::V6(addr) => format!("/ip6/{}/tcp/{}", addr.ip(), addr.port()),
    }
}

/// Seconds since 1970 as HTTP writes a time (RFC 9110, IMF-fixdate).
fn http_date(unix_secs: u64) -> HeaderValue {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = unix_secs / 86_400;
    let (hour, minute, second) = (unix_secs / 3600 % 24, unix_secs / 60 % 60, unix_secs % 60);
    // Days since 1 March of year 0, in eras of 400 years: the leap day is the last of its year.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 2 } else { shifted - 10 };
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let text = format!(
        "{}, {day:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize]
    );
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

#[cfg(test)]
mod tests {
    use ron_core::NodeId;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (4_102_444_800, "Fri, 01 Jan 2100 00:00:00 GMT"),
        ] {
            assert_eq!(http_date(unix), text);
        }
    }

    fn choose(query: &str, provider: &Provider) -> Option<(usize, usize)> {
        let request = Request::builder().uri(format!("/x?{query}")).body(Body::empty()).unwrap();
        let chosen = Filters::of(&request).unwrap().choose(provider);
        chosen.map(|peer| (peer.addrs.len(), peer.protocols.len()))
    }

    /// The rules of IPIP-484, one by one.
    #[test]
    fn filters_follow_the_specification() {
        let v4: SocketAddr = "192.0.2.1:4710".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:4710".parse().unwrap();
        let id = NodeId::from_bytes([1; 32]);
        let both = Provider {
            protocols: vec!["ron-blob-1".into(), "transport-bitswap".into()],
            ..Provider::new(id, [v4, v6])
        };
        let bare = Provider::new(id, []);
        assert_eq!(choose("", &both), Some((2, 2)));
        assert_eq!(choose("filter-addrs=ip4", &both), Some((1, 2)), "only what fits is returned");
        assert_eq!(choose("filter-addrs=IP4%2Cip6", &both), Some((2, 2)), "case and encoding do not matter");
        assert_eq!(choose("filter-addrs=!ip6", &both), Some((1, 2)), "only negative ones");
        assert_eq!(choose("filter-addrs=tcp,!ip4", &both), Some((1, 2)), "both kinds");
        assert_eq!(choose("filter-addrs=quic-v1", &both), None, "nothing fits");
        assert_eq!(choose("filter-addrs=unknown", &both), None);
        assert_eq!(choose("filter-addrs=unknown", &bare), Some((0, 0)));
        assert_eq!(choose("filter-addrs=unknown,ip4", &both), Some((1, 2)));
        assert_eq!(choose("filter-addrs=ip4", &bare), None);
        assert_eq!(
            choose("filter-protocols=transport-bitswap", &both),
            Some((2, 2)),
            "all protocols are returned"
        );
        assert_eq!(choose("filter-protocols=transport-graphsync-filecoinv1", &both), None);
        assert_eq!(choose("filter-protocols=unknown", &both), None);
        assert_eq!(choose("filter-protocols=unknown", &bare), Some((0, 0)));
        assert_eq!(choose("filter-protocols=Unknown,TRANSPORT-BITSWAP", &both), Some((2, 2)));
        assert_eq!(choose("filter-protocols=", &both), Some((2, 2)));
        assert_eq!(choose("something=else", &both), Some((2, 2)), "what is not known is let be");
    }

    #[test]
    fn too_many_filters_are_refused() {
        let refused = |query: String| {
            let request = Request::builder().uri(format!("/x?{query}")).body(Body::empty()).unwrap();
            Filters::of(&request).unwrap_err().status().as_u16()
        };
        assert_eq!(refused(format!("filter-addrs={}", "a,".repeat(65))), 422);
        assert_eq!(refused(format!("filter-protocols={}", "p".repeat(65))), 422);
        assert_eq!(refused("filter-addrs=ip4%2C%00".to_owned()), 422);
    }
}
