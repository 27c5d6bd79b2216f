//! Asks peers for the parts that a [`Plan`] says, all in one task, and hands out each group once.

use std::{
    collections::VecDeque,
    future::poll_fn,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use ron_core::{
    ContentId, Deadline, NodeId,
    net::{BoxFuture, oap::Code},
    now,
};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{FetchError, FetchEvent, PeerOutcome, Telling};
use crate::{
    logic::{
        fetch::{Failure, GroupMap, PROBE, Patience, Plan, Step, bytes_of},
        tree::{GROUP, Shape},
    },
    peers::{Groups, PeerError, Pieces, ProvenGroup, Want},
};

/// A question on its way.
pub(crate) type Asking = BoxFuture<'static, Result<Pieces, PeerError>>;

/// Whom an engine asks.
pub(crate) trait Source: Send + Sync {
    /// Asks the peer with this number.
    fn get(&self, peer: usize, want: Want, deadline: Deadline) -> Asking;

    /// Who they are.
    fn ids(&self) -> Vec<NodeId>;
}

/// A group that came, is proven, and did not come before.
pub(crate) struct Got {
    pub(crate) group: u64,
    pub(crate) bytes: Bytes,
    /// Nodes of the tree that came with it.
    pub(crate) nodes: Vec<(u64, [u8; 64])>,
}

/// One question and its answer.
struct Lane {
    ask: u64,
    peer: usize,
    want: Want,
    state: State,
    /// What came of one that asks for the length too: it counts when all of it has come.
    held: Option<Vec<Got>>,
}

enum State {
    Asking(Asking),
    Reading(Box<Groups>),
}

/// What a lane has to say.
enum Said {
    Group(ProvenGroup, Vec<(u64, [u8; 64])>),
    End(Result<(), PeerError>),
}

/// A fetch that is under way.
pub(crate) struct Engine {
    id: ContentId,
    source: Box<dyn Source>,
    peers: Vec<PeerOutcome>,
    is_told: Vec<bool>,
    patience: Patience,
    plan: Plan,
    lanes: Vec<Lane>,
    /// Where the next look at the lanes begins, so that none starves the others.
    turn: usize,
    shape: Option<Shape>,
    len_max: u64,
    ready: VecDeque<Got>,
    keeps_nodes: bool,
    received: u64,
    deadline: Deadline,
    /// When its clock began, which stands still while nobody takes what came: whoever pauses is not what a peer is blamed
    /// for.
    began: Instant,
    /// Since when it stands still.
    paused: Option<Instant>,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
    telling: Arc<Telling>,
}

impl Engine {
    pub(crate) fn new(
        id: ContentId,
        source: Box<dyn Source>,
        patience: Patience,
        len_max: u64,
        telling: &Arc<Telling>,
        deadline: Deadline,
    ) -> Self {
        let peers: Vec<PeerOutcome> =
            source.ids().into_iter().map(|peer| PeerOutcome { peer, bytes: 0, error: None }).collect();
        Engine {
            id,
            source,
            is_told: vec![false; peers.len()],
            patience,
            plan: Plan::new(peers.len(), patience),
            peers,
            lanes: Vec::new(),
            turn: 0,
            shape: None,
            len_max,
            ready: VecDeque::new(),
            keeps_nodes: false,
            received: 0,
            deadline,
            began: now(),
            paused: None,
            timer: None,
            telling: Arc::clone(telling),
        }
    }

    /// Asks for nothing behind this group for now.
    pub(crate) fn limited(mut self, groups: u64) -> Self {
        self.plan = self.plan.limited(groups);
        self
    }

    pub(crate) fn set_limit(&mut self, groups: u64) {
        self.plan.set_limit(groups);
    }

    /// Hands out the nodes of the tree too.
    pub(crate) fn keep_nodes(&mut self) {
        self.keeps_nodes = true;
    }

    /// Goes on with an object of this length of which these groups are here.
    pub(crate) fn resume(&mut self, shape: Shape, map: GroupMap) {
        self.plan = Plan::resume(self.peers.len(), self.patience, map);
        self.begin(shape);
    }

    fn begin(&mut self, shape: Shape) {
        self.shape = Some(shape);
        let groups = self.plan.map().map_or(0, GroupMap::marked);
        self.telling.events.publish(FetchEvent::Began { id: self.id, len: shape.size(), groups });
    }

    pub(crate) fn id(&self) -> ContentId {
        self.id
    }

    /// What the object is, once that is proven.
    pub(crate) fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// New bytes so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn outcomes(&self) -> Vec<PeerOutcome> {
        self.peers.clone()
    }

    /// The next group, in whatever order they come; `None` when all are here. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Got>, FetchError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Got>, FetchError>> {
        if let Some(paused) = self.paused.take() {
            self.began += now().saturating_duration_since(paused);
        }
        loop {
            if let Some(got) = self.ready.pop_front() {
                self.paused = Some(now());
                return Poll::Ready(Ok(Some(got)));
            }
            self.follow_plan();
            if self.plan.is_done() {
                self.lanes.clear();
                return Poll::Ready(Ok(None));
            }
            if self.plan.is_lost() {
                return Poll::Ready(Err(FetchError::AllFailed { peers: self.outcomes() }));
            }
            if let Some((place, said)) = self.poll_lanes(cx) {
                self.on_said(place, said);
                continue;
            }
            let now = now();
            let Some(wake) = self.plan.wake_at(now.saturating_duration_since(self.began)) else {
                return Poll::Pending;
            };
            let at = self.began + wake;
            let timer = match &mut self.timer {
                Some((set, timer)) => {
                    if *set != at {
                        timer.as_mut().reset(at);
                        *set = at;
                    }
                    timer
                }
                none => &mut none.insert((at, Box::pin(sleep_until(at)))).1,
            };
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Does what the plan says.
    fn follow_plan(&mut self) {
        let elapsed = now().saturating_duration_since(self.began);
        while let Some(step) = self.plan.poll(elapsed) {
            let (ask, peer, want) = match step {
                Step::Cancel { ask } => {
                    self.lanes.retain(|lane| lane.ask != ask);
                    continue;
                }
                Step::Probe { ask, peer } => {
                    let ranges = vec![0..PROBE * GROUP];
                    (ask, peer, Want { id: self.id, ranges, with_last: true })
                }
                Step::Ask { ask, peer, groups } => {
                    (ask, peer, Want::part(self.id, vec![self.bytes(&groups)]))
                }
            };
            let held = want.with_last.then(Vec::new);
            let state = State::Asking(self.source.get(peer, want.clone(), self.deadline));
            self.lanes.push(Lane { ask, peer, want, state, held });
        }
        for peer in 0..self.peers.len() {
            if let Some(failure) = self.plan.gone(peer).filter(|_| !self.is_told[peer]) {
                self.is_told[peer] = true;
                let outcome = &mut self.peers[peer];
                let error = outcome.error.get_or_insert(PeerError::Timeout { op: "fetch" }).clone();
                self.telling.on_dropped(self.id, outcome.peer, failure, error);
            }
        }
    }

    fn bytes(&self, groups: &Range<u64>) -> Range<u64> {
        let bytes = bytes_of(groups);
        let size = self.shape.map_or(u64::MAX, |shape| shape.size());
        bytes.start..bytes.end.min(size).max(bytes.start + 1)
    }

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Option<(usize, Said)> {
        let count = self.lanes.len();
        for step in 0..count {
            let place = (self.turn + step) % count;
            if let Poll::Ready(said) = self.poll_lane(place, cx) {
                // It goes on with the same one as long as that has something, which is in the cache then.
                self.turn = place;
                return Some((place, said));
            }
        }
        None
    }

    fn poll_lane(&mut self, place: usize, cx: &mut Context<'_>) -> Poll<Said> {
        let (keeps_nodes, len_max) = (self.keeps_nodes, self.len_max);
        let lane = &mut self.lanes[place];
        loop {
            match &mut lane.state {
                State::Asking(asking) => match asking.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Said::End(Err(error))),
                    Poll::Ready(Ok(pieces)) => {
                        let groups = Groups::new(&lane.want, len_max, pieces);
                        let groups = if keeps_nodes { groups.with_nodes() } else { groups };
                        lane.state = State::Reading(Box::new(groups));
                    }
                },
                State::Reading(groups) => {
                    return groups.poll_next(cx).map(|next| {
                        let size = groups.object_len();
                        match next {
                            Ok(Some(_)) if self.shape.is_some_and(|shape| Some(shape.size()) != size) => {
                                Said::End(Err(PeerError::Foreign { what: "length" }))
                            }
                            Ok(Some(group)) => Said::Group(group, groups.take_nodes()),
                            Ok(None) => Said::End(Ok(())),
                            Err(error) => Said::End(Err(error)),
                        }
                    });
                }
            }
        }
    }

    fn on_said(&mut self, place: usize, said: Said) {
        let elapsed = now().saturating_duration_since(self.began);
        let lane = &mut self.lanes[place];
        let (ask, peer) = (lane.ask, lane.peer);
        match said {
            Said::Group(ProvenGroup { offset, bytes }, nodes) => {
                self.peers[peer].bytes += bytes.len() as u64;
                let got = Got { group: offset / GROUP, bytes, nodes };
                match &mut lane.held {
                    Some(held) => {
                        self.plan.on_heard(ask, elapsed);
                        held.push(got);
                    }
                    None => self.on_got(ask, got),
                }
            }
            Said::End(Ok(())) => {
                let lane = self.lanes.swap_remove(place);
                if let (Some(held), State::Reading(groups)) = (lane.held, lane.state) {
                    // The last group was among them, so the length is proven.
                    if let (None, Some(size)) = (self.shape, groups.object_len()) {
                        let shape = Shape::of(size);
                        self.plan.on_shape(shape);
                        self.begin(shape);
                    }
                    held.into_iter().for_each(|got| self.on_got(ask, got));
                }
                self.plan.on_end(ask, None, elapsed);
            }
            Said::End(Err(error)) => {
                self.lanes.swap_remove(place);
                tracing::debug!(id = %self.id, peer = %self.peers[peer].peer, %error, "a part did not come");
                let failure = failure(&error);
                self.peers[peer].error = Some(error);
                self.plan.on_end(ask, Some(failure), elapsed);
            }
        }
    }

    fn on_got(&mut self, ask: u64, got: Got) {
        let elapsed = now().saturating_duration_since(self.began);
        let len = got.bytes.len() as u64;
        if !self.plan.on_group(ask, got.group, elapsed) {
            self.telling.twice.add(len);
            return;
        }
        self.received += len;
        self.telling.bytes.add(len);
        if let Some(map) = self.plan.map().filter(|map| map.marked() % 16 == 0 || map.is_full()) {
            let (groups, of) = (map.marked(), map.groups());
            self.telling.events.publish(FetchEvent::Moved { id: self.id, groups, of });
        }
        self.ready.push_back(got);
    }
}

/// What an error says about asking the peer again.
fn failure(error: &PeerError) -> Failure {
    match error {
        error if error.is_lie() => Failure::Lied,
        PeerError::Busy { retry_after, .. } => Failure::Busy(*retry_after),
        PeerError::Refused { code: Code::Unavailable | Code::Failed, .. } => Failure::Away,
        PeerError::NotFound { .. }
        | PeerError::TooLarge { .. }
        | PeerError::Forbidden { .. }
        | PeerError::Declined(_)
        | PeerError::Refused { .. } => Failure::Refused,
        _ => Failure::Away,
    }
}
