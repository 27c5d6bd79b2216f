//! Objects on many nodes: five processes that know one secret, and what is left when some of them die.

#![allow(
    clippy::disallowed_methods,
    reason = "processes run on the clock of the machine; threads of a test, joined at its end"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{Daemon, REFD};

/// A file with a secret, in a directory that may not be there yet.
pub(crate) fn secret(dir: &Path) -> String {
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join("secret");
    std::fs::write(&path, "not much of a secret, but long enough".replace(' ', "-")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Short times: a tick is a fifth of a second, and who is away for a second and a half is given up.
const SOON: [(&str, &str); 6] = [
    ("REFD_KEEPING__TICK_MS", "200"),
    ("REFD_KEEPING__REFRESH_MS", "200"),
    ("REFD_KEEPING__GRACE_MS", "1500"),
    ("REFD_KEEPING__TAKEOVER_MS", "500"),
    ("REFD_KEEPING__RETRY_MS", "200"),
    ("REFD_KEEPING__ACK", "2"),
];

struct Cluster {
    home: TempDir,
    secret: String,
    nodes: Vec<Option<Daemon>>,
    variables: Vec<(String, String)>,
}

impl Cluster {
    fn start(count: usize) -> Cluster {
        Cluster::start_with(count, &[])
    }

    fn start_with(count: usize, variables: &[(&str, &str)]) -> Cluster {
        let home = tempfile::tempdir().unwrap();
        let secret = secret(home.path());
        let all = SOON.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut cluster = Cluster { secret, nodes: Vec::new(), variables: all.collect(), home };
        for number in 0..count {
            cluster.nodes.push(None);
            cluster.launch(number);
        }
        cluster.until_all_know(count);
        cluster
    }

    fn data(&self, number: usize) -> PathBuf {
        self.home.path().join(number.to_string())
    }

    /// Starts a node, or starts it again with what it has. It begins with any that runs.
    fn launch(&mut self, number: usize) {
        let seed = self.nodes.iter().flatten().next().map(|other| other.seed.clone());
        let flags: Vec<&str> = seed.iter().flat_map(|seed| ["--seed", seed]).collect();
        let mut variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        variables.push(("REFD_KEEPING__SECRET_FILE", &self.secret));
        self.nodes[number] = Some(Daemon::start_with(&self.data(number), &flags, &variables));
    }

    fn node(&self, number: usize) -> &Daemon {
        self.nodes[number].as_ref().unwrap()
    }

    fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| self.nodes[*number].is_some()).collect()
    }

    /// As by a power cut.
    fn kill(&mut self, number: usize) {
        let mut daemon = self.nodes[number].take().unwrap();
        daemon.signal("KILL");
        daemon.child.wait().unwrap();
    }

    fn refd(&self, number: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(REFD);
        command.args(arguments).arg("--node").arg(format!("http://{}", self.node(number).admin));
        command.arg("--data-dir").arg(self.data(number)).output().unwrap()
    }

    fn says(&self, number: usize, arguments: &[&str]) -> String {
        let output = self.refd(number, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// `refd repair status --json` of a node.
    fn status(&self, number: usize) -> Value {
        serde_json::from_str(&self.says(number, &["repair", "status", "--json"])).unwrap()
    }

    /// Asks a node until its status is so.
    fn until(&self, number: usize, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status(number);
            if is_so(&status) {
                return status;
            }
            assert!(began.elapsed() < Duration::from_secs(90), "{what}, node {number}: {status:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn until_all_know(&self, count: usize) {
        for number in self.running() {
            self.until(number, "all know each other", |status| {
                status["up"] == count && status["has_looked"] == true
            });
        }
    }

    /// Waits until every running node says that nothing is missing, of at least so many objects.
    fn until_met(&self, objects: u64) {
        for number in self.running() {
            self.until(number, "all is there", |status| {
                let count = |key: &str| status["objects"][key].as_u64().unwrap_or_default();
                count("met") >= objects && count("under") + count("urgent") + count("lost") == 0
            });
        }
    }

    fn put(&self, number: usize, content: &[u8]) -> String {
        let token = std::fs::read_to_string(self.data(number).join("token")).unwrap();
        put(self.node(number).admin, token.trim(), content).unwrap()
    }

    /// Nodes that have an object themselves.
    fn holders(&self, id: &str) -> Vec<usize> {
        let has = |number: &usize| self.node(*number).get(&format!("/stat/{id}")).starts_with("HTTP/1.1 200");
        self.running().into_iter().filter(has).collect()
    }

    /// Waits until two running nodes have an object.
    fn until_copied(&self, id: &str, what: &str) {
        let began = Instant::now();
        while self.holders(id).len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(90), "{what}: {:?}", self.holders(id));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn read(&self, number: usize, id: &str) -> Vec<u8> {
        read(self.node(number).admin, id).unwrap_or_else(|answer| panic!("{id} from {number}: {answer}"))
    }
}

/// A request over a connection of its own. The head of the answer and its body.
fn send(admin: SocketAddr, head: &str, body: &[u8]) -> Result<(String, Vec<u8>), String> {
    let mut stream = TcpStream::connect(admin).map_err(|error| error.to_string())?;
    let length = body.len();
    let head = format!("{head}Host: {admin}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut answer = Vec::new();
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    sent.and_then(|()| stream.read_to_end(&mut answer)).map_err(|error| error.to_string())?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no head")?;
    let body = answer.split_off(end + 4);
    Ok((String::from_utf8_lossy(&answer).into_owned(), body))
}

/// Puts, and returns the name if two nodes have acknowledged.
fn put(admin: SocketAddr, token: &str, content: &[u8]) -> Result<String, String> {
    let head = format!("POST /o?policy=2&ack=2 HTTP/1.1\r\nAuthorization: Bearer {token}\r\n");
    let (head, body) = send(admin, &head, content)?;
    let said: Value = serde_json::from_slice(&body).map_err(|_| head.clone())?;
    if said["acknowledged"] != 2 {
        return Err(format!("{head}{said}"));
    }
    Ok(said["id"].as_str().unwrap_or_default().to_owned())
}

fn read(admin: SocketAddr, id: &str) -> Result<Vec<u8>, String> {
    let (head, body) = send(admin, &format!("GET /o/{id} HTTP/1.1\r\n"), b"")?;
    if head.starts_with("HTTP/1.1 200") {
        Ok(body)
    } else {
        Err(format!("{head}{}", String::from_utf8_lossy(&body)))
    }
}

fn content(number: usize) -> Vec<u8> {
    format!("object {number} ").into_bytes().repeat(1 + number % 7 * 900)
}

/// Five nodes, two copies acknowledged by two; one is killed while others read and write. No read fails, what is missing
/// comes back by itself, and every object is read from every survivor.
#[test]
fn a_node_is_killed_under_load_and_nothing_is_lost() {
    let mut cluster = Cluster::start(5);
    let quiet: BTreeMap<String, usize> =
        (0..20).map(|number| (cluster.put(number % 5, &content(number)), number)).collect();
    cluster.until_met(20);
    for id in quiet.keys() {
        assert!(cluster.holders(id).len() >= 2, "{id}");
    }

    let survivors: Vec<(SocketAddr, String)> = [0, 2, 3, 4]
        .into_iter()
        .map(|number| {
            let token = std::fs::read_to_string(cluster.data(number).join("token")).unwrap();
            (cluster.node(number).admin, token.trim().to_owned())
        })
        .collect();
    // Those that nobody reads until the end: what has two copies then has been copied, and not only read.
    let (busy, _): (Vec<_>, Vec<_>) = quiet.iter().partition(|(_, number)| **number >= 10);
    let busy: Vec<(String, usize)> = busy.into_iter().map(|(id, number)| (id.clone(), *number)).collect();
    let written = Arc::new(Mutex::new(busy));
    let (is_over, reads, refused) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut threads = Vec::new();
    for reader in 0..2 {
        let (survivors, written) = (survivors.clone(), Arc::clone(&written));
        let (is_over, reads) = (Arc::clone(&is_over), Arc::clone(&reads));
        threads.push(std::thread::spawn(move || {
            for turn in reader.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (id, number) = {
                    let written = written.lock().unwrap();
                    written[turn * 7 % written.len()].clone()
                };
                let (admin, _) = &survivors[turn % survivors.len()];
                let got = read(*admin, &id).unwrap_or_else(|answer| panic!("a read failed: {id} {answer}"));
                assert!(got == content(number), "{id}");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    {
        let (survivors, written) = (survivors.clone(), Arc::clone(&written));
        let (is_over, refused) = (Arc::clone(&is_over), Arc::clone(&refused));
        threads.push(std::thread::spawn(move || {
            for number in 20.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (admin, token) = &survivors[number % survivors.len()];
                match put(*admin, token, &content(number)) {
                    Ok(id) => written.lock().unwrap().push((id, number)),
                    // It is told that there are fewer copies than asked for, and that is no acknowledgement.
                    Err(answer) => {
                        assert!(answer.contains("unacknowledged"), "{answer}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }));
    }
    let enough = |count: usize| {
        let began = Instant::now();
        let before = reads.load(Ordering::Relaxed);
        while reads.load(Ordering::Relaxed) < before + count && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(reads.load(Ordering::Relaxed) >= before + count, "readers are stuck");
    };
    enough(20);
    cluster.kill(1);
    enough(40);
    cluster.until(0, "it is noticed", |status| status["away"] == 1 && status["up"] == 4);
    enough(20);
    is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let written = Arc::try_unwrap(written).unwrap().into_inner().unwrap();
    assert!(
        written.len() > 12,
        "{} were written, {} refused",
        written.len(),
        refused.load(Ordering::Relaxed)
    );

    // What it had counts until its grace is over, and is then made again.
    for (id, number) in &quiet {
        cluster.until_copied(id, &format!("object {number}"));
    }
    // Those too that were written last, of which a node may hear only now.
    let ids: BTreeSet<&String> = quiet.keys().chain(written.iter().map(|(id, _)| id)).collect();
    cluster.until_met(ids.len() as u64);
    let repaired: usize = cluster
        .running()
        .into_iter()
        .map(|number| {
            let status = cluster.status(number);
            let events = status["recent"].as_array().unwrap().clone();
            events.iter().filter(|event| event["event"] == "repaired").count()
        })
        .sum();
    assert!(repaired > 0, "somebody says what it repaired");
    assert_eq!(cluster.refd(0, &["repair", "status", "--check", "--nodes", "5"]).status.code(), Some(6));
    // What was refused and copied all the same may be heard of later still.
    let began = Instant::now();
    while !cluster.refd(0, &["repair", "status", "--check", "--nodes", "4"]).status.success() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:#}", cluster.status(0));
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = cluster.says(0, &["repair", "status"]);
    assert!(shown.contains(" 0 lost") && shown.contains("\taway\t"), "{shown}");
    for number in cluster.running() {
        for (id, of) in quiet.iter().map(|(id, of)| (id, *of)).chain(written.iter().map(|(id, of)| (id, *of)))
        {
            assert!(cluster.read(number, id) == content(of), "{id} from {number}");
        }
    }
    let metrics = cluster.node(0).get("/metrics");
    for line in ["ron_storage_rf_observed 2", "ron_storage_nodes_away 1", "ron_storage_nodes_up 4"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    for name in ["repair_wait_seconds_count", "repairs_total{class=", "repair_skipped_total{reason=\"full\"}"]
    {
        assert!(metrics.contains(&format!("ron_storage_{name}")), "{name}");
    }
    assert!(cluster.node(0).get("/readyz?verbose").contains("storage.keeping"));
    for number in cluster.running() {
        assert!(cluster.nodes[number].take().unwrap().terminate().contains(" 0 cut off"));
    }
}

/// Each node in turn is killed and started again: reads go on, and nothing that was acknowledged is lost.
#[test]
fn any_node_may_be_killed_and_started_again() {
    let mut cluster = Cluster::start(5);
    let mut objects: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..5 {
        objects.insert(cluster.put(number, &content(number)), number);
    }
    for killed in 0..5 {
        cluster.kill(killed);
        for (id, of) in &objects {
            let reader = (killed + 1 + of % 4) % 5;
            assert!(cluster.read(reader, id) == content(*of), "{id} from {reader} without {killed}");
        }
        // Acknowledged by two while one is missing.
        let number = 5 + killed;
        objects.insert(cluster.put((killed + 2) % 5, &content(number)), number);
        cluster.launch(killed);
        cluster.until_all_know(5);
        cluster.until_met(objects.len() as u64);
    }
    for number in cluster.running() {
        for (id, of) in &objects {
            assert!(cluster.read(number, id) == content(*of), "{id} from {number}");
        }
    }
}

/// What is put on one node is got from another by its address and by its name; `put` says how many have it; `rm` on any node
/// deletes it everywhere, also where it was away meanwhile; a policy can be changed.
#[test]
fn objects_are_put_got_changed_and_deleted_on_any_node() {
    let mut cluster = Cluster::start_with(3, &[("REFD_INDEX__DEADLINE_MS", "3000")]);
    let file = cluster.home.path().join("file");
    std::fs::write(&file, "hello, company").unwrap();
    let file = file.to_str().unwrap().to_owned();
    let said: Value =
        serde_json::from_str(&cluster.says(0, &["put", &file, "--copies", "2", "--ack", "2", "--json"]))
            .unwrap();
    assert_eq!((&said["policy"], &said["acknowledged"]), (&"2 copies".into(), &2.into()), "{said}");
    let id = said["id"].as_str().unwrap().to_owned();
    // Nobody said in the DHT that it has it: those who keep objects together ask each other.
    let holders = cluster.holders(&id);
    assert!(holders.len() >= 2, "{holders:?}");
    for number in 0..3 {
        let found = cluster.says(number, &["find", &id]);
        let names = |holder: &usize| found.contains(cluster.node(*holder).seed.split_once('@').unwrap().0);
        // A copy may have moved to where it belongs meanwhile.
        let now = cluster.holders(&id);
        assert!(
            holders.iter().chain(&now).any(names),
            "{number} found {found}; it was on {holders:?}, and is on {now:?}"
        );
    }
    for number in 0..3 {
        assert_eq!(cluster.says(number, &["get", &id]), "hello, company");
    }

    // By a name that two of two decide, in a log that the others follow.
    let key = cluster.home.path().join("ann.key").to_str().unwrap().to_owned();
    Command::new(REFD).args(["registry", "key", &key]).output().unwrap();
    let founded = cluster.says(0, &["registry", "init", "--needed", "1", "--signer", &format!("ann={key}")]);
    let log_key = founded.split_once("key\t").unwrap().1.trim().to_owned();
    let proposal = cluster.says(0, &["registry", "propose", "greetings/hello", "--artifact", &id]);
    cluster.says(0, &["registry", "approve", &proposal, "--key", &key]);
    let follow = cluster.node(0).seed.clone();
    cluster.nodes[2].take().unwrap().terminate();
    cluster.variables.push(("REFD_REGISTRY__FOLLOW".to_owned(), follow));
    cluster.variables.push(("REFD_REGISTRY__LOG_KEY".to_owned(), log_key));
    cluster.launch(2);
    cluster.until_all_know(3);
    cluster.node(2).eventually("/registry/head", |head| head.contains("\"version\":2"));
    let resolved: Value =
        serde_json::from_str(&cluster.says(2, &["resolve", "greetings/hello", "--json"])).unwrap();
    assert_eq!(resolved["content"], id.as_str(), "{resolved}");
    assert_eq!(cluster.says(2, &["get", resolved["content"].as_str().unwrap()]), "hello, company");
    assert_eq!(cluster.says(2, &["get", "greetings/hello"]), "hello, company");
    let unknown = cluster.refd(2, &["get", "greetings/nobody"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(3) && said.contains("refd registry log"), "{said}");

    // As shards from now on, and then as copies again.
    cluster.says(1, &["repair", "policy", &id, "--erasure", "2+1"]);
    cluster.until_met(1);
    assert_eq!(cluster.says(2, &["get", &id]), "hello, company");
    cluster.says(1, &["repair", "policy", &id, "--copies", "2", "--ack", "2"]);
    let shards: Value =
        serde_json::from_str(&cluster.says(0, &["put", &file, "--erasure", "2+1", "--ack", "3", "--json"]))
            .unwrap();
    assert_eq!((&shards["policy"], &shards["acknowledged"]), (&"2+1".into(), &3.into()), "{shards}");

    // What cannot be is refused before anything is sent, and what is less for now is said.
    for (wrong, words) in [
        (&["--copies", "0"][..], "1 to 16 copies"),
        (&["--copies", "99999"], "1 to 16 copies"),
        (&["--erasure", "2x1"], "shards are K+M, as in 6+3"),
        (&["--ack", "0"], "`local`, or 1 to 32 nodes"),
        (&["--ack", "3"], "--ack 3 cannot be: with 2 copies fewer nodes have it"),
        (&["--copies", "1", "--ack", "2"], "--ack 2 cannot be: with 1 copy fewer nodes have it"),
    ] {
        let output = cluster.refd(0, &[&["put", &file], wrong].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(words), "{wrong:?}: {said}");
    }
    let few = cluster.refd(0, &["put", &file, "--erasure", "6+3", "--ack", "local"]);
    let said = String::from_utf8_lossy(&few.stderr).into_owned();
    assert!(few.status.success() && said.contains("6+3 is for 9 nodes, and 3 answer"), "{said}");
    cluster.says(0, &["repair", "policy", &id, "--copies", "2", "--ack", "2"]);

    // Deleted by a node that did not put it, while another one is away.
    cluster.kill(0);
    cluster.says(1, &["rm", &id]);
    assert_eq!(cluster.refd(1, &["get", &id]).status.code(), Some(3));
    cluster.launch(0);
    cluster.until_all_know(3);
    for number in 0..3 {
        let began = Instant::now();
        while !cluster.holders(&id).is_empty() || cluster.refd(number, &["get", &id]).status.code() != Some(3)
        {
            assert!(began.elapsed() < Duration::from_secs(60), "{id} is still on {:?}", cluster.holders(&id));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(cluster.refd(1, &["rm", &id]).status.code(), Some(3));
}

/// Case 43 of the abuse cases: a node dies, and what it had is more than the links should carry at once. In no second does a node
/// move more than it may, and all of it is there in the end.
#[test]
fn repairs_keep_to_their_pace() {
    const PACE: f64 = (128 << 10) as f64;
    let pace = PACE.to_string();
    let mut cluster = Cluster::start_with(3, &[("REFD_KEEPING__BYTES_PER_SECOND", &pace)]);
    let ids: Vec<String> =
        (0..8).map(|number: usize| cluster.put(number % 3, &number.to_le_bytes().repeat(10_000))).collect();
    cluster.until_met(8);
    let moved = |cluster: &Cluster, number: usize| {
        let metrics = cluster.node(number).get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("ron_storage_repair_bytes_total "));
        line.unwrap().parse::<f64>().unwrap()
    };
    cluster.kill(2);
    // Each with the moments before and after it was asked.
    let mut samples: [Vec<(Instant, Instant, f64)>; 2] = Default::default();
    let began = Instant::now();
    while ids.iter().any(|id| cluster.holders(id).len() < 2) {
        for (number, samples) in samples.iter_mut().enumerate() {
            let before = Instant::now();
            let bytes = moved(&cluster, number);
            samples.push((before, Instant::now(), bytes));
        }
        assert!(began.elapsed() < Duration::from_secs(90), "{:#}", cluster.status(0));
        std::thread::sleep(Duration::from_millis(50));
    }
    for samples in &samples {
        for (at, (before, _, earlier)) in samples.iter().enumerate() {
            for (_, after, later) in &samples[at..] {
                let seconds = after.duration_since(*before).as_secs_f64().max(1.0);
                assert!(later - earlier <= PACE * seconds, "{} bytes in {seconds} s", later - earlier);
            }
        }
    }
    let all: f64 = (0..2).map(|number| moved(&cluster, number)).sum();
    println!("{all} bytes in {:?}", began.elapsed());
    assert!(all >= 2.0 * PACE, "so little shows no pace: {all}");
}

/// A node that is told to go is emptied, and the others do not wait for it then.
#[test]
fn a_node_is_decommissioned() {
    let mut cluster = Cluster::start(4);
    let objects: BTreeMap<String, usize> =
        (0..8).map(|number| (cluster.put(number % 4, &content(number)), number)).collect();
    cluster.until_met(8);
    assert_eq!(cluster.says(3, &["decommission"]), "others have what the node has, and it can be stopped");
    for id in objects.keys() {
        let holders = cluster.holders(id);
        assert!(holders.iter().filter(|holder| **holder != 3).count() >= 2, "{holders:?}");
    }
    for number in 0..3 {
        cluster.until(number, "it is not waited for", |status| status["up"] == 3 && status["away"] == 0);
    }
    // Taken back, it is one of them again.
    assert_eq!(cluster.says(3, &["decommission", "--undo"]), "the node stays");
    cluster.until_all_know(4);
    cluster.says(3, &["decommission"]);
    cluster.nodes[3].take().unwrap().terminate();
    for (id, of) in &objects {
        assert!(cluster.read(of % 3, id) == content(*of));
    }
    // One that is lost is only not waited for when somebody says so.
    let lost = cluster.node(2).seed.split_once('@').unwrap().0.to_owned();
    cluster.kill(2);
    cluster.until(0, "it is away", |status| status["away"] == 1);
    let alive = cluster.node(1).seed.split_once('@').unwrap().0.to_owned();
    let refused = cluster.refd(0, &["repair", "forget", &alive]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && said.contains("the node answers and is not forgotten"),
        "{said}"
    );
    assert_eq!(cluster.says(0, &["repair", "forget", &lost]), lost);
    cluster.until(0, "it is forgotten", |status| status["away"] == 0 && status["up"] == 2);
    assert_eq!(cluster.refd(0, &["repair", "forget", &lost]).status.code(), Some(3));
}

/// Whoever does not know the secret is nobody here, and a node alone is as it always was.
#[test]
fn strangers_stay_outside_and_a_lone_node_is_alone() {
    let cluster = Cluster::start(2);
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("secret");
    std::fs::write(&other, "another-secret-that-is-long-enough").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    let variables =
        [SOON.as_slice(), &[("REFD_KEEPING__SECRET_FILE", other.to_str().unwrap()), ("REFD_LOG", "error")]]
            .concat();
    let seed = cluster.node(0).seed.clone();
    let stranger = Daemon::start_with(dir.path(), &["--seed", &seed], &variables);
    // It knows the others, and they keep nothing together. Writes wait for a second node that does not come.
    stranger.eventually("/dht/status", |status| status.contains("\"peers\":2,"));
    stranger.eventually("/readyz?verbose&writes", |answer| {
        answer.contains("2 nodes acknowledge a write, and 1 answer")
    });
    // It is summed up once in a while.
    stranger
        .eventually("/keeping/status", |status| status.contains("\"up\":1,") || status.contains("\"up\":1}"));
    assert_eq!(cluster.status(0)["nodes"].as_array().unwrap().len(), 2);
    let token = std::fs::read_to_string(dir.path().join("token")).unwrap();
    let refused = put(stranger.admin, token.trim(), b"nobody else has it").unwrap_err();
    assert!(
        refused.contains("503") && refused.contains("1 nodes have it, and 2 were asked for"),
        "{refused}"
    );

    let mut command = Command::new(REFD);
    command.args([
        "put",
        other.to_str().unwrap(),
        "--node",
        &format!("http://{}", stranger.admin),
        "--data-dir",
    ]);
    let output = command.arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(6) && said.contains("it is kept there and copied"), "{said}");
    assert!(said.contains("is kept there, and 1 of the 2 nodes that were asked for have it"), "{said}");
    let told: Value = serde_json::from_slice(&command.arg("--json").output().unwrap().stdout).unwrap();
    assert_eq!((&told["acknowledged"], &told["wanted"]), (&1.into(), &2.into()), "{told}");
    assert!(said.contains(told["id"].as_str().unwrap()), "{said}");

    // An open secret is none, and is not begun with.
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new(REFD);
    command
        .args(["run", "--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir.path().join("x"));
    let run = command.env("REFD_KEEPING__SECRET_FILE", &other).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("others can read it (mode 644)") && !said.contains("another-secret"), "{said}");
    assert_eq!(run.status.code(), Some(8));

    let lone_dir = tempfile::tempdir().unwrap();
    let lone = Daemon::start(lone_dir.path(), &[]);
    let refd = |arguments: &[&str]| {
        let mut command = Command::new(REFD);
        command.args(arguments).arg("--node").arg(format!("http://{}", lone.admin));
        command.arg("--data-dir").arg(lone_dir.path()).output().unwrap()
    };
    for arguments in
        [&["repair", "status"][..], &["decommission"], &["put", other.to_str().unwrap(), "--copies", "2"]]
    {
        let output = refd(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("keeps its objects alone") && said.contains("keeping.secret_file"), "{said}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
    assert!(refd(&["put", other.to_str().unwrap()]).status.success());
    assert!(!lone.get("/metrics").contains("rf_observed"));
}
