//! Settings: where they come from, how they are shown, and how a running node takes others.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use crate::{Daemon, REFD, free_addrs, objects::refd};

fn config(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(REFD);
    command.arg("config").args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn settings_are_checked_shown_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refd.toml");
    fs::write(&file, "[storage]\nquota_bytes = 7\n").unwrap();
    let name = file.to_str().unwrap();
    let checked = config(&["check", name], &[]);
    assert_eq!(words(&checked.stdout), format!("{name}: in order\n"));
    let shown =
        config(&["print", name, "--origin", "--admin", "127.0.0.1:9"], &[("REFD_DHT__PRESET", "lan")]);
    let shown = words(&shown.stdout);
    for (line, origin) in [
        ("quota_bytes = 7", name),
        ("preset = \"lan\"", "REFD_DHT__PRESET"),
        ("listen = \"127.0.0.1:9\"", "--admin"),
        ("put_lane = 512", "default"),
        ("put_workers = ", "sized"),
    ] {
        let found = shown.lines().find(|shown| shown.starts_with(line)).unwrap();
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
    // What was shown is a file that can be read, and so is the template.
    fs::write(&file, shown).unwrap();
    assert!(config(&["check", name], &[]).status.success());
    let template = config(&["template", "--preset", "public"], &[]);
    fs::write(&file, &template.stdout).unwrap();
    let wrong = config(&["check", name], &[]);
    assert_eq!(wrong.status.code(), Some(8));
    assert!(words(&wrong.stderr).contains("net.external is not set"), "{}", words(&wrong.stderr));
    assert!(config(&["check", name], &[("REFD_NET__EXTERNAL", "[\"192.0.2.1:4710\"]")]).status.success());
    let unknown = config(&["check"], &[("REFD_NET__LISTNE", "[]")]);
    assert_eq!(unknown.status.code(), Some(8));
    let said = words(&unknown.stderr);
    assert!(said.contains("REFD_NET__LISTNE is not a setting; did you mean REFD_NET__LISTEN?"), "{said}");
    let json = words(&config(&["print", "--json"], &[]).stdout);
    assert!(json.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{json}");
}

/// Any variable that is not text, set by whoever for whatever, made every command panic.
#[test]
fn variables_that_are_not_text_are_nobodys_business_but_their_own() {
    use std::os::unix::ffi::OsStrExt as _;
    let check = |name: &str| {
        let mut command = Command::new(REFD);
        command.args(["config", "check"]).env(name, std::ffi::OsStr::from_bytes(b"/d\xff")).output().unwrap()
    };
    let checked = check("SOMEBODYS");
    assert!(checked.status.success(), "{}", words(&checked.stderr));
    let refused = check("REFD_NODE__DATA_DIR");
    assert_eq!(refused.status.code(), Some(8));
    assert!(
        words(&refused.stderr).contains("REFD_NODE__DATA_DIR: it is not UTF-8"),
        "{}",
        words(&refused.stderr)
    );
}

/// A node that is to leave nothing behind leaves nothing behind.
#[test]
fn with_amnesia_nothing_reaches_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (data, token, file) = (dir.path().join("data"), dir.path().join("token"), dir.path().join("file"));
    fs::write(&file, b"to be forgotten").unwrap();
    let variables = [("REFD_ADMIN__TOKEN_FILE", token.to_str().unwrap())];
    let daemon = Daemon::start_with(&data, &["--preset", "amnesia"], &variables);
    let put = |daemon: &Daemon| {
        let mut put = refd(daemon, &data, &["put", file.to_str().unwrap()]);
        let put = put.env("REFD_TOKEN_FILE", &token).output().unwrap();
        assert!(put.status.success(), "{}", words(&put.stderr));
        words(&put.stdout).trim().to_owned()
    };
    let id = put(&daemon);
    assert!(daemon.get(&format!("/o/{id}")).ends_with("to be forgotten"));
    assert!(daemon.get("/registry/head").starts_with("HTTP/1.1 200"));
    let before = daemon.seed.clone();
    daemon.terminate();
    assert!(!data.exists());
    let daemon = Daemon::start_with(&data, &["--preset", "amnesia"], &variables);
    assert_ne!(before.split_once('@').unwrap().0, daemon.seed.split_once('@').unwrap().0);
    assert!(daemon.get(&format!("/o/{id}")).starts_with("HTTP/1.1 404"));
    daemon.terminate();
    assert!(!data.exists());
}

/// A node with its settings in a file, and what it logs in another.
pub(crate) struct Configured {
    pub(crate) daemon: Daemon,
    pub(crate) dir: tempfile::TempDir,
}

impl Configured {
    pub(crate) fn start(text: &str) -> Configured {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("refd.toml"), text).unwrap();
        let mut command = Command::new(REFD);
        command.args(["run", "--listen", "127.0.0.1:0", "--config"]).arg(dir.path().join("refd.toml"));
        command.arg("--data-dir").arg(dir.path().join("data"));
        // With many processors the allocator sets aside 64 MiB for each of many threads, and what a test measures is hidden among it.
        command.env("MALLOC_ARENA_MAX", "2");
        command.stderr(fs::File::create(dir.path().join("log")).unwrap());
        Configured { daemon: Daemon::spawn(command), dir }
    }

    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("refd.toml"), text).unwrap();
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn bearer(&self) -> String {
        let token = fs::read_to_string(self.data().join("token")).unwrap();
        format!("Authorization: Bearer {}\r\n", token.trim())
    }

    fn reload(&self) -> String {
        self.daemon.ask("POST", "/admin/reload", &format!("{}Content-Length: 0\r\n", self.bearer()))
    }

    fn counted(&self, result: &str, times: u64) {
        let line = format!("refd_config_update_total{{result=\"{result}\"}} {times}\n");
        let metrics = self.daemon.get("/metrics");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

pub(crate) const ANY_PORT: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

#[test]
fn a_running_node_takes_other_settings_whole_or_not_at_all() {
    let mut node = Configured::start(ANY_PORT);
    let put = |node: &Configured, text: &str| {
        let file = node.dir.path().join("file");
        fs::write(&file, text).unwrap();
        refd(&node.daemon, &node.data(), &["put", file.to_str().unwrap()]).output().unwrap()
    };
    assert!(put(&node, "one").status.success());

    // By signal: the quota holds from now on.
    node.write(&format!("{ANY_PORT}[storage]\nquota_objects = 1\n"));
    node.daemon.signal("HUP");
    assert_eq!(node.daemon.line_with("settings"), "settings taken over: storage.quota_objects changed\n");
    let full = put(&node, "two");
    assert_eq!(full.status.code(), Some(6), "{}", words(&full.stderr));
    node.counted("applied", 1);

    // Over HTTP, for those who may.
    assert!(node.daemon.ask("POST", "/admin/reload", "Content-Length: 0\r\n").starts_with("HTTP/1.1 401"));
    node.write(&format!("{ANY_PORT}[storage]\nquota_objects = 2\n"));
    let applied = node.reload();
    assert!(
        applied.starts_with("HTTP/1.1 200") && applied.contains("\"storage.quota_objects\""),
        "{applied}"
    );
    assert!(put(&node, "two").status.success());

    // What is wrong is said, and nothing of it is taken.
    node.write(&format!("{ANY_PORT}[storage]\nquota_objects = 9\nquota = 1\n"));
    let invalid = node.reload();
    assert!(
        invalid.starts_with("HTTP/1.1 422") && invalid.contains("did you mean storage.quota_"),
        "{invalid}"
    );
    node.counted("invalid", 1);
    // What needs a restart is said, all of it, and nothing beside it is taken.
    node.write(&format!(
        "{ANY_PORT}[storage]\nquota_objects = 9\nput_lane = 9\nmemory = true\n[dht]\nserver = false\n"
    ));
    let refused = node.reload();
    assert!(refused.starts_with("HTTP/1.1 409"), "{refused}");
    assert!(
        refused.contains("dht.server, storage.memory, storage.put_lane can only change with a restart"),
        "{refused}"
    );
    node.counted("needs_restart", 1);
    assert_eq!(put(&node, "three").status.code(), Some(6));

    // The log gets louder without a restart.
    let log = || fs::read_to_string(node.dir.path().join("log")).unwrap();
    assert!(!log().contains("answered"), "{}", log());
    node.write(&format!("{ANY_PORT}[log]\nfilter = \"debug\"\n"));
    assert!(node.reload().starts_with("HTTP/1.1 200"));
    node.daemon.get("/healthz");
    node.daemon.eventually("/version", |_| log().contains("answered"));

    // Nothing new is nothing new.
    node.daemon.signal("HUP");
    assert_eq!(node.daemon.line_with("settings"), "settings read again: nothing changed\n");

    // A new token counts from the reload on, and the old one no more.
    let old = node.bearer();
    fs::write(node.data().join("token"), format!("{}\n", "n".repeat(40))).unwrap();
    let by_old =
        |node: &Configured| node.daemon.ask("POST", "/admin/reload", &format!("{old}Content-Length: 0\r\n"));
    assert!(by_old(&node).starts_with("HTTP/1.1 200"));
    assert!(by_old(&node).starts_with("HTTP/1.1 401"));
    assert!(node.reload().starts_with("HTTP/1.1 200"));
    node.daemon.terminate();
}

/// The index goes by other settings from the signal on, and what it has found stays.
#[test]
fn the_index_takes_other_settings_and_keeps_its_answers() {
    let mut node = Configured::start(ANY_PORT);
    let file = node.dir.path().join("file");
    fs::write(&file, "something").unwrap();
    let put = refd(&node.daemon, &node.data(), &["put", file.to_str().unwrap()]).output().unwrap();
    let path = format!("/resolve/{}", words(&put.stdout).trim());
    let looked_up = node.daemon.get(&path);
    assert!(looked_up.contains("max-age=300, stale-while-revalidate=30, stale-if-error=3600"), "{looked_up}");
    node.write(&format!("{ANY_PORT}[index]\ndeadline_ms = 700\nstale_if_error_ms = 7000\n"));
    node.daemon.signal("HUP");
    let taken = node.daemon.line_with("settings");
    assert_eq!(taken, "settings taken over: index.deadline_ms, index.stale_if_error_ms changed\n");
    let cached = node.daemon.get(&path);
    assert!(cached.contains("max-age=300, stale-while-revalidate=30, stale-if-error=7\r\n"), "{cached}");
    let counted = node.daemon.get("/metrics");
    for line in ["ron_index_cache_misses_total 1\n", "ron_index_cache_hits_total{freshness=\"fresh\"} 1\n"] {
        assert!(counted.contains(line), "{line}: {counted}");
    }
    assert!(node.daemon.terminate().contains(" 0 cut off"));
}

/// The listener moves, or stays where it is if it cannot.
#[test]
fn the_admin_listener_moves_without_a_restart() {
    let mut node = Configured::start(ANY_PORT);
    let [elsewhere] = free_addrs();
    let free = std::net::TcpListener::bind(elsewhere).unwrap();
    node.write(&format!("[admin]\nlisten = \"{elsewhere}\"\n"));
    let taken = node.reload();
    assert!(taken.starts_with("HTTP/1.1 500") && taken.contains(&elsewhere.to_string()), "{taken}");
    assert!(node.daemon.get("/healthz").ends_with("ok\n"));
    drop(free);
    let moved = node.reload();
    assert!(moved.starts_with("HTTP/1.1 200") && moved.contains("\"admin.listen\""), "{moved}");
    node.daemon.admin = elsewhere;
    assert!(node.daemon.get("/healthz").ends_with("ok\n"));
    assert!(node.daemon.get("/dht/status").starts_with("HTTP/1.1 200"));
    let said = node.daemon.terminate();
    assert!(said.contains(" 0 cut off"), "{said}");
}

/// Of a change that cannot be had whole nothing is had: a new token counted although the listener that was asked for beside it
/// was taken, and whoever had the old one was locked out by a reload that was refused.
#[test]
fn a_change_that_fails_leaves_no_part_of_itself() {
    let node = Configured::start(ANY_PORT);
    let old = format!("{}Content-Length: 0\r\n", node.bearer());
    let reload = || node.daemon.ask("POST", "/admin/reload", &old);
    let [elsewhere] = free_addrs();
    let taken = std::net::TcpListener::bind(elsewhere).unwrap();
    fs::write(node.data().join("token"), format!("{}\n", "n".repeat(40))).unwrap();
    node.write(&format!("[admin]\nlisten = \"{elsewhere}\"\n"));
    for _ in 0..2 {
        let refused = reload();
        assert!(refused.starts_with("HTTP/1.1 500") && refused.contains("admin.listen"), "{refused}");
    }
    // And the other way round: a token that cannot be read keeps the listener where it is.
    drop(taken);
    fs::write(node.data().join("token"), "short\n").unwrap();
    let refused = reload();
    assert!(refused.starts_with("HTTP/1.1 500") && refused.contains("no usable token"), "{refused}");
    drop(std::net::TcpListener::bind(elsewhere).expect("nobody listens there"));
    node.counted("failed", 3);
    assert!(node.daemon.terminate().contains(" 0 cut off"));
}

/// So does the place where other nodes reach this one. Who is linked stays linked, and who comes finds it at the new place.
#[test]
fn the_listener_for_other_nodes_moves_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refd.toml");
    let write = |listen: &str| {
        fs::write(&file, format!("[net]\nlisten = [{listen}]\n[overlay]\ntopics = [\"news\"]\n")).unwrap();
    };
    write("\"127.0.0.1:0\"");
    let mut command = Command::new(REFD);
    command
        .args(["run", "--admin", "127.0.0.1:0", "--config"])
        .arg(&file)
        .arg("--data-dir")
        .arg(dir.path().join("one"));
    let mut one = Daemon::spawn(command);
    let id = one.seed.split_once('@').unwrap().0.to_owned();
    let news = [("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let two = Daemon::start_with(&dir.path().join("two"), &["--seed", &one.seed], &news);
    two.eventually("/overlay/topics", |topics| topics.contains(&format!("\"neighbours\":[\"{id}\"]")));
    let token = fs::read_to_string(dir.path().join("one/token")).unwrap();
    let headers = format!("Authorization: Bearer {}\r\nContent-Length: 0\r\n", token.trim());
    let reload = |one: &Daemon| one.ask("POST", "/admin/reload", &headers);
    let key = "1f".repeat(32);
    assert!(one.ask("POST", &format!("/dht/provide/{key}"), &headers).starts_with("HTTP/1.1 200"));

    // One of two cannot be had: neither is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let [free] = free_addrs();
    write(&format!("\"{free}\", \"{}\"", taken.local_addr().unwrap()));
    let refused = reload(&one);
    assert!(refused.starts_with("HTTP/1.1 500") && refused.contains("not_applied"), "{refused}");
    assert!(
        refused.contains("net.listen") && refused.contains(&taken.local_addr().unwrap().to_string()),
        "{refused}"
    );
    assert!(std::net::TcpStream::connect(free).is_err(), "it listens where it said that it does not");
    let old = one.seed.split_once('@').unwrap().1.to_owned();
    assert!(one.get("/dht/status").contains(&old));

    write(&format!("\"{free}\""));
    one.signal("HUP");
    assert_eq!(one.line_with("settings"), "settings taken over: net.listen changed\n");
    assert_eq!(
        one.line_with("listens on"),
        format!("listens on {free}; others begin with --seed {id}@{free}\n")
    );
    assert!(std::net::TcpStream::connect(&old).is_err(), "it still listens at the old place");
    for path in ["/dht/status", "/overlay/status"] {
        let status = one.get(path);
        assert!(status.contains(&free.to_string()) && !status.contains(&old), "{path}: {status}");
    }
    // The session that was there is the one that the words go over. They are said until they are heard, since nobody tells
    // when the listener has begun.
    let mut listening = refd(&two, &dir.path().join("two"), &["gossip", "sub", "news", "--count", "1"]);
    let mut listening = listening.stdout(Stdio::piped()).spawn().unwrap();
    let mut tries = 0;
    while listening.try_wait().unwrap().is_none() {
        let said = refd(&one, &dir.path().join("one"), &["gossip", "pub", "news", "moved"]).output().unwrap();
        assert!(said.status.success(), "{}", words(&said.stderr));
        tries += 1;
        if tries > 300 {
            let _ = listening.kill();
        }
    }
    let heard = listening.wait_with_output().unwrap();
    assert!(words(&heard.stdout).contains("moved"), "after {tries}: {}", words(&heard.stdout));
    // A newcomer begins at the new place, and learns from the other where the key is provided now.
    let three = Daemon::start_with(&dir.path().join("three"), &["--seed", &format!("{id}@{free}")], &[]);
    three.eventually("/dht/status", |status| status.contains("\"peers\":2,"));
    three.terminate();
    assert!(one.terminate().contains(" 0 cut off"));
    two.terminate();
}

/// Connections need descriptors, and too few are noticed before they run out.
#[test]
fn too_few_descriptors_are_told_at_the_start_and_by_the_doctor() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |arguments: &str| {
        let mut command = Command::new("sh");
        let (refd, data) = (REFD, dir.path().display());
        let line = format!(
            "ulimit -Sn 700; exec {refd} {arguments} --listen 127.0.0.1:0 --admin 127.0.0.1:0 --data-dir {data}/node"
        );
        command.args(["-c", &line]);
        command
    };
    let told = "700 descriptors are allowed, 3360 may be needed (overlay.max_conns is 1024, dht.sessions_max is 1024, admin.max_conns is 1024)";
    let looked = limited("doctor").output().unwrap();
    let shown = words(&looked.stdout);
    assert!(looked.status.success() && shown.contains(&format!("warn\tdescriptors\t{told}")), "{shown}");
    let log = dir.path().join("log");
    let mut run = limited("run");
    run.stderr(fs::File::create(&log).unwrap());
    Daemon::spawn(run).terminate();
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains(told) && logged.contains("LimitNOFILE=3360"), "{logged}");
}

