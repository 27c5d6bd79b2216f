//! The routes as an OpenAPI document, for programs and for people with such tools.
//!
//! Written here by hand, beside the code that it describes, and held to it by a test that asks every route with every
//! method and compares the fields of every answer.

use axum::extract::Request;
#[cfg(feature = "net")]
use ron_core::http::openapi::problem_of;
use ron_core::http::{
    Json, Problem, Query,
    openapi::{guarded, json_of, operation, problem, problem_record, record},
};
use serde_json::{Value, json};

use super::BAO;

/// The document, with paths as they are below the place where the routers are mounted.
#[must_use]
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ron-storage",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "Objects named by their content. What is refused is answered as application/problem+json.",
        },
        "paths": {
            "/o/{id}": {
                "parameters": [id()],
                "get": object("The object, or the ranges of it that are asked for", true),
                "head": object("What a GET would answer, without the bytes", false),
                "put": guarded(op(
                    "Stores the body if it has this name",
                    &put_parameters(),
                    Some(body()),
                    &[
                        (200, "It was there already", stored()),
                        (201, "It is stored", stored()),
                        (400, "The id, a parameter or the digest is not understood, or the body broke off", problem()),
                        (409, "The body is another object; nothing was kept", problem()),
                        (412, "It was there already and if-none-match is *", problem()),
                        (413, "It is larger than is taken here", problem()),
                        (415, "It is compressed", problem()),
                        (507, "The disk or the quota is full", problem()),
                    ],
                )),
                "delete": guarded(op("Deletes the object", &[], None, &[
                    (204, "It is gone", json!({})),
                    (400, "The id is not understood", problem()),
                    (404, "It was not here", problem()),
                    (409, "It is pinned", problem()),
                ])),
            },
            "/o": {
                "get": guarded(op(
                    "What there is, in the order of names",
                    &[
                        query("after", json!({"type": "string"}), "Where to go on: next of the page before"),
                        query("limit", json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}), "How many"),
                    ],
                    None,
                    &[(200, "A page", json_of("Page")), (400, "A parameter is not understood", problem())],
                )),
                "post": guarded(op(
                    "Stores the body and says what it is called",
                    &put_parameters(),
                    Some(body()),
                    &[
                        (200, "It was there already", stored()),
                        (201, "It is stored", stored()),
                        (400, "A parameter or the digest is not understood, or the body broke off", problem()),
                        (409, "The body is not what content-digest says; nothing was kept", problem()),
                        (413, "It is larger than is taken here", problem()),
                        (415, "It is compressed", problem()),
                        (507, "The disk or the quota is full", problem()),
                    ],
                )),
            },
            "/stat/{id}": {
                "parameters": [id()],
                "get": op("What is known of an object", &[], None, &[
                    (200, "It is here", json_of("Stat")),
                    (400, "The id is not understood", problem()),
                    (404, "It is not here", problem()),
                ]),
            },
            "/pins/{id}": {
                "parameters": [id()],
                "put": guarded(op("Pins an object", &[], None, &[
                    (200, "It is pinned", json_of("Pin")),
                    (400, "The id is not understood", problem()),
                    (404, "It is not here", problem()),
                ])),
                "delete": guarded(op("Takes a pin back", &[], None, &[
                    (200, "It is not pinned", json_of("Pin")),
                    (400, "The id is not understood", problem()),
                    (404, "It is not here", problem()),
                ])),
            },
            "/usage": {"get": guarded(op("How much there is", &[], None, &[(200, "The numbers", json_of("Usage"))]))},
            "/gc": {
                "post": guarded(op(
                    "Deletes what is neither pinned nor young",
                    &[query("dry_run", json!({"type": "boolean"}), "Only says what would go")],
                    None,
                    &[(200, "What went", json_of("Collected")), (400, "A parameter is not understood", problem())],
                )),
            },
            "/scrub": {
                "post": guarded(op("Reads everything and quarantines what is damaged", &[], None, &[
                    (200, "What was found", json_of("Scrubbed")),
                ])),
            },
            "/openapi.json": {"get": op("This document", &[], None, &[(200, "The document", json!({"application/json": {}}))])},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// [`document`] for the routers of a store whose objects live on many nodes.
