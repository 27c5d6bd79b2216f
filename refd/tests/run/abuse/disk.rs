//! What reaches the disk: uploads that break off or lie, links in the way, bytes that change, and no room.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use ron_core::ContentId;

use super::{content, exchange, json, node, rest_of, status, until};
use crate::{REFD, governing::Decider, settings::Configured};

/// Uploads that are under way, and of which there are files.
fn begun(node: &Configured) -> Vec<TcpStream> {
    let (admin, bearer, before) = (node.daemon.admin, node.bearer(), node.large_files());
    let body = content(3 << 20, 1);
    let begin = |_| {
        let mut stream = TcpStream::connect(admin).unwrap();
        let head = format!("POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}Content-Length: 9000000\r\n\r\n");
        stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        stream
    };
    let streams = (0..4).map(begin).collect();
    until("there are files of them", || node.large_files() == before + 4);
    streams
}

/// Case 41: uploads of which there is a file already, and a thousand, each of which breaks off in another place; and a node that dies
/// amid uploads, as by a power cut, and finds their files when it starts again.
#[test]
fn aborted_uploads_leave_no_files() {
    let mut node = node("");
    let (admin, bearer, before) = (node.daemon.admin, node.bearer(), node.large_files());
    drop(begun(&node));
    until("nothing is left of the first", || node.large_files() == before);
    let body = content(1 << 20, 1);
    #[allow(clippy::disallowed_methods, reason = "threads of a test, joined at the end of the scope")]
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (bearer, body) = (&bearer, &body);
            scope.spawn(move || {
                for number in 0..125 {
                    let number = thread * 125 + number;
                    let id = ContentId::of(&usize::to_le_bytes(number));
                    let head = match number % 3 {
                        0 => format!("POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}Content-Length: 9000000\r\n\r\n"),
                        1 => format!("PUT /o/{id} HTTP/1.1\r\nHost: {admin}\r\n{bearer}Content-Length: 9000000\r\n\r\n"),
                        _ => format!(
                            "POST /o HTTP/1.1\r\nHost: {admin}\r\n{bearer}Transfer-Encoding: chunked\r\n\r\n800000\r\n"
                        ),
                    };
                    let mut stream = TcpStream::connect(admin).unwrap();
                    // Some before their first byte, some in the middle of a megabyte.
                    let sent = number * 1049 % body.len();
                    let _ = stream.write_all(head.as_bytes());
                    let _ = stream.write_all(&body[..if number % 7 == 0 { 0 } else { sent }]);
                }
            });
        }
    });
    until("all are over", || node.count("ron_storage_put_streams") == 0);
    until("nothing is left", || node.large_files() == before);
    let usage = node.allowed("GET", "/usage", "", b"");
    assert!(usage.contains("\"objects\":0"), "{usage}");
    node.put(&content(400_000, 2));
    node.is_well();

    let kept = node.large_files();
    let under_way = begun(&node);
    node.daemon.signal("KILL");
    node.daemon.child.wait().unwrap();
    assert_eq!(node.large_files(), kept + under_way.len(), "a start has nothing to sweep");
    node.daemon = crate::Daemon::start(&node.data(), &[]);
    until("nothing is left of what died with it", || node.large_files() == kept);
    assert!(node.allowed("GET", "/usage", "", b"").contains("\"objects\":1"));
    node.is_well();
}

/// Case 36: bytes that are not what they are said to be.
#[test]
fn an_upload_under_another_name_is_not_kept() {
    let node = node("");
    let before = node.large_files();
    for len in [10, 1 << 20] {
        let (body, claimed) = (content(len, 1), ContentId::of(b"something else"));
        let refused = node.allowed("PUT", &format!("/o/{claimed}"), "", &body);
        assert_eq!(status(&refused), 409, "{refused}");
        for id in [claimed, ContentId::of(&body)] {
            assert_eq!(status(&node.ask("GET", &format!("/o/{id}"), "", b"")), 404);
        }
        let digest = data_encoding::BASE64.encode(&[7; 32]);
        let refused = node.allowed("POST", "/o", &format!("Content-Digest: blake3=:{digest}:\r\n"), &body);
        assert!((400..500).contains(&status(&refused)), "{refused}");
    }
    until("nothing is left", || node.large_files() == before);
    assert!(node.allowed("GET", "/usage", "", b"").contains("\"objects\":0"));
    node.is_well();
}

