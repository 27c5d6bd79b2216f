//! The checker of the gate's places, shown to notice a place that is lost. A process of its own, because a planted bug
//! is planted for everybody.

use std::net::Ipv4Addr;

use ron_core::{
    ClientKey, Gate, GateLimits, GateSettings, Metrics, Pass,
    planted::{Bug, plant},
};

const PLACES: u32 = 4;

/// Fills every place, is refused, leaves, and requires every place to be there again.
fn check_places() -> Result<(), String> {
    let limits = GateLimits {
        per_second: 1_000_000,
        burst: 1_000_000,
        in_flight: PLACES,
        bytes_per_second: 1 << 30,
        bytes_burst: 1 << 30,
    };
    let gate = Gate::new("http", GateSettings::new(limits, limits), &Metrics::default()).expect("in range");
    let client = ClientKey::from(Ipv4Addr::LOCALHOST);
    // Newcomers have half of the places; from the second call on it is a known client.
    drop(gate.enter(client, 0));
    for round in 0..10 {
        let inside: Vec<Pass> = (0..PLACES).filter_map(|_| gate.enter(client, 0).ok()).collect();
        if inside.len() < PLACES as usize {
            return Err(format!("round {round}: only {} of {PLACES} places", inside.len()));
        }
        if gate.enter(client, 0).is_ok() {
            return Err(format!("round {round}: a place too many"));
        }
        drop(inside);
        if gate.in_flight() != 0 {
            return Err(format!("round {round}: {} places taken by nobody", gate.in_flight()));
        }
    }
    Ok(())
}

#[test]
fn a_leaked_place_is_noticed() {
    assert_eq!(check_places(), Ok(()));
    let planted = plant(Bug::LeakedPermit);
    assert_eq!(check_places(), Err("round 0: 1 places taken by nobody".to_owned()));
    drop(planted);
    assert_eq!(check_places(), Ok(()));
}
