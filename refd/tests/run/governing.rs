//! A log as people use it: three key files, a policy of two of three, a name that is bound to an object, a proof that is
//! checked offline, and another daemon that follows.

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, SystemTime},
};

use ron_core::{ContentId, Deadline, net::Identity};
use ron_registry::{Action, Approval, Content, Policy, Proposal, Signer, client::Client, json::HeadBody};

use super::{Daemon, REFD};

struct Person<'a> {
    daemon: &'a Daemon,
    data: &'a Path,
}

impl Person<'_> {
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(REFD);
        command
            .args(args)
            .args(["--node", &format!("http://{}", self.daemon.admin), "--data-dir"])
            .arg(self.data);
        command.output().unwrap()
    }

    /// What it says on standard output.
    fn says(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap().trim().to_owned()
    }
}

/// What it says to people.
fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn alone(args: &[&str]) -> Output {
    Command::new(REFD).args(args).output().unwrap()
}

/// Somebody who decides alone about the log of a node, over HTTP.
pub(crate) struct Decider {
    runtime: tokio::runtime::Runtime,
    client: Client,
    person: Identity,
    origin: String,
}

impl Decider {
    /// Of a log that has begun, perhaps before the node was started again.
    pub(crate) fn of(daemon: &Daemon, data: &Path) -> Decider {
        let token = std::fs::read_to_string(data.join("token")).unwrap();
        let client = Client::new(&format!("http://{}/registry", daemon.admin)).unwrap().token(token.trim());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let origin = runtime.block_on(client.head(soon())).unwrap().origin;
        Decider { runtime, client, person: Identity::from_seed(&[7; 32]), origin }
    }

    /// Begins the log of a node.
    pub(crate) fn found(daemon: &Daemon, data: &Path) -> Decider {
        let decider = Decider::of(daemon, data);
        decider.runtime.block_on(decider.client.found(&decider.policy(), soon())).unwrap();
        decider
    }

    /// Who decides: this one.
    pub(crate) fn policy(&self) -> Policy {
        let signer = Signer { name: "ann".into(), key: self.person.public_key(), expires: None };
        Policy::of(1, vec![signer]).unwrap()
    }

    pub(crate) fn head(&self) -> HeadBody {
        self.runtime.block_on(self.client.head(soon())).unwrap()
    }

    /// That `name` shall stand for `content`, signed. `prior` is the version that bound it before.
    pub(crate) fn binding(&self, name: &str, prior: u64, content: &[u8]) -> (Proposal, Approval) {
        let content = Content::Artifact(ContentId::of(content));
        let action = Action::Bind { name: name.parse().unwrap(), content, prior };
        // Longer than the test takes, shorter than anything may wait.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let expires = now.as_millis() as u64 + 3_600_000;
        let proposal = Proposal::new(&self.origin, 1, expires, action, None).unwrap();
        let approval = proposal.approve(&self.person, expires);
        (proposal, approval)
    }

    /// The version in which it was committed.
    pub(crate) fn commit(&self, proposal: &Proposal, approval: &Approval) -> u64 {
        let approvals = [approval.clone()];
        let told = self.runtime.block_on(self.client.commit(proposal, &approvals, soon())).unwrap();
        told.version.unwrap()
    }

    /// Decides that, and says in which version.
    pub(crate) fn bind(&self, name: &str, prior: u64, content: &[u8]) -> u64 {
        let (proposal, approval) = self.binding(name, prior, content);
        self.commit(&proposal, &approval)
    }

