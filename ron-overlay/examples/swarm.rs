//! Prints what gossip costs and how long it takes, in a simulated network.
//!
//! `cargo run --release -p ron-overlay --features sim --example swarm [nodes] [seed] [calm]`; with `calm` only random publishers
//! in a network where nothing fails.

use std::time::Duration;

use ron_overlay::{
    logic::gossip::GossipSettings,
    sim::{Conditions, Swarm},
};

const PACE: Duration = Duration::from_millis(100);

/// So many messages of random publishers, or of the first `publishers` nodes.
fn publish(swarm: &mut Swarm, messages: usize, publishers: Option<usize>) -> usize {
    let mut first = None;
    for number in 0..messages {
        let node = match publishers {
            Some(publishers) => swarm.live().nth(number % publishers).expect("enough nodes"),
            None => swarm.pick(),
        };
        let message = swarm.publish(node);
        first.get_or_insert(message);
        swarm.run_for(PACE);
    }
    first.expect("some messages")
}

fn run(what: &str, swarm: &mut Swarm, messages: usize, publishers: Option<usize>) {
    let since = swarm.reset_words();
    let first = publish(swarm, messages, publishers);
    swarm.run_for(Duration::from_secs(15));
    println!("{what}: {}", swarm.report(first, since));
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |usual: u64| args.next().map_or(usual, |arg| arg.parse().expect("a number"));
    let (nodes, seed) = (number(1000) as usize, number(1));
    let is_calm = args.next().is_some_and(|word| word == "calm");
    let settings = GossipSettings::default();
    let calm = Conditions::default();

    let mut swarm = Swarm::new(nodes, settings, calm, seed);
    println!("{nodes} nodes, seed {seed}, mean degree {:.2}", swarm.degree());
    if is_calm {
        run("random publishers, first", &mut swarm, 50, None);
        run("random publishers, then", &mut swarm, 200, None);
        return;
    }
    run("one publisher, first", &mut swarm, 20, Some(1));
    run("one publisher, then", &mut swarm, 100, Some(1));
    let mut swarm = Swarm::new(nodes, settings, calm, seed);
    run("eight publishers, first", &mut swarm, 50, Some(8));
    run("eight publishers, then", &mut swarm, 100, Some(8));
    let mut swarm = Swarm::new(nodes, settings, calm, seed);
    run("random publishers, first", &mut swarm, 50, None);
    run("random publishers, then", &mut swarm, 200, None);

    swarm.kill(0.3);
    let first = swarm.publish_one();
    swarm.run_for(Duration::from_secs(2));
    let times = swarm.delivery_times(first);
    let last = times.iter().flatten().max().copied().unwrap_or_default();
    let missing = times.iter().filter(|time| time.is_none()).count();
    println!("30 % died unnoticed, first message: last delivery {last:?}, {missing} without it after 2 s");
    run("30 % died, next", &mut swarm, 100, None);
    run("30 % died, then", &mut swarm, 100, None);

    let mut swarm = Swarm::new(nodes, settings, Conditions { loss: 0.05, ..calm }, seed);
    run("5 % loss, first", &mut swarm, 50, None);
    run("5 % loss, then", &mut swarm, 200, None);

    let mut swarm = Swarm::new(9, settings, calm, seed);
    swarm.make_hostile(0..5);
    run("5 of 9 hostile", &mut swarm, 200, None);
}
