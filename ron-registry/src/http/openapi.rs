//! The routes as an OpenAPI document. Written by hand beside the code that it describes, and held to it by a test that asks
//! every route with every method and compares the fields of every answer.

use axum::extract::Request;
use ron_core::http::{
    Json, Problem, Query,
    openapi::{guarded, json_of, operation, problem, problem_record, record, reference},
};
use serde_json::{Value, json};

use super::{CBOR, OCTETS};

/// The document, with paths as they are below the place where the routers are mounted.
#[must_use]
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ron-registry",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "A governed, append-only log. What is refused is answered as application/problem+json.",
        },
        "paths": {
            "/head": {"get": op("Where the log ends", &[], None, &[
                (200, "The head", json_of("Head")), (304, "The client has it already", json!({})),
            ])},
            "/{version}": {
                "parameters": [path("version", "A number from 1 on")],
                "get": op("An entry", &[], None, &[
                    (200, "The entry", json!({"application/json": reference("Entry"), CBOR: {}})),
                    (400, "This is no version", problem()),
                    (404, "It is not there yet", problem()),
                    (410, "It was pruned", problem()),
                ]),
            },
            "/entries": {"get": op("Entries that follow each other",
                &[query("from", "The first; the first that is left if it is not said"), query("limit", "How many, 64 if it is not said and 1024 at most")],
                None, &[
                    (200, "The entries", json!({"application/json": reference("Entries"), OCTETS: {}})),
                    (410, "The first of them was pruned", problem()),
                ])},
            "/by-content/{id}": {
                "parameters": [path("id", "b3: and 64 lowercase hex digits, or a CIDv1 of raw bytes and BLAKE3")],
                "get": op("The newest entries that bound a name to this content, at most 256", &[], None, &[
                    (200, "The versions of these entries", json_of("Versions")), (400, "This is no name of content", problem()),
                ]),
            },
            "/names/{name}": {
                "parameters": [path("name", "The name; slashes are part of it")],
                "get": op("What a name stands for, or that it stands for nothing, with the proof", &[], None, &[
                    (200, "The answer, with its proof", json_of("Name")),
                    (400, "This is no name", problem()),
                    (404, "The log has not begun", problem()),
                ]),
            },
            "/policy": {"get": op("The policy in force: who decides", &[], None, &[
                (200, "The policy in force", json_of("PolicyInForce")), (404, "The log has not begun", problem()),
            ])},
            "/proofs/{version}": {
                "parameters": [path("version", "A number from 1 on")],
                "get": op("A tlog-proof file: that an entry is in the log", &[cosigned()], None, &[
                    (200, "The file", json!({"text/plain; charset=utf-8": {}})),
                    (400, "This is no version", problem()),
                    (404, "It is not there yet", problem()),
                    (410, "It was pruned", problem()),
                ]),
            },
            "/consistency": {"get": op("That one log is the beginning of another",
                &[query("old", "Entries of the shorter"), query("new", "Entries of the longer; all there are if it is not said")],
                None, &[
                    (200, "The proof", json_of("Consistency")),
                    (404, "The log has fewer entries", problem()),
                    (410, "What it takes was pruned", problem()),
                ])},
            "/checkpoint": {"get": op("The signed head, as C2SP tlog-tiles has it", &[cosigned()], None, &[
                (200, "The signed head", json!({"text/plain; charset=utf-8": {}})), (304, "The client has it already", json!({})),
                (404, "No witness has signed one yet", problem()),
            ])},
            "/snapshot": {"get": op("Which snapshot stands for what was pruned", &[], None, &[
                (200, "The snapshot", json_of("Snapshot")), (404, "Nothing was pruned", problem()),
            ])},
            "/snapshot/{version}/{part}": {
                "parameters": [path("version", "The one that there is"), path("part", "A number from 0 on")],
                "get": op("A part of a snapshot, with what it takes to check it", &[], None, &[
                    (200, "The part", json!({CBOR: {}})),
                    (400, "This is no part of a snapshot", problem()),
                    (404, "There is another snapshot by now, or none", problem()),
                ]),
            },
            "/tile/{path}": {
                "parameters": [path("path", "Level and index, as C2SP tlog-tiles has it")],
                "get": op("A tile of the tree, or a bundle of entries", &[], None, &[
                    (200, "The tile or the bundle", json!({OCTETS: {}})),
                    (400, "This is no path of a tile", problem()),
                    (404, "It is not there yet", problem()),
                    (410, "It was pruned", problem()),
                ]),
            },
            "/stream": {"get": op("What is committed, as server-sent events",
                &[
                    query("from", "The first version; the next commit if it is not said"),
                    json!({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}, "description": "The last version that was seen; goes before from"}),
                ],
                None, &[(200, "Events, without an end", json!({"text/event-stream": {}}))])},
            "/ws": {"get": op("What is committed, over a WebSocket",
                &[query("from", "The first version; the next commit if it is not said")],
                None, &[(101, "The connection carries messages from here on", json!({})), (426, "This is for WebSockets", problem())])},
            "/openapi.json": {"get": op("This document", &[], None, &[(200, "The document", json!({"application/json": {}}))])},
            "/found": {"post": guarded(op("Begins the log", &[], Some(body("Found")), &deciding()))},
            "/proposals": {
                "get": guarded(op("The proposals that wait for approvals, in the order in which they expire", &[
                    json!({"name": "after", "in": "query", "schema": {"type": "string"}, "description": "What next was in the answer before"}),
                    query("limit", "How many, 64 if it is not said and 1024 at most"),
                ], None, &[
                    (200, "A page of them", json_of("Waiting")),
                    (409, "This node follows another one", problem()),
                ])),
                "post": guarded(op("Proposes", &[], Some(body("Submit")), &deciding())),
            },
            "/proposals/{id}": {
                "parameters": [path("id", "64 lowercase hex digits")],
                "get": guarded(op("One proposal that waits", &[], None, &[
                    (200, "The proposal", json_of("Pending")),
                    (400, "This is no id of a proposal", problem()),
                    (404, "It does not wait here", problem()),
                    (409, "This node follows another one", problem()),
                ])),
            },
            "/approvals": {"post": guarded(op("Approves", &[], Some(body("Approve")), &deciding()))},
            "/commit": {"post": guarded(op("Proposes and approves at once", &[], Some(body("Submit")), &deciding()))},
            "/supersede": {"post": guarded(op("The same, for what replaces something", &[], Some(body("Submit")), &deciding()))},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn cosigned() -> Value {
    query("cosigned", "1 for what witnesses have signed, which may be older")
}

