//! Gossip of whole networks, simulated: what arrives, how many copies it takes and how long.
//!
//! The thousand nodes that the figures in `docs/performance.md` are about take too long here; `examples/swarm.rs` prints
//! them. These networks are smaller and held to the same limits.

use std::time::Duration;

use ron_overlay::{
    logic::gossip::GossipSettings,
    sim::{Conditions, Report, Swarm},
};

/// Publishes at random, lets repair do its work, and reports.
fn publish(swarm: &mut Swarm, messages: usize) -> Report {
    let since = swarm.reset_words();
    let mut first = None;
    for _ in 0..messages {
        let message = swarm.publish_one();
        first.get_or_insert(message);
        swarm.run_for(Duration::from_millis(100));
    }
    swarm.run_for(Duration::from_secs(15));
    let report = swarm.report(first.expect("some messages"), since);
    println!("{report}");
    report
}

fn swarm(nodes: usize, conditions: Conditions, seed: u64) -> Swarm {
    Swarm::new(nodes, GossipSettings::default(), conditions, seed)
}

#[test]
fn random_publishers_reach_everybody_with_few_copies_and_in_little_time() {
    let mut swarm = swarm(120, Conditions::default(), 1);
    let first = publish(&mut swarm, 30);
    assert_eq!(first.delivery, 1.0);
    let steady = publish(&mut swarm, 60);
    assert_eq!((steady.delivery, steady.gaps), (1.0, 0));
    assert!(steady.rmr <= 0.15, "{steady}");
    assert!(steady.stretch <= 1.6, "{steady}");
}

#[test]
fn after_a_third_died_unnoticed_everybody_gets_everything() {
    let mut swarm = swarm(120, Conditions::default(), 2);
    publish(&mut swarm, 30);
    swarm.kill(0.3);
    let first = swarm.publish_one();
    swarm.run_for(Duration::from_secs(1));
    let times = swarm.delivery_times(first);
    assert!(times.iter().all(Option::is_some), "{} of {}", times.iter().flatten().count(), times.len());
    assert_eq!(publish(&mut swarm, 30).delivery, 1.0);
}

#[test]
fn one_word_in_twenty_is_lost_and_no_message_is() {
    let mut swarm = swarm(100, Conditions { loss: 0.05, ..Conditions::default() }, 3);
    let report = publish(&mut swarm, 60);
    assert_eq!(report.delivery, 1.0);
}

#[test]
fn five_of_nine_hostile_do_not_keep_the_others_apart() {
    let mut swarm = swarm(9, Conditions::default(), 4);
    swarm.make_hostile(0..5);
    let report = publish(&mut swarm, 100);
    assert!(report.delivery >= 0.99, "{report}");
}

#[test]
fn leavers_leave_no_hole() {
    let conditions = Conditions { is_death_told: true, ..Conditions::default() };
    let mut swarm = swarm(60, conditions, 5);
    publish(&mut swarm, 20);
    for node in 0..20 {
        swarm.leave(node);
        swarm.run_for(Duration::from_millis(200));
    }
    let first = swarm.publish_one();
    swarm.run_for(Duration::from_secs(1));
    let times = swarm.delivery_times(first);
    assert!(times.iter().all(Option::is_some));
    assert_eq!(publish(&mut swarm, 30).delivery, 1.0);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut swarm = swarm(30, Conditions { loss: 0.02, ..Conditions::default() }, seed);
        publish(&mut swarm, 10);
        swarm.trace()
    };
    assert_eq!(run(6), run(6));
    assert_ne!(run(6), run(7));
}