    /// Binds four names again and again until the log, which has only begun, has so many entries.
    pub(crate) fn fill(&self, entries: u64) {
        let mut priors = [0; 4];
        for version in 2..=entries {
            let at = (version % 4) as usize;
            let bound = self.bind(&format!("tools/{at}"), priors[at], &version.to_be_bytes());
            assert_eq!(bound, version);
            priors[at] = version;
        }
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn two_of_three_decide_and_others_follow() {
    let (one_dir, two_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(one_dir.path(), &[]);
    let node = Person { daemon: &daemon, data: one_dir.path() };
    let file = |name: &str| two_dir.path().join(name).to_str().unwrap().to_owned();
    let mut init = vec!["registry".to_owned(), "init".into(), "--needed".into(), "2".into()];
    for name in ["ann", "bob", "cy"] {
        let made = alone(&["registry", "key", &file(name)]);
        let key = String::from_utf8(made.stdout).unwrap();
        // By its key for one, by its file for the others.
        let key = if name == "ann" { key.trim().to_owned() } else { file(name) };
        init.extend(["--signer".to_owned(), format!("{name}={key}")]);
    }
    let founded = node.says(&init.iter().map(String::as_str).collect::<Vec<_>>());
    let log_key = founded.split_once("key\t").unwrap().1.to_owned();

    std::fs::write(file("object"), "hello").unwrap();
    let object = node.says(&["put", &file("object")]);
    let id =
        node.says(&["registry", "propose", "tools/hello", "--artifact", &object, "-o", &file("proposal")]);
    let diff = node.says(&["registry", "diff", &id]);
    for line in [
        "name        tools/hello",
        "- nothing",
        &format!("+ object      {object}"),
        "approved by nobody",
        "needs       2 more of: ann, bob, cy",
        "expires     in 24 h",
    ] {
        assert!(diff.contains(line), "{line} in {diff}");
    }
    let approved = node.says(&["registry", "approve", &id, "--key", &file("ann")]);
    assert!(approved.ends_with(&id), "{approved}");
    let diff = node.says(&["registry", "diff", &id]);
    assert!(diff.contains("approved by ann") && diff.contains("needs       1 more of: bob, cy"), "{diff}");
    let again = node.run(&["registry", "approve", &id, "--key", &file("ann")]);
    assert!(again.status.success() && told(&again).starts_with("ann had approved already\n"), "{again:?}");
    let json: serde_json::Value =
        serde_json::from_str(&node.says(&["registry", "diff", &id, "--json"])).unwrap();
    assert_eq!((&json["needed_more"], &json["needed_of"]), (&1.into(), &serde_json::json!(["bob", "cy"])));
    // The other signs without a connection.
    let signed =
        alone(&["registry", "approve", &file("proposal"), "--key", &file("cy"), "-o", &file("approval")]);
    assert!(signed.status.success(), "{}", String::from_utf8_lossy(&signed.stderr));
    let shown = String::from_utf8(signed.stdout).unwrap();
    // As he can look at it before, who asks nobody either.
    let looked = alone(&["registry", "diff", &file("proposal"), "--node", "http://127.0.0.1:1"]);
    assert!(String::from_utf8(looked.stdout).unwrap().starts_with(&format!("proposal {id}\n")));
    for line in [&format!("proposal {id}"), "name        tools/hello", &format!("+ object      {object}")] {
        assert!(shown.contains(line), "nobody signs what was not shown: {line} in {shown}");
    }
    let committed = node.says(&["registry", "commit", &file("proposal"), &file("approval"), "--json"]);
    assert!(committed.contains("\"version\":2"), "{committed}");

    assert_eq!(node.says(&["registry", "get", "tools/hello", "--log-key", &log_key]), object);
    assert_eq!(node.run(&["registry", "get", "tools/none", "--log-key", &log_key]).status.code(), Some(3));
    let gone = node.run(&["registry", "diff", &id]);
    assert!(gone.status.code() == Some(3) && told(&gone).contains("in the log as version 2"), "{gone:?}");
    let wrong = node.run(&["registry", "diff", "zz"]);
    assert!(wrong.status.code() == Some(2) && told(&wrong).contains("no id of a proposal"), "{wrong:?}");
    assert_eq!(
        node.says(&["registry", "log"]).lines().last().unwrap(),
        format!("2\tbind\ttools/hello\t{object}")
    );
    node.says(&["registry", "prove", "2", "-o", &file("proof")]);
    let checked = alone(&["registry", "verify", &file("proof"), "--log-key", &log_key]);
    assert!(
        String::from_utf8_lossy(&checked.stdout).starts_with("version 2 (tools/hello) is in the log"),
        "{checked:?}"
    );
    let stood = format!("\nwith it tools/hello stood for {object}\n");
    assert!(String::from_utf8_lossy(&checked.stdout).ends_with(&stood), "{checked:?}");
    let json = alone(&["registry", "verify", &file("proof"), "--log-key", &log_key, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["version"], &json["b3"]), (&2.into(), &object.as_str().into()));
    // What is wrong is named: the key, the entry, the proof.
    let other = ron_registry::NoteSigner::from_seed("log.example", ron_registry::KeyKind::Ed25519, &[7; 32]);
    let other = other.unwrap().verifier().to_string();
    let entry = std::fs::read(file("proof.entry")).unwrap();
    let mut altered = entry.clone();
    *altered.last_mut().unwrap() ^= 1;
    for (entry, key, words) in [
        (&entry[..], &other, "not signed with this --log-key"),
        (b"something else", &log_key, "proof.entry is no entry, or was altered"),
        (&altered, &log_key, "was altered"),
    ] {
        std::fs::write(file("proof.entry"), entry).unwrap();
        let refused = alone(&["registry", "verify", &file("proof"), "--log-key", key]);
        assert!(refused.status.code() == Some(7) && told(&refused).contains(words), "{words}: {refused:?}");
    }
    // Nobody waits for a log that is signed with another key.
    let followed = node.run(&["registry", "follow", "--log-key", &other]);
    assert!(
        followed.status.code() == Some(7) && told(&followed).contains("not signed with this --log-key"),
        "{followed:?}"
    );
    let followed = node.says(&["registry", "follow", "--log-key", &log_key, "--until", "2"]);
    assert_eq!(followed.lines().last().unwrap(), format!("2\ttools/hello\t{object}"));
    let followed = node.says(&["registry", "follow", "--log-key", &log_key, "--until", "2", "--json"]);
    let last: serde_json::Value = serde_json::from_str(followed.lines().last().unwrap()).unwrap();
    assert_eq!((&last["version"], &last["b3"]), (&2.into(), &object.as_str().into()));

    // Another daemon has a copy, from the first one's port for nodes, and takes no proposals.
    let copy_dir = tempfile::tempdir().unwrap();
    let mut copy = Daemon::start_with(
        copy_dir.path(),
        &[],
        &[("REFD_REGISTRY__FOLLOW", &daemon.seed), ("REFD_REGISTRY__LOG_KEY", &log_key)],
    );
    copy.eventually("/registry/names/tools/hello", |answer| answer.contains(&object));
    assert!(copy.line_with("the log ").contains("it follows another node"));
    let follower = Person { daemon: &copy, data: copy_dir.path() };
    assert_eq!(follower.says(&["registry", "get", "tools/hello", "--log-key", &log_key]), object);
    let refused = follower.run(&["registry", "propose", "x", "--artifact", &object]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("read_only"),
        "{refused:?}"
    );
    assert!(copy.get("/metrics").contains("ron_registry_head_version 2"));
    assert!(copy.terminate().contains(" 0 cut off"));

    // And the log outlives its daemon.
    assert!(daemon.terminate().contains(" 0 cut off"));
    let again = Daemon::start(one_dir.path(), &[]);
    assert!(again.get("/registry/head").contains("\"version\":2"));
    again.terminate();
}

/// Who comes after the beginning was pruned starts from the snapshot: the command over HTTP, a daemon between nodes.
#[test]
fn a_pruned_log_is_followed_from_its_snapshot() {
    let (dir, copy_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let prunes = [("REFD_REGISTRY__RETAIN_ENTRIES", "20"), ("REFD_REGISTRY__CHECKPOINT_INTERVAL_MS", "100")];
    let daemon = Daemon::start_with(dir.path(), &[], &prunes);
    let decider = Decider::found(&daemon, dir.path());
    decider.fill(300);
    let head = decider.head();
    daemon.eventually("/registry/head", |answer| answer.contains("\"first\":257"));
    let node = Person { daemon: &daemon, data: dir.path() };
    let run = node.run(&["registry", "follow", "--log-key", &head.log_key, "--until", "300"]);
    let (out, err) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
    assert!(run.status.success() && err.contains("versions before 257 are pruned there"), "{err}");
    let early = node.run(&["registry", "follow", "--log-key", &head.log_key, "--until", "5"]);
    assert!(early.status.code() == Some(3) && early.stdout.is_empty(), "{early:?}");
    assert!(told(&early).contains("the log begins at version 257"), "{early:?}");
    let versions: Vec<u64> =
        out.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert_eq!(versions, (257..=300).collect::<Vec<_>>());

    let follows = [("REFD_REGISTRY__FOLLOW", &*daemon.seed), ("REFD_REGISTRY__LOG_KEY", &*head.log_key)];
    let copy = Daemon::start_with(copy_dir.path(), &[], &follows);
    copy.eventually("/registry/head", |answer| {
        answer.contains(&head.hash) && answer.contains("\"first\":257")
    });
    let follower = Person { daemon: &copy, data: copy_dir.path() };
    let latest = follower.says(&["registry", "get", "tools/0", "--log-key", &head.log_key]);
    assert_eq!(latest, ContentId::of(&300_u64.to_be_bytes()).to_string());
    // And it finds its copy again.
    copy.terminate();
    let copy = Daemon::start_with(copy_dir.path(), &[], &follows);
    assert!(copy.get("/registry/head").contains("\"first\":257"));
    copy.terminate();
    daemon.terminate();
}

/// A log in memory begins anew with the process, and so does its key: two logs under one would be a fork.
#[test]
fn a_log_in_memory_has_a_key_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let head = || {
        let daemon = Daemon::start_with(dir.path(), &[], &[("REFD_REGISTRY__MEMORY", "true")]);
        let head = daemon.get("/registry/head");
        daemon.terminate();
        assert!(head.contains("log_key"), "{head}");
        head
    };
    assert_ne!(head(), head());
}

#[test]
fn who_follows_needs_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
    let run = command.env("REFD_REGISTRY__FOLLOW", "http://127.0.0.1:1/registry").output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.code() == Some(8) && said.contains("registry.log_key"), "{said}");
    let mut check = Command::new(REFD);
    check.args(["config", "check", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
    let check = check.env("REFD_REGISTRY__FOLLOW", "http://127.0.0.1:1/registry").output().unwrap();
    assert_eq!(check.status.code(), Some(8), "what a start refuses, a check refuses");
}

#[test]
fn health_says_why_a_node_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let key = ron_registry::NoteSigner::from_seed("log.example", ron_registry::KeyKind::Ed25519, &[7; 32]);
    let key = key.unwrap().verifier().to_string();
    let follows =
        [("REFD_REGISTRY__FOLLOW", "http://127.0.0.1:1/registry"), ("REFD_REGISTRY__LOG_KEY", &*key)];
    let daemon = Daemon::start_with(dir.path(), &[], &follows);
    daemon.eventually("/readyz?verbose", |ready| {
        ready.contains("registry.following") && ready.contains("reason")
    });
    let node = format!("http://{}", daemon.admin);
    let health = Command::new(REFD).args(["health", "--node", &node]).output().unwrap();
    let said = String::from_utf8(health.stderr).unwrap();
    assert!(health.status.code() == Some(6) && said.contains("registry.following: "), "{said}");
}

/// SIGHUP takes over what may change while the node runs, and says what may not.
#[test]
fn settings_of_the_log_are_taken_over_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refd.toml");
    std::fs::write(&file, "[registry]\nverify_slice = 10\n").unwrap();
    let mut daemon = Daemon::start_with(dir.path(), &["--config", file.to_str().unwrap()], &[]);
    let hang_up = |daemon: &Daemon| {
        let sent = Command::new("kill").args(["-HUP", &daemon.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    std::fs::write(&file, "[registry]\nverify_slice = 20\n").unwrap();
    hang_up(&daemon);
    let taken = "ron_registry_reload_success_total{source=\"signal\"} 1";
    daemon.eventually("/metrics", |answer| answer.contains(taken));
    std::fs::write(&file, "[registry]\nproposals_lane = 20\n").unwrap();
    hang_up(&daemon);
    daemon.eventually("/metrics", |answer| {
        answer.contains("refd_config_update_total{result=\"needs_restart\"} 1")
    });
    assert!(daemon.child.try_wait().unwrap().is_none(), "it runs on");
    daemon.terminate();
}

/// The same for the DHT.
#[test]
fn settings_of_the_dht_are_taken_over_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("refd.toml");
    std::fs::write(&file, "[dht]\nalpha = 4\n").unwrap();
    let daemon = Daemon::start_with(dir.path(), &["--config", file.to_str().unwrap()], &[]);
    let asked = |settings: &str, result: &str| {
        std::fs::write(&file, settings).unwrap();
        let sent = Command::new("kill").args(["-HUP", &daemon.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let counted = format!("refd_config_update_total{{result=\"{result}\"}} 1");
        daemon.eventually("/metrics", |answer| answer.contains(&counted));
    };
    asked("[dht]\nalpha = 5\nrpc_timeout_ms = 900\n", "applied");
    // How many searches run at once is decided when the node starts.
    asked("[dht]\nalpha = 5\nrpc_timeout_ms = 900\nworkers = 7\n", "needs_restart");
    daemon.terminate();
}

/// Others decide from now on: those who do now agree, and those who shall show that they can.
#[test]
fn signers_are_rotated() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(dir.path(), &[]);
    let node = Person { daemon: &daemon, data: dir.path() };
    let file = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    for name in ["ann", "bob", "cy"] {
        assert!(alone(&["registry", "key", &file(name)]).status.success());
    }
    let signer = |name: &str| format!("{name}={}", file(name));
    node.says(&["registry", "init", "--needed", "1", "--signer", &signer("ann")]);
    let waits = node.says(&["registry", "propose", "old", "--artifact", &ContentId::of(b"x").to_string()]);
    let change = [
        "registry",
        "rotate",
        "--needed",
        "2",
        "--signer",
        &signer("bob"),
        "--signer",
        &signer("cy"),
        "-o",
        &file("change"),
    ];
    let id = node.says(&change);
    let diff = node.says(&["registry", "diff", &id]);
    for line in [
        "- policy      of epoch 1",
        "- signer      ann ",
        "+ signer      bob ",
        "- group       all: 1 of ann",
        "+ group       all: 2 of bob, cy",
        "needs       1 more of: ann",
        "of the new  2 more of: bob, cy",
    ] {
        assert!(diff.contains(line), "{line} in {diff}");
    }
    for name in ["ann", "bob"] {
        node.says(&["registry", "approve", &id, "--key", &file(name)]);
    }
    let diff = node.says(&["registry", "diff", &id]);
    assert!(
        diff.contains("needs       nothing more") && diff.contains("of the new  1 more of: cy"),
        "{diff}"
    );
    let approved = node.says(&["registry", "approve", &id, "--key", &file("cy"), "--json"]);
    assert!(approved.contains("\"version\":2"), "{approved}");
    // What waited under the old policy is void, and who decided then no longer does.
    let gone = node.run(&["registry", "approve", &waits, "--key", &file("ann")]);
    assert!(gone.status.code() == Some(3) && told(&gone).contains("no such proposal"), "{gone:?}");
    let next = node.says(&["registry", "propose", "new", "--artifact", &ContentId::of(b"x").to_string()]);
    let refused = node.run(&["registry", "approve", &next, "--key", &file("ann")]);
    assert!(refused.status.code() == Some(4) && told(&refused).contains("not_a_signer"), "{refused:?}");
    for name in ["bob", "cy"] {
        node.says(&["registry", "approve", &next, "--key", &file(name)]);
    }
    assert!(daemon.get("/registry/head").contains("\"version\":3"));
    let odd = node.run(&["registry", "diff", "nonsense"]);
    assert!(odd.status.code() == Some(2) && told(&odd).contains("is no id of a proposal"), "{odd:?}");
    daemon.terminate();
}

/// Case 48: a log that is older than it was, and one that is gone while its key is not, are not gone on with.
#[test]
fn a_log_that_was_rolled_back_is_refused() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (log, ann) = (dir.path().join("registry"), keys.path().join("ann").to_str().unwrap().to_owned());
    assert!(alone(&["registry", "key", &ann]).status.success());
    let decide = |name: &str| {
        let daemon = Daemon::start(dir.path(), &[]);
        let node = Person { daemon: &daemon, data: dir.path() };
        if name.is_empty() {
            node.says(&["registry", "init", "--needed", "1", "--signer", &format!("ann={ann}")]);
        } else {
            let id =
                node.says(&["registry", "propose", name, "--artifact", &ContentId::of(b"x").to_string()]);
            node.says(&["registry", "approve", &id, "--key", &ann]);
        }
        daemon.terminate();
    };
    let copy = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    let refused = || {
        let mut command = Command::new("timeout");
        command.args(["20", REFD, "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
        let run = command.arg(dir.path()).output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && said.contains("registry.seen: the log had 3 entries"), "{said}");
    };
    decide("");
    let (old, new) = (keys.path().join("old"), keys.path().join("new"));
    decide("a");
    copy(&log, &old);
    decide("b");
    copy(&log, &new);
    copy(&old, &log);
    refused();
    std::fs::remove_dir_all(&log).unwrap();
    refused();
    // The right one is gone on with, and another under another key is another log.
    copy(&new, &log);
    decide("c");
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::remove_file(dir.path().join("registry.key")).unwrap();
    decide("");
}

/// Two of three signed, one of them a stranger, and the command said that it was done: what does not count is named, and what is
/// not in the log is not done.
#[test]
fn an_approval_that_does_not_count_is_named() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(dir.path(), &[]);
    let node = Person { daemon: &daemon, data: dir.path() };
    let file = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let mut init = vec!["registry".to_owned(), "init".into(), "--needed".into(), "2".into()];
    for name in ["ann", "bob", "eve"] {
        assert!(alone(&["registry", "key", &file(name)]).status.success());
        if name != "eve" {
            init.extend(["--signer".to_owned(), format!("{name}={}", file(name))]);
        }
    }
    let early = node.run(&["registry", "get", "notes"]);
    assert!(early.status.code() == Some(6) && told(&early).contains("refd registry init"), "{early:?}");
    node.says(&init.iter().map(String::as_str).collect::<Vec<_>>());

    std::fs::write(file("text"), "level = 3\n").unwrap();
    let propose = |name: &str, into: &str| {
        node.says(&["registry", "propose", name, "--payload", &file("text"), "-o", &file(into)])
    };
    let id = propose("notes", "notes.proposal");
    propose("other", "other.proposal");
    for (of, signer, into) in [
        ("notes.proposal", "ann", "ann.approval"),
        ("notes.proposal", "bob", "bob.approval"),
        ("notes.proposal", "eve", "eve.approval"),
        ("other.proposal", "bob", "other.approval"),
    ] {
        assert!(
            alone(&["registry", "approve", &file(of), "--key", &file(signer), "-o", &file(into)])
                .status
                .success()
        );
    }
    let commit = |approvals: &[&str], more: &[&str]| {
        let approvals: Vec<String> = approvals.iter().map(|name| file(&format!("{name}.approval"))).collect();
        let proposal = file("notes.proposal");
        let mut args = vec!["registry", "commit", &proposal];
        args.extend(approvals.iter().map(String::as_str).chain(more.iter().copied()));
        node.run(&args)
    };
    for (approvals, why) in [
        (["bob", "eve"], "eve.approval does not count: its key is no signer of this log"),
        (["bob", "bob"], "bob.approval does not count: bob is among the others already"),
        (["bob", "other"], "other.approval does not count: it is for another proposal"),
    ] {
        let output = commit(&approvals, &[]);
        let words = told(&output);
        assert_eq!(output.status.code(), Some(6), "{words}");
        assert!(words.contains(why) && words.contains("it needs 1 more of: ann"), "{why} in {words}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), id);
    }
    let json: serde_json::Value = serde_json::from_slice(&commit(&["eve"], &["--json"]).stdout).unwrap();
    assert_eq!((&json["state"], &json["needed_more"]), (&"pending".into(), &1.into()), "{json}");
    assert!(json["not_counted"][0]["file"].as_str().unwrap().ends_with("eve.approval"), "{json}");
    // Files in the wrong order are named.
    for (args, words) in [
        ([file("ann.approval"), file("notes.proposal")], "ann.approval is an approval"),
        ([file("notes.proposal"), file("other.proposal")], "other.proposal is a proposal"),
    ] {
        let output = node.run(&["registry", "commit", &args[0], &args[1]]);
        assert!(output.status.code() == Some(2) && told(&output).contains(words), "{output:?}");
    }
    let committed = commit(&["ann", "eve"], &[]);
    assert!(
        committed.status.success() && told(&committed).contains("eve.approval does not count"),
        "{committed:?}"
    );

    // What the log holds itself is shown before it is signed, and comes out again.
    let diff = String::from_utf8(alone(&["registry", "diff", &file("notes.proposal")]).stdout).unwrap();
    assert!(diff.contains("+ payload     b3:") && diff.contains("+ text        \"level = 3\\n\""), "{diff}");
    let got = node.run(&["registry", "get", "notes", "--payload"]);
    assert!(got.status.success() && got.stdout == b"level = 3\n", "{got:?}");
    let content = node.says(&["registry", "get", "notes"]);
    assert_eq!(content, ContentId::of(b"level = 3\n").to_string());
    // A node that is alone cannot say who has it, and says what the name stands for all the same.
    let resolved: serde_json::Value =
        serde_json::from_str(&node.says(&["resolve", "notes", "--json"])).unwrap();
    assert_eq!(
        (&resolved["content"], &resolved["complete"]),
        (&content.as_str().into(), &false.into()),
        "{resolved}"
    );
    let object = ContentId::of(b"elsewhere").to_string();
    let id = node.says(&["registry", "propose", "object", "--artifact", &object]);
    for name in ["ann", "bob"] {
        node.says(&["registry", "approve", &id, "--key", &file(name)]);
    }
    let none = node.run(&["registry", "get", "object", "--payload"]);
    assert!(none.status.code() == Some(3) && told(&none).contains(&format!("refd get {object}")), "{none:?}");
    daemon.terminate();
}

/// What cannot be meant is answered with what can.
#[test]
fn what_is_asked_of_a_log_wrongly_is_told() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(dir.path(), &[]);
    let node = Person { daemon: &daemon, data: dir.path() };
    let ann = keys.path().join("ann").to_str().unwrap().to_owned();
    assert!(alone(&["registry", "key", &ann]).status.success());
    let signer = format!("ann={ann}");
    let check = |args: &[&str], code: i32, words: &str| {
        let output = node.run(args);
        assert!(output.status.code() == Some(code) && told(&output).contains(words), "{args:?}: {output:?}");
    };
    check(
        &["registry", "init", "--needed", "4", "--signer", &signer],
        2,
        "--needed 4 of 1 signers cannot be",
    );
    check(&["registry", "init", "--needed", "1", "--signer", "ann"], 2, "is not NAME=KEY");
    node.says(&["registry", "init", "--needed", "1", "--signer", &signer]);
    let object = ContentId::of(b"x").to_string();
    check(&["registry", "propose", "never/was", "--retire"], 3, "never/was is not bound");
    for wrong in ["", "Bad Name//x", "@x", "a/../b"] {
        check(&["registry", "propose", wrong, "--retire"], 2, "a name is 1 to 255 visible ASCII characters");
    }
    check(&["registry", "propose", "x"], 2, "--artifact <ID>|--payload <FILE>|--retire");
    check(&["registry", "propose", "x", "--artifact", &object, "--hours", "0"], 2, "1 to 720 hours");
    check(&["registry", "propose", "x", "--artifact", "report"], 2, "nor a CID");
    check(&["registry", "approve", &"0".repeat(64), "--key", &ann], 3, "nobody proposed it");
    let https = alone(&["registry", "get", "x", "--node", "https://127.0.0.1:4711"]);
    assert!(https.status.code() == Some(2) && told(&https).contains("plain http only"), "{https:?}");
    daemon.terminate();
}