fn deciding() -> [(u16, &'static str, Value); 9] {
    [
        (201, "It is in the log", json_of("Outcome")),
        (202, "It waits for approvals", json_of("Outcome")),
        (400, "The body is not what it should be", problem()),
        (403, "Not with this token, or this key does not decide here", problem()),
        (404, "No such proposal waits here", problem()),
        (409, "The head, the name or the policy has moved, or its time is over", problem()),
        (413, "It is too large", problem()),
        (415, "It is neither JSON nor CBOR", problem()),
        (507, "The disk is full", problem()),
    ]
}

fn schemas() -> Value {
    let (text, number, flag) =
        (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "boolean"}));
    let list = |items: Value| json!({"type": "array", "items": items});
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let words = list(text.clone());
    json!({
        "Head": record(&[
            ("origin", &text), ("log_key", &text), ("version", &number), ("hash", &text), ("first", &number),
            ("epoch", &number), ("names", &number), ("follows", &flag), ("checkpoint", &text),
        ], &[]),
        "Expect": record(&[("version", &number), ("hash", &text)], &[]),
        "Proposal": record(&[
            ("id", &text), ("action", &json!({"enum": ["found", "bind", "retire", "rotate"]})), ("prior", &number),
            ("epoch", &number), ("expires", &number), ("bytes", &text),
        ], &[
            ("name", &text), ("b3", &text), ("payload", &text), ("policy", &of("Policy")), ("expect_head", &of("Expect")),
        ]),
        "Policy": record(&[
            ("signers", &list(of("Signer"))), ("groups", &list(of("Group"))), ("rules", &list(of("Rule"))),
        ], &[]),
        "Signer": record(&[("name", &text), ("key", &text)], &[("expires", &number)]),
        "Group": record(&[("name", &text), ("needed", &number), ("members", &words)], &[]),
        "Rule": record(&[("right", &json!({"enum": ["bind", "retire", "rotate"]})), ("prefix", &text), ("quorum", &text)], &[]),
        "PolicyInForce": record(&[("epoch", &number), ("policy", &of("Policy")), ("bytes", &text)], &[]),
        "Approval": record(&[("key", &text), ("expires", &number), ("signature", &text)], &[]),
        "Entry": record(&[
            ("version", &number), ("hash", &text), ("previous", &text), ("time", &number), ("names", &text),
            ("proposal", &of("Proposal")), ("approvals", &list(of("Approval"))),
        ], &[]),
        "Entries": record(&[("entries", &list(of("Entry")))], &[("next", &number)]),
        "Versions": record(&[("b3", &text), ("versions", &list(number.clone()))], &[]),
        "Outcome": record(&[
            ("proposal", &text), ("state", &json!({"enum": ["pending", "committed"]})), ("missing", &words),
        ], &[("version", &number), ("checkpoint", &text)]),
        "Pending": record(&[
            ("proposal", &of("Proposal")), ("approvals", &list(of("Approval"))), ("missing", &words),
        ], &[]),
        "Waiting": record(&[("proposals", &list(of("Pending")))], &[("next", &text)]),
        "Name": record(&[("name", &text), ("proof", &text), ("entry", &text), ("inclusion", &text)], &[
            ("version", &number), ("proposal", &text), ("b3", &text),
        ]),
        "Snapshot": record(&[("version", &number), ("parts", &number)], &[]),
        "Consistency": record(&[("old", &number), ("new", &number), ("hashes", &words)], &[]),
        "Submit": record(&[("proposal", &text)], &[("approvals", &words)]),
        "Approve": record(&[("approval", &text)], &[]),
        "Found": record(&[("policy", &text)], &[]),
        "Problem": problem_record(&[]),
    })
}

fn op(summary: &str, parameters: &[Value], body: Option<Value>, answers: &[(u16, &str, Value)]) -> Value {
    let usual = [
        (400, "A parameter is not understood"),
        (429, "Too much at once; retry-after says when"),
        (503, "Stopping, or the store takes or gives nothing"),
        (504, "Not in time"),
    ];
    operation(summary, parameters, body, answers, &usual)
}

fn path(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}, "description": description})
}

fn query(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}, "description": description})
}

/// JSON with the bytes in base64, or the bytes themselves.
fn body(name: &str) -> Value {
    json!({"required": true, "content": {"application/json": reference(name), CBOR: {}}})
}

pub(super) async fn serve(request: Request) -> Result<Json<Value>, Problem> {
    Query::of(&request, &[])?;
    Ok(Json(document()))
}
