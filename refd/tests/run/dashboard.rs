//! What people and programs see of a node without knowing it: the page, the document of all routes, the names of metrics.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use serde_json::Value;

use crate::{
    Daemon,
    browser::Browser,
    objects::{refd, said},
};

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn bearer(data: &Path) -> String {
    format!("Authorization: Bearer {}\r\n", fs::read_to_string(data.join("token")).unwrap().trim())
}

/// Two nodes that know each other, with an object and a topic.
fn pair(dir: &Path, variables: &[(&str, &str)]) -> (Daemon, Daemon) {
    let variables = [&[("REFD_OVERLAY__TOPICS", "[\"news\"]")], variables].concat();
    let one = Daemon::start_with(&dir.join("one"), &[], &variables);
    let two = Daemon::start_with(&dir.join("two"), &["--seed", &one.seed], &variables);
    let file = dir.join("file");
    fs::write(&file, b"something to see").unwrap();
    said(refd(&one, &dir.join("one"), &["put", file.to_str().unwrap(), "--pin"]));
    one.eventually("/state", |state| state.contains("\"shared_bits\"") && state.contains("\"neighbours\":1"));
    (one, two)
}

#[test]
fn the_page_is_its_own_and_live() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = pair(dir.path(), &[]);
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
            .any(|queue| queue["part"] == "dht" && queue["name"] == "work" && queue["capacity"] == 512.0)
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