#[cfg(feature = "net")]
#[must_use]
pub fn kept() -> Value {
    let mut document = document();
    let unacknowledged = "Fewer nodes have it than were asked for: it is kept here and copied later; or stopping, or the disk failed";
    let wishes = || {
        [
            query(
                "policy",
                json!({"type": "string"}),
                "How it is kept: a number of copies, or shards as in 6+3",
            ),
            query("ack", json!({"type": "string"}), "When to answer: local, or when so many nodes have it"),
        ]
    };
    for (path, method) in [("/o/{id}", "put"), ("/o", "post")] {
        let op = &mut document["paths"][path][method];
        if let Some(parameters) = op["parameters"].as_array_mut() {
            parameters.extend(wishes());
        }
        for status in ["200", "201"] {
            op["responses"][status]["content"] = json_of("Kept");
        }
        op["responses"]["503"] =
            json!({"description": unacknowledged, "content": problem_of("Unacknowledged")});
    }
    let deleted = &mut document["paths"]["/o/{id}"]["delete"];
    deleted["summary"] = "Deletes the object on all nodes, also on those that are away and come back".into();
    deleted["responses"]["409"]["description"] = "It is pinned, or others claim it".into();
    let node = json!({"name": "node", "in": "path", "required": true, "schema": {"type": "string"}, "description": "64 lowercase hex digits"});
    let own = json!({
        "/keeping/status": {"get": op("How objects and nodes are doing", &[], None, &[(200, "The status", json_of("Keeping"))])},
        "/keeping/objects/{id}": {
            "parameters": [id()],
            "put": guarded(op("Changes how an object is kept, for which it is brought here", &wishes(), None, &[
                (200, "It is claimed with this policy", json_of("Wish")),
                (400, "The id or a parameter is not understood", problem()),
                (404, "Nobody has it", problem()),
                (413, "It is too large to be cut into shards", problem()),
                (503, unacknowledged, problem()),
                (507, "The disk or the quota is full", problem()),
            ])),
        },
        "/keeping/draining": {
            "put": guarded(op("Lets this node be emptied before it goes", &[], None, &[(200, "It is given nothing new from now on", json_of("Draining"))])),
            "delete": guarded(op("Takes that back", &[], None, &[(200, "It is taken back", json_of("Draining"))])),
        },
        "/keeping/nodes/{node}": {
            "parameters": [node],
            "delete": guarded(op("Stops waiting for a node that will not come back", &[], None, &[
                (200, "It is forgotten", json_of("Forgotten")),
                (400, "This is no name of a node", problem()),
                (404, "It is not known, or listed in the settings", problem()),
                (409, "It answers, and is not lost", problem()),
            ])),
        },
    });
    if let (Value::Object(paths), Value::Object(own)) = (&mut document["paths"], own) {
        paths.extend(own);
    }
    if let (Value::Object(schemas), Value::Object(own)) =
        (&mut document["components"]["schemas"], kept_schemas())
    {
        schemas.extend(own);
    }
    document
}

#[cfg(feature = "net")]
fn kept_schemas() -> Value {
    let (text, number, flag) =
        (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "boolean"}));
    let list = |items: &Value| json!({"type": "array", "items": items});
    let wish = [("policy", &text), ("acknowledged", &number), ("nodes", &list(&text)), ("version", &number)];
    let stored = [
        ("id", &text),
        ("cid", &text),
        ("size", &number),
        ("existed", &flag),
        ("durability", &json!({"enum": ["durable", "buffered"]})),
    ];
    let stored_anyway = [("id", &text), ("acknowledged", &number), ("wanted", &number)];
    json!({
        "Unacknowledged": problem_record(&stored_anyway),
        "Kept": record(&[&stored[..], &wish[..]].concat(), &[]),
        "Wish": record(&[&wish[..], &[("id", &text)]].concat(), &[]),
        "Draining": record(&[("draining", &flag)], &[]),
        "Forgotten": record(&[("node", &text), ("forgotten", &flag)], &[]),
        "Keeping": record(&[
            ("policy", &text), ("ack", &text), ("has_looked", &flag), ("claims", &number), ("unweighed", &number),
            ("objects", &json!({"$ref": "#/components/schemas/Healths"})),
            ("rf_observed", &json!({"type": ["integer", "null"], "minimum": 0})), ("repairs", &number),
            ("bytes_per_second", &number), ("draining", &flag), ("misplaced", &number), ("needed", &number),
            ("untold", &number), ("up", &number), ("away", &number),
            ("nodes", &list(&json!({"$ref": "#/components/schemas/Node"}))),
            ("recent", &list(&json!({"$ref": "#/components/schemas/KeepingEvent"}))),
        ], &[]),
        "Healths": record(&[], &[
            ("met", &number), ("under", &number), ("urgent", &number), ("lost", &number), ("deleted", &number),
        ]),
        "Node": record(&[
            ("id", &text), ("addrs", &list(&text)), ("zone", &text), ("weight", &number), ("durable", &flag),
            ("presence", &json!({"enum": ["up", "draining", "away", "unknown"]})),
            ("seen_ms", &json!({"type": ["integer", "null"], "minimum": 0})), ("pieces", &number), ("this", &flag),
        ], &[]),
        "KeepingEvent": record(&[
            ("event", &json!({"enum": ["lost", "found", "repaired", "blamed", "away", "back"]})), ("at_ms", &number),
        ], &[("object", &text), ("node", &text), ("class", &text), ("bytes", &number)]),
    })
}

