//! What stands in paths: names that are none, so many of them that somebody could count them, and what can be learned
//! about those that are there.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::{PATIENCE, content, node, status};
use crate::settings::Configured;

/// Case 13: on every route with something in its path. None of these leads anywhere.
#[test]
fn names_are_names_and_not_paths() {
    let home = tempfile::tempdir().unwrap();
    let secret = crate::keeping::secret(home.path());
    let node = node(&format!("[overlay]\ntopics = [\"news\"]\n[keeping]\nsecret_file = {secret:?}\n"));
    let canary = "canary-beside-the-data";
    fs::write(node.dir.path().join("secret"), canary).unwrap();
    let zeros = "0".repeat(64);
    let tricks = [
        "..".to_owned(),
        "../secret".to_owned(),
        "..%2fsecret".to_owned(),
        "..%2f..%2f..%2f..%2fetc%2fpasswd".to_owned(),
        "%2e%2e%2fsecret".to_owned(),
        "%252e%252e%252fsecret".to_owned(),
        "..%5csecret".to_owned(),
        "....//secret".to_owned(),
        "%2fetc%2fpasswd".to_owned(),
        "b3:../../secret".to_owned(),
        "b3%3a..%2f..%2fsecret".to_owned(),
        "b3:%00".to_owned(),
        format!("b3:{zeros}%00.dat"),
        format!("b3:{zeros}%2f..%2f..%2fsecret"),
        format!("B3:{zeros}"),
        format!("b3:{zeros}0"),
        format!("b3:{}", &zeros[1..]),
        format!("b3:{}", "G".repeat(64)),
        format!("b3:{}", "%C3%A4".repeat(32)),
        "%ff%fe%fd".to_owned(),
        "%0d%0aX-Injected:%20yes".to_owned(),
        "%1b[31mred".to_owned(),
        "%".to_owned(),
        "%zz".to_owned(),
        "-1".to_owned(),
        "18446744073709551616".to_owned(),
        "a".repeat(4000),
    ];
    // Odd as they are, somebody could have called something so: no slash in them, no control character, no id that is none.
    let upper = format!("B3:{zeros}");
    let may_be_names =
        ["%252e%252e%252fsecret", "..%5csecret", &upper, "%", "%zz", "-1", "18446744073709551616"];
    let before = listing(&node);
    // A preflight is answered before anybody looks what it is for.
    let named = |(path, method, _): &(String, String, bool)| path.contains('{') && method != "OPTIONS";
    for (template, method, _) in node.routes().into_iter().filter(named) {
        let (begin, end) = (template.find('{').unwrap(), template.find('}').unwrap());
        let of_index = ["/index/", "/resolve/"].iter().any(|begin| template.starts_with(begin));
        for trick in &tricks {
            let path = format!("{}{trick}{}", &template[..begin], &template[end + 1..]);
            let answer = node.allowed(&method, &path, "", b"");
            let may_be_name = may_be_names.contains(&&**trick);
            let expected: &[u16] = match &template[begin..=end] {
                // With a slash it is another path, of which there may be none.
                _ if trick.contains('/') => &[400, 404],
                // That specification says so.
                _ if template.contains("/routing/v1/") => &[422],
                // A topic or a name of the log that nobody has, or none at all.
                "{topic}" | "{name}" => &[400, 404],
                // The index takes words for a name, which it cannot look up without a log, and has not pinned.
                "{key}" if of_index && may_be_name => &[200, 503],
                _ => &[400],
            };
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
            assert!(expected.contains(&status(&answer)), "{method} {path} {expected:?} {answer}");
            assert!(!head.to_lowercase().contains("x-injected"), "{method} {path} {answer}");
            assert!(!body.contains(canary) && !body.contains("root:"), "{method} {path} {answer}");
        }
    }
    assert_eq!(listing(&node), before, "something was made or removed");
    node.is_well();
}

/// All there is beside and below the data, but for what grows by itself.
fn listing(node: &Configured) -> BTreeSet<std::path::PathBuf> {
    let mut found = Vec::new();
    super::walk(node.dir.path(), &mut found);
    found.into_iter().map(|(path, _)| path).collect()
}

