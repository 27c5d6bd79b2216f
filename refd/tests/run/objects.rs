//! Objects, from the command line: what a person or a script does with a node.

use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{Daemon, REFD};

/// `refd ARGUMENTS` for the node with this data.
pub(crate) fn refd(daemon: &Daemon, data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(REFD);
    command.args(arguments).arg("--node").arg(format!("http://{}", daemon.admin)).arg("--data-dir").arg(data);
    command
}

/// Standard output of a command that must succeed.
pub(crate) fn said(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Progress is for terminals, and this is none.
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(len)
        .collect()
}

#[test]
fn objects_are_put_got_listed_pinned_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) = (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    let daemon = Daemon::start(&data, &[]);
    let content = content(3_000_000);
    std::fs::write(&file, &content).unwrap();
    let (file, copy_name) = (file.to_str().unwrap(), copy.to_str().unwrap());

    // The id and nothing else, so that a script can use it as it is.
    let printed = said(refd(&daemon, &data, &["put", file]));
    let id = printed.trim_end();
    assert!(id.starts_with("b3:") && id.len() == 67 && printed == format!("{id}\n"), "{printed}");
    let got = refd(&daemon, &data, &["get", id]).output().unwrap();
    assert!(got.status.success() && got.stdout == content);
    let part = refd(&daemon, &data, &["get", id, "--range", "70000-70009"]).output().unwrap();
    assert_eq!(part.stdout, content[70_000..70_010]);
    assert_eq!(said(refd(&daemon, &data, &["get", id, "-o", copy_name])), format!("{id}\n"));
    assert!(std::fs::read(&copy).unwrap() == content);

    let mut piped = refd(&daemon, &data, &["put", "-", "--json", "--pin"]);
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    let answer = child.wait_with_output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((&answer["size"], &answer["existed"]), (&11.into(), &false.into()));
    let small = answer["id"].as_str().unwrap();

    let stat: serde_json::Value =
        serde_json::from_str(&said(refd(&daemon, &data, &["stat", small, "--json"]))).unwrap();
    assert_eq!((&stat["pinned"], &stat["quarantined"]), (&true.into(), &false.into()));
    let cid = stat["cid"].as_str().unwrap();
    assert!(said(refd(&daemon, &data, &["stat", cid])).contains(small));
    let mut listed = said(refd(&daemon, &data, &["ls"])).lines().map(str::to_owned).collect::<Vec<_>>();
    listed.sort();
    let mut expected = vec![format!("{id}\t3000000"), format!("{small}\t11\tpinned")];
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(said(refd(&daemon, &data, &["ls", "--limit", "1", "--json"])).lines().count(), 1);

    let refused = refd(&daemon, &data, &["rm", small]).output().unwrap();
    assert_eq!(code(&refused), 1);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("refd unpin"));
    assert_eq!(said(refd(&daemon, &data, &["unpin", small])), format!("{small}\n"));
    assert_eq!(said(refd(&daemon, &data, &["pin", id])), format!("{id}\n"));
    assert_eq!(said(refd(&daemon, &data, &["rm", small])), format!("{small}\n"));

    // Over plain HTTP too, and it is counted.
    let head = daemon.ask("HEAD", &format!("/o/{id}"), "");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 3000000"), "{head}");
    assert!(daemon.get("/openapi.json").contains("\"openapi\":\"3.1.0\""));
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("ron_storage_gets_total"), "{metrics}");
    assert!(daemon.terminate().contains(" 0 cut off"));
}

