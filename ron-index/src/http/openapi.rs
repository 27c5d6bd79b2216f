//! The routes as an OpenAPI document, for programs and for people with such tools.
//!
//! Written here by hand, beside the code that it describes, and held to it by a test that asks every route with every
//! method and compares the fields of every answer.

use axum::extract::Request;
use ron_core::http::{
    Json, Problem, Query,
    openapi::{guarded, json_of, operation, problem, problem_record, record},
};
use serde_json::{Value, json};

use super::{
    NDJSON,
    dto::PURGE_KEYS_MAX,
    idempotency::KEY_BYTES_MAX as IDEMPOTENCY_BYTES_MAX,
    routing::{FILTERS_MAX, WORD_BYTES_MAX},
};
use crate::{LIMIT_DEFAULT, PROVIDERS_LIMIT, logic::key::NAME_BYTES_MAX};

/// The document, with paths as they are below the place where the routers are mounted.
#[must_use]
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ron-index",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "Where things are: names and content to manifests and ranked providers. What is refused is answered as application/problem+json.",
        },
        "paths": {
            "/resolve/{key}": {
                "parameters": [key()],
                "get": op("What a key leads to", &[limit(), explain(), if_none_match()], None, &[
                    (200, "It; a name of something that nobody is known to have has no providers", json_of("Answer")),
                    (304, "The client has it already", json!({})),
                    (404, "The name is not known, or nobody is known to have the content", problem()),
                ]),
            },
            "/providers/{id}": {
                "parameters": [path("id", "A b3: address or a CID, of whatever kind", &content_pattern())],
                "get": op("Who has some content", &[limit(), explain(), if_none_match()], None, &[
                    (200, "They, the best first; or as they are found, one in each line", with_lines("Providers")),
                    (304, "The client has it already", json!({})),
                    (404, "Nobody is known", problem()),
                ]),
            },
            "/routing/v1/providers/{cid}": {
                "get": op("Who has some content, as IPFS clients ask it", &[
                    path("cid", "A CID, of whatever kind", &content_pattern()),
                    filter("filter-addrs"), filter("filter-protocols"), if_none_match(),
                ], None, &[
                    (200, "They, or an empty list", with_lines("RoutingProviders")),
                    (304, "The client has it already", json!({})),
                    (422, "Not a CID, or a filter that is none", problem()),
                ]),
                "options": preflight("cid"),
            },
            "/routing/v1/peers/{id}": {
                "get": op("Where a peer is, as IPFS clients ask it", &[
                    path("id", "The id of a peer: a multihash in base58, or a CID of a key, of whatever kind", PEER_PATTERN),
                    filter("filter-addrs"), filter("filter-protocols"), if_none_match(),
                ], None, &[
                    (200, "It, or an empty list", with_lines("RoutingPeers")),
                    (304, "The client has it already", json!({})),
                    (422, "Not the id of a peer, or a filter that is none", problem()),
                ]),
                "options": preflight("id"),
            },
            "/reindex/{key}": {
                "parameters": [key()],
                "post": guarded(op("Forgets a key and looks it up again", &[idempotency()], None, &[
                    (200, "What it leads to", json_of("Answer")),
                    (404, "The name is not known, or nobody is known to have the content", problem()),
                    (409, "The same change is being done", problem()),
                    (422, "The idempotency key was used for something else", problem()),
                ])),
            },
            "/pins/{key}": {
                "parameters": [key()],
                "put": guarded(op("Keeps an answer fresh from now on", &[idempotency()], None, &[
                    (200, "It is pinned", json_of("Pin")),
                    (404, "The name is not known, or nobody is known to have the content", problem()),
                    (409, "As much is pinned as may be, or the same change is being done", problem()),
                    (422, "The idempotency key was used for something else", problem()),
                ])),
                "delete": guarded(op("Takes a pin back", &[idempotency()], None, &[
                    (200, "It is not pinned", json_of("Pin")),
                    (409, "The same change is being done", problem()),
                    (422, "The idempotency key was used for something else", problem()),
                ])),
            },
            "/purge": {
                "post": guarded(op("Forgets keys, or everything", &[idempotency()], Some(purge_body()), &[
                    (200, "How much was known", json_of("Purged")),
                    (409, "The same change is being done", problem()),
                    (413, "The body is too large", problem()),
                    (415, "The body is not JSON, or in an encoding that is not taken", problem()),
                    (422, "The idempotency key was used for something else", problem()),
                ])),
            },
            "/status": {"get": op("How the index is doing", &[], None, &[(200, "So", json_of("Status"))])},
            "/openapi.json": {"get": op("This document", &[], None, &[(200, "It", json!({"application/json": {}}))])},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn schemas() -> Value {
    let (text, number, flag) =
        (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "boolean"}));
    let share = json!({"type": "number", "minimum": 0, "maximum": 1});
    let texts = json!({"type": "array", "items": &text});
    let list =
        |name: &str| json!({"type": "array", "items": {"$ref": format!("#/components/schemas/{name}")}});
    let stale = json!({"enum": [null, "while_revalidate", "if_error"]});
    let peers = list("Peer");
    json!({
        "Answer": record(&[
            ("key", &text), ("kind", &json!({"enum": ["name", "b3", "cid"]})), ("content", &text), ("cid", &text),
            ("manifest", &json!({"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Manifest"}]})),
            ("providers", &list("Provider")), ("complete", &flag), ("stale", &stale),
        ], &[("name", &json!({"$ref": "#/components/schemas/Name"}))]),
        "Name": record(&[("version", &number), ("proven_by", &text)], &[]),
        "Manifest": record(&[("len", &number), ("group_bytes", &number)], &[]),
        "Provider": record(&[("id", &text), ("addrs", &texts), ("source", &text)], &[
            ("issued", &number), ("region", &text), ("protocols", &texts),
            ("rank", &json!({"$ref": "#/components/schemas/Rank"})),
        ]),
        "Rank": record(&[
            ("score", &share), ("region", &share), ("freshness", &share), ("latency", &share), ("success", &share),
        ], &[]),
        "Providers": record(&[("content", &text), ("providers", &list("Provider")), ("stale", &stale)], &[]),
        "RoutingProviders": record(&[("Providers", &peers)], &[]),
        "RoutingPeers": record(&[("Peers", &peers)], &[]),
        "Peer": record(&[("Schema", &json!({"enum": ["peer"]})), ("ID", &text), ("Addrs", &texts), ("Protocols", &texts)], &[]),
        "Pin": record(&[("key", &text), ("pinned", &flag), ("changed", &flag)], &[]),
        "Purged": record(&[("purged", &json!({"type": ["integer", "null"], "minimum": 0}))], &[]),
        "Status": record(&[
            ("entries", &number), ("bytes", &number), ("lookups", &number), ("waiting", &number),
            ("hedge_delay_ms", &number), ("sources", &list("Source")),
        ], &[]),
        "Source": record(&[("name", &text), ("breaker", &json!({"enum": ["closed", "open", "half_open"]}))], &[]),
        "Problem": problem_record(&[]),
    })
}

