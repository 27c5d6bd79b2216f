//! The document says what the routes do.

use std::{collections::BTreeSet, sync::Arc};

use ron_core::{
    ContentId,
    auth::{Action, Authorizer, Credentials, Denied, Grant},
    http::Settings as HttpSettings,
};
use ron_storage::{Settings, Store, http::openapi};
use serde_json::Value;

use crate::{Answer, Host, content, disk::OnDisk};

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

/// The schema of an answer with this status, resolved.
pub(crate) fn schema<'a>(document: &'a Value, op: &'a Value, answer: &Answer) -> Option<&'a Value> {
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

pub(crate) fn check(document: &Value, schema: &Value, value: &Value) {
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
    // What may be missing is of a kind, or null.
    let is_null =
        schema["type"].as_array().is_some_and(|kinds| kinds.contains(&"null".into())) && value.is_null();
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    let fits = match (kind, schema["enum"].as_array()) {
        _ if is_null => true,
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

/// The statuses that answers had, by method and template.
struct Seen {
    document: Value,
    statuses: BTreeSet<(String, u16)>,
}

impl Seen {
    fn ops(&self) -> Vec<(String, String)> {
        let paths = self.document["paths"].as_object().unwrap();
        let methods = |path: &String, ops: &Value| -> Vec<_> {
            let named = ops.as_object().unwrap().keys().filter(|key| *key != "parameters");
            named.map(|method| (method.to_uppercase(), path.clone())).collect()
        };
        paths.iter().flat_map(|(path, ops)| methods(path, ops)).collect()
    }

    /// Notes an answer, which must be one that is described.
    fn note(&mut self, method: &str, template: &str, answer: &Answer) {
        let op = &self.document["paths"][template][method.to_lowercase()];
        assert!(
            op["responses"][answer.status.to_string()].is_object(),
            "{method} {template}: {}",
            answer.status
        );
        self.statuses.insert((format!("{method} {template}"), answer.status));
    }
}

/// Knows everybody and lets nobody do anything.
struct Nobody;

impl Authorizer for Nobody {
    fn authorize(&self, _: &Action<'_>, _: &Credentials<'_>) -> Result<Grant, Denied> {
        Err(Denied::Forbidden)
    }
}

/// What is described is answered too: every status of every route, but for those that take a thousand requests at once (429)
/// or a disk that hangs (504). These have tests of their own; here is only seen that they are described everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn every_status_that_is_described_is_answered() {
    let settings = Settings { object_bytes_max: 10_000, quota_bytes: Some(12_000), ..Settings::default() };
    let host = Host::with(settings, HttpSettings::default()).await;
    let mut seen = Seen { document: openapi(), statuses: BTreeSet::new() };
    let present = host.put(b"present").await;
    let pinned = host.put(b"pinned").await;
    host.store.pin(pinned, crate::soon()).await.unwrap();
    let (new, other) = (content(9000), vec![7; 9000]);
    let absent = ContentId::of(b"absent");
    let (bao, digest) = ("accept: application/vnd.ron.bao\r\n", "content-digest: sha-256=:");
    let digest = format!("{digest}AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:\r\n");
    let gzip = "content-encoding: gzip\r\n";
    let tag = format!("if-none-match: \"{present}\"\r\n");
    let bao_tag = "if-match: \"x\"\r\n";
    type Asked<'a> = (&'a str, &'a str, String, &'a str, &'a [u8]);
    let on = |id: ContentId, query: &str| format!("{id}{query}");
    let asked: Vec<Asked<'_>> = vec![
        ("GET", "/o/{id}", on(present, ""), "", b""),
        ("GET", "/o/{id}", on(present, ""), "range: bytes=0-1\r\n", b""),
        ("GET", "/o/{id}", on(present, ""), "range: bytes=99-\r\n", b""),
        ("GET", "/o/{id}", on(present, ""), &tag, b""),
        ("GET", "/o/{id}", on(present, ""), bao_tag, b""),
        ("GET", "/o/{id}", on(absent, ""), "", b""),
        ("HEAD", "/o/{id}", on(present, ""), "", b""),
        ("HEAD", "/o/{id}", on(present, "?bytes=99-"), bao, b""),
        ("HEAD", "/o/{id}", on(present, ""), &tag, b""),
        ("HEAD", "/o/{id}", on(present, ""), bao_tag, b""),
        ("HEAD", "/o/{id}", on(absent, ""), "", b""),
        ("PUT", "/o/{id}", on(present, ""), "", b"present"),
        ("PUT", "/o/{id}", on(present, ""), "if-none-match: *\r\n", b"present"),
        ("PUT", "/o/{id}", on(absent, ""), "", b"another"),
        ("PUT", "/o/{id}", on(absent, ""), gzip, b"absent"),
        ("PUT", "/o/{id}", on(absent, ""), "", &[0; 20_000]),
        ("PUT", "/o/{id}", on(ContentId::of(&new), ""), "", &new),
        ("PUT", "/o/{id}", on(ContentId::of(&other), ""), "", &other),
        ("POST", "/o", String::new(), "", &other),
        ("POST", "/o", String::new(), "", b"new"),
        ("POST", "/o", String::new(), "", b"present"),
        ("POST", "/o", String::new(), &digest, b"newer"),
        ("POST", "/o", String::new(), gzip, b"newer"),
        ("POST", "/o", String::new(), "", &[0; 20_000]),
        ("GET", "/o", String::new(), "", b""),
        ("GET", "/stat/{id}", on(present, ""), "", b""),
        ("GET", "/stat/{id}", on(absent, ""), "", b""),
        ("PUT", "/pins/{id}", on(absent, ""), "", b""),
        ("PUT", "/pins/{id}", on(present, ""), "", b""),
        ("DELETE", "/pins/{id}", on(absent, ""), "", b""),
        ("DELETE", "/pins/{id}", on(present, ""), "", b""),
        ("DELETE", "/o/{id}", on(pinned, ""), "", b""),
        ("DELETE", "/o/{id}", on(absent, ""), "", b""),
        ("DELETE", "/o/{id}", on(present, ""), "", b""),
        ("GET", "/usage", String::new(), "", b""),
        ("POST", "/gc", String::new(), "", b""),
        ("POST", "/scrub", String::new(), "", b""),
        ("GET", "/openapi.json", String::new(), "", b""),
    ];
    for (method, template, rest, headers, body) in asked {
        let path = format!("{}{rest}", template.trim_end_matches("{id}"));
        seen.note(method, template, &host.allowed(method, &path, headers, body).await);
    }

    // Those that every route has, or every guarded one.
    let closed =
        Host::serve_to(Store::builder().memory(), HttpSettings::default(), Some(Arc::new(Nobody))).await;
    for (method, template) in seen.ops() {
        let path = template.replace("{id}", &absent.to_string());
        seen.note(&method, &template, &host.allowed(&method, &format!("{path}?unknown"), "", b"").await);
        if seen.document["paths"][&template][method.to_lowercase()]["security"].is_array() {
            seen.note(&method, &template, &host.send(&method, &path, "content-length: 0\r\n", b"").await);
            seen.note(&method, &template, &closed.allowed(&method, &path, "", b"").await);
        }
    }

    // What only damage brings about.
    let on_disk = OnDisk::start(Settings::default(), HttpSettings::default()).await;
    let object = content(5000);
    let damaged = on_disk.host.put(&object).await;
    on_disk.flip_behind(&object[1000..1100]);
    for method in ["GET", "HEAD"] {
        let answer = on_disk.host.ask(method, &format!("/o/{damaged}"), "").await;
        assert_eq!(answer.status, 500);
        seen.note(method, "/o/{id}", &answer);
    }

    // And what only the stop does. What is told without asking anybody is told to the last.
    host.store.shutdown().await;
    for (method, template) in seen.ops() {
        let path = template.replace("{id}", &absent.to_string());
        let answer = host.allowed(&method, &path, "", b"x").await;
        if !matches!(&*template, "/usage" | "/openapi.json") {
            assert_eq!(answer.status, 503, "{method} {template}");
        }
        seen.note(&method, &template, &answer);
    }

    let mut missing = Vec::new();
    for (method, template) in seen.ops() {
        let responses = &seen.document["paths"][&template][method.to_lowercase()]["responses"];
        for status in responses.as_object().unwrap().keys() {
            let is_seen = seen.statuses.contains(&(format!("{method} {template}"), status.parse().unwrap()));
            let is_elsewhere = matches!(&**status, "429" | "504")
                || (status == "503" && matches!(&*template, "/usage" | "/openapi.json"));
            if !is_seen && !is_elsewhere {
                missing.push(format!("{method} {template} {status}"));
            }
        }
        assert!(responses["429"].is_object() && responses["504"].is_object());
    }
    assert!(missing.is_empty(), "described and not answered: {missing:#?}");
}