/// The codes that `--help` lists, for scripts.
#[test]
fn exit_codes_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let daemon = Daemon::start(&data, &[]);
    std::fs::write(&file, b"something").unwrap();
    let file = file.to_str().unwrap();
    let absent = format!("b3:{}", "0".repeat(64));
    for arguments in [["get", &absent], ["stat", &absent], ["rm", &absent], ["pin", &absent]] {
        let output = refd(&daemon, &data, &arguments).output().unwrap();
        assert_eq!(code(&output), 3, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let elsewhere = dir.path().join("elsewhere");
    let denied = refd(&daemon, &elsewhere, &["put", file]).output().unwrap();
    assert_eq!(code(&denied), 4);
    let told = String::from_utf8_lossy(&denied.stderr);
    assert!(told.contains("credentials are needed") && told.contains("--token-file"), "{told}");
    // Which is then enough.
    let token = data.join("token");
    let named = ["put", file, "--token-file", token.to_str().unwrap()];
    assert_eq!(code(&refd(&daemon, &elsewhere, &named).output().unwrap()), 0);
    for arguments in [["get", "b3:nonsense"], ["put", "--nonsense"]] {
        assert_eq!(code(&refd(&daemon, &data, &arguments).output().unwrap()), 2, "{arguments:?}");
    }
    // What is no id is told what one is; what is no node is not taken for one, whether it is needed or not.
    let id = said(refd(&daemon, &data, &["put", file])).trim().to_owned();
    for (arguments, words) in [
        (["stat", "tools/report", "--json"], "refd registry get NAME"),
        (["get", &id[3..], "--raw"], "`b3:` is missing"),
        (["get", &id, "--from=garbage"], "a contact is NODE_ID@IP:PORT"),
    ] {
        let output = refd(&daemon, &data, &arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(code(&output) == 2 && told.contains(words), "{arguments:?}: {told}");
    }
    // The list as it is goes where everything else does.
    assert_eq!(said(refd(&daemon, &data, &["get", &id, "--raw"])), "something");
    // A directory is in the way before anything is fetched.
    for more in [&[][..], &["--raw"]] {
        let into = dir.path().to_str().unwrap();
        let output = refd(&daemon, &data, &[&["get", &id, "-o", into], more].concat()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(code(&output) == 2 && told.contains("is a directory"), "{told}");
        assert!(!Path::new(&format!("{into}.part")).exists());
    }
    let missing = refd(&daemon, &data, &["put", "/nonexistent/file"]).output().unwrap();
    assert_eq!(code(&missing), 1);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/file"));
    let [closed] = crate::free_addrs();
    let mut nobody = Command::new(REFD);
    nobody.args(["ls", "--node", &format!("http://{closed}"), "--data-dir"]).arg(&data);
    let nobody = nobody.output().unwrap();
    assert_eq!(code(&nobody), 5, "{}", String::from_utf8_lossy(&nobody.stderr));
    let help = Command::new(REFD).args(["get", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("7  what came is not what its name says"));
}

/// A download that was cut off goes on, and what is no beginning of the object is not believed.
#[test]
fn a_download_goes_on_where_it_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, copy) = (dir.path().join("data"), dir.path().join("file"), dir.path().join("copy"));
    let daemon = Daemon::start(&data, &[]);
    let content = content(1_000_000);
    std::fs::write(&file, &content).unwrap();
    let id = said(refd(&daemon, &data, &["put", file.to_str().unwrap()])).trim().to_owned();
    let part = dir.path().join("copy.part");
    let get = || refd(&daemon, &data, &["get", &id, "-o", copy.to_str().unwrap()]);
    for begun in [70_000, 0, 1_000_000] {
        std::fs::write(&part, &content[..begun]).unwrap();
        said(get());
        assert!(std::fs::read(&copy).unwrap() == content && !part.exists(), "{begun}");
        std::fs::remove_file(&copy).unwrap();
    }
    for wrong in [&b"something else"[..], &[7; 1_000_000], &[7; 1_000_001]] {
        std::fs::write(&part, wrong).unwrap();
        let output = get().output().unwrap();
        assert_eq!(code(&output), 7, "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!part.exists() && !copy.exists());
    }
    said(get());
    assert!(std::fs::read(&copy).unwrap() == content);
}

/// The rules of `docs/operating.md`: a backup is files, is gone on with, and comes back into an empty node; what was damaged
/// in it is found and left out.
#[test]
fn a_backup_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new, kept) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("backup"));
    let daemon = Daemon::start(&old, &[]);
    let mut ids = Vec::new();
    for number in 0..5_usize {
        let file = dir.path().join("file");
        std::fs::write(&file, content(number * 100_000)).unwrap();
        let mut put = refd(&daemon, &old, &["put", file.to_str().unwrap()]);
        if number == 3 {
            put.arg("--pin");
        }
        ids.push(said(put).trim().to_owned());
    }
    let backup = |daemon: &Daemon| said(refd(daemon, &old, &["backup", kept.to_str().unwrap()]));
    assert!(backup(&daemon).starts_with("5 objects fetched (1000000 bytes), 0 were there"));
    // Again costs only what is new.
    assert!(backup(&daemon).starts_with("0 objects fetched (0 bytes), 5 were there"));
    let path = |id: &str| kept.join("objects").join(&id[3..5]).join(&id[3..]);
    assert!(std::fs::read(path(&ids[4])).unwrap() == content(400_000));
    assert_eq!(std::fs::read_to_string(kept.join("pins")).unwrap(), format!("{}\n", ids[3]));
    daemon.terminate();

    let mut spoilt = std::fs::read(path(&ids[2])).unwrap();
    spoilt[12_345] ^= 1;
    std::fs::write(path(&ids[2]), &spoilt).unwrap();
    let daemon = Daemon::start(&old, &[]);
    // By its length it is whole; whoever doubts it has it read, and fetched again.
    assert!(backup(&daemon).starts_with("0 objects fetched (0 bytes), 5 were there"));
    let verified = said(refd(&daemon, &old, &["backup", kept.to_str().unwrap(), "--verify"]));
    assert!(verified.starts_with("1 objects fetched (200000 bytes), 4 were there"), "{verified}");
    daemon.terminate();
    std::fs::write(path(&ids[2]), spoilt).unwrap();
    // Files of somebody else's, and a pin of what is not there.
    std::fs::write(kept.join("objects/notes.txt"), b"mine").unwrap();
    let lost = format!("b3:{}", "07".repeat(32));
    std::fs::write(kept.join("pins"), format!("{lost}\n{}\n", ids[3])).unwrap();
    std::fs::write(path(&ids[1]).with_extension("part"), b"unfinished").unwrap();
    let daemon = Daemon::start(&new, &[]);
    let restored = refd(&daemon, &new, &["restore", kept.to_str().unwrap(), "--json"]).output().unwrap();
    assert_eq!(code(&restored), 7, "{}", String::from_utf8_lossy(&restored.stderr));
    let told: serde_json::Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!((&told["stored"], &told["pinned"]), (&4.into(), &1.into()));
    assert_eq!(told["damaged"], serde_json::json!([ids[2]]));
    assert_eq!(told["unpinned"], serde_json::json!([lost]));
    for (number, id) in ids.iter().enumerate().filter(|(number, _)| *number != 2) {
        let got = refd(&daemon, &new, &["get", id]).output().unwrap();
        assert!(got.stdout == content(number * 100_000), "{number}");
    }
    assert!(said(refd(&daemon, &new, &["stat", &ids[3]])).contains("pinned\ttrue"));
}