/// A balancer has time to look elsewhere: the node says that it is not ready, and serves. Who cannot wait asks again.
#[test]
fn a_pause_before_the_stop_and_a_second_request() {
    let mut node = Configured::start(&format!("{ANY_PORT}[node]\npre_stop_ms = 60000\n"));
    node.daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    node.daemon.signal("TERM");
    let ready = node.daemon.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 503"));
    assert!(ready.contains("\"stopping\""), "{ready}");
    assert!(node.daemon.get("/dht/status").starts_with("HTTP/1.1 200"));
    // One that comes right behind the first is the first once more, so it is said until it is heard.
    let ended = loop {
        node.daemon.signal("TERM");
        std::thread::sleep(Duration::from_millis(100));
        if let Some(ended) = node.daemon.child.try_wait().unwrap() {
            break ended;
        }
    };
    assert_eq!(ended.code(), Some(10));
    let log = fs::read_to_string(node.dir.path().join("log")).unwrap();
    assert!(log.contains("cut off by a second request to stop"), "{log}");
}

/// `timeout` and others pass a signal on to their child and to its group: one Ctrl-C came twice, and cut off what was being drained.
#[test]
fn a_signal_that_comes_twice_is_one() {
    let mut node = Configured::start(&format!("{ANY_PORT}[node]\npre_stop_ms = 100\n"));
    node.daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    let pid = node.daemon.child.id();
    let twice = format!("kill -INT {pid}; kill -TERM {pid}; kill -TERM {pid}");
    assert!(Command::new("sh").args(["-c", &twice]).status().unwrap().success());
    assert_eq!(node.daemon.child.wait().unwrap().code(), Some(0));
    assert!(node.daemon.line_with("stopped: ").contains(" 0 cut off"));
}

