//! The demo as a person sees it: it says what it does, fails if something does not hold, and lets one try things.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use crate::REFD;

fn demo(arguments: &[&str], temp: &Path) -> Command {
    let mut command = Command::new(REFD);
    command.arg("demo").args(arguments).env("TMPDIR", temp);
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn it_holds_with_few_nodes_and_with_many_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    for nodes in ["3", "9"] {
        let shown = demo(&["--nodes", nodes], temp.path()).output().unwrap();
        let said = words(&shown);
        assert!(shown.status.success(), "{said}");
        assert!(said.contains(&format!("{nodes} nodes are up")), "{said}");
        assert!(said.contains("has the copy that was lost"), "{said}");
        let (held, ended) = (format!("everything held: {nodes} nodes, one of them killed"), "all stopped");
        let get = said.find("the first verified GET, ").unwrap();
        assert!(get < said.find(&held).unwrap() && said.contains(ended), "{said}");
    }
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    for nodes in ["0", "2", "10", "some"] {
        let refused = demo(&["--nodes", nodes], temp.path()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    }
    assert!(words(&demo(&["--nodes", "2"], temp.path()).output().unwrap()).contains("2 is not in 3..=9"));
}

/// A demo that cannot fail shows nothing.
#[test]
fn it_fails_if_a_bit_is_wrong() {
    let temp = tempfile::tempdir().unwrap();
    let shown = demo(&["--nodes", "3", "--damage"], temp.path()).output().unwrap();
    let said = words(&shown);
    assert_eq!(shown.status.code(), Some(1), "{said}");
    assert!(said.contains("is flipped") && said.contains("is damaged at byte"), "{said}");
    assert!(!said.contains("everything held") && !said.contains("first verified GET"), "{said}");
}

/// One that nobody has stopped is not left behind by a test that fails.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_it_tells_to_try_works_until_it_is_stopped() {
    let temp = tempfile::tempdir().unwrap();
    let child = demo(&["--nodes", "3", "--keep"], temp.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut kept = Kept(child);
    let mut output = BufReader::new(kept.0.stdout.take().unwrap());
    let (mut lines, mut line) = (Vec::new(), String::new());
    while !line.starts_with("or look at ") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended before it told what to try: {lines:?}");
        lines.extend(line.strip_prefix("  ").map(|line| line.trim_end().to_owned()));
    }
    assert!(lines.len() >= 6 && line.contains(&*temp.path().to_string_lossy()), "{lines:?} {line}");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", Path::new(REFD).parent().unwrap().display());
    let has_curl = Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok();
    let mut answers = String::new();
    for line in lines.iter().filter(|line| has_curl || !line.starts_with("curl")) {
        let done = Command::new("sh").args(["-c", line]).env("PATH", &path).output().unwrap();
        assert!(done.status.success(), "{line}: {}", words(&done));
        answers += &words(&done);
    }
    let id = "b3:a1a55887535397bf461902491c8779188a5dd1f8c3951b3d9cf6ecba194e87b0";
    assert!(answers.contains(id), "{answers}");
    assert!(!has_curl || answers.starts_with("hello, world"), "{answers}");

    let pid = kept.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(kept.0.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("stopping") && rest.ends_with("all stopped, every task by itself\n"), "{rest}");
    // What they kept is left, for those who want to look or to go on with it.
    let left: Vec<_> = fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.len() == 1 && left[0].join("b/store").is_dir(), "{left:?}");
}
