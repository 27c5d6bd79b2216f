//! What people and programs see of a node without knowing it: the page, the document of all routes, the names of metrics.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    Daemon,
    objects::{refd, said},
};

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn bearer(data: &Path) -> String {
    format!("Authorization: Bearer {}\r\n", fs::read_to_string(data.join("token")).unwrap().trim())
}

/// Two nodes that know each other, with an object and a topic.
fn pair(dir: &Path) -> (Daemon, Daemon) {
    let topics = [("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let one = Daemon::start_with(&dir.join("one"), &[], &topics);
    let two = Daemon::start_with(&dir.join("two"), &["--seed", &one.seed], &topics);
    let file = dir.join("file");
    fs::write(&file, b"something to see").unwrap();
    said(refd(&one, &dir.join("one"), &["put", file.to_str().unwrap(), "--pin"]));
    one.eventually("/state", |state| state.contains("\"shared_bits\"") && state.contains("\"neighbours\":1"));
    (one, two)
}

#[test]
fn the_page_is_its_own_and_live() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = pair(dir.path());
    for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")] {
        let page = one.get(path);
        assert!(
            page.starts_with("HTTP/1.1 200") && page.contains(&format!("content-type: {kind}")),
            "{page}"
        );
        assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{page}");
        // Nothing inline, nothing from elsewhere.
        assert!(
            !body(&page).contains("://")
                && !body(&page).contains("innerHTML")
                && !body(&page).contains("style=\"")
        );
    }
    let state: Value = serde_json::from_str(body(&one.get("/state"))).unwrap();
    let id = two.seed.split_once('@').unwrap().0;
    assert_eq!(state["dht"]["peers"][0]["id"], id);
    assert_eq!((&state["storage"]["objects"], &state["storage"]["pinned"]), (&1.into(), &1.into()));
    assert_eq!(state["overlay"]["topics"][0]["name"], "news");
    assert!(
        state["queues"]
            .as_array()
            .unwrap()
            .iter()
            .any(|queue| queue["name"] == "dht work" && queue["capacity"] == 512.0)
    );

    // An event now, and another that knows of what happened in between.
    let mut stream = TcpStream::connect(one.admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", one.admin).as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut event = || loop {
        let line = lines.next().unwrap().unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str::<Value>(data).unwrap();
        }
    };
    assert_eq!(event()["storage"]["objects"], 1);
    fs::write(dir.path().join("file"), b"more to see").unwrap();
    said(refd(&one, &dir.path().join("one"), &["put", dir.path().join("file").to_str().unwrap()]));
    while event()["storage"]["objects"] != 2 {}
    // A page that is open does not hold up a stop.
    let stopped = one.terminate();
    assert!(stopped.contains(" 0 cut off"), "{stopped}");
    two.terminate();
}