/// What systemd is told, and when.
#[test]
fn a_service_manager_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let path = dir.path().join("notify");
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "100000")];
    let daemon = Daemon::start_with(&dir.path().join("data"), &[], &variables);
    let heard = || {
        let mut space = [0; 100];
        let len = socket.recv(&mut space).unwrap();
        words(&space[..len])
    };
    assert_eq!((heard(), heard()), ("READY=1".to_owned(), "WATCHDOG=1".to_owned()));
    daemon.terminate();
    let mut last = heard();
    while last == "WATCHDOG=1" {
        last = heard();
    }
    assert_eq!(last, "STOPPING=1");
}

/// Nobody but the owner of the data may learn what opens it, however much is logged and whatever is asked.
#[test]
fn secrets_are_shown_nowhere() {
    let company = tempfile::tempdir().unwrap();
    let shared = crate::keeping::secret(company.path());
    let node = Configured::start(&format!(
        "{ANY_PORT}[log]\nfilter = \"trace\"\n[keeping]\nsecret_file = {shared:?}\nrefresh_ms = 200\ntick_ms = 200\n"
    ));
    // Another that proves that it knows the secret, and is proven that.
    let variables = [
        ("REFD_KEEPING__SECRET_FILE", &*shared),
        ("REFD_KEEPING__REFRESH_MS", "200"),
        ("REFD_KEEPING__TICK_MS", "200"),
    ];
    let other = Daemon::start_with(&company.path().join("other"), &["--seed", &node.daemon.seed], &variables);
    node.daemon.eventually("/keeping/status", |status| status.contains("\"up\":2"));
    let (data, strange) = (node.data(), format!("canary{}", "x".repeat(40)));
    let secret = |name: &str| fs::read(data.join(name)).unwrap();
    let mut secrets = vec![strange.clone().into_bytes(), secret("token").trim_ascii().to_vec()];
    secrets.push(fs::read(&shared).unwrap().trim_ascii().to_vec());
    for name in ["node.key", "registry.key"] {
        let key = secret(name);
        assert!(key.len() >= 32, "{name}");
        secrets.push(key.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect());
        secrets.push(key);
    }
    let mut seen = Vec::new();
    let mut show = |output: Output| seen.extend([output.stdout, output.stderr].concat());
    let file = node.dir.path().join("file");
    fs::write(&file, b"harmless").unwrap();
    show(refd(&node.daemon, &data, &["put", file.to_str().unwrap()]).output().unwrap());
    show(refd(&node.daemon, &data, &["ls", "--json"]).output().unwrap());
    // One who guesses, and one whose token file is broken.
    fs::write(&file, &strange).unwrap();
    show(refd(&node.daemon, &data, &["ls", "--token-file", file.to_str().unwrap()]).output().unwrap());
    show(
        refd(&node.daemon, &data, &["registry", "diff", "--token-file", file.to_str().unwrap()])
            .output()
            .unwrap(),
    );
    let config = node.dir.path().join("refd.toml");
    show(crate::settings::config(&["print", config.to_str().unwrap(), "--origin"], &[]));
    let wrong = format!("Authorization: Bearer {strange}\r\nContent-Length: 0\r\n");
    for headers in [&*wrong, &*format!("{}Content-Length: 0\r\n", node.bearer())] {
        for (method, path) in
            [("POST", "/admin/reload"), ("POST", "/dht/provide/zz"), ("GET", "/o"), ("GET", "/usage")]
        {
            seen.extend(node.daemon.ask(method, path, headers).into_bytes());
        }
    }
    for path in [
        "/metrics",
        "/readyz?verbose",
        "/version",
        "/dht/status",
        "/overlay/status",
        "/registry/head",
        "/registry/policy",
        "/keeping/status",
        "/state",
        "/admin/openapi.json",
    ] {
        seen.extend(node.daemon.get(path).into_bytes());
    }
    let log = node.dir.path().join("log");
    seen.extend(node.daemon.terminate().into_bytes());
    other.terminate();
    let log = fs::read(log).unwrap();
    assert!(log.windows(8).any(|word| word == b"answered"), "the log was listened to");
    seen.extend(log);
    for secret in secrets {
        assert!(!seen.windows(secret.len()).any(|word| word == secret), "{}", words(&secret));
    }
}

