//! The reader's end of a session: what comes from a peer, up to the engine that has its topic.
//!
//! It runs in the task that reads the link, so it only decides whether a word is taken: the peer's rate, the form of
//! the word, whether there is room in the engine's lane. What is refused is counted, and told to the peer.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use ron_core::{
    NodeId, Snapshot,
    net::{
        oap::Code,
        rpc::{self, Fault, Handling, Outbox, Request, Service, Session},
    },
};

use crate::{
    Event, OverlayError,
    egress::{Egress, Taking},
    engine::Incoming,
    logic::{
        gossip::Offence,
        message::TopicId,
        parts::PartError,
        wire::{self, Shed, WireError, number},
    },
    metrics::{FRAME_REJECT, PARTS_REFUSED, SESSION_CLOSE},
    node::Node,
};

/// A message up to this size is copied out of what was read with it: kept, it would hold all of that in memory.
const COPY_MAX: usize = 16 << 10;

/// A second's worth of words beyond the rate counts as so many floods, twenty of which are too many.
const FLOODS_PER_SECOND: u32 = 50;

/// What answers requests of one number.
pub(crate) type Handler = Arc<dyn Fn(Request) -> Handling + Send + Sync>;

/// The handlers of a host, by number.
#[derive(Clone)]
pub(crate) struct Handlers(Snapshot<BTreeMap<u16, Handler>>);

impl Default for Handlers {
    fn default() -> Self {
        Handlers(Snapshot::new(BTreeMap::new()))
    }
}

impl Handlers {
    /// Enters a handler for requests of this number.
    pub(crate) fn add(&self, proto: u16, handler: Handler) -> Result<(), OverlayError> {
        let mut is_new = false;
        self.0.update(|handlers| {
            let mut handlers = handlers.clone();
            is_new = !handlers.contains_key(&proto);
            handlers.entry(proto).or_insert(handler);
            handlers
        });
        if is_new { Ok(()) } else { Err(OverlayError::Handled { proto }) }
    }

    /// Takes it out again.
    pub(crate) fn remove(&self, proto: u16) {
        self.0.update(|handlers| {
            let mut handlers = handlers.clone();
            handlers.remove(&proto);
            handlers
        });
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.load().keys()).finish()
    }
}

/// What peers say over their sessions.
pub(crate) struct Listener {
    /// Weak, because the node holds its sessions.
    pub(crate) node: Weak<Node>,
}

impl Service for Listener {
    fn call(&self, request: Request) -> Handling {
        let Some(node) = self.node.upgrade() else {
            return Handling::Done(Err(Fault::new(Code::Unavailable, "stopping")));
        };
        let handler = node.handlers.0.load().get(&request.method()).cloned();
        match handler {
            Some(handler) => handler(request),
            None => Handling::Done(Err(Fault::no_such_method())),
        }
    }

    fn event(&self, event: rpc::Event) {
        if let Some(node) = self.node.upgrade() {
            node.on_event(event);
        }
    }

    fn began(&self, session: &Session) -> Option<Arc<dyn Outbox>> {
        let node = self.node.upgrade()?;
        if node.is_banned(&session.peer()) {
            node.reject("banned");
            session.close();
            return None;
        }
        let Some(egress) = node.egress_or_new(session.peer()) else {
            session.close();
            return None;
        };
        if egress.set_session(session) {
            node.egress.tallies.opened.add(1);
            node.events.publish(Event::SessionOpened { peer: session.peer() });
        }
        let this = Weak::clone(&self.node);
        let since = Box::new(move || this.upgrade().map_or_else(Default::default, |node| node.since()));
        Some(Arc::new(Taking { egress, since }))
    }

    fn ended(&self, session: &Session, reason: &'static str) {
        let Some(node) = self.node.upgrade() else { return };
        let Some(egress) = node.egress(&session.peer()) else { return };
        // Words may have come after the peer was given up, and entered it again.
        if egress.is_orphan() {
            node.lose(&egress);
        } else if egress.lose_session(session) {
            node.metrics.tally(SESSION_CLOSE, reason).add(1);
            node.events.publish(Event::SessionClosed { peer: session.peer(), reason });
            node.lose(&egress);
        }
    }
}

impl Node {
    fn reject(&self, reason: &'static str) {
        self.metrics.tally(FRAME_REJECT, reason).add(1);
    }

