//! Logs: an answer that is lost, an owner with two faces, a disk that was written to by somebody else.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ron_core::ContentId;
use ron_registry::{LogTrust, Note};

use super::{disk::refused, json, node, status, until};
use crate::{
    Daemon, free_addrs,
    governing::Decider,
    objects::refd,
    settings::{ANY_PORT, Configured},
};

fn version(daemon: &Daemon) -> u64 {
    json(&daemon.get("/registry/head"))["version"].as_u64().unwrap()
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Case 47: the node dies after it was told to commit and before it has answered, as by a power cut. Whoever asks again is told
/// in which version it is, and there is one, whether the first had come to the disk or not. In the first round it had for certain, in
/// the second it had not, and in the others nobody knows.
#[test]
fn an_append_whose_answer_was_lost_is_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path(), &[]);
    let mut decider = Decider::found(&daemon, dir.path());
    let mut in_the_log = 0;
    for round in 0..6 {
        let (proposal, approval) = decider.binding(&format!("tools/{round}"), 0, b"x");
        let base64 = |bytes: &[u8]| data_encoding::BASE64.encode(bytes);
        let body = format!(
            "{{\"proposal\":\"{}\",\"approvals\":[\"{}\"]}}",
            base64(proposal.encoded()),
            base64(&approval.encode())
        );
        let token = fs::read_to_string(dir.path().join("token")).unwrap();
        let head = format!(
            "POST /registry/commit HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            daemon.admin,
            token.trim(),
            body.len()
        );
        let mut stream = TcpStream::connect(daemon.admin).unwrap();
        let request = format!("{head}{body}");
        let wanted = round + 2;
        // All but the last byte of it, once.
        let sent = request.len() - usize::from(round == 1);
        stream.write_all(&request.as_bytes()[..sent]).unwrap();
        if round == 0 {
            // Only the answer is lost.
            daemon.eventually("/registry/head", |head| head.contains(&format!("\"version\":{wanted},")));
        } else {
            // Wherever it happens to be then.
            std::thread::sleep(Duration::from_micros(500 * (round - 1)));
        }
        daemon.signal("KILL");
        daemon.child.wait().unwrap();
        daemon = Daemon::start(dir.path(), &[]);
        decider = Decider::of(&daemon, dir.path());
        let is_there = version(&daemon) == wanted;
        assert!(is_there || round != 0, "it was there before the node died");
        assert!(!is_there || round != 1, "it was never asked for");
        in_the_log += u64::from(is_there);
        for _ in 0..2 {
            assert_eq!(decider.commit(&proposal, &approval), wanted, "round {round}");
        }
        assert_eq!(version(&daemon), wanted, "round {round}");
    }
    println!("{in_the_log} of 6 were in the log when the node died");
    daemon.terminate();
}

/// Case 49: a log whose owner shows one face to some and another to others, under the same name, key and address. Who has seen
/// the one refuses the other, goes on showing what it had, and keeps what proves it: two heads that the log's own key signed.
#[test]
fn two_views_of_one_log_are_refused_and_proven() {
    let home = tempfile::tempdir().unwrap();
    let [one, two, copied] = ["one", "two", "copy"].map(|name| home.path().join(name));
    let [addr] = free_addrs();
    let there = |data: &Path| Daemon::start_at(&addr.to_string(), data, &[], &[]);
    let face = there(&one);
    let decider = Decider::found(&face, &one);
    decider.bind("tools/a", 0, b"the same to everybody");
    let log_key = decider.head().log_key;
    let owner = format!("{}@{addr}", face.seed.split_once('@').unwrap().0);
    face.terminate();
    copy(&one, &two);

    let face = there(&one);
    let follows = [("REFD_REGISTRY__FOLLOW", &*owner), ("REFD_REGISTRY__LOG_KEY", &*log_key)];
    let follower = Daemon::start_with(&copied, &[], &follows);
    assert_eq!(Decider::of(&face, &one).bind("tools/b", 0, b"to some"), 3);
    follower.eventually("/registry/head", |head| head.contains("\"version\":3,"));
    let body = |path: &str| follower.get(path).split_once("\r\n\r\n").unwrap().1.to_owned();
    let shown = [body("/registry/head"), body("/registry/names/tools/b")];
    face.terminate();

    let other = there(&two);
    let decider = Decider::of(&other, &two);
    assert_eq!(decider.bind("tools/b", 0, b"to others"), 3);
    assert_eq!(decider.bind("tools/c", 0, b"more"), 4);
    let refused = "ron_registry_follow_refused_total{kind=\"fork\"}";
    follower.eventually("/metrics", |metrics| metrics.contains(refused));
    follower
        .eventually("/readyz?verbose", |ready| status(ready) == 503 && ready.contains("registry.following"));
    assert_eq!([body("/registry/head"), body("/registry/names/tools/b")], shown);

    // Anybody who knows the key can see it from the file alone.
    let trust = LogTrust::new(log_key.parse().unwrap());
    let files = || fs::read_dir(copied.join("evidence")).unwrap().map(|file| file.unwrap().path());
    let texts = files().map(|file| fs::read_to_string(file).unwrap());
    let fork = texts.into_iter().find(|text| text.starts_with("fork at ")).expect("evidence is kept");
    let (ours, theirs) = fork.split_once("followed:\n").unwrap().1.split_once("\nshown:\n").unwrap();
    let [ours, theirs] = [ours, theirs].map(|text| {
        let text = format!("{}\n", text.trim_end());
        trust.open(&Note::parse(text.as_bytes()).unwrap()).unwrap()
    });
    assert_eq!(ours.size, 3, "{fork}");
    assert!(theirs.size >= 3 && theirs.root != ours.root, "{fork}");
    follower.terminate();
    other.terminate();
}

