//! The outside of a node: one request out, one answer in.
//!
//! The search knows nothing of links. Over an endpoint, a question goes through the session with the peer; in a
//! simulation of ten thousand nodes it is a function call after a pause.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ron_core::{
    Deadline, LaneSpec, NodeId, Supervisor,
    net::{
        BoxFuture, Endpoint, NetError,
        oap::Code,
        rpc::{self, Fault, Handling, Method, Peers, PeersSettings, Protocol, RpcError, Service},
    },
};

pub use crate::logic::{
    addrs::Sender,
    wire::{Answer, Put, RecordOutcome, Request, Want, WireError},
};
use crate::{
    Settings,
    logic::{Contact, lookup::Failure, wire::method},
};

/// The name of the protocol in the TLS handshake.
pub const ALPN: &str = "ron/dht/1";

pub(crate) const LINKS: LaneSpec = LaneSpec::new("ron-dht", "links", 256)
    .flow("endpoint → sessions")
    .why("links that were opened in the time of one handshake");

const PROTOCOL: Protocol = Protocol { alpn: ALPN, proto: 1, links: LINKS };

/// The answer to a question, and where it came from.
#[derive(Debug, Clone)]
pub struct Reply {
    /// What the peer said.
    pub answer: Answer,
    /// Where the peer is, as seen from here: not what it says of itself.
    pub observed: IpAddr,
    /// Where it takes calls: where this node dialled it. Unknown over a link that the peer opened.
    pub dialled: Option<SocketAddr>,
}

/// How a node reaches others.
pub trait Network: fmt::Debug + Send + Sync + 'static {
    /// Asks `to`. Dropping the future gives the question up.
    fn ask(
        &self,
        to: &Contact,
        request: Arc<Request>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Result<Reply, Failure>>;

    /// Whether there is a link with this peer, so that a question to it takes one round trip and no more.
    fn is_linked(&self, peer: &NodeId) -> bool {
        let _ = peer;
        true
    }

    /// Where others can reach this node. Empty if they cannot.
    fn listening(&self) -> Vec<SocketAddr>;
}

/// How a node is reached by others.
pub trait Answers: Send + Sync + 'static {
    /// Answers at once, or says that it takes a while.
    fn answer(&self, from: Sender, request: Request, deadline: Deadline) -> Served;

    /// Answers a request as it came over a link. Whoever limits what peers may ask does so before it looks into it.
    fn answer_encoded(&self, from: Sender, method: u16, body: &Bytes, deadline: Deadline) -> Served {
        match Request::decode(method, body) {
            Ok(request) => self.answer(from, request, deadline),
            Err(error) => Served::Now(Err(refusal(method, &error))),
        }
    }
}

/// What is told to somebody whose request is none.
pub(crate) fn refusal(method: u16, error: &WireError) -> Fault {
    let code = if name(method) == "unknown" { Code::NotFound } else { Code::BadRequest };
    Fault::new(code, error.to_string())
}

/// How a request is served.
pub enum Served {
    /// Answered.
    Now(Result<Answer, Fault>),
    /// Will be answered.
    Later(BoxFuture<'static, Result<Answer, Fault>>),
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Served::Now(_)) { "Now" } else { "Later" })
    }
}

/// The network over an endpoint's links.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    peers: Peers,
    /// Where others can reach us, if it is not where we listen.
    external: Vec<SocketAddr>,
    seeds: Arc<Seeds>,
}

/// Whom the host gave us to begin with. If somebody else is where one of them should be, the host is told.
#[derive(Debug)]
struct Seeds {
    ids: Vec<NodeId>,
    /// Whether that was told: once is enough, and an impostor may change its name as often as it likes.
    is_told: AtomicBool,
}

impl Seeds {
    fn on_unreachable(&self, error: &RpcError) {
        let RpcError::Unreachable { error: NetError::WrongIdentity { expected, found }, .. } = error else {
            return;
        };
        if self.ids.contains(expected) && !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(%expected, %found, "a seed is not who answers at its address; is its id or address old?");
        }
    }
}

impl Links {
    pub(crate) fn start(
        endpoint: &Endpoint,
        answers: Weak<dyn Answers>,
        settings: PeersSettings,
        external: Vec<SocketAddr>,
        seeds: Vec<NodeId>,
        supervisor: &Supervisor,
    ) -> Result<Self, NetError> {
        let service = Arc::new(Listener { answers });
        let seeds = Arc::new(Seeds { ids: seeds, is_told: AtomicBool::new(false) });
        Ok(Links { peers: Peers::start(endpoint, PROTOCOL, service, settings, supervisor)?, external, seeds })
    }
}