fn op(summary: &str, parameters: &[Value], body: Option<Value>, answers: &[(u16, &str, Value)]) -> Value {
    let usual = [
        (400, "A key or a parameter is not understood"),
        (429, "Too much at once; retry-after says when"),
        (503, "Nobody can answer, or the node stops"),
        (504, "The budget is spent"),
    ];
    operation(summary, parameters, body, answers, &usual)
}

/// It is answered alike whatever it is about.
fn preflight(parameter: &str) -> Value {
    let about = json!({"name": parameter, "in": "path", "required": true, "schema": {"type": "string"}});
    op("What a browser asks before it asks", &[about], None, &[(204, "Any page may ask", json!({}))])
}

/// What can be said of keys in one expression, and no more: of the CIDs, only those of BLAKE3, of which all are valid. Others are
/// taken as well.
const CONTENT: &str = "b3:[0-9a-f]{64}|bafkr4i[a-h][a-z2-7]{50}[aeimquy4]";
const PEER_PATTERN: &str = "^(bafzb4i[a-h][a-z2-7]{50}[aeimquy4]|12D3KooW[1-9A-HJ-NP-Za-km-z]{44})$";

/// Printable characters in parts between slashes, of which none is empty, `.` or `..`; what begins with `b3:` is no name.
const NAME_FIRST: &str = r"[!-,\-0-ac-~][!-.0-~]*|b([!-.0-24-~][!-.0-~]*)?|b3([!-.0-9;-~][!-.0-~]*)?|\.[!-,\-0-~][!-.0-~]*|\.\.[!-.0-~]+";
const NAME_PART: &str = r"[!-,\-0-~][!-.0-~]*|\.[!-,\-0-~][!-.0-~]*|\.\.[!-.0-~]+";

