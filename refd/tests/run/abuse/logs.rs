//! What others say, where people and programs read it: in the log, in settings, and in no place where a secret is.

use std::{collections::BTreeMap, fs};

use ron_registry::{KeyKind, NoteSigner};
use serde_json::{Value, json};

use super::{
    node,
    peers::{PROTOCOLS, Peer},
    status, until,
};
use crate::settings::{ANY_PORT, Configured};

/// A line of its own, an event that never happened, and orders to a terminal.
const FORGED: &str = "no\r\n2026-01-01T00:00:00.000000Z ERROR forged: all is lost\n\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{2028}end";

/// Case 59: whatever clients and peers say, an event is one line and no order to a terminal.
#[test]
fn an_event_is_one_line_whatever_is_said() {
    let peer = Peer::new();
    // A log to follow that is none: each question is refused, with words of its own.
    let _speaks = PROTOCOLS.map(|(protocol, _)| peer.speak(protocol, FORGED));
    let id = peer.endpoint.node_id();
    let at = peer.endpoint.local_addrs()[0];
    let signer = NoteSigner::from_seed("example.com/log", KeyKind::Ed25519, &[7; 32]).unwrap();
    let log_key = signer.verifier();
    let settings = format!(
        "{ANY_PORT}[log]\nfilter = \"trace\"\n[overlay]\ntopics = [\"a\\nb\\u001b[31m\"]\n[registry]\nfollow = \"{id}@{at}\"\nlog_key = \"{log_key}\"\n[dht]\nseeds = [\"{id}@{at}\"]\n"
    );
    let node = Configured::start(&settings);
    let log = || fs::read(node.dir.path().join("log")).unwrap();
    until("a question was refused", || String::from_utf8_lossy(&log()).contains("could not follow"));
    for path in [
        "/o/b3:%0aforged",
        "/resolve/%1b%5b31mforged%0d%0aforged",
        "/gossip/%0aforged%1b",
        "/registry/names/a%0aforged",
        "/%0aforged",
    ] {
        for headers in
            ["X-Corr-Id: forged\u{1b}\r\n", "User-Agent: forged\u{85}x\r\n", "Content-Encoding: forged\r\n"]
        {
            let answer = node.allowed("GET", path, headers, b"");
            let (head, _) = answer.split_once("\r\n\r\n").unwrap();
            assert!(!head.contains("forged"), "{answer}");
        }
    }
    let admin = node.daemon.admin;
    super::exchange(admin, b"FORGED\x1b /\n\nforged HTTP/9\r\n\r\n");
    super::exchange(admin, b"GET / HTTP/1.1\r\nforged\x1b: \x00\r\n\r\n");
    let refused = node.allowed(
        "POST",
        "/registry/found",
        "Content-Type: application/json\r\n",
        b"{\"\\n\\u001bforged\":1}",
    );
    assert!(matches!(status(&refused), 400..500), "{refused}");
    let log = log();
    let text = String::from_utf8(log).unwrap();
    assert!(text.contains("all is lost"), "it was listened to: {text}");
    for line in text.lines() {
        assert!(
            line.starts_with("20")
                && line.as_bytes().get(10) == Some(&b'T')
                && !line.starts_with("2026-01-01"),
            "{line:?}"
        );
        assert!(!line.chars().any(|letter| letter.is_control() && letter != '\t'), "{line:?}");
    }
    node.is_well();
}

