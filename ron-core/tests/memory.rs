//! Memory by the allocator's count: queues cost what they hold, and a million addresses cost nothing, neither memory
//! nor the clients who were there before.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use allocation_counter::measure;
use ron_core::{
    ClientKey, Feed, Gate, GateLimits, GateSettings, Lane, LaneSpec, MemoryBudget, Metrics, Pass, Snapshot,
};

const ONE: GateLimits =
    GateLimits { per_second: 10, burst: 20, in_flight: 4, bytes_per_second: 1 << 20, bytes_burst: 1 << 22 };
const ALL: GateLimits = GateLimits {
    per_second: 10_000,
    burst: 1_000,
    in_flight: 512,
    bytes_per_second: 1 << 27,
    bytes_burst: 1 << 28,
};
const SETTINGS: GateSettings = GateSettings { clients: 4_096, ..GateSettings::new(ONE, ALL) };

fn stranger(number: u32) -> ClientKey {
    // Spread over the address space; an odd factor keeps them distinct.
    Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761)).into()
}

fn honest(number: u8) -> ClientKey {
    ClientKey::from_bytes(&[b'h', number])
}

/// Twenty seconds, fifty thousand new addresses in each; half of those who get in stay for a while. Of the clients who
/// were there before, a hundred come back every two seconds and one uses all that its own limit allows.
#[tokio::test(start_paused = true)]
async fn a_million_addresses_cost_neither_memory_nor_the_known_clients() {
    let gate = Gate::new("http", SETTINGS, &Metrics::default()).unwrap();
    for number in 0..=100 {
        for _ in 0..2 {
            drop(gate.enter(honest(number), 100).unwrap());
        }
    }

    let mut staying: [Option<Pass>; 200] = [const { None }; 200];
    let (mut kept, mut late_allocations, mut admitted) = (gate.memory_bytes() as i64, 0, 0_u32);
    for tick in 0..1_000_u32 {
        tokio::time::advance(Duration::from_millis(20)).await;
        let used = measure(|| {
            for number in tick * 1_000..(tick + 1) * 1_000 {
                if let Ok(pass) = gate.enter(stranger(number), 100) {
                    admitted += 1;
                    if number % 2 == 0 {
                        staying[admitted as usize % 200] = Some(pass);
                    }
                }
            }
            let known = honest(u8::try_from(tick % 100).expect("below a hundred"));
            let pass = gate.enter(known, 100);
            assert!(pass.is_ok(), "tick {tick}: {pass:?}");
            if tick % 5 == 0 {
                let regular = gate.enter(honest(100), 100);
                assert!(regular.is_ok(), "tick {tick}: {regular:?}");
            }
        });
        kept += used.bytes_current;
        // Its bound is reached in the first second, with the first thousands who are let in.
        late_allocations += if tick < 100 { 0 } else { used.count_total };
        assert!(kept <= gate.memory_bytes_max() as i64, "tick {tick}: {kept} bytes");
    }
    assert_eq!(kept, gate.memory_bytes() as i64, "the gate says what it holds");
    assert_eq!(late_allocations, 0, "a flood must not allocate for ever");
    // Half of the burst, then half of the rate: 500 + 5000 a second.
    assert!((95_000..=100_600).contains(&admitted), "{admitted}");
    drop(staying);
    assert_eq!(gate.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn rotating_within_one_network_is_one_client() {
    let gate = Gate::new("http", SETTINGS, &Metrics::default()).unwrap();
    let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0));
    let admitted = (0..100_000_u128)
        .filter(|host| {
            let address = IpAddr::from(Ipv6Addr::from(network + host * 7));
            gate.enter(address.into(), 0).is_ok()
        })
        .count();
    assert_eq!(admitted, 20, "one burst");
}

#[test]
fn the_memory_is_what_the_gate_says() {
    let metrics = Metrics::default();
    // The first gate of a name also makes its counter and declares its locks; the second only itself.
    let _first = Gate::new("http", SETTINGS, &metrics).unwrap();
    for clients in [1, 4_096, 32_768] {
        let mut gate = None;
        let used = measure(|| gate = Some(Gate::new("http", GateSettings { clients, ..SETTINGS }, &metrics)));
        let gate = gate.expect("set above").unwrap();
        assert_eq!(used.bytes_current, i64::try_from(gate.memory_bytes()).unwrap());
        assert!(gate.memory_bytes() < 10 << 10, "nobody has come: {} bytes", gate.memory_bytes());
        let fifty = measure(|| (0..50).for_each(|number| drop(gate.enter(honest(number), 100))));
        let grown = usize::try_from(used.bytes_current + fifty.bytes_current).unwrap();
        assert_eq!(grown, gate.memory_bytes());
        assert!(grown <= gate.memory_bytes_max().min(20 << 10), "fifty have come: {grown} bytes");
    }
}

/// What `make` leaves allocated. The first of a kind also makes counters, so it is made twice.
fn kept<T>(mut make: impl FnMut() -> T) -> i64 {
    let _first = make();
    let mut second = None;
    measure(|| second = Some(make())).bytes_current
}

/// A process may hold ten thousand nodes with a dozen queues each; a queue that took its capacity in advance would
/// take gigabytes.
#[test]
fn an_empty_queue_costs_less_than_a_kibibyte() {
    const WORK: LaneSpec = LaneSpec::new("test", "work", 1024);
    const EVENTS: LaneSpec = LaneSpec::feed("test", "events", 1024);
    let (metrics, budget) = (Metrics::default(), MemoryBudget::new("memory", 1 << 20));
    let lane = kept(|| Lane::<[u64; 8]>::open(WORK, &metrics));
    let weighed = kept(|| Lane::<[u64; 8]>::open_weighed(WORK, &metrics, &budget, |item| item.len()));
    let feed = kept(|| Feed::<[u64; 8]>::open(EVENTS, &metrics));
    let subscribed = kept(|| {
        let feed = Feed::<[u64; 8]>::open(EVENTS, &metrics);
        (feed.subscribe(), feed)
    });
    let snapshot = kept(|| Snapshot::new([0u64; 8]));
    println!(
        "lane {lane}, weighed lane {weighed}, feed {feed}, with a subscriber {subscribed}, snapshot {snapshot}"
    );
    for bytes in [lane, weighed, feed, subscribed, snapshot] {
        assert!(bytes < 1024, "{bytes} bytes");
    }
}

/// Room for what was once queued stays, in both halves of the queue; beyond that, a million items leave nothing.
#[test]
fn a_queue_holds_what_it_holds_and_not_more() {
    const WORK: LaneSpec = LaneSpec::new("test", "work", 1024);
    let metrics = Metrics::default();
    let (lane, inbox) = Lane::<u64>::open(WORK, &metrics);
    let overfill_and_drain = || {
        (0..2000).for_each(|item| drop(lane.try_push(item)));
        while inbox.try_recv().is_some() {}
    };
    let grown = measure(|| (0..2).for_each(|_| overfill_and_drain()));
    assert!(grown.bytes_current <= 64 << 10, "{grown:?}");
    let again = measure(|| (0..500).for_each(|_| overfill_and_drain()));
    assert_eq!(again.bytes_total, 0, "{again:?}");
}
