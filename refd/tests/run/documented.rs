//! What the documents tell people to type, typed: every shell block of `docs/operating.md` in its order, and of `README.md`
//! what the gate does not run by itself.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use crate::REFD;

/// Lines of `README.md` that are run elsewhere: the gate runs the first two as they stand there, and the rest are the gate
/// and what takes longer than it.
const RUN_ELSEWHERE: [&str; 8] = [
    "cargo run --release -p refd -- demo",
    "cargo test --workspace",
    ".ci/run  ",
    ".ci/run fmt clippy test  ",
    "cargo bench -p ron-core  ",
    "bench/run  ",
    "RUSTFLAGS=\"--cfg ron_loom\" cargo test -p ron-core --release --lib --target-dir target/loom models",
    ".ci/fuzz 60  ",
];

/// The shell blocks of a document.
fn blocks(name: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap();
    let blocks = text.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap().to_owned());
    blocks.collect()
}

/// Runs a script as a person would who has an empty home, with the files and the ports that the documents speak of.
fn run(script: &str) {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(REFD, bin.join("refd")).unwrap();
    fs::write(home.path().join("report.pdf"), b"a report").unwrap();
    // Others may use the ports of the documents.
    let free: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<String> = free.iter().map(|port| port.local_addr().unwrap().port().to_string()).collect();
    drop(free);
    let mut script = script.to_owned();
    for (written, port) in ["4710", "4711", "4720", "4721"].iter().zip(&ports) {
        script = script.replace(&format!(":{written}"), &format!(":{port}"));
    }
    // The last thing ends what was begun, whatever came of it; the nodes of a script are its children.
    let script = format!("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{script}\n");
    let mut command = Command::new("timeout");
    command.args(["120", "bash", "-c", &script]).current_dir(home.path()).env_clear();
    command.env("HOME", home.path()).env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    // Where a node listens if no flag says otherwise.
    command.env("REFD_NET__LISTEN", format!("[\"127.0.0.1:{}\"]", ports[0]));
    command
        .env("REFD_ADMIN__LISTEN", format!("127.0.0.1:{}", ports[1]))
        .env("REFD_OVERLAY__TOPICS", "[\"news\"]");
    let log = home.path().join("log");
    let file = fs::File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}: {}\n{script}", fs::read_to_string(&log).unwrap());
}

#[test]
fn every_shell_block_of_operating_runs() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: curl is not installed");
        return;
    }
    let blocks = blocks("docs/operating.md");
    assert!(blocks.len() >= 4, "{blocks:?}");
    run(&blocks.join("\n"));
}

#[test]
fn every_shell_line_of_the_readme_runs_somewhere() {
    let lines: Vec<String> =
        blocks("README.md").iter().flat_map(|block| block.lines()).map(str::to_owned).collect();
    let is_run = |line: &&String| !RUN_ELSEWHERE.iter().any(|known| format!("{line}  ").starts_with(known));
    let left: Vec<&String> = lines.iter().filter(is_run).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // A node has no end of its own.
    let line = left[0].replace("cargo run --release -p refd --", "refd");
    run(&format!("{line} &\nuntil refd health; do sleep 0.1; done\nkill -TERM $!\nwait $!\ntrap - EXIT"));
}
