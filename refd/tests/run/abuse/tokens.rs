//! The token: shown wrongly, twice, in another place, by another scheme, or not at all.

use super::{node, status};

/// Every route that changes something or tells what there is, and every way not to have the token.
#[test]
fn nothing_but_the_token_opens() {
    let home = tempfile::tempdir().unwrap();
    // With others, so that the routes of that are there too.
    let secret = crate::keeping::secret(home.path());
    let node = node(&format!("[overlay]\ntopics = [\"news\"]\n[keeping]\nsecret_file = {secret:?}\n"));
    let token = node.bearer().trim().rsplit_once(' ').unwrap().1.to_owned();
    let basic = data_encoding::BASE64.encode(format!("token:{token}").as_bytes());
    let wrong = "x".repeat(52);
    let shown = [
        String::new(),
        format!("Authorization: Bearer {wrong}\r\n"),
        format!("Authorization: Bearer {}\r\n", &token[1..]),
        format!("Authorization: Bearer {}\r\n", &token[..token.len() - 1]),
        format!("Authorization: Bearer {token}x\r\n"),
        format!("Authorization: Bearer {}\r\n", token.to_uppercase()),
        format!("Authorization: Bearer {token} {token}\r\n"),
        format!("Authorization: Bearer {token},{token}\r\n"),
        format!("Authorization: Bearer \"{token}\"\r\n"),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        "Authorization:\r\n".to_owned(),
        format!("Authorization: {token}\r\n"),
        format!("Authorization: Bearer{token}\r\n"),
        format!("Authorization: Token {token}\r\n"),
        format!("Authorization: Digest {token}\r\n"),
        format!("Authorization: Basic {basic}\r\n"),
        format!("Authorization: Bearer {}\r\n", "y".repeat(20_000)),
        format!("Proxy-Authorization: Bearer {token}\r\n"),
        format!("Cookie: token={token}; authorization={token}\r\n"),
        format!("X-Authorization: Bearer {token}\r\n"),
        // Two, of which a program before this one may have judged the other.
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {wrong}\r\n"),
        format!("Authorization: Bearer {wrong}\r\nAuthorization: Bearer {token}\r\n"),
        format!("Authorization: Basic {basic}\r\nAuthorization: Bearer {token}\r\n"),
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"),
    ];
    let guarded: Vec<_> = node.routes().into_iter().filter(|(_, _, is_guarded)| *is_guarded).collect();
    assert!(guarded.len() >= 20, "{guarded:?}");
    for (number, (path, method, _)) in guarded.iter().enumerate() {
        let path = path.replace("{id}", &format!("b3:{}", "0".repeat(64)));
        // All of them on one route, and the most telling on the others.
        let few = [&shown[0], &shown[1], &shown[shown.len() - 4], &shown[shown.len() - 3]];
        let ways: Vec<&String> = if number == 0 { shown.iter().collect() } else { few.to_vec() };
        for headers in ways {
            let refused = node.ask(method, &path, headers, b"");
            assert_eq!(status(&refused), 401, "{method} {path} {headers} {refused}");
            assert!(!refused.contains(&token) && !refused.contains(&wrong), "{refused}");
        }
    }
    for query in ["?token=", "?access_token=", "?authorization=Bearer%20"] {
        assert_eq!(status(&node.ask("GET", &format!("/usage{query}{token}"), "", b"")), 401);
    }
    // The scheme is a word in any case, and the token itself opens.
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let usage = node.ask("GET", "/usage", &format!("Authorization: {scheme} {token}\r\n"), b"");
        assert_eq!(status(&usage), 200, "{usage}");
    }
    node.is_well();
}