fn content_pattern() -> String {
    format!("^({CONTENT})$")
}

fn key_pattern() -> String {
    format!("^({CONTENT}|({NAME_FIRST})(/({NAME_PART}))*)$")
}

fn key() -> Value {
    path("key", "A name, a b3: address or a CID; it may have slashes", &key_pattern())
}

fn path(name: &str, description: &str, pattern: &str) -> Value {
    let schema = json!({"type": "string", "maxLength": NAME_BYTES_MAX, "pattern": pattern});
    json!({"name": name, "in": "path", "required": true, "schema": schema, "description": description})
}

fn limit() -> Value {
    let schema =
        json!({"type": "integer", "minimum": 1, "maximum": PROVIDERS_LIMIT, "default": LIMIT_DEFAULT});
    json!({"name": "limit", "in": "query", "schema": schema, "description": "How many providers"})
}

fn explain() -> Value {
    let schema = json!({"type": "boolean", "default": false});
    json!({"name": "explain", "in": "query", "schema": schema, "description": "Says why each is where it is"})
}

fn filter(name: &str) -> Value {
    let pattern = format!(
        "^[ -+\\--~]{{0,{WORD_BYTES_MAX}}}(,[ -+\\--~]{{0,{WORD_BYTES_MAX}}}){{0,{}}}$",
        FILTERS_MAX - 1
    );
    let schema = json!({"type": "string", "pattern": pattern});
    json!({"name": name, "in": "query", "schema": schema, "description": "Names between commas, as in IPIP-484"})
}

fn if_none_match() -> Value {
    header_parameter("If-None-Match", "Tags of what the client has", json!({"type": "string"}))
}

fn idempotency() -> Value {
    header_parameter(
        "Idempotency-Key",
        "The same again within ten minutes is answered as the first time, and not done",
        json!({"type": "string", "pattern": "^[!-~]+$", "maxLength": IDEMPOTENCY_BYTES_MAX}),
    )
}

fn header_parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({"name": name, "in": "header", "schema": schema, "description": description})
}

fn purge_body() -> Value {
    let key = json!({"type": "string", "maxLength": NAME_BYTES_MAX, "pattern": key_pattern()});
    let keys = json!({"type": "array", "items": key, "minItems": 1, "maxItems": PURGE_KEYS_MAX});
    let some = json!({
        "type": "object", "additionalProperties": false, "required": ["keys"],
        "properties": {"keys": keys, "all": {"enum": [false]}},
    });
    let all = json!({
        "type": "object", "additionalProperties": false, "required": ["all"],
        "properties": {"keys": {"type": "array", "maxItems": 0}, "all": {"enum": [true]}},
    });
    json!({"required": true, "content": {"application/json": {"schema": {"oneOf": [some, all]}}}})
}

fn with_lines(schema: &str) -> Value {
    let mut content = json_of(schema);
    content[NDJSON] = json!({});
    content
}

pub(super) async fn serve(request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    Ok(Json(document()))
}