/// Case 57: a value is a value. Nothing in it is carried out, replaced, or taken for another key.
#[test]
fn settings_are_taken_literally() {
    let dir = tempfile::tempdir().unwrap();
    let touched = dir.path().join("touched");
    let words = format!(
        "$(touch {0}) `touch {0}` ${{HOME}} $HOME %HOME% {{{{env}}}} \"]\n[admin]\nlisten = \"0.0.0.0:1\"\n# end",
        touched.display()
    );
    let shown = |variables: &[(&str, &str)]| {
        let mut command = std::process::Command::new(crate::REFD);
        let output =
            command.args(["config", "print", "--json"]).envs(variables.iter().copied()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (is_right, usual, _) = shown(&[]);
    assert!(is_right);
    let settings = |text: &str| -> BTreeMap<String, Value> {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["key"].as_str().unwrap().to_owned(), line)).collect()
    };
    // A region may be called anything: it is all of that, and nothing else is other than it was.
    let (is_right, printed, said) = shown(&[("REFD_INDEX__REGION", &words)]);
    assert!(is_right, "{said}");
    let mut wanted = settings(&usual);
    let region = json!({"key": "index.region", "origin": "REFD_INDEX__REGION", "value": words});
    wanted.insert("index.region".to_owned(), region);
    assert_eq!(settings(&printed), wanted);
    // A log may not, and that is said before anything begins.
    let (is_right, printed, said) = shown(&[("REFD_REGISTRY__ORIGIN", &words)]);
    assert!(!is_right && printed.is_empty(), "{printed}");
    assert_eq!(said, format!("refd: registry.origin: {words:?} is not the name of a log\n"));
    // A list with a line in it is no list, and an address with a line in it no address.
    for (variable, value, why) in [
        ("REFD_OVERLAY__TOPICS", "[\"a\"]\nmax_conns = 1", "expected a sequence"),
        ("REFD_ADMIN__LISTEN", "127.0.0.1:1\n[storage]\nmemory = true", "is not IP:PORT"),
    ] {
        let (is_right, printed, said) = shown(&[(variable, value)]);
        assert!(!is_right && printed.is_empty(), "{printed}");
        assert!(said.starts_with(&format!("refd: {variable}: ")) && said.contains(why), "{said}");
        assert!(said.contains(&format!("{value:?}")), "all of it is shown, on one line: {said}");
    }
    assert!(!touched.exists());
}

/// Case 58: the secrets of a node with everything logged, after everything that can be asked of it was asked, with the
/// right token and with others, was refused, broke off or was nonsense.
#[test]
fn no_route_and_no_refusal_shows_a_secret() {
    let node = node("[log]\nfilter = \"trace\"\n[overlay]\ntopics = [\"news\"]\n");
    let data = node.data();
    let token = fs::read(data.join("token")).unwrap().trim_ascii().to_vec();
    let guess = format!("canary{}", "z".repeat(46));
    let mut secrets = vec![token.clone(), guess.clone().into_bytes()];
    for name in ["node.key", "registry.key"] {
        let key = fs::read(data.join(name)).unwrap();
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let listed = key[..8].iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        secrets.extend([
            hex.into_bytes(),
            data_encoding::BASE64.encode(&key).into_bytes(),
            listed.into_bytes(),
            key,
        ]);
    }
    let mut seen = Vec::new();
    let wrong = format!("Authorization: Bearer {guess}\r\n");
    let id = format!("b3:{}", "0".repeat(64));
    for (path, method, is_guarded) in node.routes() {
        if matches!(&*path, "/events" | "/registry/stream" | "/registry/ws") {
            continue; // they do not end
        }
        // Nor do these, for who is let in.
        let is_endless = path.starts_with("/gossip") && method == "GET";
        assert!(is_guarded || !is_endless, "{path}");
        for path in [path.replace("{id}", &id), path.replace('{', "%7B")] {
            let allowed = Some(node.bearer()).filter(|_| !is_endless);
            for headers in allowed.into_iter().chain([wrong.clone(), String::new()]) {
                for body in [&b""[..], b"{\"nonsense", &[0xff; 100]] {
                    seen.extend(node.ask(&method, &path, &headers, body).into_bytes());
                }
            }
        }
    }
    // Shown where it does not belong. Whoever sent it may read it again in the answer, and nobody in the log.
    let token = String::from_utf8(token).unwrap();
    for (method, path) in
        [("GET", "/o/"), ("GET", "/resolve/"), ("POST", "/gossip/"), ("GET", "/usage?"), ("DELETE", "/pins/")]
    {
        node.allowed(method, &format!("{path}{token}"), "", b"");
        node.ask(method, &format!("{path}{guess}"), &wrong, b"");
    }
    for path in ["/metrics", "/readyz?verbose", "/state"] {
        seen.extend(node.daemon.get(path).into_bytes());
    }
    let log = node.dir.path().join("log");
    let Configured { daemon, dir: _dir } = node;
    seen.extend(daemon.terminate().into_bytes());
    let log = fs::read(log).unwrap();
    assert!(log.windows(8).any(|word| word == b"answered"), "it was listened to");
    seen.extend(log);
    // Each byte as a letter, for a search that is quick in a test too.
    let letters = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let seen = letters(&seen);
    for secret in secrets {
        assert!(!seen.contains(&letters(&secret)), "{}", String::from_utf8_lossy(&secret));
    }
}
