//! What `contrib/` gives service managers and container builders is what the program takes: its flags, its variables, its
//! exit codes. Neither is run here; what they would run is.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::REFD;

fn contrib(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(file)).unwrap()
}

fn run(arguments: &[&str], variables: &BTreeMap<String, String>) -> Output {
    Command::new(REFD).args(arguments).envs(variables).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_unit_of_systemd_calls_what_is_there() {
    let unit = contrib("systemd/refd.service");
    let keys: Vec<(&str, &str)> = unit.lines().filter_map(|line| line.split_once('=')).collect();
    let of = |key: &str| {
        keys.iter().filter(|(known, _)| *known == key).map(|(_, value)| *value).collect::<Vec<_>>()
    };

    let dir = tempfile::tempdir().unwrap();
    let (config, data) = (dir.path().join("refd.toml"), dir.path().join("state"));
    // As the unit says: settings are the template of a preset.
    let template = run(&["config", "template", "--preset", "lan"], &BTreeMap::new());
    assert!(template.status.success() && unit.contains("refd config template --preset lan"));
    fs::write(&config, &template.stdout).unwrap();
    let here = |word: &str| match word {
        "/etc/refd/refd.toml" => config.display().to_string(),
        "/var/lib/refd" => data.display().to_string(),
        _ => word.to_owned(),
    };
    let command = |line: &str| {
        let words: Vec<String> = line.split(' ').map(here).collect();
        assert_eq!(words[0], "/usr/local/bin/refd", "{line}");
        words[1..].to_vec()
    };
    // The flags of the start, and the directory that systemd makes for it.
    let start = command(of("ExecStart")[0]);
    assert_eq!(start[0], "run");
    // A preset that listens for others wants to know under which address, and the unit would not start without. It is the main
    // process that says so by its code: one of an ExecStartPre= is not asked before a restart, and the unit went round.
    let start_now: Vec<&str> = start.iter().map(String::as_str).collect();
    let refused = run(&start_now, &BTreeMap::new());
    assert!(
        refused.status.code() == Some(8) && text(&refused).contains("net.external"),
        "{}",
        text(&refused)
    );
    assert!(of("ExecStartPre").is_empty());
    let external = BTreeMap::from([("REFD_NET__EXTERNAL".to_owned(), "[\"192.0.2.1:4710\"]".to_owned())]);
    let checked = run(&["config", "check", start_now[2]], &external);
    assert!(checked.status.success(), "{}", text(&checked));
    let help = text(&run(&["run", "--help"], &BTreeMap::new()));
    assert!(
        start.iter().filter(|word| word.starts_with("--")).all(|flag| help.contains(&format!("{flag} <")))
    );
    assert_eq!((of("StateDirectory"), of("Type")), (vec!["refd"], vec!["notify"]));
    assert!(of("ExecReload")[0].contains("-HUP"));
    // What is not tried again: wrong arguments and wrong settings, by the codes that they end with.
    assert_eq!(run(&["run", "--nonsense"], &BTreeMap::new()).status.code(), Some(2));
    assert_eq!(of("RestartPreventExitStatus"), ["2 8"]);

    // What systemd itself says of it, where it is installed.
    let copy = dir.path().join("refd.service");
    fs::write(&copy, unit.replace("/usr/local/bin/refd", REFD)).unwrap();
    let analyze = |arguments: &[&str]| {
        Command::new("systemd-analyze").args(arguments).arg(&copy).stdin(Stdio::null()).output()
    };
    if let Ok(verified) = analyze(&["verify", "--man=no"]) {
        assert!(verified.status.success() && text(&verified).trim().is_empty(), "{}", text(&verified));
        if let Ok(exposed) = analyze(&["security", "--offline=true", "--threshold=20"]) {
            assert!(exposed.status.success(), "{}", text(&exposed));
        }
    }
}

#[test]
fn the_image_sets_what_is_there_and_runs_without_rights() {
    let file = contrib("docker/Dockerfile");
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    let of = |word: &str| {
        let lines = lines.iter().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        lines.map(str::trim).collect::<Vec<_>>()
    };
    // Its variables are settings, and have the values that the program then has.
    let variables: BTreeMap<String, String> = of("ENV")
        .iter()
        .flat_map(|line| line.split(' '))
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .chain([("REFD_NET__EXTERNAL".to_owned(), "[\"192.0.2.1:4710\"]".to_owned())])
        .collect();
    let printed = text(&run(&["config", "print"], &variables));
    assert!(printed.contains("data_dir = \"/data\"") && printed.contains("preset = \"lan\""), "{printed}");
    assert!(printed.contains(":4710") && of("EXPOSE") == ["4710"], "{printed}");
    assert_eq!((of("ENTRYPOINT"), of("CMD")), (vec!["[\"refd\"]"], vec!["[\"run\"]"]));
    assert!(of("HEALTHCHECK")[0].ends_with("CMD [\"refd\", \"health\"]"));
    assert!(text(&run(&["health", "--help"], &BTreeMap::new())).contains("exits with 6"));
    // A user of its own, who owns the data and nothing else, before anything is run; and no image without a version.
    let user = of("USER");
    assert!(user == ["refd"] && file.contains("useradd --system --uid 10001") && of("VOLUME") == ["/data"]);
    assert!(file.find("\nUSER ") < file.find("\nENTRYPOINT "));
    assert!(of("FROM").iter().all(|image| image.contains(':') && !image.contains(":latest")), "{file}");
    // What is built is what is copied, and what the builder copies from is there.
    let built = PathBuf::from("target/release/refd");
    assert!(
        file.contains("cargo build --release --locked -p refd") && file.contains(built.to_str().unwrap())
    );
    // Packages are not left behind, and nothing is fetched that is not pinned by a lock file or a distribution.
    assert!(!file.contains("curl ") && !file.contains("ADD http"));
}