/// A node without objects has a backup too.
#[test]
fn an_empty_backup_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (data, kept) = (dir.path().join("data"), dir.path().join("backup"));
    let daemon = Daemon::start(&data, &[]);
    assert!(said(refd(&daemon, &data, &["backup", kept.to_str().unwrap()])).starts_with("0 objects fetched"));
    assert!(said(refd(&daemon, &data, &["restore", kept.to_str().unwrap()])).starts_with("0 objects stored"));
}

/// What began is finished: a download that is under way when the node is asked to stop arrives whole.
#[test]
fn a_download_is_finished_before_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let daemon = Daemon::start(&data, &[]);
    let content = content(30 << 20);
    std::fs::write(&file, &content).unwrap();
    let id = said(refd(&daemon, &data, &["put", file.to_str().unwrap()])).trim().to_owned();
    let mut stream = std::net::TcpStream::connect(daemon.admin).unwrap();
    stream.write_all(format!("GET /o/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = vec![0; 1000];
    stream.read_exact(&mut answer).unwrap();
    #[allow(
        clippy::disallowed_methods,
        reason = "a client apart from the daemon; there is no supervisor here"
    )]
    let reader = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        stream.read_to_end(&mut answer).map(|_| answer)
    });
    let rest = daemon.terminate();
    assert!(rest.contains(" 0 cut off"), "{rest}");
    let answer = reader.join().unwrap().unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(answer[body..] == content, "{} of {}", answer.len() - body, content.len());
}

