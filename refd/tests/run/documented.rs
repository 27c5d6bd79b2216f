//! What the documents tell people to type, typed: every shell block of `docs/operating.md` and of `docs/runbooks.md` in its
//! order, and of `README.md` what the gate does not run by itself.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use crate::{REFD, free_addrs};

/// Lines of `README.md` that the gate runs as they stand there, and the gate.
const RUN_ELSEWHERE: [&str; 4] = [
    "cargo run --release -p refd -- demo",
    "cargo test --workspace",
    ".ci/run  ",
    "cargo run --release --example whole -- --seed 1 --minutes 10",
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
    let ports = free_addrs::<8>().map(|addr| addr.port().to_string());
    let mut script = script.to_owned();
    for (written, port) in ["4710", "4711", "4720", "4721", "4730", "4731", "4740", "4741"].iter().zip(&ports)
    {
        script = script.replace(&format!(":{written}"), &format!(":{port}"));
    }
    // The last thing ends what was begun, whatever came of it; the nodes of a script are its children.
    let script = format!("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{script}\n");
    let mut command = Command::new("timeout");
    // It takes seconds; more is a script that hangs, and not a machine that others use.
    command.args(["900", "bash", "-c", &script]).current_dir(home.path()).env_clear();
    command.env("HOME", home.path()).env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    // Where a node listens if no flag says otherwise.
    command.env("REFD_NET__LISTEN", format!("[\"127.0.0.1:{}\"]", ports[0]));
    command.env("REFD_ADMIN__LISTEN", format!("127.0.0.1:{}", ports[1]));
    let log = home.path().join("log");
    let file = fs::File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}: {}\n{script}", fs::read_to_string(&log).unwrap());
}

/// Runs the shell blocks of a document one after the other; there are at least so many.
fn run_blocks(name: &str, least: usize) {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: curl is not installed");
        return;
    }
    let blocks = blocks(name);
    assert!(blocks.len() >= least, "{blocks:?}");
    run(&blocks.join("\n"));
}

#[test]
fn every_shell_block_of_operating_runs() {
    run_blocks("docs/operating.md", 4);
}

#[test]
fn every_shell_block_of_the_runbooks_runs() {
    run_blocks("docs/runbooks.md", 6);
}

#[test]
fn every_shell_line_of_the_readme_runs_somewhere() {
    let blocks = blocks("README.md");
    let lines = blocks.iter().flat_map(|block| block.lines());
    let is_run = |line: &&str| !RUN_ELSEWHERE.iter().any(|known| format!("{line}  ").starts_with(known));
    let left: Vec<&str> = lines.filter(is_run).collect();
    let (node, rest) = left.split_first().unwrap();
    assert!(*node == "cargo run --release -p refd -- run" && rest.len() >= 4, "{left:?}");
    // A node has no end of its own.
    let node = node.replace("cargo run --release -p refd --", "refd");
    let rest = rest.join("\n");
    let checked = "cmp report.pdf copy.pdf; cmp report.pdf again.pdf";
    run(&format!(
        "{node} &\nuntil refd health; do sleep 0.1; done\n{rest}\n{checked}\nkill -TERM $!\nwait $!\ntrap - EXIT"
    ));
}

/// What is linked to is there: files of the repository, and headings in them.
#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("SECURITY.md")];
    for dir in ["docs", "docs/decisions"] {
        let files = fs::read_dir(root.join(dir)).unwrap().map(|file| file.unwrap().path());
        documents.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    let mut links = 0;
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains([' ', '\n']) {
                continue;
            }
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, at)| (file, Some(at)));
            let target =
                if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", document.display());
            if let Some(heading) = heading {
                let text = fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                // The second of two that are called alike has a number.
                let alike: Vec<String> =
                    headings.filter(|known| heading.starts_with(known.as_str())).collect();
                let is_there = alike.iter().enumerate().any(|(at, known)| {
                    let before = alike[..at].iter().filter(|other| *other == known).count();
                    *heading == if before == 0 { known.clone() } else { format!("{known}-{before}") }
                });
                assert!(is_there, "{}: {link}", document.display());
            }
            links += 1;
        }
    }
    assert!(links > 50, "{links}");
}

/// The map of the code has every module, and no other.
#[test]
fn the_map_of_the_code_is_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let mut crates = Vec::new();
    for section in text.split("\n## Map of ").skip(1) {
        let (name, section) = section.split_once('\n').unwrap();
        let section = section.split("\n## ").next().unwrap();
        let source = root.join(name).join("src");
        let named: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
        for dir in ["", "logic/"] {
            for file in fs::read_dir(source.join(dir)).into_iter().flatten() {
                let file = file.unwrap().file_name().into_string().unwrap();
                let Some(module) = file.strip_suffix(".rs").filter(|module| !is_beneath(module)) else {
                    continue;
                };
                let module = format!("{dir}{module}");
                assert!(named.contains(&&*module), "{name} has {module}, and its map has not");
            }
        }
        // The first column of the table is modules and nothing else.
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        for module in rows.flat_map(|row| row[1..].split('|').next().unwrap().split('`').skip(1).step_by(2)) {
            let is_there = source.join(format!("{module}.rs")).exists();
            assert!(is_there, "the map of {name} has {module}, and there is none");
        }
        crates.push(name);
    }
    assert_eq!(
        crates,
        ["ron-core", "ron-dht", "ron-overlay", "ron-storage", "ron-registry", "ron-index", "refd"]
    );
}

/// What every crate has, or only its tests.
fn is_beneath(module: &str) -> bool {
    matches!(
        module,
        "lib" | "main" | "logic" | "metrics" | "sim" | "planted" | "pretend" | "cluster" | "fixture"
    )
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().replace(' ', "-")
}
