//! The commands around a node: making a place for one, looking whether it would run, asking it about its network.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output, Stdio},
};

use crate::{
    Daemon, REFD,
    objects::{refd, said},
};

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(REFD).args(arguments).output().unwrap()
}

#[test]
fn a_place_is_made_looked_at_and_run_in() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("node");
    let place = data.to_str().unwrap();
    let made = run(&["init", "--preset", "lan", "--external", "192.0.2.7:4710", "--data-dir", place]);
    assert!(made.status.success(), "{}", words(&made.stderr));
    let id = words(&made.stdout).trim().to_owned();
    assert_eq!((id.len(), id.lines().count()), (64, 1), "{id}");
    for file in ["node.key", "token", "refd.toml"] {
        let mode = fs::metadata(data.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    // Again changes nothing.
    let config = data.join("refd.toml");
    let before = fs::read(&config).unwrap();
    let again = run(&["init", "--data-dir", place, "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(told["id"], id);
    assert_eq!(fs::read(&config).unwrap(), before);
    let refused = run(&["init", "--preset", "amnesia"]);
    assert!(words(&refused.stderr).contains("refd run --preset amnesia"), "{}", words(&refused.stderr));

    let config = config.to_str().unwrap();
    let places = ["--config", config, "--data-dir", place];
    let free = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let doctor = |more: &[&str]| run(&[&["doctor"], &places[..], more].concat());
    let healthy = doctor(&free);
    let shown = words(&healthy.stdout);
    assert!(healthy.status.success(), "{shown}{}", words(&healthy.stderr));
    for what in ["settings", "data", "disk", "secrets", "clock", "descriptors", "net.listen", "admin.listen"]
    {
        assert!(shown.lines().any(|line| line.split('\t').nth(1) == Some(what)), "{what}: {shown}");
    }
    let json = doctor(&[&free[..], &["--json"]].concat());
    assert!(words(&json.stdout).lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    // A secret that others can read, and a port that is taken.
    fs::set_permissions(data.join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sick = doctor(&["--listen", "127.0.0.1:0", "--admin", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(sick.status.code(), Some(1));
    assert!(words(&sick.stdout).contains("fail\tsecrets\tothers can read"), "{}", words(&sick.stdout));
    assert!(words(&sick.stdout).contains("is taken"), "{}", words(&sick.stdout));
    assert!(words(&sick.stderr).contains("secrets, admin.listen"), "{}", words(&sick.stderr));
    fs::set_permissions(data.join("node.key"), fs::Permissions::from_mode(0o600)).unwrap();

    let daemon = Daemon::start_with(&data, &["--config", config], &[]);
    assert_eq!(daemon.seed.split_once('@').unwrap().0, id);
    daemon.terminate();
}

/// A token that the settings put elsewhere was made in the data directory, where the node did not look for it; and a secret that
/// others could read was the node's to find out.
#[test]
fn a_place_has_its_secrets_where_the_settings_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, token, secret) = (path("node"), path("elsewhere"), path("secret"));
    let mut init = Command::new(REFD);
    init.args(["init", "--json", "--data-dir", &data]).env("REFD_ADMIN__TOKEN_FILE", &token);
    let made = init.output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(told["token_file"], token.as_str(), "{}", words(&made.stderr));
    assert!(fs::metadata(&token).unwrap().is_file() && !dir.path().join("node/token").exists());

    let doctor = || {
        let mut doctor = Command::new(REFD);
        doctor.args(["doctor", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", &data]);
        doctor.env("REFD_KEEPING__SECRET_FILE", &secret).output().unwrap()
    };
    let absent = doctor();
    assert!(absent.status.code() == Some(1) && words(&absent.stdout).contains(&secret), "{absent:?}");
    fs::write(&secret, "canary".repeat(6)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    let open = doctor();
    let shown = words(&open.stdout);
    assert!(shown.contains("fail\tsecrets\tkeeping.secret_file") && shown.contains("mode 640"), "{shown}");
    assert!(!shown.contains("canary"));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(doctor().status.success());
}

/// Whatever is asked, a program can read the answer.
#[test]
fn every_command_that_says_something_says_it_as_json() {
    let mut asked = vec![Vec::new()];
    let mut lacking = Vec::new();
    while let Some(command) = asked.pop() {
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = words(&run(&arguments).stdout);
        match help.split_once("\nCommands:\n") {
            Some((_, below)) => {
                let below = below.lines().take_while(|line| !line.is_empty());
                let names =
                    below.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
                asked.extend(names.map(|name| [&command[..], &[name.to_owned()]].concat()));
            }
            None if help.contains("--json") => {}
            None => lacking.push(command.join(" ")),
        }
    }
    lacking.sort();
    // A daemon, a story, and texts that have a form of their own.
    assert_eq!(lacking, ["completions", "config template", "demo", "man", "run"]);
}

/// What is no address of a node is the caller's mistake, whichever command it was said to.
#[test]
fn a_wrong_address_has_one_code() {
    let id = format!("b3:{}", "0".repeat(64));
    for command in [&["ls"][..], &["peers"], &["registry", "log"], &["resolve", &id], &["repair", "status"]] {
        let wrong = run(&[command, &["--node", "ftp://nowhere"]].concat());
        assert_eq!(wrong.status.code(), Some(2), "{command:?}: {}", words(&wrong.stderr));
    }
}

/// `refd completions bash | head -1` panicked, and `refd ls | head -1` was a failure as soon as there was more to list.
#[test]
fn a_reader_that_has_enough_is_no_failure() {
    for command in [&["completions", "bash"][..], &["man"], &["config", "print", "--origin"]] {
        let mut child = Command::new(REFD);
        let child = child.args(command).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{command:?}: {}", words(&ended.stderr));
    }
}

#[test]
fn shells_and_manuals_are_served() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = words(&run(&["completions", shell]).stdout);
        assert!(script.contains("refd") && script.contains("gossip"), "{shell}");
    }
    assert!(words(&run(&["man"]).stdout).contains(".TH refd 1"));
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--dir", dir.path().to_str().unwrap()]).status.success());
    for page in ["refd.1", "refd-run.1", "refd-registry-init.1", "refd-config-print.1"] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
}

#[test]
fn a_node_is_asked_about_its_network() {
    let dir = tempfile::tempdir().unwrap();
    let (one_data, two_data) = (dir.path().join("one"), dir.path().join("two"));
    let topics = [("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let one = Daemon::start_with(&one_data, &[], &topics);
    let two = Daemon::start_with(&two_data, &["--seed", &one.seed], &topics);
    let id_of = |daemon: &Daemon| daemon.seed.split_once('@').unwrap().0.to_owned();
    two.eventually("/overlay/topics", |topics| {
        topics.contains(&format!("\"neighbours\":[\"{}\"]", id_of(&one)))
    });
    one.eventually("/dht/status", |status| status.contains("\"peers\":1,"));
    one.eventually("/overlay/topics", |topics| {
        topics.contains(&format!("\"neighbours\":[\"{}\"]", id_of(&two)))
    });

    let peers = said(refd(&one, &one_data, &["peers"]));
    assert!(peers.starts_with(&id_of(&two)) && peers.trim_end().ends_with("session"), "{peers}");
    let peers = said(refd(&one, &one_data, &["peers", "--json"]));
    let peer: serde_json::Value = serde_json::from_str(&peers).unwrap();
    assert_eq!((&peer["id"], peer["session"].is_object()), (&id_of(&two).into(), true));
    assert_eq!(said(refd(&one, &one_data, &["health"])), "ready\n");

    let key = format!("b3:{}", "1f".repeat(32));
    let provided = refd(&one, &one_data, &["provide", &key]).output().unwrap();
    assert_eq!(words(&provided.stdout), format!("{key}\n"));
    assert_eq!(words(&provided.stderr), "1 nodes keep the record\n");
    let found = two.get(&format!("/dht/providers/{key}?limit=1"));
    assert!(found.contains(&id_of(&one)), "{found}");
    said(refd(&one, &one_data, &["provide", "--stop", &key]));

    // No message is what some scripts ask for; the first one made it panic.
    assert_eq!(said(refd(&two, &two_data, &["gossip", "sub", "news", "--count", "0"])), "");
    // One listens, the other speaks. A node does not hear itself.
    let mut listening = refd(&two, &two_data, &["gossip", "sub", "news", "--count", "2"]);
    let mut listening = listening.stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = BufReader::new(listening.stdout.take().unwrap());
    two.eventually("/overlay/topics", |topics| topics.contains("\"subscribers\":1"));
    let id = said(refd(&one, &one_data, &["gossip", "pub", "news", "hello"]));
    assert_eq!(id.lines().count(), 1, "{id}");
    let mut piped = refd(&one, &one_data, &["gossip", "pub", "news"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(piped.wait().unwrap().success());
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        heard.read_line(line).unwrap();
    }
    assert_eq!(lines, ["hello\n", "from a pipe\n"]);
    assert!(listening.wait().unwrap().success());

    // What goes wrong says what to do next.
    let unknown = refd(&one, &one_data, &["gossip", "pub", "no/such topic", "x"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(3));
    assert!(words(&unknown.stderr).contains("overlay.topics"), "{}", words(&unknown.stderr));
    let denied = refd(&one, &dir.path().join("nobody"), &["gossip", "pub", "news", "x"]).output().unwrap();
    assert_eq!(denied.status.code(), Some(4));
    assert!(words(&denied.stderr).contains("--token-file"), "{}", words(&denied.stderr));
    assert_eq!(said(refd(&one, &one_data, &["reload"])), "");
    let (node, data) = (format!("http://{}", one.admin), one_data.to_str().unwrap().to_owned());
    one.terminate();
    let away = run(&["peers", "--node", &node, "--data-dir", &data]);
    assert_eq!(away.status.code(), Some(5));
    assert!(words(&away.stderr).contains("refd run"), "{}", words(&away.stderr));
    two.terminate();
}

#[test]
fn a_directory_is_put_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (data, tree, copy) = (dir.path().join("data"), dir.path().join("tree"), dir.path().join("copy"));
    let daemon = Daemon::start(&data, &[]);
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::create_dir_all(tree.join("empty/dir")).unwrap();
    fs::write(tree.join("readme"), b"read me").unwrap();
    fs::write(tree.join("deep/er/large"), vec![7; 300_000]).unwrap();
    fs::write(tree.join("deep/nothing"), b"").unwrap();
    fs::write(tree.join("deep/tool"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("deep/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let put = || said(refd(&daemon, &data, &["put", tree.to_str().unwrap(), "--pin"])).trim().to_owned();
    let id = put();
    assert_eq!(id, put(), "the same directory has the same id");
    let get = |more: &[&str]| {
        let arguments = [&["get", &id, "-o", copy.to_str().unwrap()], more].concat();
        refd(&daemon, &data, &arguments).output().unwrap()
    };
    let got = get(&["--json"]);
    assert!(got.status.success(), "{}", words(&got.stderr));
    let told: serde_json::Value = serde_json::from_slice(&got.stdout).unwrap();
    assert_eq!((&told["files"], &told["bytes"]), (&4.into(), &300_017.into()));
    let same = |path: &str| fs::read(tree.join(path)).unwrap() == fs::read(copy.join(path)).unwrap();
    assert!(["readme", "deep/er/large", "deep/nothing", "deep/tool"].iter().all(|path| same(path)));
    assert!(copy.join("empty/dir").is_dir());
    assert_eq!(fs::metadata(copy.join("deep/tool")).unwrap().permissions().mode() & 0o777, 0o755);
    // What is missing or spoilt is fetched again, and what is somebody else's stays.
    fs::remove_file(copy.join("readme")).unwrap();
    fs::write(copy.join("deep/tool"), b"something else").unwrap();
    fs::write(copy.join("mine"), b"mine").unwrap();
    assert!(get(&[]).status.success());
    assert!(same("readme") && same("deep/tool") && copy.join("mine").exists());
    // A link that leads elsewhere is not followed.
    fs::remove_dir_all(copy.join("deep")).unwrap();
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), copy.join("deep")).unwrap();
    let refused = get(&[]);
    assert!(words(&refused.stderr).contains("in the way"), "{}", words(&refused.stderr));
    assert_eq!(fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 0);
    // As it is, it is a list.
    let list = refd(&daemon, &data, &["get", &id]).output().unwrap();
    assert!(list.stdout.starts_with(b"{\"ron_tree\":1,"));
    // One that somebody made up to write elsewhere is refused before anything is written.
    let evil = dir.path().join("evil");
    fs::write(
        &evil,
        format!("{{\"ron_tree\":1,\"entries\":[{{\"path\":\"../out\",\"id\":\"{id}\",\"size\":1}}]}}"),
    )
    .unwrap();
    let evil = said(refd(&daemon, &data, &["put", evil.to_str().unwrap()])).trim().to_owned();
    let into = dir.path().join("into");
    let refused = refd(&daemon, &data, &["get", &evil, "-o", into.to_str().unwrap()]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7));
    assert!(!into.exists() && !dir.path().join("out").exists());
    assert!(
        refd(&daemon, &data, &["get", &evil, "--raw", "-o", into.to_str().unwrap()])
            .output()
            .unwrap()
            .status
            .success()
    );
    daemon.terminate();
}