    fn on_event(&self, event: rpc::Event) {
        let rpc::Event { peer, method, body, .. } = event;
        self.egress.tallies.received.add(1);
        let Some(egress) = self.egress_or_new(peer) else { return };
        let settings = self.settings();
        if let Err(refused) = egress.may_receive(settings.peer.max_rps, self.since()) {
            self.reject("rate");
            egress.refused(topic_of(method, &body));
            // A peer that relays a little more than is taken here is told of it, and not banned.
            if refused % (settings.peer.max_rps / FLOODS_PER_SECOND + 1) == 0 {
                self.on_offence(peer, Offence::Spam);
            }
            return;
        }
        let taken = match method {
            number::PIECE => self.on_piece(&egress, &body),
            number::SHED => wire::decode_shed(&body).map(|(topic, shed)| self.on_shed(&egress, topic, shed)),
            number::PUSH if body.len() <= COPY_MAX => {
                self.on_word(&egress, method, &Bytes::copy_from_slice(&body))
            }
            _ => self.on_word(&egress, method, &body),
        };
        if let Err(error) = taken {
            self.reject(error.reason());
            // A later version may have words that we do not know.
            if !matches!(error, WireError::UnknownWord { .. }) {
                self.on_offence(peer, Offence::Invalid);
            }
        }
    }

    fn on_word(&self, egress: &Egress, method: u16, body: &Bytes) -> Result<(), WireError> {
        let (topic, word) = wire::decode(method, body)?;
        let incoming = Incoming { from: egress.peer, topic, word };
        for refused in self.engine_of(&topic).hand(incoming, body.len()) {
            if refused.from == egress.peer {
                egress.refused(refused.topic);
                continue;
            }
            // It made room for a peer that has less waiting.
            match self.egress(&refused.from) {
                Some(other) => other.refused(refused.topic),
                None => self.egress.tallies.refused.add(1),
            }
        }
        Ok(())
    }

    fn on_piece(&self, egress: &Egress, body: &Bytes) -> Result<(), WireError> {
        let (method, part) = wire::decode_part(body)?;
        let now = self.since();
        let whole = self.parts.lock().on_part(egress.peer, &part, now);
        match whole {
            Ok(None) => Ok(()),
            Ok(Some(body)) => self.on_word(egress, method, &body),
            Err(error) => {
                let (reason, is_fault) = match error {
                    PartError::TooLarge { .. } => ("too_large", true),
                    PartError::OutOfOrder => ("out_of_order", false),
                    _ => ("full", false),
                };
                self.metrics.tally(PARTS_REFUSED, reason).add(1);
                egress.refused(topic_of(number::PIECE, body));
                if is_fault {
                    self.on_offence(egress.peer, Offence::Invalid);
                }
                Ok(())
            }
        }
    }

    fn on_shed(&self, egress: &Egress, topic: TopicId, shed: Shed) {
        let Shed { unsent, refused } = shed;
        self.egress.tallies.told.add(unsent.saturating_add(refused));
        if refused > 0 {
            egress.on_refused(self.since());
        }
        self.events.publish(Event::PeerShed { peer: egress.peer, topic, unsent, refused });
    }
}

/// The topic of a word, without a look at the rest of it. All zeros where there is none to be seen.
fn topic_of(method: u16, body: &[u8]) -> TopicId {
    // A map, the key 0, and a byte string of 32: `a? 00 58 20`.
    let is_topic = method != number::PIECE && body.get(1..4) == Some(&[0x00, 0x58, 0x20]);
    let bytes = body.get(4..36).filter(|_| is_topic).and_then(|bytes| bytes.try_into().ok());
    TopicId::from_bytes(bytes.unwrap_or([0; 32]))
}

/// A peer as it is now.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Who it is.
    pub id: NodeId,
    /// Where it is, as seen from here.
    pub remote: std::net::SocketAddr,
    /// Whether it dialled us.
    pub is_incoming: bool,
    /// The key exchange that protects the link.
    pub group: ron_core::net::KeyGroup,
    /// Frames that wait for it.
    pub waiting: usize,
    /// Bytes that wait for it.
    pub waiting_bytes: usize,
    /// Topics on which it is our neighbour.
    pub topics: usize,
    /// What its offences weigh now; at [`ban_at`](crate::ScoreSettings::ban_at) it is banned.
    pub points: f64,
}
