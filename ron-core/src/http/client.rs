//! Who asks: the address of the client, and whose word about it is taken.
//!
//! A forwarding header is a claim by whoever sent it. It counts only from peers that the host listed, and only the
//! one header that those peers are known to write: a proxy that writes `X-Forwarded-For` passes a client's own
//! `Forwarded` on untouched.

use std::{fmt, net::IpAddr, str::FromStr};

use http::{HeaderMap, HeaderName, header};

use crate::ClientKey;

/// The client of a request, in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientAddr {
    /// A client on the network.
    Ip(IpAddr),
    /// A process on this machine, through a Unix socket.
    Local,
}

impl ClientAddr {
    /// Who it counts as at a [`Gate`](crate::Gate). All local processes are one client.
    #[must_use]
    pub fn key(self) -> ClientKey {
        match self {
            ClientAddr::Ip(ip) => ip.into(),
            ClientAddr::Local => ClientKey::from_bytes(b"local"),
        }
    }
}

/// A network: an address and how many of its leading bits count.
///
/// ```
/// use ron_core::http::IpNet;
///
/// let net: IpNet = "10.0.0.0/8".parse()?;
/// assert!(net.contains([10, 1, 2, 3].into()));
/// assert!("10.0.0.0/33".parse::<IpNet>().is_err());
/// # Ok::<(), ron_core::http::IpNetError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpNet {
    address: IpAddr,
    prefix: u8,
}

/// Not a network in the form `address` or `address/bits`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network such as 10.0.0.0/8 or fd00::/8")]
pub struct IpNetError(String);

impl IpNet {
    /// Whether `address` is in this network. An IPv4 address in IPv6 form counts as the IPv4 address it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                net.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                net.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for IpNet {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        IpNet { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for IpNet {
    type Err = IpNetError;

    fn from_str(text: &str) -> Result<Self, IpNetError> {
        let wrong = || IpNetError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= longest).ok_or_else(wrong)?,
            None => longest,
        };
        Ok(IpNet { address, prefix })
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The header that the trusted proxies write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardHeader {
    /// `X-Forwarded-For`, which most proxies write.
    XForwardedFor,
    /// `Forwarded`, RFC 7239.
    Forwarded,
}

/// Peers whose word about the client is taken, and through which header they give it. Default: nobody.
#[derive(Debug, Clone)]
pub struct TrustedProxies {
    nets: Vec<IpNet>,
    header: ForwardHeader,
}

impl Default for TrustedProxies {
    fn default() -> Self {
        TrustedProxies { nets: Vec::new(), header: ForwardHeader::XForwardedFor }
    }
}

impl TrustedProxies {
    /// These networks, which write `header`.
    #[must_use]
    pub fn new(nets: impl IntoIterator<Item = IpNet>, header: ForwardHeader) -> Self {
        TrustedProxies { nets: nets.into_iter().collect(), header }
    }

    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(address))
    }

    /// The client behind `peer`: the last address on the way here that is not one of ours.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        if !self.trusts(client) {
            return client;
        }
        const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        let name = match self.header {
            ForwardHeader::XForwardedFor => X_FORWARDED_FOR,
            ForwardHeader::Forwarded => header::FORWARDED,
        };
        let lines: Vec<&str> =
            headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("?")).collect();
        // Each proxy appends, so the nearest hop is the last one. What a trusted hop did not understand it may have
        // copied, so nothing before it is believed.
        for hop in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
            let hop = match self.header {
                ForwardHeader::XForwardedFor => address_of(hop),
                ForwardHeader::Forwarded => forwarded_for(hop),
            };
            let Some(hop) = hop else { return client };
            client = hop;
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }
}

/// The address in the `for` of one element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let value = element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value)
    })?;
    address_of(value)
}

/// An address in any of the forms that occur: plain, quoted, in brackets, with a port.
fn address_of(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let text = match text.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?.0,
        None if text.matches(':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(header: ForwardHeader, peer: &str, lines: &[&'static str]) -> String {
        let nets = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().expect("a network"));
        let name = match header {
            ForwardHeader::XForwardedFor => "x-forwarded-for",
            ForwardHeader::Forwarded => "forwarded",
        };
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_static(line));
        }
        let peer = peer.parse().expect("an address");
        TrustedProxies::new(nets, header).client(peer, &headers).to_string()
    }

    #[test]
    fn only_a_trusted_peer_is_believed() {
        use ForwardHeader::XForwardedFor as X;
        assert_eq!(client(X, "192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(client(X, "10.0.0.1", &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(X, "::ffff:10.0.0.1", &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(X, "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn the_last_stranger_is_the_client() {
        use ForwardHeader::XForwardedFor as X;
        // What the client itself claimed stands to the left of what our proxy saw.
        assert_eq!(client(X, "10.0.0.1", &["1.1.1.1, 198.51.100.7, 10.0.0.9"]), "198.51.100.7");
        assert_eq!(client(X, "10.0.0.1", &["1.1.1.1", "198.51.100.7"]), "198.51.100.7");
        assert_eq!(client(X, "10.0.0.1", &["1.1.1.1, nonsense"]), "10.0.0.1");
        assert_eq!(client(X, "10.0.0.1", &["198.51.100.7:4711"]), "198.51.100.7");
    }

    #[test]
    fn the_other_header_is_not_listened_to() {
        let mut headers = HeaderMap::new();
        headers.insert("forwarded", HeaderValue::from_static("for=1.1.1.1"));
        let proxies =
            TrustedProxies::new(["10.0.0.0/8".parse().expect("a network")], ForwardHeader::XForwardedFor);
        assert_eq!(proxies.client([10, 0, 0, 1].into(), &headers), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn forwarded_is_read_as_the_rfc_writes_it() {
        use ForwardHeader::Forwarded as F;
        assert_eq!(
            client(F, "fd00::1", &["for=1.1.1.1, For=\"[2001:db8::7]:80\";proto=https"]),
            "2001:db8::7"
        );
        assert_eq!(client(F, "fd00::1", &["for=198.51.100.7;by=10.0.0.1"]), "198.51.100.7");
        assert_eq!(client(F, "fd00::1", &["for=unknown"]), "fd00::1");
        assert_eq!(client(F, "fd00::1", &["proto=https"]), "fd00::1");
    }

    #[test]
    fn networks_of_every_length() {
        for (net, inside, outside) in [
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("192.0.2.128/25", "192.0.2.129", "192.0.2.127"),
            ("::1", "::1", "::2"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
        ] {
            let net: IpNet = net.parse().expect("a network");
            assert!(net.contains(inside.parse().expect("an address")), "{net}");
            assert!(!net.contains(outside.parse().expect("an address")), "{net}");
        }
        for wrong in ["", "10.0.0.0/", "10.0.0.0/-1", "::/129", "host/8"] {
            assert!(wrong.parse::<IpNet>().is_err(), "{wrong}");
        }
    }
}
