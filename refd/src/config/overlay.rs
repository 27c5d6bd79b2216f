//! The section `[overlay]`: what of [`ron_overlay::Settings`] a file can say.

use std::{num::NonZeroUsize, time::Duration};

use serde::{Deserialize, Serialize};

use super::{ConfigError, in_file, millis};

documented! {
/// Sessions and gossip. What is not set has the default of the library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OverlaySection {
    /// Topics to join at the start.
    pub(crate) topics: Vec<String>,
    /// Tasks that share the topics among them.
    pub(crate) engines: NonZeroUsize,
    /// Tasks that verify signatures.
    pub(crate) checkers: NonZeroUsize,
    /// Bytes that all queues, stores and unfinished messages hold together; by default the library's limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_max: Option<usize>,
    /// Sessions at once.
    pub(crate) max_conns: usize,
    /// Frames that may wait for one peer, of each class.
    pub(crate) inflight_frames: usize,
    /// Words, the units of gossip, that one peer may send per second.
    pub(crate) max_rps: u32,
    /// Peers that one message is pushed to at once.
    pub(crate) relay_fanout: usize,
    /// Messages per second that one peer may fetch after it missed them.
    pub(crate) burst_budget_frames: u32,
    /// Bytes of a large message that are sent in one piece.
    pub(crate) chunk_bytes: usize,
    /// Longest frame.
    pub(crate) max_frame_bytes: usize,
    /// How long a frame may take to arrive once it has begun.
    pub(crate) read_timeout_ms: u64,
    /// How long a peer may take to accept what is sent to it.
    pub(crate) write_timeout_ms: u64,
    /// How long a session may be silent.
    pub(crate) idle_timeout_ms: u64,
    /// How long a peer may take to send its HELLO.
    pub(crate) handshake_timeout_ms: u64,
    /// How long a stop may take to leave all topics and to send what waits.
    pub(crate) drain_ms: u64,
}
}

impl Default for OverlaySection {
    fn default() -> Self {
        let default = ron_overlay::Settings::default();
        OverlaySection {
            topics: Vec::new(),
            engines: default.engines,
            checkers: default.checkers,
            bytes_max: None,
            max_conns: default.max_conns,
            inflight_frames: default.peer.inflight_frames,
            max_rps: default.peer.max_rps,
            relay_fanout: default.gossip.relay_fanout,
            burst_budget_frames: default.gossip.burst_budget_frames,
            chunk_bytes: default.chunk_bytes,
            max_frame_bytes: default.max_frame_bytes,
            read_timeout_ms: millis(default.read_timeout),
            write_timeout_ms: millis(default.write_timeout),
            idle_timeout_ms: millis(default.idle_timeout),
            handshake_timeout_ms: millis(default.handshake_timeout),
            drain_ms: millis(default.drain_deadline),
        }
    }
}

impl OverlaySection {
    /// As the overlay takes them.
    pub(crate) fn settings(&self) -> ron_overlay::Settings {
        let mut settings = ron_overlay::Settings {
            engines: self.engines,
            checkers: self.checkers,
            max_conns: self.max_conns,
            chunk_bytes: self.chunk_bytes,
            max_frame_bytes: self.max_frame_bytes,
            read_timeout: Duration::from_millis(self.read_timeout_ms),
            write_timeout: Duration::from_millis(self.write_timeout_ms),
            idle_timeout: Duration::from_millis(self.idle_timeout_ms),
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms),
            drain_deadline: Duration::from_millis(self.drain_ms),
            ..ron_overlay::Settings::default()
        };
        settings.peer.inflight_frames = self.inflight_frames;
        settings.peer.max_rps = self.max_rps;
        settings.gossip.relay_fanout = self.relay_fanout;
        settings.gossip.burst_budget_frames = self.burst_budget_frames;
        // One that is too small was refused when the file was read.
        match self.bytes_max {
            Some(bytes) => settings.clone().within(bytes, self.topics.len()).unwrap_or(settings),
            None => settings,
        }
    }

    /// What the library cannot see any more.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(bytes) = self.bytes_max {
            let settings =
                ron_overlay::Settings { engines: self.engines, ..ron_overlay::Settings::default() };
            settings.within(bytes, self.topics.len()).map_err(|error| in_file("overlay", error))?;
        }
        self.settings().check().map_err(|error| in_file("overlay", error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;
    use crate::config::{Flags, tests::load};

    #[test]
    fn every_key_of_the_overlay_reaches_it() {
        let default = OverlaySection::default();
        assert_eq!(default.settings(), ron_overlay::Settings::default());
        let text = toml::to_string(&default).unwrap();
        let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        assert_eq!(keys.len(), 15, "{keys:?}");
        let mut seen = vec![default.settings()];
        for key in keys.into_iter().filter(|key| *key != "topics") {
            let config = load(&format!("[overlay]\n{key} = 9\n"), &[], Flags::default()).unwrap();
            let settings = config.overlay.settings();
            // Neither the default nor what another key does.
            assert!(!seen.contains(&settings), "{key}");
            seen.push(settings);
            assert_eq!(load(&toml::to_string(&config).unwrap(), &[], Flags::default()).unwrap(), config);
        }
        let topics = [("REFD_OVERLAY__TOPICS", "[\"news\", \"weather\"]")];
        let config = load("", &topics, Flags::default()).unwrap();
        assert_eq!(config.overlay.topics, ["news", "weather"]);
    }
}