/// The file in which the log is, and where in it these bytes are.
fn place_of(data: &Path, bytes: &[u8]) -> (PathBuf, u64) {
    let files = fs::read_dir(data.join("registry")).unwrap().map(|file| file.unwrap().path());
    let found = files.filter_map(|file| {
        let text = fs::read(&file).unwrap();
        let at = text.windows(bytes.len()).position(|window| window == bytes)?;
        Some((file, at as u64))
    });
    found.min_by_key(|(_, at)| *at).expect("it is in the log")
}

/// Changes one bit, in place.
fn flip((file, at): &(PathBuf, u64)) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, *at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], *at).unwrap();
}

/// Case 52: a bit of an early entry changes on the disk, and then the beginning of the log may go. It does not: what is left would
/// stand for something that was never decided. The node says which entry it is. Once that is as it was, it goes; the log is what it
/// was after the node dies at that moment, and a node whose log was written to meanwhile does not start.
#[test]
fn nothing_is_pruned_that_was_tampered_with() {
    let often = "[registry]\ncheckpoint_interval_ms = 50\n";
    let node = node(often);
    let data = node.data();
    let decider = Decider::found(&node.daemon, &data);
    decider.fill(300);
    let (head, key) = (decider.head(), decider.head().log_key);
    let artifact = |version: u64| *ContentId::of(&version.to_be_bytes()).as_bytes();
    let early = place_of(&data, &artifact(5));
    flip(&early);
    fs::write(node.dir.path().join("refd.toml"), format!("{ANY_PORT}{often}retain_entries = 20\n")).unwrap();
    node.daemon.signal("HUP");
    until("it could not prune", || node.count("ron_registry_storage_backoff_total{op=\"prune\"}") > 1);
    let log = fs::read_to_string(node.dir.path().join("log")).unwrap();
    assert!(log.contains("could not prune") && log.contains("version 5"), "{log}");
    assert_eq!(decider.head().first, 1);
    assert_eq!(place_of(&data, &artifact(6)).0, early.0);

    flip(&early);
    node.daemon.eventually("/registry/head", |head| head.contains("\"first\":257,"));
    let Configured { mut daemon, dir } = node;
    daemon.signal("KILL");
    daemon.child.wait().unwrap();
    let again = Daemon::start(&data, &[]);
    assert_eq!(Decider::of(&again, &data).head().hash, head.hash);
    let followed = refd(&again, &data, &["registry", "follow", "--log-key", &key, "--until", "300"]);
    let followed = { followed }.output().unwrap();
    let versions = String::from_utf8(followed.stdout).unwrap();
    assert!(followed.status.success() && versions.lines().count() == 44, "{versions}");
    again.terminate();

    flip(&place_of(&data, &artifact(290)));
    let _ = fs::remove_file(data.join("registry/memo"));
    let said = refused(&data);
    assert!(said.contains("data/registry: damaged: damaged from "), "{said}");
    drop(dir);
}