fn schemas() -> Value {
    let (text, number, flag) =
        (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "boolean"}));
    json!({
        "Stored": record(&[
            ("id", &text), ("cid", &text), ("size", &number), ("existed", &flag),
            ("durability", &json!({"enum": ["durable", "buffered"]})),
        ], &[]),
        "Stat": record(&[("id", &text), ("cid", &text), ("size", &number), ("pinned", &flag), ("quarantined", &flag)], &[]),
        "Page": record(&[
            ("objects", &json!({"type": "array", "items": {"$ref": "#/components/schemas/Stat"}})),
        ], &[("next", &text)]),
        "Pin": record(&[("id", &text), ("pinned", &flag), ("changed", &flag)], &[]),
        "Usage": record(&[
            ("objects", &number), ("bytes", &number), ("pinned", &number), ("quarantined", &number),
            ("disk_bytes", &number), ("garbage_bytes", &number),
        ], &[("free_bytes", &number)]),
        "Collected": record(&[("objects", &number), ("bytes", &number), ("kept", &number), ("dry_run", &flag)], &[]),
        "Scrubbed": record(&[
            ("objects", &number), ("bytes", &number), ("damaged", &json!({"type": "array", "items": &text})),
            ("unreadable", &json!({"type": "array", "items": &text})), ("journal_damage", &number),
        ], &[]),
        "Problem": problem_record(&[]),
    })
}

fn object(summary: &str, has_ranges: bool) -> Value {
    let bytes = json!({"application/octet-stream": {}, BAO: {}});
    let mut answers = vec![
        (200, "The object, or the proof that is asked for", bytes),
        (304, "The client has it already", json!({})),
        (400, "The id or a parameter is not understood", problem()),
        (404, "It is not here", problem()),
        (412, "It is none of those in if-match", problem()),
        (416, "There is no such range", problem()),
        (500, "It is damaged and not served", problem()),
    ];
    let mut parameters = vec![
        query("filename", json!({"type": "string"}), "The name under which a browser stores it"),
        query("bytes", json!({"type": "string"}), "The ranges of a proof, as behind bytes= of Range"),
        header_parameter("If-None-Match", "Tags of what the client has"),
        header_parameter("If-Match", "Tags of what the client wants"),
    ];
    if has_ranges {
        let parts = json!({"application/octet-stream": {}, "multipart/byteranges": {}});
        answers.push((206, "The ranges asked for", parts));
        parameters.push(header_parameter("Range", "Up to 16 ranges of bytes, none twice"));
        parameters.push(header_parameter("If-Range", "Ranges only if this is its tag"));
    }
    op(summary, &parameters, None, &answers)
}

fn op(summary: &str, parameters: &[Value], body: Option<Value>, answers: &[(u16, &str, Value)]) -> Value {
    let usual = [
        (400, "A parameter is not understood"),
        (429, "Too much at once; retry-after says when"),
        (503, "Stopping, or the disk failed, or no node that answers has what is claimed"),
        (504, "Not in time"),
    ];
    operation(summary, parameters, body, answers, &usual)
}

fn id() -> Value {
    json!({
        "name": "id", "in": "path", "required": true, "schema": {"type": "string"},
        "description": "b3: and 64 lowercase hex digits, or a CIDv1 of raw bytes and BLAKE3",
    })
}

fn query(name: &str, schema: Value, description: &str) -> Value {
    json!({"name": name, "in": "query", "schema": schema, "description": description})
}

fn header_parameter(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "header", "schema": {"type": "string"}, "description": description})
}

fn digest() -> Value {
    header_parameter("Content-Digest", "What the body hashes to: sha-256, sha-512 or blake3")
}

fn put_parameters() -> [Value; 3] {
    [
        query("pin", json!({"type": "boolean"}), "Pins it as it is stored"),
        query("durability", json!({"enum": ["durable", "buffered"]}), "What to wait for"),
        digest(),
    ]
}

fn body() -> Value {
    // An object may be empty, and then there is no body.
    json!({"required": false, "content": {"application/octet-stream": {}}})
}

fn stored() -> Value {
    json_of("Stored")
}

pub(super) async fn serve(request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    Ok(Json(document()))
}
