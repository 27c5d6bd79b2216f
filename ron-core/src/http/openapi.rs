//! What the OpenAPI documents of routes are written with: everything that such documents say alike.
//!
//! A document is written by hand beside the routes that it describes, and a test holds it to them. Contents are those of
//! OpenAPI, from the type of a body to its schema; schemas are named as in `components`.
//!
//! ```
//! use ron_core::http::openapi::{guarded, json_of, operation, problem_record, record};
//! use serde_json::json;
//!
//! let number = json!({"type": "integer"});
//! let usual = [(429, "Too much at once; retry-after says when")];
//! let order = operation("Orders", &[], None, &[(200, "What it costs", json_of("Cost"))], &usual);
//! let document = json!({
//!     "openapi": "3.1.0",
//!     "info": {"title": "orders", "version": "1"},
//!     "paths": {"/orders": {"post": guarded(order)}},
//!     "components": {
//!         "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
//!         "schemas": {"Cost": record(&[("cost", &number)], &[]), "Problem": problem_record(&[])},
//!     },
//! });
//! assert_eq!(document["paths"]["/orders"]["post"]["security"], json!([{"token": []}]));
//! ```

use serde_json::{Map, Value, json};

/// The schema of a record with fields that are always there, some that may be, and no others.
#[must_use]
pub fn record(required: &[(&str, &Value)], optional: &[(&str, &Value)]) -> Value {
    let properties: Map<String, Value> =
        required.iter().chain(optional).map(|(name, kind)| ((*name).to_owned(), (*kind).clone())).collect();
    let required: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The schema of a [`Problem`](super::Problem), with what this one may say besides. The document has the usual one as
/// `Problem`.
#[must_use]
pub fn problem_record(besides: &[(&str, &Value)]) -> Value {
    let (text, number, flag) =
        (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "boolean"}));
    let usual = [("detail", &text), ("hint", &text), ("corr_id", &text)];
    record(
        &[("type", &text), ("title", &text), ("status", &number), ("code", &text), ("retryable", &flag)],
        &[&usual, besides].concat(),
    )
}

/// One operation: what it takes, and what it answers, each answer with its status, what it means and its content, which is
/// empty where there is no body. `usual` are refusals of every operation of these routes, where it does not say otherwise.
#[must_use]
pub fn operation(
    summary: &str,
    parameters: &[Value],
    body: Option<Value>,
    answers: &[(u16, &str, Value)],
    usual: &[(u16, &str)],
) -> Value {
    let mut responses: Map<String, Value> = answers
        .iter()
        .map(|(status, what, content)| {
            let mut answer = json!({"description": what});
            if content.as_object().is_some_and(|content| !content.is_empty()) {
                answer["content"] = content.clone();
            }
            (status.to_string(), answer)
        })
        .collect();
    for (status, what) in usual {
        let refusal = || json!({"description": what, "content": problem()});
        responses.entry(status.to_string()).or_insert_with(refusal);
    }
    let mut operation = json!({"summary": summary, "responses": responses});
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = body {
        operation["requestBody"] = body;
    }
    operation
}

/// The same for those with a token, by the security scheme `token`.
#[must_use]
pub fn guarded(mut operation: Value) -> Value {
    operation["security"] = json!([{"token": []}]);
    for (status, what) in [("401", "No token, or not the right one"), ("403", "Not with this token")] {
        if operation["responses"][status].is_null() {
            operation["responses"][status] = json!({"description": what, "content": problem()});
        }
    }
    operation
}

/// The content of an answer in JSON, by the name of its schema.
#[must_use]
pub fn json_of(schema: &str) -> Value {
    json!({"application/json": reference(schema)})
}

/// The content of a refusal.
#[must_use]
pub fn problem() -> Value {
    problem_of("Problem")
}

/// The content of a refusal that says more than the usual one, by the name of its schema.
#[must_use]
pub fn problem_of(schema: &str) -> Value {
    json!({"application/problem+json": reference(schema)})
}

/// What a body is like, by the name of its schema.
#[must_use]
pub fn reference(schema: &str) -> Value {
    json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}})
}