/// A log that says what a name stands for, decided by one person.
fn name(daemon: &Daemon, dir: &Path, data: &Path, name: &str, id: &str) {
    let key = dir.join("ann.key").display().to_string();
    let made = Command::new(crate::REFD).args(["registry", "key", &key]).output().unwrap();
    assert!(made.status.success());
    let run = |arguments: &[&str]| {
        let output = refd(daemon, data, arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["registry", "init", "--needed", "1", "--signer", &format!("ann={key}")]);
    let proposal = run(&["registry", "propose", name, "--artifact", id]);
    run(&["registry", "approve", proposal.trim(), "--key", &key]);
}

/// In a browser, if there is one, in both colour schemes: every panel is drawn and live, a file is stored, listed, fetched,
/// searched for and proven by hand, nothing is complained about, and nobody else is asked.
#[test]
fn the_page_is_used_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let mut grounds = BTreeSet::new();
    for is_dark in [false, true] {
        let Some(browser) = Browser::start(dir.path(), is_dark) else { return };
        let dir = dir.path().join(format!("dark-{is_dark}"));
        fs::create_dir(&dir).unwrap();
        // One pair keeps objects together, and the other each its own.
        let secret = crate::keeping::secret(&dir);
        let company = [
            ("REFD_KEEPING__SECRET_FILE", &*secret),
            ("REFD_KEEPING__REFRESH_MS", "200"),
            ("REFD_KEEPING__TICK_MS", "200"),
        ];
        let (one, two) = pair(&dir, if is_dark { &company } else { &[] });
        let data = dir.join("one");
        let id = said(refd(&one, &data, &["put", dir.join("file").to_str().unwrap()]));
        let id = id.trim();
        let provided = refd(&two, &dir.join("two"), &["provide", id]).output().unwrap();
        assert!(provided.status.success(), "{provided:?}");
        name(&one, &dir, &data, "tools/file", id);

        let page = format!("http://{}/", one.admin);
        browser.open(&page);
        browser.reads("#live", "live");
        let peer = two.seed.split_once('@').unwrap().0;
        let node = one.seed.split_once('@').unwrap().0;
        for (panel, words) in [
            ("#node", node),
            ("#ready", "ready"),
            ("#opened", "gates are open"),
            ("#network", "peers known\n1"),
            ("#buckets", " bits"),
            ("#searches", "hops, on average"),
            ("#hops", "≤ 1"),
            ("#ended", "complete"),
            ("#objects", "pinned\n1"),
            ("#copies", if is_dark { "all there" } else { "kept here alone" }),
            ("#keepers", if is_dark { peer } else { "" }),
            ("#keeping", if is_dark { "as they should be\n1" } else { "" }),
            ("#log", "names\n1"),
            ("#checkpoint", node),
            ("#entries", "bind tools/file b3:"),
            ("#entries", "ann"),
            ("#peers", peer),
            ("#topics", "news"),
            ("#queues", "work"),
        ] {
            browser.reads(panel, words);
        }
        browser.run("window.scrollTo(0, 0)");
        browser.screenshot(&format!("{}-first.png", if is_dark { "dark" } else { "light" }));

        // Stores a file by hand, and sees it in the list and, live, in the count.
        let file = dir.join("by hand.txt");
        fs::write(&file, format!("by hand, {is_dark}")).unwrap();
        let token = fs::read_to_string(data.join("token")).unwrap();
        browser.fill("#token", token.trim());
        browser.fill("#file", file.to_str().unwrap());
        browser.click("#put button");
        let stored = browser.reads("#put-said", "stored as b3:");
        let stored = stored.trim_start_matches("stored as ");
        browser.reads("#list", stored);
        browser.reads("#objects", "objects\n2");
        // And fetches it.
        browser.click("#get button");
        browser.reads("#get-said", "fetched 1");
        let download = browser_downloads(dir.parent().unwrap(), &stored.replace(':', "-"));
        assert_eq!(download, fs::read_to_string(&file).unwrap());
        browser.fill("#key", id);
        browser.click("#find button");
        browser.reads("#find-said", "provided by ");
        browser.reads("#asked", "answered");
        browser.fill("#name", "tools/file");
        browser.click("#prove button");
        let proven = browser.reads(
            "#prove-said",
            "checked here: the proof (hashes: 1) leads to the signed head of 2 entries",
        );
        assert!(proven.contains(id), "{proven}");
        browser.screenshot(&format!("{}.png", if is_dark { "dark" } else { "light" }));

        let complaints = browser.complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
        // What is wrong is said where it was asked, and only the browser itself remarks on it.
        browser.fill("#token", "not the token, and as long as one");
        browser.click("#put button");
        browser.reads("#put-said", "credentials");
        browser.fill("#id", "b3:nonsense");
        browser.click("#get button");
        browser.reads("#get-said", "b3:");
        browser.fill("#name", "no/such/name");
        browser.click("#prove button");
        browser.reads("#prove-said", "stands for nothing");
        let complaints = browser.complaints();
        assert!(
            complaints.iter().all(|line| line.contains("the server responded with a status of 4")),
            "{complaints:?}"
        );
        let requests = browser.requests();
        let blob = format!("blob:{page}");
        let is_ours =
            |url: &String| url.starts_with(&page) || url.starts_with(&blob) || url.starts_with("data:");
        assert!(requests.len() > 10 && requests.iter().all(is_ours), "{requests:?}");

        grounds.insert(browser.run("return getComputedStyle(document.body).backgroundColor").to_string());
        drop(browser);
        one.terminate();
        two.terminate();
    }
    assert_eq!(grounds.len(), 2, "both colour schemes are drawn alike: {grounds:?}");
}

/// What was downloaded under this name, once all of it is there.
fn browser_downloads(dir: &Path, name: &str) -> String {
    for _ in 0..200 {
        if let Ok(text) = fs::read_to_string(dir.join(name)) {
            return text;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{name} was not downloaded");
}

/// Every route that the document has is there, answers as it says, and has no other method; and the table in
/// `docs/operating.md` names no other.
#[test]
fn the_document_of_all_routes_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let secret = crate::keeping::secret(dir.path());
    let daemon = Daemon::start_with(&data, &[], &[("REFD_KEEPING__SECRET_FILE", secret.as_str())]);
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
        let path = path.replace("{node}", "zz");
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
    // And the other way round. What a browser fetches by itself is not told to people.
    for route in paths.keys().filter(|route| !matches!(route.as_str(), "/page.css" | "/page.js")) {
        let beginning = route.split("/{").next().unwrap();
        assert!(
            docs.contains(&format!("{beginning}/"))
                || docs.contains(&format!("{beginning}`"))
                || docs.contains(&format!("{beginning}?")),
            "docs/operating.md does not have {route}"
        );
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
    let secret = crate::keeping::secret(dir.path());
    let daemon = Daemon::start_with(dir.path(), &[], &[("REFD_KEEPING__SECRET_FILE", secret.as_str())]);
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
