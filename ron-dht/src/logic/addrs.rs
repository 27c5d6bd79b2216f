//! Which addresses are worth dialling, judging by who named them.
//!
//! A peer on the open Internet that names `127.0.0.1` or `192.168.1.1` makes every reader of its records knock on
//! doors of its own house. So a peer may name addresses that reach at least as far as the one it was seen at: a
//! public peer only public ones, one in our own network also private ones, one on this machine all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ron_core::NodeId;

/// How strictly addresses are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressPolicy {
    /// For nodes on the open Internet: by the reach of the peer that names them.
    #[default]
    Public,
    /// For a cluster in one network, or on one machine: whatever can be dialled at all.
    Local,
}

/// A peer as its link shows it: the name it has proven and the address it was seen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// Proven by the handshake.
    pub id: NodeId,
    /// The other end of the link.
    pub ip: IpAddr,
}

/// Who is counted as one when room is shared out: a subnet, or a node where there are no subnets to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(u64);

impl Source {
    /// The source with this number, as [`Source::number`] gave it.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Source(number)
    }

    /// The number, for keeping it across a restart.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// How far an address reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// This machine.
    Loopback,
    /// This network: private, link-local, or shared by a carrier's customers.
    Private,
    /// Everybody.
    Public,
}

impl AddressPolicy {
    /// Whether `addr`, as named by a peer that was seen at `from`, may be dialled.
    #[must_use]
    pub fn allows(self, addr: &SocketAddr, from: IpAddr) -> bool {
        if addr.port() == 0 || is_undialable(addr.ip().to_canonical()) {
            return false;
        }
        match (self, reach(addr.ip())) {
            (AddressPolicy::Local, _) => true,
            (AddressPolicy::Public, None) => false,
            // A peer without a reach of its own gets no credit for it.
            (AddressPolicy::Public, Some(named)) => named >= reach(from).unwrap_or(Reach::Public),
        }
    }

    /// The addresses that may be dialled, in the order given.
    #[must_use]
    pub fn usable(self, addrs: &[SocketAddr], from: IpAddr) -> Vec<SocketAddr> {
        addrs.iter().filter(|addr| self.allows(addr, from)).copied().collect()
    }

    /// Who this peer is counted with. Names cost nothing, addresses do: on the open Internet a /24 is one source,
    /// and so is a /48 of IPv6. In a cluster of one subnet that would make everybody one.
    #[must_use]
    pub fn source(self, sender: &Sender) -> Source {
        let ip = sender.ip.to_canonical();
        if self == AddressPolicy::Local || reach(ip) != Some(Reach::Public) {
            let [a, b, c, d, e, f, g, h, ..] = *sender.id.as_bytes();
            // The highest bit keeps nodes and subnets apart.
            return Source(u64::from_be_bytes([a, b, c, d, e, f, g, h]) | 1 << 63);
        }
        match ip {
            IpAddr::V4(ip) => Source(u64::from(u32::from(ip) >> 8)),
            IpAddr::V6(ip) => Source(1 << 62 | u64::try_from(u128::from(ip) >> 80).expect("48 bits")),
        }
    }
}

