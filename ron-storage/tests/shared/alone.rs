//! The memory of a process is that of all tests in it, so a test that weighs it runs in a process of its own.

use std::process::Command;

const ALONE: &str = "RON_TEST_ALONE";

/// Whether this process runs nothing but the test of this name. If not, it was run in one that does, and has passed there.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let run = command.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("running 1 test"), "no such test: {test}");
    assert!(run.status.success(), "{said}{wrong}");
    println!("{said}");
    false
}

/// The memory of this process.
pub(crate) fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}