/// Case 37: a bit that changed on the disk is not served, whoever asks and for whichever part. Each way to ask is the first to come
/// across it, and none is spared by what another found.
#[test]
fn changed_bytes_are_not_served() {
    const AT: usize = 1_000_000;
    let node = node("");
    let admin = node.daemon.admin;
    let ask = |path: &str, headers: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{headers}\r\n");
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        rest_of(&mut stream)
    };
    let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|window| window == part);
    for (number, (query, headers)) in [
        ("", ""),
        ("", "Range: bytes=999000-1001000\r\n"),
        ("", "Range: bytes=1000000-1000000\r\n"),
        ("", "Range: bytes=-2500000\r\n"),
        ("", "Range: bytes=0-9,990000-1010000\r\n"),
        ("", "Accept: application/vnd.ron.bao\r\n"),
        ("?bytes=990000-1010000", "Accept: application/vnd.ron.bao\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let whole = content(3 << 20, number as u64);
        let before = node.files();
        let path = format!("/o/{}", node.put(&whole));
        let of_it = |(path, _): &(std::path::PathBuf, u64)| {
            path.extension().is_some_and(|end| end == "dat") && before.iter().all(|(known, _)| known != path)
        };
        let file = node.files().into_iter().find(of_it).unwrap().0;
        let mut changed = fs::read(&file).unwrap();
        assert!(changed.starts_with(&whole));
        changed[AT] ^= 1;
        fs::write(&file, &changed).unwrap();
        // What is not damaged is there for who asks for nothing else.
        let good = ask(&path, "Range: bytes=5-99\r\n");
        assert!(good.starts_with(b"HTTP/1.1 206") && good.ends_with(&whole[5..100]));

        let way = format!("{query} {headers}");
        let answer = ask(&format!("{path}{query}"), headers);
        assert!(!answer.is_empty(), "{way}");
        assert!(!has(&answer, &changed[AT - 4..AT + 4]), "{way}");
        // Nothing that is behind it either; what is before it may have gone already. A byte alone proves nothing, but that it ends.
        assert!(!has(&answer, &whole[AT..AT + 8]), "{way}");
        let body = answer.len() - answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() - 4;
        let is_begun = answer.starts_with(b"HTTP/1.1 20");
        assert!(!is_begun || !headers.contains("bytes=1000000-1000000") || body == 0, "{way}");
        let stat = node.daemon.get(&path.replace("/o/", "/stat/"));
        assert!(stat.contains("\"quarantined\":true"), "{way}: {stat}");
        // Now it is known, and nothing of it is begun.
        assert!(!ask(&path, headers).starts_with(b"HTTP/1.1 20"), "{way}");
        // Who has it brings it back.
        assert!(matches!(status(&node.allowed("PUT", &path, "", &whole)), 200 | 201), "{way}");
        let again = ask(&path, "Range: bytes=1000000-1000000\r\n");
        assert!(again.starts_with(b"HTTP/1.1 206") && again.ends_with(&whole[AT..=AT]), "{way}");
    }
    node.is_well();
}

