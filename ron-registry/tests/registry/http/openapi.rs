//! The document says what the routes do.

use std::collections::BTreeSet;

use data_encoding::BASE64;
use ron_core::ContentId;
use ron_registry::http::openapi;
use serde_json::{Value, json};

use super::{Answer, Host, submission};
use crate::world::{approvals, bind, draft};

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

/// The schema of an answer with this status, resolved.
fn schema<'a>(document: &'a Value, op: &'a Value, answer: &Answer) -> Option<&'a Value> {
    let described = &op["responses"][answer.status.to_string()];
    assert!(described.is_object(), "{answer:?} is not described in {op}");
    let kind = answer.header("content-type");
    let content = described["content"].as_object().filter(|_| kind.ends_with("json"))?;
    let found = &content.get(kind).unwrap_or_else(|| panic!("{kind} in {described}"))["schema"];
    match found["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')),
        None => Some(found).filter(|found| found.is_object()),
    }
}

fn check(document: &Value, schema: &Value, value: &Value) {
    let schema = schema["$ref"]
        .as_str()
        .map_or(schema, |name| document.pointer(name.trim_start_matches('#')).unwrap());
    if let Some(fields) = value.as_object() {
        let keys = |value: &Value| -> BTreeSet<String> {
            value.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
        };
        let known = keys(&schema["properties"]);
        let required = schema["required"].as_array().unwrap_or_else(|| panic!("{value} is not {schema}"));
        let required: BTreeSet<String> =
            required.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        let found = keys(value);
        assert!(found.is_subset(&known) && required.is_subset(&found), "{value} is not {schema}");
        fields.iter().for_each(|(name, field)| check(document, &schema["properties"][name], field));
        return;
    }
    let fits = match (schema["type"].as_str(), schema["enum"].as_array()) {
        (_, Some(allowed)) => allowed.contains(value),
        (Some("string"), _) => value.is_string(),
        (Some("integer"), _) => value.is_u64(),
        (Some("boolean"), _) => value.is_boolean(),
        (Some("array"), _) => {
            value.as_array().unwrap().iter().for_each(|item| check(document, &schema["items"], item));
            true
        }
        _ => false,
    };
    assert!(fits, "{value} is not {schema}");
}

/// Every route with every method, with the token and without it: what is described answers as described, and what is not is
/// refused.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_described() {
    let host = Host::founded(2, 3).await;
    bind(&host.registry, "a", "x", &[0, 1]).await.unwrap();
    let waiting = draft(&host.registry, "waits", "x");
    let document = openapi();
    assert_eq!(host.get("/openapi.json").await.json(), document);
    let mut answered = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let op = &methods[method.to_lowercase()];
            // Whatever can be got can be asked about.
            if method == "HEAD" && op.is_null() && !methods["get"].is_null() {
                continue;
            }
            host.post("/proposals", &submission(&waiting, &[])).await;
            for name in ["present", "absent", "none"] {
                let at = |present: &str, absent: &str, none: &str| match name {
                    "present" => present.to_owned(),
                    "absent" => absent.to_owned(),
                    _ => none.to_owned(),
                };
                let id = match path.starts_with("/proposals") {
                    true => at(&waiting.id().to_string(), &"0".repeat(64), "x"),
                    false => at(&ContentId::of(b"x").to_string(), &ContentId::of(b"y").to_string(), "x"),
                };
                let path = path
                    .replace("{version}", &at("2", "99", "x"))
                    .replace("{name}", &at("a", "b", "/"))
                    .replace("{path}", &at("0/000.p/1", "0/001", "x"))
                    .replace("{part}", "0")
                    .replace("{id}", &id);
                let fresh = draft(&host.registry, &format!("fresh/{}", answered.len()), name);
                let body = match (&*path, name) {
                    (_, "none") => json!({"what": 1}),
                    ("/approvals", "present") => {
                        json!({"approval": BASE64.encode(&approvals(&waiting, &[0])[0].encode())})
                    }
                    ("/approvals", _) => {
                        json!({"approval": BASE64.encode(&approvals(&fresh, &[0])[0].encode())})
                    }
                    ("/found", _) => json!({"policy": BASE64.encode(crate::world::policy(1, 1).encoded())}),
                    ("/proposals", _) => submission(&fresh, &[]),
                    ("/supersede", "present") => {
                        let next = draft(&host.registry, "a", &format!("{}", answered.len()));
                        submission(&next, &approvals(&next, &[0, 1]))
                    }
                    (_, "present") => submission(&fresh, &approvals(&fresh, &[0, 2])),
                    _ => submission(&fresh, &approvals(&fresh, &[1])),
                };
                for (allowed, query) in [(true, "?unknown"), (false, ""), (true, "")] {
                    // It has no end to read to; other tests have it.
                    if path == "/stream" && query.is_empty() {
                        continue;
                    }
                    let token = if allowed { "authorization: Bearer all\r\n" } else { "" };
                    let headers = format!("{token}content-type: application/json\r\n");
                    let body = body.to_string();
                    let answer =
                        host.send(method, &format!("{path}{query}"), &headers, body.as_bytes()).await;
                    if op.is_null() {
                        assert_eq!(answer.status, 405, "{method} {path}");
                        continue;
                    }
                    assert!(answer.status != 405, "{method} {path}");
                    assert_eq!(
                        answer.status == 401,
                        !allowed && op["security"].is_array(),
                        "{method} {path}"
                    );
                    answered.insert(format!("{method} {}", answer.status));
                    if let Some(schema) = schema(&document, op, &answer) {
                        check(&document, schema, &answer.json());
                    }
                }
            }
        }
    }
    for seen in [
        "GET 200", "GET 404", "GET 400", "GET 426", "POST 201", "POST 202", "POST 400", "POST 404",
        "POST 409",
    ] {
        assert!(answered.contains(seen), "{seen} in {answered:?}");
    }
    host.get("/elsewhere/there").await.is_problem(404, "not_found");
    host.supervisor.shutdown().await;
}