/// Case 39: whatever stands in paths, methods and headers, there are as many series as before.
#[test]
fn metrics_do_not_grow_with_names() {
    let node = node("[overlay]\ntopics = [\"news\"]\n");
    let bearer = node.bearer();
    let ask = |number: u64| {
        let hex = blake3::hash(&number.to_le_bytes()).to_hex();
        let host =
            format!("Host: {}\r\nUser-Agent: {hex}\r\nX-Corr-Id: {}\r\n", node.daemon.admin, &hex[..16]);
        match number % 10 {
            0 => format!("GET /stat/b3:{hex} HTTP/1.1\r\n{host}\r\n"),
            1 => format!("GET /{hex} HTTP/1.1\r\n{host}\r\n"),
            2 => format!("GET /{hex}/{hex} HTTP/1.1\r\n{host}\r\n"),
            3 => format!("X{number} /o/b3:{hex} HTTP/1.1\r\n{host}\r\n"),
            4 => format!("DELETE /o/b3:{hex} HTTP/1.1\r\n{host}{bearer}\r\n"),
            5 => format!("GET /gossip/{hex} HTTP/1.1\r\n{host}{bearer}\r\n"),
            6 => format!("GET /registry/{number} HTTP/1.1\r\n{host}\r\n"),
            7 => format!("GET /registry/by-content/b3:{hex} HTTP/1.1\r\n{host}\r\n"),
            8 => format!("GET /registry/proofs/{number}?{hex}={hex} HTTP/1.1\r\n{host}\r\n"),
            _ => format!("GET /o/b3:{hex} HTTP/1.1\r\n{host}\r\n"),
        }
    };
    let series = || -> BTreeSet<String> {
        let metrics = node.daemon.get("/metrics");
        let lines = metrics.split_once("\r\n\r\n").unwrap().1.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    // Each kind of answer once, and the look itself.
    series();
    many(&node, (0..10).map(&ask));
    let before = series();
    // In turns of a few hundred, so that no answer waits in a full buffer.
    for first in (10..10_010).step_by(200) {
        many(&node, (first..first + 200).map(&ask));
    }
    let added: Vec<String> = series().difference(&before).cloned().collect();
    // Some come with time, as the first of its kind happens. None comes with a name.
    assert!(added.len() < 10, "{added:?}");
    let is_name = |text: &String| text.split(|c: char| !c.is_ascii_hexdigit()).any(|word| word.len() > 15);
    assert_eq!(added.iter().find(|series| is_name(series)), None);
    node.is_well();
}

/// Asks one after the other over one connection, and waits for as many answers.
fn many(node: &Configured, requests: impl Iterator<Item = String>) {
    let requests: Vec<String> = requests.collect();
    let mut stream = TcpStream::connect(node.daemon.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let all = requests.concat();
    #[allow(clippy::disallowed_methods, reason = "threads of a test, joined at the end of the scope")]
    std::thread::scope(|scope| {
        let mut writing = stream.try_clone().unwrap();
        scope.spawn(move || writing.write_all(all.as_bytes()).unwrap());
        let (mut answered, mut held, mut some) = (0, Vec::new(), [0; 16 << 10]);
        while answered < requests.len() {
            let count = stream.read(&mut some).unwrap();
            assert_ne!(
                count,
                0,
                "closed after {answered} of {}: {}",
                requests.len(),
                String::from_utf8_lossy(&held)
            );
            held.extend_from_slice(&some[..count]);
            while let Some(at) = held.windows(9).position(|word| word == b"HTTP/1.1 ") {
                answered += 1;
                held.drain(..at + 9);
            }
        }
    });
}

/// Case 45: who may not ask learns nothing about what is there, by what is answered.
#[test]
fn who_may_not_ask_does_not_learn_what_is_there() {
    let node = node("");
    let (there, absent) = (node.put(&content(400_000, 1)), ron_core::ContentId::of(b"not here"));
    // Without the number of the request, and without the date.
    let told = |answer: &str| {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let keep = |line: &&str| {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            !matches!(&*name, "date" | "x-corr-id" | "x-correlation-id")
        };
        let head: Vec<&str> = head.lines().filter(keep).collect();
        let mut body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        body["corr_id"] = serde_json::Value::Null;
        (head.join("\n"), body.to_string())
    };
    for (method, of) in [
        ("PUT", "/o/"),
        ("DELETE", "/o/"),
        ("PUT", "/pins/"),
        ("DELETE", "/pins/"),
        ("POST", "/fetch/"),
        ("PUT", "/index/pins/"),
        ("POST", "/index/reindex/"),
    ] {
        let [one, other] = [there, absent].map(|id| node.ask(method, &format!("{of}{id}"), "", b""));
        assert_eq!(status(&one), 401, "{one}");
        assert_eq!(told(&one), told(&other), "{method} {of}");
    }
    node.is_well();
}
