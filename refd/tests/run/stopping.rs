//! A stop in the middle of work: what was begun is finished, what was acknowledged is there, and the process says how it ended.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    Daemon,
    settings::{ANY_PORT, Configured},
};

/// The drains of the store and of the admin listener, one after the other.
const DRAINS: Duration = Duration::from_secs(10);

/// A connection that stays.
struct Line {
    stream: TcpStream,
    admin: SocketAddr,
    token: String,
}

/// An answer: its status and its body.
type Answer = (u16, Vec<u8>);

impl Line {
    fn open(admin: SocketAddr, token: &str) -> io::Result<Line> {
        let stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Line { stream, admin, token: token.to_owned() })
    }

    fn head(&mut self, method: &str, path: &str, length: usize) -> io::Result<()> {
        let (admin, token) = (self.admin, &self.token);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes())
    }

    /// What comes before the body, and how long that is.
    fn read_head(&mut self) -> io::Result<(u16, usize)> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if self.stream.read(&mut byte)? == 0 {
                // Between two requests a server may hang up; in the middle of an answer it may not.
                assert!(head.is_empty(), "half a head: {}", String::from_utf8_lossy(&head));
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length =
            head.split("content-length: ").nth(1).map_or("0", |rest| rest.split("\r\n").next().unwrap());
        Ok((status, length.parse().unwrap()))
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let (status, length) = self.read_head()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("an answer that was begun is whole");
        Ok((status, body))
    }

    fn put(&mut self, content: &[u8]) -> io::Result<Answer> {
        self.head("POST", "/o", content.len())?;
        self.stream.write_all(content)?;
        self.answer()
    }
}

