//! Topics that a configuration names: daemons that know nothing of each other meet on them.

use crate::Daemon;

/// Neither of the two on the topic has heard of the other. Both were told of a third that is on no topic: that the other
/// one is there, and where, only the DHT can say.
#[test]
fn daemons_on_a_topic_find_each_other_through_the_dht() {
    let dirs: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let third = Daemon::start(dirs[0].path(), &[]);
    let news = [("REFD_OVERLAY__TOPICS", "[\"news\"]")];
    let one = Daemon::start_with(dirs[1].path(), &["--seed", &third.seed], &news);
    let two = Daemon::start_with(dirs[2].path(), &["--seed", &third.seed], &news);
    for (daemon, other) in [(&one, &two), (&two, &one)] {
        let id = other.seed.split_once('@').unwrap().0;
        let neighbour = format!("\"neighbours\":[\"{id}\"]");
        let topics = daemon.eventually("/overlay/topics", |topics| topics.contains(&neighbour));
        assert!(topics.contains("\"name\":\"news\""), "{topics}");
    }
    let topics = third.get("/overlay/topics");
    assert!(topics.starts_with("HTTP/1.1 200") && topics.ends_with("[]"), "{topics}");
    for daemon in [one, two, third] {
        let said = daemon.terminate();
        assert!(said.contains(" 0 cut off"), "{said}");
    }
}

/// A configuration whose values cannot be is refused by the key, and not found out at the first message.
#[test]
fn an_overlay_that_cannot_be_is_refused_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(crate::REFD);
    command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
    let run = command.env("REFD_OVERLAY__MAX_CONNS", "0").output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success() && said.contains("max_conns"), "{said}");
}
