//! The document says what the routes do.

use std::collections::BTreeSet;

use ron_core::ContentId;
use ron_storage::http::openapi;
use serde_json::Value;

use crate::{Answer, Host};

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

/// The schema of an answer with this status, resolved.
fn schema<'a>(document: &'a Value, op: &'a Value, answer: &Answer) -> Option<&'a Value> {
    let described = &op["responses"][answer.status.to_string()];
    assert!(described.is_object(), "{} is not described in {op}", answer.status);
    let kind = answer.header("content-type");
    let content = described["content"]
        .as_object()
        .filter(|_| !kind.is_empty() && kind != "application/octet-stream")?;
    let name =
        content.get(kind).unwrap_or_else(|| panic!("{kind} in {described}"))["schema"]["$ref"].as_str()?;
    document.pointer(name.trim_start_matches('#'))
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
        let required: BTreeSet<String> = schema["required"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        let found = keys(value);
        assert!(found.is_subset(&known) && required.is_subset(&found), "{value} is not {schema}");
        for (name, field) in fields {
            check(document, &schema["properties"][name], field);
        }
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

/// Every route with every method: what is described answers as described, what is not is refused; with the token and
/// without it, for objects that are there, that are not, and that are none.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_described() {
    let host = Host::start().await;
    let document = openapi();
    let served = host.ask("GET", "/openapi.json", "").await;
    assert_eq!(served.json(), document);
    let mut answered = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let op = &methods[method.to_lowercase()];
            // Whatever can be got can be asked about.
            if method == "HEAD" && op.is_null() && !methods["get"].is_null() {
                continue;
            }
            for name in ["present", "absent", "none"] {
                let id = host.put(b"present").await;
                let id = match name {
                    "present" => id.to_string(),
                    "absent" => ContentId::of(b"absent").to_cid(),
                    _ => "b3:..".to_owned(),
                };
                let path = path.replace("{id}", &id);
                for (allowed, query) in [(true, ""), (true, "?unknown"), (false, "")] {
                    let answer = if allowed {
                        host.allowed(method, &format!("{path}{query}"), "", b"present").await
                    } else {
                        host.send(method, &path, "content-length: 7\r\n", b"present").await
                    };
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
                    if let Some(schema) = schema(&document, op, &answer).filter(|_| method != "HEAD") {
                        check(&document, schema, &answer.json());
                    }
                }
            }
        }
    }
    for seen in ["GET 200", "GET 404", "GET 400", "PUT 200", "PUT 409", "POST 200", "DELETE 204", "HEAD 200"]
    {
        assert!(answered.contains(seen), "{seen} in {answered:?}");
    }
    host.ask("GET", "/elsewhere", "").await.is_problem(404, "not_found");
}
