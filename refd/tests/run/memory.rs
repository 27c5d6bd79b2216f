//! One ceiling for all queues and caches, and a node that is asked for more than it may hold.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{Daemon, REFD, highest};

const MEMORY: u64 = 320 << 20;

fn send(admin: SocketAddr, request: &str, token: &str, body: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    // Who refuses need not read what it refuses.
    let _ = stream.write_all(body);
    Ok(stream)
}

/// The status of the answer, and the answer; nothing if the line was hung up.
fn ask(admin: SocketAddr, request: &str, token: &str, body: &[u8]) -> Option<(u16, String)> {
    let mut stream = send(admin, request, token, body).ok()?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, answer))
}

/// Readers that do not read, large puts, gossip and questions, all at once and more than there is room for: everybody is
/// served or told so, and the process stays below its ceiling.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "threads and the time of a test, which has no supervisor and no pretended clock"
)]
fn a_node_under_load_stays_below_its_ceiling() {
    let dir = tempfile::tempdir().unwrap();
    let memory = MEMORY.to_string();
    let variables = [("REFD_LIMITS__MEMORY", &*memory), ("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let daemon = Daemon::start_with(dir.path(), &[], &variables);
    let other = tempfile::tempdir().unwrap();
    let topics = [("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let neighbour = Daemon::start_with(other.path(), &["--seed", &daemon.seed], &topics);
    daemon.eventually("/dht/status", |status| status.contains("\"peers\":1,"));
    let token = fs::read_to_string(dir.path().join("token")).unwrap().trim().to_owned();
    let (admin, idle) = (daemon.admin, highest(daemon.child.id()));
    let long = vec![7; 24 << 20];
    let (status, answer) = ask(admin, "POST /o", &token, &long).unwrap();
    assert_eq!(status, 201, "{answer}");
    let id = answer.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();

    let slow: Vec<_> = (0..24)
        .map(|_| {
            let mut stream = send(admin, &format!("GET /o/{id}"), &token, b"").unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
            stream
        })
        .collect();
    let (seen, done) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(AtomicBool::new(false)));
    let load = |kind: &'static str, at_once: u64, body: usize| {
        (0..at_once).map(move |client| (kind, client, body)).collect::<Vec<_>>()
    };
    // With the slow readers, more at once than the 69 connections that a sixteenth of so little has room for.
    let all = [load("put", 48, 6 << 20), load("gossip", 6, 600 << 10), load("resolve", 16, 0)].concat();
    let clients: Vec<_> = all
        .into_iter()
        .map(|(kind, client, length)| {
            let (seen, done, token) = (Arc::clone(&seen), Arc::clone(&done), token.clone());
            thread::spawn(move || {
                for number in 0_u64.. {
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut body = vec![client as u8; length];
                    for (at, byte) in number.to_be_bytes().into_iter().enumerate().take(length) {
                        body[at] = byte;
                    }
                    let request = match kind {
                        "put" => "POST /o".to_owned(),
                        "gossip" => "POST /gossip/news".to_owned(),
                        _ => format!("GET /resolve/b3:{client:032x}{number:032x}"),
                    };
                    let told = ask(admin, &request, &token, &body);
                    if let Some((429 | 503, answer)) = &told {
                        assert!(
                            answer.contains("application/problem+json") && answer.contains("\"code\""),
                            "{answer}"
                        );
                    }
                    let status = told.map_or(0, |(status, _)| status);
                    *seen.lock().unwrap().entry((kind, status)).or_insert(0_u64) += 1;
                }
            })
        })
        .collect();
    // For a while, and on a busy machine until there was some of everything.
    let began = ron_core::now();
    let is_some_of_all = || {
        let seen = seen.lock().unwrap();
        let is_full = seen.keys().any(|(_, status)| matches!(status, 429 | 503));
        is_full && seen.contains_key(&("put", 201)) && seen.contains_key(&("gossip", 200))
    };
    while began.elapsed() < Duration::from_secs(6)
        || !is_some_of_all() && began.elapsed() < Duration::from_secs(60)
    {
        thread::sleep(Duration::from_millis(100));
    }
    assert!(daemon.get("/healthz").ends_with("ok\n"), "health is answered whatever else is");
    done.store(true, Ordering::SeqCst);
    drop(slow);
    for client in clients {
        client.join().unwrap();
    }
    let (highest, seen) = (highest(daemon.child.id()), seen.lock().unwrap().clone());
    println!(
        "{} MiB when idle, {} MiB at the highest, of {} MiB: {seen:?}",
        idle >> 20,
        highest >> 20,
        MEMORY >> 20
    );
    assert!(highest < MEMORY, "{} MiB: {seen:?}", highest >> 20);
    // All kinds were served, some were told to come again, and nobody was told anything else.
    for (kind, status) in seen.keys() {
        assert!(
            matches!(status, 0 | 200 | 201 | 404 | 408 | 413 | 429 | 503),
            "{kind}: {status} in {seen:?}"
        );
    }
    assert!(seen.contains_key(&("put", 201)) && seen.contains_key(&("gossip", 200)), "{seen:?}");
    assert!(seen.keys().any(|(_, status)| matches!(status, 429 | 503)), "{seen:?}");
    daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    assert!(daemon.terminate().contains(" 0 cut off"));
    neighbour.terminate();
}

#[test]
fn a_ceiling_that_is_too_low_is_refused_and_shares_are_shown() {
    let config = |arguments: &[&str], memory: &str| {
        Command::new(REFD).arg("config").args(arguments).env("REFD_LIMITS__MEMORY", memory).output().unwrap()
    };
    let refused = config(&["check"], "1000000");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(8));
    assert!(said.contains("limits.memory is 1000000, allowed is 335544320 or more"), "{said}");
    let shown = String::from_utf8(config(&["print", "--origin"], "400000000").stdout).unwrap();
    for key in
        ["cache_bytes", "stream_bytes_max", "bytes_max", "record_bytes_max", "links_bytes", "max_conns"]
    {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        assert!(line.ends_with("# limits.memory"), "{line}");
    }
    assert!(shown.contains("\n# What can be held at most: program 67108864, "), "{shown}");
}
