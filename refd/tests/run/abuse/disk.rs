//! What reaches the disk: uploads that break off or lie, links in the way, bytes that change, and no room.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use ron_core::ContentId;

use super::{content, exchange, node, status, until};
use crate::{REFD, settings::Configured};

/// Case 41: a thousand uploads that break off, each in another place.
#[test]
fn aborted_uploads_leave_no_files() {
    let node = node("");
    let (admin, bearer, before) = (node.daemon.admin, node.bearer(), node.large_files());
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
}

/// Case 37: a bit that changed on the disk is not served, whoever asks and for whichever part.
#[test]
fn changed_bytes_are_not_served() {
    let node = node("");
    let whole = content(3 << 20, 1);
    let id = node.put(&whole);
    let file = node
        .files()
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|end| end == "dat"))
        .unwrap()
        .0;
    let mut bytes = fs::read(&file).unwrap();
    bytes[1_000_000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let admin = node.daemon.admin;
    for range in ["", "Range: bytes=999000-1001000\r\n", "Range: bytes=1000000-1000000\r\n"] {
        let request = format!("GET /o/{id} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{range}\r\n");
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        let at = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        if answer.starts_with(b"HTTP/1.1 20") {
            assert!(range.is_empty(), "a part that is damaged was begun");
            let body = &answer[at..];
            assert!(body.len() <= 1_000_000 && whole.starts_with(body), "{} bytes", body.len());
        }
    }
    let stat = node.daemon.get(&format!("/stat/{id}"));
    assert!(stat.contains("\"quarantined\":true"), "{stat}");
    // Who has it brings it back.
    assert!(matches!(status(&node.allowed("PUT", &format!("/o/{id}"), "", &whole)), 200 | 201));
    let answer = node.ask("GET", &format!("/o/{id}"), "Range: bytes=1000000-1000000\r\n", b"");
    assert_eq!(status(&answer), 206);
}

fn run(data: &Path) -> (bool, String) {
    let mut command = Command::new(REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(data);
    // It must not come up. If it does, it is told to stop by the end of this test.
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..500 {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
            return (status.success(), said);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (true, "it runs".to_owned())
}

/// Case 42: links that somebody planted where files of the node are. Nothing is read or written through them.
#[test]
fn planted_links_are_refused() {
    let made = node("");
    made.put(&content(400_000, 1));
    made.put(b"small");
    let Configured { daemon, dir } = made;
    daemon.terminate();
    let (data, outside) = (dir.path().join("data"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    for place in
        ["node.key", "registry.key", "store", "store/log", "store/large", "store/STORE", "dht", "registry"]
    {
        let (place, aside) = (data.join(place), dir.path().join("aside"));
        fs::rename(&place, &aside).unwrap();
        // A link to the very thing is no better than any other.
        for target in [&aside, &outside, &outside.join("nothing")] {
            symlink(target, &place).unwrap();
            let (is_up, said) = run(&data);
            assert!(
                !is_up && said.contains("symbolic link"),
                "{} -> {}: {said}",
                place.display(),
                target.display()
            );
            fs::remove_file(&place).unwrap();
        }
        fs::rename(&aside, &place).unwrap();
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written through a link");

    // What the node writes on its own account when it stops.
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let _ = fs::remove_file(data.join("registry.verified"));
    symlink(&victim, data.join("registry.verified")).unwrap();
    let again = crate::Daemon::start(&data, &[]);
    again.terminate();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// A file system of a few megabytes, if this may be made here.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(dir: &Path) -> Option<Small> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Small(dir.to_owned())),
            refused => {
                println!("not run: no small file system can be mounted here: {refused:?}");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Case 40: no room. Reads go on, writes are refused by their name, and readiness says so until there is room again.
#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    let place = tempfile::tempdir().unwrap();
    let Some(_small) = Small::mount(place.path()) else { return };
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