fn id_of(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

fn token(data: &Path) -> String {
    fs::read_to_string(data.join("token")).unwrap().trim().to_owned()
}

/// Eight clients put as fast as they can, one uploads and one downloads something long, and one has stopped in the middle,
/// when the request to stop comes.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "threads and the time of a test, which has no supervisor and no pretended clock"
)]
fn a_stop_under_load_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    let (admin, token) = (daemon.admin, token(dir.path()));
    let long: Vec<u8> = (0..24_u32 << 20).map(|at| (at % 251) as u8).collect();
    let long_id = {
        let (status, body) = Line::open(admin, &token).unwrap().put(&long).unwrap();
        assert!(status == 201, "{status}");
        id_of(&body)
    };

    let acknowledged = Arc::new(Mutex::new(BTreeMap::new()));
    let (refused, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let putting = (0..8_u64).map(|client| {
        let (acknowledged, refused, stop) =
            (Arc::clone(&acknowledged), Arc::clone(&refused), Arc::clone(&stop));
        let token = token.clone();
        thread::spawn(move || {
            let mut line = Line::open(admin, &token).unwrap();
            for number in 0_u64.. {
                let content = format!("{client} {number} {}", "x".repeat(2000)).into_bytes();
                match line.put(&content) {
                    Ok((201 | 200, body)) => {
                        acknowledged.lock().unwrap().insert(id_of(&body), content);
                    }
                    Ok((503, body)) => {
                        let body = String::from_utf8(body).unwrap();
                        assert!(body.contains("\"code\""), "{body}");
                        refused.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    Ok((status, body)) => panic!("{status}: {}", String::from_utf8_lossy(&body)),
                    // The line was hung up between two requests.
                    Err(_) => {
                        assert!(stop.load(Ordering::SeqCst), "the line broke before anybody asked to stop");
                        return;
                    }
                }
            }
        })
    });
    let putting: Vec<_> = putting.collect();

    // Half of an upload, half of a download, and one that goes on with neither.
    let other: Vec<u8> = long.iter().map(|byte| byte ^ 1).collect();
    let half = other.len() / 2;
    let mut upload = Line::open(admin, &token).unwrap();
    upload.head("POST", "/o", other.len()).unwrap();
    upload.stream.write_all(&other[..half]).unwrap();
    let mut stalled = Line::open(admin, &token).unwrap();
    stalled.head("POST", "/o", other.len()).unwrap();
    stalled.stream.write_all(&other[..1000]).unwrap();
    let mut download = Line::open(admin, &token).unwrap();
    download.head("GET", &format!("/o/{long_id}"), 0).unwrap();
    let (status, length) = download.read_head().unwrap();
    assert_eq!((status, length), (200, long.len()));
    let mut fetched = vec![0; length];
    download.stream.read_exact(&mut fetched[..half]).unwrap();
    while acknowledged.lock().unwrap().len() < 200 {
        thread::sleep(Duration::from_millis(5));
    }

    let asked = Instant::now();
    stop.store(true, Ordering::SeqCst);
    daemon.signal("TERM");
    daemon.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 503"));
    upload.stream.write_all(&other[half..]).unwrap();
    let (status, body) = upload.answer().unwrap();
    match status {
        201 => drop(acknowledged.lock().unwrap().insert(id_of(&body), other)),
        _ => assert_eq!(status, 503, "{}", String::from_utf8_lossy(&body)),
    }
    download.stream.read_exact(&mut fetched[half..]).unwrap();
    assert!(fetched == long, "what was being read is read to its end");
    for client in putting {
        client.join().unwrap();
    }
    let mut daemon = daemon;
    let mut said = String::new();
    daemon.output.read_to_string(&mut said).unwrap();
    let ended = daemon.child.wait().unwrap();
    assert_eq!((ended.code(), ended.signal()), (Some(0), None), "{said}");
    let over = asked.elapsed();
    assert!(over < DRAINS + Duration::from_secs(5), "{over:?}: {said}");
    // Who had stopped in the middle was answered or hung up on, and not left waiting.
    let told = stalled.answer().map(|(status, _)| status);
    assert!(!matches!(told, Ok(200 | 201)), "{told:?}");

    println!(
        "{} acknowledged, {} told 503, the upload {status}, the one that stalled {told:?}, over after {over:?}: {said}",
        acknowledged.lock().unwrap().len(),
        refused.load(Ordering::SeqCst)
    );

    let again = Daemon::start(dir.path(), &[]);
    let acknowledged = acknowledged.lock().unwrap();
    let mut line = Line::open(again.admin, &token).unwrap();
    for (id, content) in &*acknowledged {
        line.head("GET", &format!("/o/{id}"), 0).unwrap();
        let (status, body) = line.answer().unwrap();
        assert!(status == 200 && body == *content, "{id} was acknowledged and is {status}");
    }
    again.terminate();
}

/// A disk that does not answer kept the process for ever: the drain was over and said so, and the end of the runtime waited for
/// a read that nobody waited for any more. Not even a second request helped. A pipe without a writer is such a disk.
#[test]
fn a_read_that_is_stuck_does_not_keep_the_process() {
    let mut node = Configured::start(ANY_PORT);
    node.daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    let settings = node.dir.path().join("refd.toml");
    fs::remove_file(&settings).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&settings).status().unwrap().success());
    node.daemon.signal("HUP");
    // It reads them when it counts as begun.
    node.daemon.eventually("/metrics", |metrics| {
        metrics.contains("ron_core_tasks_spawned_total{kind=\"read settings\"} 1")
    });
    node.daemon.signal("TERM");
    let mut said = String::new();
    node.daemon.output.read_to_string(&mut said).unwrap();
    assert_eq!(node.daemon.child.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.contains("stopping\nstopped: "), "{said}");
}

/// Whoever asks it to stop while it starts was heard when it had started, which with a large store is a while.
#[test]
fn a_start_is_given_up_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(crate::REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
    let mut starting =
        command.arg(dir.path()).env("RON_PLANT", "start").stdout(Stdio::piped()).spawn().unwrap();
    // Whatever it makes, it makes after it began to listen for signals.
    while !dir.path().join("token").exists() {
        assert!(starting.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(5));
    }
    let asked = std::process::Command::new("kill").arg(starting.id().to_string()).status().unwrap();
    assert!(asked.success());
    let ended = starting.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.status.signal()), (Some(0), None));
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "stopped before it had started\n");
}

