//! The two ends of a link, made in each way that is compared, and whole networks of nodes.

pub(crate) mod bare_http;
pub(crate) mod dht;
pub(crate) mod gossip;
pub(crate) mod quic;
pub(crate) mod ron;
pub(crate) mod stores;
pub(crate) mod tls;
pub(crate) mod transfer;

use tokio_util::codec::LengthDelimitedCodec;

/// The protocol that all of them agree on in their handshakes.
pub(crate) const ALPN: &str = "ron-bench/1";

/// What the bare contenders gather before they write and read at once. The codec's own default is 8 KiB, with which
/// it is slower.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

/// The framing of the bare contenders: four bytes of length and the frame.
pub(crate) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(1 << 20).new_codec()
}
