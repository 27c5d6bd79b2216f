//! `refd resolve` and `refd find`: what a key leads to, asked of a running daemon.

use std::{path::Path, process::Command};

use super::Daemon;

fn refd(daemon: &Daemon, data: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refd"));
    command.args(arguments).args(["--node", &format!("http://{}", daemon.admin)]).arg("--data-dir").arg(data);
    command.output().unwrap()
}

#[test]
fn what_is_stored_is_resolved_found_and_routed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("file"));
    let variables = [("REFD_INDEX__DEADLINE_MS", "400"), ("REFD_INDEX__REGION", "eu")];
    let daemon = Daemon::start_with(&data, &[], &variables);
    std::fs::write(&file, b"something").unwrap();
    let put = refd(&daemon, &data, &["put", file.to_str().unwrap()]);
    let id = String::from_utf8(put.stdout).unwrap().trim().to_owned();

    let resolved = refd(&daemon, &data, &["resolve", &id, "--explain"]);
    let text = String::from_utf8(resolved.stdout).unwrap();
    assert!(text.contains(&format!("content\t{id}")) && text.contains("size\t9"), "{text}");
    assert!(text.contains("region 1.00"), "{text}");
    let json = refd(&daemon, &data, &["resolve", &id, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["manifest"]["len"], &json["providers"][0]["source"]), (&9.into(), &"store".into()));
    let found = refd(&daemon, &data, &["find", json["cid"].as_str().unwrap()]);
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.lines().count() == 1 && found.contains("store"), "{found}");

    // A node that is alone cannot know who else has it, and one without a log not what a name stands for: each says what to do.
    let absent = format!("b3:{}", "0".repeat(64));
    for (key, told, hint) in [
        (&*absent, "knows no other", "--seed"),
        ("tools/it", "the log of names has not begun", "refd registry init"),
    ] {
        // More often than would have a source left alone that fails.
        for _ in 0..12 {
            let refused = refd(&daemon, &data, &["resolve", key]);
            let words = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(6), "{words}");
            assert!(words.contains("not_ready") && words.contains(told) && words.contains(hint), "{words}");
        }
    }
    // With a log it is certain that there is no such name; nothing is no key.
    let signer = dir.path().join("signer");
    let one = format!("one={}", signer.display());
    assert!(
        Command::new(env!("CARGO_BIN_EXE_refd"))
            .args(["registry", "key"])
            .arg(&signer)
            .status()
            .unwrap()
            .success()
    );
    let begun = refd(&daemon, &data, &["registry", "init", "--needed", "1", "--signer", &one]);
    assert!(begun.status.success(), "{begun:?}");
    let unknown = refd(&daemon, &data, &["resolve", "tools/it"]);
    let words = String::from_utf8(unknown.stderr).unwrap();
    assert!(unknown.status.code() == Some(3) && words.contains("no_such_name"), "{words}");
    assert_eq!(refd(&daemon, &data, &["resolve", "a b"]).status.code(), Some(2));

    // At the root, for clients of other indexes, and below /index with everything else.
    let routed = daemon.get(&format!("/routing/v1/providers/{}", json["cid"].as_str().unwrap()));
    assert!(routed.contains("\"Schema\":\"peer\""), "{routed}");
    assert!(daemon.get("/index/status").contains("\"sources\""));
    assert!(daemon.get("/index/openapi.json").contains("ron-index"));
    assert!(daemon.get("/metrics").contains("ron_index_cache_hits_total"));
    assert!(daemon.get("/readyz?verbose").contains("index.sources"));
    assert!(daemon.terminate().contains(" 0 cut off"));
}