/// What a node does not have it brings from one that has: from the one that is named, or from whoever the DHT says provides it.
#[test]
fn a_node_brings_what_others_have() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let one = Daemon::start(&first, &[]);
    let other = Daemon::start(&second, &[&one.seed]);
    let file = dir.path().join("file");
    let mut ids = Vec::new();
    for len in [2_000_000, 70_000] {
        std::fs::write(&file, content(len)).unwrap();
        ids.push(said(refd(&one, &first, &["put", file.to_str().unwrap()])).trim_end().to_owned());
    }
    let got = refd(&other, &second, &["get", &ids[0], "--from", &one.seed]).output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    assert!(got.stdout == content(2_000_000));
    assert!(said(refd(&other, &second, &["stat", &ids[0]])).contains("2000000"), "it has it now");

    let token = std::fs::read_to_string(first.join("token")).unwrap();
    one.eventually("/dht/status", |answer| answer.contains("\"peers\":1"));
    let authorization = format!("Authorization: Bearer {}\r\n", token.trim());
    let provided = one.ask("POST", &format!("/dht/provide/{}", ids[1]), &authorization);
    assert!(provided.starts_with("HTTP/1.1 200"), "{provided}");
    let got = refd(&other, &second, &["get", &ids[1]]).output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    assert!(got.stdout == content(70_000));
    // Nobody has this one.
    let nowhere = format!("b3:{}", "0".repeat(64));
    assert_eq!(code(&refd(&other, &second, &["get", &nowhere]).output().unwrap()), 3);
}

/// `POST /gc` and `POST /scrub` had no command.
#[test]
fn objects_are_collected_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let daemon = Daemon::start_with(&data, &[], &[("REFD_STORAGE__COLLECT_GRACE_MS", "0")]);
    let put = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        said(refd(&daemon, &data, &[&["put", file.to_str().unwrap()], more].concat())).trim().to_owned()
    };
    let (kept, loose) = (put("kept", &["--pin"]), put("loose", &[]));
    assert_eq!(said(refd(&daemon, &data, &["gc", "--dry-run"])), "objects\t1\nbytes\t5\nkept\t1\n");
    said(refd(&daemon, &data, &["stat", &loose]));
    let json: serde_json::Value =
        serde_json::from_str(&said(refd(&daemon, &data, &["gc", "--json"]))).unwrap();
    assert_eq!((&json["objects"], &json["dry_run"]), (&1.into(), &false.into()), "{json}");
    assert_eq!(code(&refd(&daemon, &data, &["stat", &loose]).output().unwrap()), 3);
    said(refd(&daemon, &data, &["stat", &kept]));
    assert_eq!(said(refd(&daemon, &data, &["scrub"])), "objects\t1\nbytes\t4\njournal_damage\t0\n");
    let denied = refd(&daemon, &dir.path().join("elsewhere"), &["scrub"]).output().unwrap();
    assert_eq!(code(&denied), 4);
}