impl Network for Links {
    fn ask(
        &self,
        to: &Contact,
        request: Arc<Request>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Result<Reply, Failure>> {
        let (peers, seeds, to) = (self.peers.clone(), Arc::clone(&self.seeds), to.clone());
        Box::pin(async move {
            let (number, body) = request.encode();
            // A link may end for another one's sake, or because nobody used it, while a question is under way. That is not
            // the peer's doing, and a question may be asked twice.
            let mut may_repeat = !matches!(*request, Request::Provide { .. } | Request::Store { .. });
            let (session, called) = loop {
                let session = match peers.get(to.id) {
                    Some(session) => session,
                    // Boxed, because mostly there is a session, and then nobody needs the room for a dial.
                    None => {
                        let dialled = Box::pin(peers.session(to.id, &to.addrs, deadline)).await;
                        dialled.map_err(|error| {
                            seeds.on_unreachable(&error);
                            failure(&error)
                        })?
                    }
                };
                let called = session.call(named(number), &body, deadline).await;
                if !(may_repeat && matches!(called, Err(RpcError::Closed))) {
                    break (session, called);
                }
                may_repeat = false;
            };
            let body = called.map_err(|error| failure(&error))?;
            let answer = Answer::decode(number, &body).map_err(|_| Failure::Invalid)?;
            let dialled = (session.side() == rpc::Side::Dialer).then(|| session.remote());
            Ok(Reply { answer, observed: session.remote().ip(), dialled })
        })
    }

    fn is_linked(&self, peer: &NodeId) -> bool {
        self.peers.get(*peer).is_some()
    }

    fn listening(&self) -> Vec<SocketAddr> {
        if self.external.is_empty() {
            self.peers.endpoint().local_addrs().to_vec()
        } else {
            self.external.clone()
        }
    }
}

fn failure(error: &RpcError) -> Failure {
    match error {
        RpcError::Busy { what: "peer", retry_after } => Failure::Busy { retry_after: *retry_after },
        // What was full, or is stopping, is on our side.
        RpcError::Busy { .. } | RpcError::Canceled | RpcError::Panicked { .. } => Failure::Local,
        RpcError::Timeout { .. } => Failure::Timeout,
        RpcError::Refused { code: Code::Unavailable, .. }
        | RpcError::Closed
        | RpcError::Unreachable { .. } => Failure::Unreachable,
        _ => Failure::Invalid,
    }
}

fn named(number: u16) -> Method {
    Method { number, name: name(number) }
}

/// The name of a method in metrics and errors.
pub(crate) fn name(number: u16) -> &'static str {
    match number {
        method::PING => "ping",
        method::FIND_NODE => "find_node",
        method::FIND_VALUE => "find_value",
        method::PROVIDE => "provide",
        method::STORE => "store",
        _ => "unknown",
    }
}

/// The listener: what peers ask over their sessions.
struct Listener {
    /// Weak, because the node holds its network.
    answers: Weak<dyn Answers>,
}

impl Service for Listener {
    fn call(&self, call: rpc::Request) -> Handling {
        let Some(answers) = self.answers.upgrade() else {
            return Handling::Done(Err(Fault::new(Code::Unavailable, "stopping")));
        };
        let caller = Sender { id: call.peer(), ip: call.remote().ip() };
        match answers.answer_encoded(caller, call.method(), call.body(), call.deadline()) {
            Served::Now(answer) => Handling::Done(answer.map(|answer| answer.encode().1)),
            Served::Later(answer) => {
                Handling::Pending(Box::pin(async move { answer.await.map(|answer| answer.encode().1) }))
            }
        }
    }
}

/// The limits of the links: many short questions to many peers.
pub(crate) fn peers_settings(settings: &Settings) -> PeersSettings {
    PeersSettings {
        rpc: rpc::RpcSettings {
            request_bytes_max: crate::logic::wire::MESSAGE_BYTES_MAX as u32,
            budget_max: Duration::from_secs(30),
            idle_timeout: settings.idle_timeout,
            read_timeout: settings.read_timeout,
            write_timeout: settings.write_timeout,
            ..rpc::RpcSettings::default()
        },
        sessions_max: settings.sessions_max,
        dial_timeout: settings.rpc_timeout,
        drain: settings.drain,
        // Of all sessions together; what `rpc` says is for one that has no others beside it.
        queued_bytes_max: settings.links_bytes,
        requests_bytes_max: settings.links_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links of a session without others beside it have limits of the same name, which nobody reads here.
    #[test]
    fn links_hold_as_many_bytes_as_they_are_allowed() {
        let peers = peers_settings(&Settings { links_bytes: 7, ..Settings::default() });
        assert_eq!((peers.queued_bytes_max, peers.requests_bytes_max), (7, 7));
    }
}