/// Ends a process, also in a test that fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a node that must not come up, and returns what it said. One that comes up, and one that does neither, are failures.
pub(super) fn refused(data: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let [output, errors] = ["output", "errors"].map(|name| dir.path().join(name));
    let mut command = Command::new(REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(data);
    command.stdout(fs::File::create(&output).unwrap()).stderr(fs::File::create(&errors).unwrap());
    let mut child = Ended(command.spawn().unwrap());
    let mut ended = None;
    until("it ends, or says that it runs", || {
        ended = child.0.try_wait().unwrap();
        ended.is_some() || fs::read_to_string(&output).unwrap().contains("node ")
    });
    let said = fs::read_to_string(&errors).unwrap();
    assert!(ended.is_some_and(|status| !status.success()), "it runs, or ended well: {ended:?} {said}");
    said
}

/// Case 42: symbolic links and pipes that somebody planted where files of the node are. Nothing is read or written through them,
/// and no start waits for them. The token and what the node remembers of its log were read through any link, and a pipe in their
/// place kept the node from starting and from saying why.
#[test]
fn planted_links_are_refused() {
    let made = node("");
    made.put(&content(400_000, 1));
    made.put(b"small");
    let Configured { daemon, dir } = made;
    let (data, outside) = (dir.path().join("data"), dir.path().join("outside"));
    // Only of a log that has begun there is something to remember.
    Decider::found(&daemon, &data);
    daemon.terminate();
    fs::create_dir(&outside).unwrap();
    let files = ["node.key", "registry.key", "token", "registry.seen", "registry.verified", "store/STORE"];
    let dirs = ["store", "store/log", "store/large", "dht", "registry"];
    for place in files.into_iter().chain(dirs) {
        let (path, aside) = (data.join(place), dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        // A link to the very thing is no better than any other.
        for target in [&aside, &outside, &outside.join("nothing")] {
            symlink(target, &path).unwrap();
            let said = refused(&data);
            assert!(said.contains("symbolic link"), "{place} -> {}: {said}", target.display());
            fs::remove_file(&path).unwrap();
        }
        if files.contains(&place) {
            assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&path).status().unwrap().success());
            let said = refused(&data);
            assert!(said.contains(place) && said.contains("not a regular file"), "{place}: {said}");
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&aside, &path).unwrap();
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written through a link");

    // What the node writes on its own account: also where such a file is until it is whole, as a stop leaves it that was cut short.
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let plant = |name: &str| {
        let _ = fs::remove_file(data.join(name));
        symlink(&victim, data.join(name)).unwrap();
    };
    ["registry.verified.tmp", "registry.seen.tmp"].into_iter().for_each(plant);
    let again = crate::Daemon::start(&data, &[]);
    ["registry.verified.tmp", "registry.seen.tmp", "registry.verified", "registry.seen"]
        .into_iter()
        .for_each(plant);
    again.terminate();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    for name in ["registry.verified", "registry.seen"] {
        assert!(data.join(name).symlink_metadata().unwrap().is_file(), "the link is still there: {name}");
    }
    // And it is what the node can begin from.
    crate::Daemon::start(&data, &[]).terminate();
}

/// With this in the environment, what needs a file system of its own is left out, and says so.
const LEFT_OUT: &str = "RON_NO_MOUNTS";

/// Set where a test runs in a mount namespace of its own.
const APART: &str = "RON_APART";

/// Runs a test of this program again where it may mount what nobody else sees and what is gone with it.
fn run_apart(test: &str) {
    if std::env::var_os(LEFT_OUT).is_some() {
        println!("NOT RUN, since {LEFT_OUT} is set: {test}");
        return;
    }
    let probe = tempfile::tempdir().unwrap();
    let may = |way: &&&[&str]| {
        let mut mount = Command::new("unshare");
        mount.args(**way).args(["mount", "-t", "tmpfs", "tmpfs"]).arg(probe.path());
        mount.output().is_ok_and(|output| output.status.success())
    };
    let ways = [&["--user", "--map-root-user", "--mount"][..], &["--mount"]];
    let Some(way) = ways.iter().find(may) else {
        panic!(
            "nothing can be mounted here, neither with unshare(1) in a user namespace nor without: allow that, or set \
             {LEFT_OUT}=1 to leave {test} out"
        );
    };
    let mut again = Command::new("unshare");
    again.args(*way).arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = again.env(APART, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A file system of a few megabytes.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Small {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let output = mount.args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Small(dir)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Case 40: no room. Reads go on, writes are refused by their name, and readiness says so until there is room again.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    if std::env::var_os(APART).is_none() {
        return run_apart("abuse::disk::a_full_disk_refuses_writes_and_serves_reads");
    }
    let small = Small::mount();
    let place = &small.0;
    let data = place.path().join("data");
    let file = place.path().join("refd.toml");
    fs::write(&file, "[storage]\nreserve_bytes = 4000000\nsegment_bytes = 1048576\n").unwrap();
    let daemon = crate::Daemon::start_with(&data, &["--config", file.to_str().unwrap()], &[]);
    let admin = daemon.admin;
    daemon.eventually("/readyz?writes", |answer| answer.starts_with("HTTP/1.1 200"));
    let token = fs::read_to_string(data.join("token")).unwrap();
    let put = |body: &[u8]| {
        let head = format!(
            "POST /o HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
            token.trim(),
            body.len()
        );
        exchange(admin, &[head.as_bytes(), body].concat())
    };
    // Down to what a small object needs: a disk on which only trifles fit is full.
    let mut kept = Vec::new();
    for len in [700_000, 100_000] {
        let refused = loop {
            let body = content(len, kept.len() as u64);
            let answer = put(&body);
            if status(&answer) != 201 {
                break answer;
            }
            kept.push(body);
            assert!(kept.len() < 100, "the disk is not small");
        };
        assert_eq!(status(&refused), 507, "{refused}");
    }
    assert!(!kept.is_empty());
    let ready = daemon.eventually("/readyz?writes&verbose", |answer| answer.starts_with("HTTP/1.1 503"));
    assert!(ready.contains("\"reads\":true") && ready.contains("\"writes\":false"), "{ready}");
    assert!(daemon.get("/readyz").starts_with("HTTP/1.1 200"));
    for body in &kept {
        let id = ContentId::of(body);
        let answer = exchange(
            admin,
            format!("GET /o/{id} HTTP/1.1\r\nHost: {admin}\r\nRange: bytes=5-9\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(status(&answer), 206, "{answer}");
    }
    // Room again.
    for body in &kept {
        let head = format!(
            "DELETE /o/{} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
            ContentId::of(body),
            token.trim()
        );
        assert_eq!(status(&exchange(admin, head.as_bytes())) / 100, 2);
    }
    daemon.eventually("/readyz?writes", |answer| answer.starts_with("HTTP/1.1 200"));
    assert_eq!(status(&put(&content(700_000, 1000))), 201);
    daemon.terminate();
}

/// The objects of a node that are not refused, by their number and their bytes.
fn usage(node: &Configured) -> (u64, u64) {
    let answer = node.allowed("GET", "/usage", "", b"");
    let usage = json(&answer);
    (usage["objects"].as_u64().unwrap(), usage["bytes"].as_u64().unwrap())
}

/// Case 44: many small objects, bodies of a length that is not announced, and many at once.
#[test]
fn a_quota_holds_for_many_small_and_for_unannounced_objects() {
    let by_count = node("[storage]\nquota_objects = 20\n");
    let ids: Vec<ContentId> = (0..20_u8).map(|number| by_count.put(&[number])).collect();
    let refused = by_count.allowed("POST", "/o", "", b"one more");
    assert_eq!(status(&refused), 507, "{refused}");
    assert!(refused.contains("\"code\":\"quota\"") && refused.contains("quota_objects"), "{refused}");
    // What is there is there: saying it again takes no room. Neither do what is read and what is refused.
    assert_eq!(status(&by_count.allowed("PUT", &format!("/o/{}", ids[3]), "", &[3])) / 100, 2);
    assert_eq!(status(&by_count.ask("GET", &format!("/o/{}", ids[3]), "", b"")), 200);
    assert_eq!(usage(&by_count).0, 20);
    assert_eq!(status(&by_count.allowed("DELETE", &format!("/o/{}", ids[3]), "", b"")) / 100, 2);
    by_count.put(b"one more");
    assert_eq!(status(&by_count.allowed("POST", "/o", "", b"and another")), 507);
    by_count.is_well();

    let by_bytes = node("[storage]\nquota_bytes = 4000000\n");
    let (admin, bearer) = (by_bytes.daemon.admin, by_bytes.bearer());
    // Sixteen at once of which two fit, half of them without saying how long they are.
    #[allow(clippy::disallowed_methods, reason = "threads of a test, joined at the end of the scope")]
    let told: [u16; 16] = std::thread::scope(|scope| {
        let put = |number: u64| {
            let body = content(1_500_000, number);
            let (length, body) = match number % 2 {
                0 => (format!("Content-Length: {}\r\n", body.len()), body),
                _ => {
                    let size = format!("{:x}\r\n", body.len()).into_bytes();
                    (
                        "Transfer-Encoding: chunked\r\n".to_owned(),
                        [&size[..], &body, b"\r\n0\r\n\r\n"].concat(),
                    )
                }
            };
            let head =
                format!("POST /o HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{bearer}{length}\r\n");
            status(&exchange(admin, &[head.as_bytes(), &body].concat()))
        };
        let puts: [_; 16] = std::array::from_fn(|number| scope.spawn(move || put(number as u64)));
        puts.map(|put| put.join().unwrap())
    });
    let (objects, bytes) = usage(&by_bytes);
    println!("{told:?}, {objects} objects of {bytes} bytes");
    let kept = told.iter().filter(|status| **status == 201).count();
    assert!(
        (1..=2).contains(&kept) && kept as u64 == objects && bytes <= 4_000_000,
        "{told:?} {objects} {bytes}"
    );
    assert!(told.iter().all(|status| matches!(status, 201 | 507)), "{told:?}");
    // Down to the last bytes: the small ones count as well.
    for number in 0.. {
        assert!(number < 200, "the quota has no end");
        if status(&by_bytes.allowed("POST", "/o", "", &content(40_000, 100 + number))) == 507 {
            break;
        }
    }
    assert!(usage(&by_bytes).1 <= 4_000_000, "{:?}", usage(&by_bytes));
    by_bytes.is_well();
}

/// Case 46: six processes that begin on one directory at the same time, with nothing in it and with what a node left there.
/// One of them is the node; the others say that it is.
#[test]
fn one_process_of_many_has_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    for round in 0..2 {
        let log = |number: usize| dir.path().join(format!("{round}-{number}"));
        let mut running: Vec<(usize, Child)> = (0..6)
            .map(|number| {
                let mut command = Command::new(REFD);
                command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
                command.arg(&data).stdout(Stdio::null()).stderr(fs::File::create(log(number)).unwrap());
                (number, command.spawn().unwrap())
            })
            .collect();
        until("only one is left", || {
            running.retain_mut(|(number, child)| {
                let Some(ended) = child.try_wait().unwrap() else { return true };
                let said = fs::read_to_string(log(*number)).unwrap();
                assert!(!ended.success() && said.contains("is in use by another node"), "{said}");
                false
            });
            running.len() <= 1
        });
        let [(_, mut node)] = <[_; 1]>::try_from(running).expect("one has it");
        until("it has made what it needs", || data.join("token").exists() && data.join("node.key").exists());
        // It goes on when the others are gone.
        std::thread::sleep(Duration::from_secs(1));
        assert!(node.try_wait().unwrap().is_none());
        assert!(Command::new("kill").arg(node.id().to_string()).status().unwrap().success());
        assert!(node.wait().unwrap().success());
    }
}