/// In a browser, if there is one: the script runs, the page is drawn, and nothing is complained about.
#[test]
fn the_page_is_drawn_by_a_browser() {
    let browsers = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = browsers.iter().find(|name| {
        let which = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        which.is_ok_and(|status| status.success())
    });
    let Some(browser) = found else {
        println!("skipped: none of {} is installed", browsers.join(", "));
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = pair(dir.path());
    let screenshot = std::env::var_os("RON_SCREENSHOT");
    let browse = |more: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([
            "60",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args([
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=4000",
            "--window-size=1280,1400",
        ]);
        command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
        command.args(more).arg(format!("http://{}/?once", one.admin));
        command.output().unwrap()
    };
    let drawn = browse(&["--dump-dom"]);
    let (page, log) = (String::from_utf8_lossy(&drawn.stdout), String::from_utf8_lossy(&drawn.stderr));
    let id = two.seed.split_once('@').unwrap().0;
    for words in [
        id,
        "class=\"big good\" id=\"ready\">ready<",
        "dht work",
        "<dt>pinned</dt><dd title=\"1\">1</dd>",
        "news",
        ">once<",
    ] {
        assert!(page.contains(words), "{words}: {page} {log}");
    }
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    if let Some(path) = screenshot {
        let light = format!("--screenshot={}", Path::new(&path).join("light.png").display());
        let dark = format!("--screenshot={}", Path::new(&path).join("dark.png").display());
        browse(&[&light]);
        browse(&[&dark, "--force-dark-mode", "--blink-settings=preferredColorScheme=0"]);
    }
    one.terminate();
    two.terminate();
}

/// Every route that the document has is there, answers as it says, and has no other method; and the table in
/// `docs/operating.md` names no other.
#[test]
fn the_document_of_all_routes_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = Daemon::start(&data, &[]);
    let document: Value = serde_json::from_str(body(&daemon.get("/admin/openapi.json"))).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let mut refs = Vec::new();
    collect_refs(&document, &mut refs);
    for name in refs {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
    // Streams have no end to wait for, and are asked elsewhere.
    let endless = ["/events", "/registry/stream", "/registry/ws"];
    for (template, operations) in paths.iter().filter(|(path, _)| !endless.contains(&path.as_str())) {
        let path = template.replace("{id}", "zz").replace("{key}", "zz").replace("{version}", "zz");
        let path = path.replace("{name}", "no/name").replace("{path}", "zz").replace("{topic}", "zz");
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"] {
            let answer = daemon.ask(method, &path, &format!("{}Content-Length: 0\r\n", bearer(&data)));
            let status = &answer["HTTP/1.1 ".len()..][..3];
            let operation = &operations[method.to_lowercase()];
            // Whoever may GET may ask for the head of it.
            let is_implied = method == "HEAD" && operations["get"].is_object();
            match operation.is_object() {
                true => {
                    let described = operation["responses"].as_object().unwrap();
                    assert!(described.contains_key(status), "{method} {template}: {answer}");
                    let without = daemon.ask(method, &path, "Content-Length: 0\r\n");
                    let is_denied = without.starts_with("HTTP/1.1 401");
                    assert_eq!(is_denied, operation["security"].is_array(), "{method} {template}: {without}");
                }
                false => assert!(status == "405" || is_implied, "{method} {template}: {answer}"),
            }
        }
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let docs = fs::read_to_string(docs).unwrap();
    let (_, table) = docs.split_once("| Route | Who may | Says or does |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let routes = table.lines().filter_map(|line| line.split(" | ").next());
    for route in routes.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        let route = route.rsplit_once(' ').map_or(route, |(_, route)| route);
        let route = route.split('?').next().unwrap();
        if route.starts_with('/') && !route.contains('…') {
            assert!(paths.contains_key(route), "{route}");
        }
    }
    daemon.terminate();
}

fn collect_refs<'a>(value: &'a Value, refs: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            refs.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| collect_refs(value, refs));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_refs(item, refs)),
        _ => {}
    }
}

/// What the dashboards and the alerts ask for is what a node exports.
#[test]
fn names_of_metrics_in_contrib_are_exported() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    // Counted for the first time now.
    daemon.ask("POST", "/admin/reload", &format!("{}Content-Length: 0\r\n", bearer(dir.path())));
    daemon.get("/version");
    let metrics = daemon.eventually("/metrics", |metrics| metrics.contains("ron_dht_provide_lag_seconds"));
    let kinds = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let exported: BTreeSet<String> = kinds
        .flat_map(|(name, kind)| match kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => {
                ["bucket", "sum", "count"].iter().map(|suffix| format!("{name}_{suffix}")).collect()
            }
            _ => vec![name.to_owned()],
        })
        .collect();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib");
    for file in ["prometheus/refd.rules.yml", "grafana/refd.json"] {
        let text = fs::read_to_string(contrib.join(file)).unwrap();
        let words = text.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
        let names: BTreeSet<&str> =
            words.filter(|word| word.starts_with("ron_") || word.starts_with("refd_")).collect();
        assert!(names.len() > 10, "{file}");
        for name in names {
            assert!(exported.contains(name), "{file}: {name}");
        }
    }
    let grafana = fs::read_to_string(contrib.join("grafana/refd.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&grafana).is_ok());
    daemon.terminate();
}