/// What no connection can be made to, whatever the network.
fn is_undialable(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// How far an address reaches; `None` if nothing on the open Internet has it.
fn reach(ip: IpAddr) -> Option<Reach> {
    match ip.to_canonical() {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Option<Reach> {
    match ip.octets() {
        [127, ..] => Some(Reach::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [169, 254, ..] | [100, 64..=127, ..] => {
            Some(Reach::Private)
        }
        // "This network", protocol assignments, documentation, 6to4 relays, benchmarking, multicast, reserved.
        [0 | 224..=255, ..]
        | [192, 0, 0 | 2, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..] => None,
        _ => Some(Reach::Public),
    }
}

fn reach_v6(ip: Ipv6Addr) -> Option<Reach> {
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Reach::Loopback),
        // A translator or tunnel would carry the call to the address inside.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        [0xfc00..=0xfdff | 0xfe80..=0xfebf, ..] => Some(Reach::Private),
        // Documentation, Teredo and other special purposes.
        [0x2001, 0xdb8 | 0..=0x1ff, ..] | [0x3fff, 0..=0xfff, ..] => None,
        [0x2000..=0x3fff, ..] => Some(Reach::Public),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: AddressPolicy, from: &str, allowed: &[&str], refused: &[&str]) {
        let from = from.parse().unwrap();
        for (addrs, expected) in [(allowed, true), (refused, false)] {
            for addr in addrs {
                assert_eq!(policy.allows(&addr.parse().unwrap(), from), expected, "{addr} from {from}");
            }
        }
    }

    const PUBLIC: &[&str] = &["8.8.8.8:1", "[2606:4700::1]:1", "[64:ff9b::808:808]:1"];
    const PRIVATE: &[&str] =
        &["10.1.2.3:1", "172.31.0.1:1", "192.168.0.1:1", "169.254.1.1:1", "100.64.0.1:1", "[fd00::1]:1"];
    const LOOPBACK: &[&str] = &["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
    const NOWHERE: &[&str] =
        &["0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1", "[::]:1", "[ff02::1]:1", "8.8.8.8:0"];
    const SPECIAL: &[&str] = &[
        "192.0.2.1:1",
        "198.51.100.7:1",
        "203.0.113.9:1",
        "198.18.0.1:1",
        "0.1.2.3:1",
        "240.0.0.1:1",
        "[2001:db8::1]:1",
        "[2001::1]:1",
        "[3fff::1]:1",
        "[::7f00:1]:1",
    ];

    #[test]
    fn a_public_peer_names_public_addresses() {
        for refused in [PRIVATE, LOOPBACK, NOWHERE, SPECIAL] {
            check(AddressPolicy::Public, "8.8.4.4", PUBLIC, refused);
        }
        check(
            AddressPolicy::Public,
            "8.8.4.4",
            &[],
            &["[64:ff9b::7f00:1]:1", "[2002:a00:1::1]:1", "[fe80::1]:1"],
        );
    }

    #[test]
    fn a_peer_may_name_what_reaches_as_far_as_itself() {
        check(AddressPolicy::Public, "192.168.0.7", PUBLIC, LOOPBACK);
        check(AddressPolicy::Public, "192.168.0.7", PRIVATE, SPECIAL);
        check(AddressPolicy::Public, "127.0.0.1", LOOPBACK, NOWHERE);
        check(AddressPolicy::Public, "127.0.0.1", PRIVATE, SPECIAL);
        check(AddressPolicy::Public, "203.0.113.9", PUBLIC, PRIVATE);
    }

    #[test]
    fn a_cluster_names_what_it_likes() {
        for allowed in [PUBLIC, PRIVATE, LOOPBACK] {
            check(AddressPolicy::Local, "8.8.4.4", allowed, NOWHERE);
        }
        check(AddressPolicy::Local, "8.8.4.4", &["192.0.2.1:1", "[2001:db8::1]:1"], &[]);
    }

    #[test]
    fn a_subnet_is_one_source_on_the_internet_only() {
        let sender =
            |node: u8, ip: &str| Sender { id: NodeId::from_bytes([node; 32]), ip: ip.parse().unwrap() };
        let same = |policy: AddressPolicy, a: &Sender, b: &Sender| policy.source(a) == policy.source(b);
        let (one, two) = (sender(1, "8.8.4.4"), sender(2, "8.8.4.5"));
        assert!(same(AddressPolicy::Public, &one, &two));
        assert!(!same(AddressPolicy::Local, &one, &two));
        assert!(!same(AddressPolicy::Public, &one, &sender(1, "8.8.5.4")));
        let (one, two) = (sender(1, "2606:4700:1:2::1"), sender(2, "2606:4700:1:3::1"));
        assert!(same(AddressPolicy::Public, &one, &two));
        assert!(!same(AddressPolicy::Public, &one, &sender(2, "2606:4700:2:3::1")));
        // Behind one address of our own network there may be many.
        assert!(!same(AddressPolicy::Public, &sender(1, "10.0.0.1"), &sender(2, "10.0.0.1")));
    }
}