/// A page elsewhere, or a name that somebody made resolve to this machine, gets nothing: not even health.
#[test]
fn requests_from_elsewhere_are_refused() {
    let node = Configured::start(&format!("{ANY_PORT}hosts = [\"node.example\"]\n"));
    let admin = node.daemon.admin;
    let ask = |path: &str, headers: &str| {
        node.daemon.send(&format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
    };
    for path in ["/healthz", "/metrics", "/dht/status", "/o/b3:00", "/nowhere", "/"] {
        for headers in [
            "Host: evil.example\r\n".to_owned(),
            format!("Host: {admin}\r\nOrigin: https://evil.example\r\n"),
            format!("Host: {admin}\r\nOrigin: http://192.0.2.1\r\n"),
            format!("Host: {admin}\r\nOrigin: null\r\n"),
            format!("Host: {admin}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"),
        ] {
            let refused = ask(path, &headers);
            assert!(
                refused.starts_with("HTTP/1.1 403") && refused.contains("\"foreign\""),
                "{path} {headers} {refused}"
            );
        }
    }
    for headers in [
        format!("Host: {admin}\r\nOrigin: http://{admin}\r\n"),
        "Host: localhost:4711\r\n".to_owned(),
        "Host: node.example\r\nOrigin: https://node.example\r\n".to_owned(),
        format!("Host: {admin}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"),
    ] {
        assert!(ask("/dht/status", &headers).starts_with("HTTP/1.1 200"), "{headers}");
    }
}

/// What goes wrong before a node runs has its number too.
#[test]
fn a_start_that_fails_says_why_by_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], data: &Path| {
        let mut command = Command::new(REFD);
        command.arg("run").args(arguments).arg("--data-dir").arg(data).stdout(Stdio::null());
        command.output().unwrap().status.code()
    };
    assert_eq!(run(&["--seed", "nobody"], dir.path()), Some(2));
    assert_eq!(run(&["--listen", "nowhere"], dir.path()), Some(2));
    let file = dir.path().join("file");
    fs::write(&file, b"no directory").unwrap();
    assert_eq!(run(&["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], &file), Some(1));
}