/// A part that fails for good ends the process with a number of its own, and what the others had begun is finished first.
#[test]
fn a_part_that_fails_for_good_ends_the_process_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = std::process::Command::new(crate::REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
    command.arg(dir.path().join("node")).env("RON_PLANT", "fatal").stderr(fs::File::create(&log).unwrap());
    let mut daemon = Daemon::spawn(command);
    daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    let (admin, token) = (daemon.admin, token(&dir.path().join("node")));
    let content = vec![7; 4 << 20];
    let mut upload = Line::open(admin, &token).unwrap();
    upload.head("POST", "/o", content.len()).unwrap();
    upload.stream.write_all(&content[..1 << 20]).unwrap();
    daemon.signal("USR1");
    daemon.eventually("/readyz?verbose", |answer| answer.starts_with("HTTP/1.1 503"));
    upload.stream.write_all(&content[1 << 20..]).unwrap();
    let (status, body) = upload.answer().unwrap();
    assert!(status == 201, "{status}: {}", String::from_utf8_lossy(&body));
    let mut said = String::new();
    daemon.output.read_to_string(&mut said).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(9), "{said}");
    assert!(said.contains("stopping\nstopped: ") && said.contains(" 0 cut off"), "{said}");
    let logged = fs::read_to_string(&log).unwrap();
    let why = "a part failed for good, and the rest was stopped in order: task planted of refd failed for good: planted by a test";
    assert!(logged.contains(why), "{logged}");

    let again = Daemon::start(&dir.path().join("node"), &[]);
    let mut line = Line::open(again.admin, &token).unwrap();
    line.head("GET", &format!("/o/{}", id_of(&body)), 0).unwrap();
    assert!(line.answer().unwrap() == (200, content));
    again.terminate();
}

/// Case 60 of the abuse cases: a part that panics is caught, counted and started again, five times in a minute, and nothing is
/// left of its former lives; whoever asks is answered meanwhile. The sixth time it has failed for good, and the rest is stopped in order.
#[test]
fn a_part_that_panics_is_counted_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = std::process::Command::new(crate::REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
    command.arg(dir.path().join("node")).env("RON_PLANT", "panic").stderr(fs::File::create(&log).unwrap());
    let mut daemon = Daemon::spawn(command);
    daemon.eventually("/readyz", |answer| answer.starts_with("HTTP/1.1 200"));
    let of_part =
        |what: &str, count: u32| format!("ron_core_tasks_{what}_total{{kind=\"planted\"}} {count}\n");
    let (admin, token) = (daemon.admin, token(&dir.path().join("node")));
    let mut line = Line::open(admin, &token).unwrap();
    for time in 1..=5 {
        daemon.signal("USR1");
        daemon.eventually("/metrics", |metrics| metrics.contains(&of_part("panicked", time)));
        // Before it is started again, or after.
        let (status, body) = line.put(format!("object {time}").as_bytes()).unwrap();
        assert!(status == 201, "{status}: {}", String::from_utf8_lossy(&body));
        assert!(daemon.get("/healthz").ends_with("ok\n"));
        let metrics = daemon.eventually("/metrics", |metrics| metrics.contains(&of_part("restarted", time)));
        // It is one task in all of its lives.
        assert!(
            metrics.contains(&of_part("spawned", 1)) && !metrics.contains(&of_part("ended", 1)),
            "{metrics}"
        );
        assert!(daemon.get("/readyz").starts_with("HTTP/1.1 200"));
    }
    let metrics = daemon.get("/metrics");
    let panicked = metrics.lines().filter(|line| line.contains("_panicked_total{") && !line.ends_with(" 0"));
    assert_eq!(panicked.collect::<Vec<_>>(), [of_part("panicked", 5).trim_end()], "nothing else panicked");
    daemon.signal("USR1");
    let mut said = String::new();
    daemon.output.read_to_string(&mut said).unwrap();
    assert_eq!(daemon.child.wait().unwrap().code(), Some(9), "{said}");
    assert!(said.contains("stopping\nstopped: ") && said.contains(" 0 cut off"), "{said}");
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("task planted of refd failed for good: panicked: planted by a test"), "{logged}");
    let again = Daemon::start(&dir.path().join("node"), &[]);
    let mut line = Line::open(again.admin, &token).unwrap();
    line.head("GET", "/usage", 0).unwrap();
    let (status, body) = line.answer().unwrap();
    let body = String::from_utf8(body).unwrap();
    assert!(status == 200 && body.contains("\"objects\":5,"), "{status}: {body}");
    again.terminate();
}
