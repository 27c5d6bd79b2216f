//! All routes of the admin listener in one OpenAPI document, `GET /admin/openapi.json`: those of objects, of the log and of
//! the index as their libraries describe them, and the rest written here. A test asks a running node every one of them.

use axum::{Router, routing::get};
use ron_core::http::Json;
use serde_json::{Map, Value, json};

pub(crate) fn router() -> Router {
    Router::new().route("/admin/openapi.json", get(async || Json(document())))
}

/// How routes begin that look something up.
const LOOKUPS: [&str; 3] = ["/resolve/", "/providers/", "/routing/"];

/// The document.
fn document() -> Value {
    let mut paths = own();
    let mut schemas = Map::new();
    let objects = ron_storage::http::openapi_kept();
    let index = ron_index::http::openapi();
    // What looks something up is at the root too, where clients of other indexes ask for it.
    let mut lookups = index.clone();
    if let Some(paths) = lookups["paths"].as_object_mut() {
        paths.retain(|path, _| LOOKUPS.iter().any(|lookup| path.starts_with(lookup)));
    }
    let parts = [
        ("", "", objects.clone()),
        ("/registry", "Log", ron_registry::http::openapi()),
        ("/index", "Index", index),
        ("", "Index", lookups),
    ];
    for (at, prefix, part) in parts {
        let Value::Object(of_part) = part["paths"].clone() else { continue };
        for (path, what) in of_part {
            paths.insert(format!("{at}{path}"), renamed(what, prefix));
        }
        let Value::Object(of_part) = part["components"]["schemas"].clone() else { continue };
        for (name, schema) in of_part {
            schemas.insert(format!("{prefix}{name}"), renamed(schema, prefix));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "refd",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "The admin listener of a node. What is refused is answered as application/problem+json; a Host or Origin \
                            from elsewhere is 403 on every route.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": objects["components"]["securitySchemes"]},
    })
}

/// Two documents have schemas of one name: those of the second have a prefix, and so has what refers to them.
fn renamed(value: Value, prefix: &str) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| match value {
                Value::String(text) if name == "$ref" => {
                    let text =
                        text.replace("#/components/schemas/", &format!("#/components/schemas/{prefix}"));
                    (name, text.into())
                }
                value => (name, renamed(value, prefix)),
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(|item| renamed(item, prefix)).collect(),
        value => value,
    }
}

/// One operation: what it does, and what it answers.
fn op(summary: &str, is_guarded: bool, answers: &[(u16, &str, &str)]) -> Value {
    let mut responses = Map::new();
    let denied = [(401, "No token, or not the right one", "application/problem+json")];
    for (status, what, kind) in answers.iter().chain(denied.iter().filter(|_| is_guarded)) {
        let content = if kind.is_empty() { json!({}) } else { json!({(*kind): {}}) };
        responses.insert(status.to_string(), json!({"description": what, "content": content}));
    }
    let mut op = json!({"summary": summary, "responses": responses});
    if is_guarded {
        op["security"] = json!([{"token": []}]);
    }
    op
}

fn parameter(name: &str, of: &str, what: &str) -> Value {
    json!({"name": name, "in": of, "required": of == "path", "description": what, "schema": {"type": "string"}})
}

fn own() -> Map<String, Value> {
    const JSON: &str = "application/json";
    const PROBLEM: &str = "application/problem+json";
    const LINES: &str = "application/x-ndjson";
    let with = |mut op: Value, parameters: &[Value]| {
        op["parameters"] = parameters.into();
        op
    };
    let key = || parameter("key", "path", "64 lowercase hex digits, b3: and those, or a CID");
    let topic = || parameter("topic", "path", "A topic that overlay.topics names");
    let timeout = || parameter("timeout_ms", "query", "What it may take");
    let trace = || parameter("trace", "query", "1 for every question that was asked");
    let not_key = (400, "This is no key", PROBLEM);
    let alone = (503, "There is nobody to ask, or no time", PROBLEM);
    let unknown = (404, "The node is not on that topic", PROBLEM);
    let pages = |what| json!({"get": op(what, false, &[(200, "It", "")])});
    let looks = |what| json!({"get": op(what, false, &[(200, "It", JSON)])});
    let search = [(200, "What was found", JSON), not_key, alone];
    let paths = json!({
        "/": pages("The dashboard"),
        "/page.css": pages("Its style"),
        "/page.js": pages("Its script"),
        "/state": looks("What the dashboard draws"),
        "/events": {"get": op("The same, again and again", false, &[(200, "Without an end", "text/event-stream")])},
        "/fetch/{id}": {"post": with(
            op("Brings an object from other nodes, and answers when it is here", true, &[
                (200, "It is here", JSON),
                (400, "This is no id, or no node", PROBLEM),
                (404, "Nobody is known who has it", PROBLEM),
                (502, "Nobody could send all of it", PROBLEM),
                (507, "The disk or the quota is full", PROBLEM),
            ]),
            &[
                parameter("id", "path", "b3: and 64 lowercase hex digits, or a CIDv1 of raw bytes and BLAKE3"),
                parameter("from", "query", "NODE_ID@IP:PORT; else whoever is found"),
            ],
        )},
        "/healthz": pages("Whether anything answers"),
        "/readyz": {"get": with(
            op("Whether reads are served", false, &[(200, "They are", JSON), (503, "They are not", JSON)]),
            &[parameter("verbose", "query", "Lists every gate"), parameter("writes", "query", "Asks about writes")],
        )},
        "/metrics": {"get": op("The metrics", false, &[(200, "OpenMetrics", "application/openmetrics-text")])},
        "/version": looks("Name and version"),
        "/dht/status": looks("How the DHT is doing"),
        "/dht/peers": looks("The routing table"),
        "/dht/find_node/{key}": {"get": with(op("The peers nearest to a key", false, &search), &[key(), timeout(), trace()])},
        "/dht/providers/{key}": {"get": with(
            op("Who provides a key; with Accept: application/x-ndjson one a line", false, &search),
            &[key(), timeout(), trace(), parameter("limit", "query", "How many are enough")],
        )},
        "/dht/provide/{key}": {
            "post": with(op("Says that this node provides a key", true, &[(200, "Who keeps that", JSON), not_key, alone]), &[key(), timeout()]),
            "delete": with(op("Takes it back", true, &[(200, "Done", JSON), not_key, alone]), &[key(), timeout()]),
        },
        "/overlay/status": looks("How the overlay is doing"),
        "/overlay/peers": looks("The sessions"),
        "/overlay/topics": looks("The topics"),
        "/overlay/queues": looks("How full the queues are"),
        "/gossip/{topic}": {
            "get": with(op("What others say on a topic from now on", true, &[(200, "A value a line", LINES), unknown]), &[topic()]),
            "post": with(op("Publishes the body", true, &[
                (200, "Its id", JSON), unknown, (413, "It is too long", PROBLEM), (429, "There is no room", PROBLEM),
            ]), &[topic()]),
        },
        "/admin/reload": {"post": op("Reads the settings again", true, &[
            (200, "The keys that changed", JSON),
            (409, "A key needs a restart; nothing was changed", PROBLEM),
            (422, "These are no settings; nothing was changed", PROBLEM),
            (500, "They could not be applied; nothing was changed", PROBLEM),
        ])},
        "/admin/openapi.json": looks("This document"),
    });
    match paths {
        Value::Object(paths) => paths,
        _ => Map::new(),
    }
}
