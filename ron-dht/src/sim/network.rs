//! The network of a simulation: who is where, how far apart, and what gets lost on the way.
//!
//! A question is one timer, the round trip, and then a call of the function that answers it. Whatever goes wrong on the
//! way is silence until the deadline, as it is on the Internet. Every chance is drawn from one seeded generator in the
//! order of events, and every event goes into one hash, so two runs are the same if and only if their hashes are.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use ron_core::{
    Deadline, NodeId,
    net::{BoxFuture, oap::Code, rpc::Fault},
    now,
};
use tokio::time::Instant;

use crate::{
    logic::{
        Contact,
        addrs::Sender,
        lookup::Failure,
        wire::{Answer, Request},
    },
    network::{Answers, Network, Reply, Served},
};

/// The port of every simulated node.
const PORT: u16 = 4000;

/// Where simulated addresses begin: 32.0.0.1, then one /24 for each node, up to a million. Public, so that the rules
/// for strangers apply, and each in a network of its own unless a test says otherwise.
const FIRST_ADDRESS: u32 = 0x2000_0001;

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// The shortest and the longest way between two nodes. Each pair has its own, the same in both directions.
    /// Default 20 to 150 ms.
    pub latency: (Duration, Duration),
    /// How much longer a way can take than it usually does, as a share of it. Default 0.1.
    pub jitter: f64,
    /// The share of messages that are lost, questions and answers alike. Default none.
    pub loss: f64,
    /// Whether every message is put into bytes and read back, as on a wire. Costs time, so only small tests want it.
    pub is_encoded: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Conditions {
            latency: (Duration::from_millis(20), Duration::from_millis(150)),
            jitter: 0.1,
            loss: 0.0,
            is_encoded: false,
        }
    }
}

/// What was sent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Messages {
    /// Questions.
    pub asked: u64,
    /// How many of them were pings.
    pub pings: u64,
    /// Answers that arrived.
    pub answered: u64,
    /// Questions that nobody was there for, or that got lost, or whose answers did.
    pub lost: u64,
}

/// The network. Cloning shares it.
#[derive(Clone)]
pub struct SimNetwork {
    state: Arc<Mutex<State>>,
}

struct State {
    seed: u64,
    rng: fastrand::Rng,
    epoch: Instant,
    conditions: Conditions,
    numbers: HashMap<NodeId, u32>,
    places: Vec<Place>,
    messages: Messages,
    trace: blake3::Hasher,
}

/// One node as the network sees it.
struct Place {
    ip: IpAddr,
    answers: Weak<dyn Answers>,
    /// Who answers instead.
    impostor: Option<Arc<dyn Answers>>,
    is_dead: bool,
    is_silent: bool,
    /// How many times longer everything takes on its side.
    slowness: f64,
    /// Which part of a parted network it is in.
    side: u8,
}

/// What becomes of a question.
struct Flight {
    from: u32,
    to: u32,
    /// When the answer is back; `None` if the question never arrives.
    back: Option<Instant>,
    is_answer_lost: bool,
}

/// What goes into the trace.
#[derive(Clone, Copy)]
enum Mark {
    Asked = 1,
    Lost,
    Answered,
    Refused,
    Joined,
    Changed,
}

impl SimNetwork {
    /// A network without nodes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            epoch: now(),
            conditions: Conditions::default(),
            numbers: HashMap::new(),
            places: Vec::new(),
            messages: Messages::default(),
            trace: blake3::Hasher::new(),
        };
        SimNetwork { state: Arc::new(Mutex::new(state)) }
    }

    /// Gives `id` a place and an address of its own, and `answers` whatever it is asked. For whoever is not a whole
    /// node: [`Testnet`](super::Testnet) does this for its nodes.
    #[must_use]
    pub fn join(&self, id: NodeId, answers: Weak<dyn Answers>) -> SimLink {
        let number = self.lock().places.len() as u32;
        let ip = Ipv4Addr::from_bits(FIRST_ADDRESS + (number << 8));
        self.join_at(id, ip.into(), answers)
    }

    /// [`join`](Self::join) with a certain address, for nodes that share a network.
    #[must_use]
    pub fn join_at(&self, id: NodeId, ip: IpAddr, answers: Weak<dyn Answers>) -> SimLink {
        let mut state = self.lock();
        let number = state.places.len() as u32;
        let place =
            Place { ip, answers, impostor: None, is_dead: false, is_silent: false, slowness: 1.0, side: 0 };
        state.places.push(place);
        state.numbers.insert(id, number);
        state.note(Mark::Joined, number, 0);
        drop(state);
        SimLink { network: self.clone(), number, id, ip }
    }

    /// How messages travel from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.lock().conditions = conditions;
    }

    /// How messages travel.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        self.lock().conditions
    }

    /// From now on nothing reaches `id` and nothing comes from it: its machine is off.
    pub fn kill(&self, id: &NodeId) {
        self.change(id, |place| place.is_dead = true);
    }

    /// From now on `id` answers nothing, though it still asks. Or does again.
    pub fn silence(&self, id: &NodeId, is_silent: bool) {
        self.change(id, |place| place.is_silent = is_silent);
    }

    /// From now on everything takes so many times longer from and to `id`.
    pub fn slow_down(&self, id: &NodeId, times: f64) {
        self.change(id, |place| place.slowness = times);
    }

    /// Puts `id` on a side of a parted network; everybody begins on side 0. Sides do not hear each other.
    pub fn put_on_side(&self, id: &NodeId, side: u8) {
        self.change(id, |place| place.side = side);
    }

    /// Everybody hears everybody again.
    pub fn heal(&self) {
        self.lock().places.iter_mut().for_each(|place| place.side = 0);
    }

    /// Has `impostor` answer what `id` is asked. Gives who did until now, for an impostor that only changes a word.
    pub fn replace(&self, id: &NodeId, impostor: Arc<dyn Answers>) -> Weak<dyn Answers> {
        let mut state = self.lock();
        let Some(number) = state.numbers.get(id).copied() else { return Weak::<Nobody>::new() };
        let place = &mut state.places[number as usize];
        place.impostor = Some(impostor);
        place.answers.clone()
    }

    /// What was sent so far.
    #[must_use]
    pub fn messages(&self) -> Messages {
        self.lock().messages
    }

    /// The hash of everything that happened so far, in order and with its time.
    #[must_use]
    pub fn trace(&self) -> [u8; 32] {
        *self.lock().trace.finalize().as_bytes()
    }

    fn change(&self, id: &NodeId, change: impl FnOnce(&mut Place)) {
        let mut state = self.lock();
        if let Some(number) = state.numbers.get(id).copied() {
            change(&mut state.places[number as usize]);
            state.note(Mark::Changed, number, 0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls whoever answers for the flight's end, unless it has died on the way.
    fn arrive(
        &self,
        flight: &Flight,
        sender: Sender,
        request: Request,
        deadline: Deadline,
    ) -> Option<Served> {
        let state = self.lock();
        let place = &state.places[flight.to as usize];
        let answers = match &place.impostor {
            _ if place.is_dead || place.is_silent => None,
            Some(impostor) => Some(Arc::clone(impostor)),
            None => place.answers.upgrade(),
        };
        // Unlocked, because whoever answers may ask.
        drop(state);
        Some(answers?.answer(sender, request, deadline))
    }
}

impl State {
    fn note(&mut self, mark: Mark, from: u32, to: u32) {
        let at = now().saturating_duration_since(self.epoch).as_micros() as u64;
        let mut event = [0; 17];
        event[0] = mark as u8;
        event[1..9].copy_from_slice(&at.to_le_bytes());
        event[9..13].copy_from_slice(&from.to_le_bytes());
        event[13..].copy_from_slice(&to.to_le_bytes());
        self.trace.update(&event);
    }

    fn depart(&mut self, from: u32, to: &NodeId, is_ping: bool) -> Flight {
        self.messages.asked += 1;
        self.messages.pings += u64::from(is_ping);
        let lost = Flight { from, to: 0, back: None, is_answer_lost: false };
        let Some(to) = self.numbers.get(to).copied() else {
            self.note(Mark::Lost, from, u32::MAX);
            self.messages.lost += 1;
            return lost;
        };
        let Conditions { jitter, loss, .. } = self.conditions;
        // Drawn in any case, so that one node's death does not change everybody's luck.
        let (late, luck, return_luck) = (self.rng.f64(), self.rng.f64(), self.rng.f64());
        let (one, other) = (&self.places[from as usize], &self.places[to as usize]);
        let is_cut = one.is_dead || other.is_dead || other.is_silent || one.side != other.side;
        if is_cut || luck < loss {
            self.note(Mark::Lost, from, to);
            self.messages.lost += 1;
            return lost;
        }
        let slowness = one.slowness.max(other.slowness) * (1.0 + late * jitter);
        let back = now() + (self.way(from, to) * 2).mul_f64(slowness);
        self.note(Mark::Asked, from, to);
        Flight { from, to, back: Some(back), is_answer_lost: return_luck < loss }
    }

    /// The usual way between two nodes.
    fn way(&self, one: u32, other: u32) -> Duration {
        let pair = u64::from(one.min(other)) << 32 | u64::from(one.max(other));
        let share = (mixed(self.seed ^ mixed(pair)) >> 11) as f64 / (1_u64 << 53) as f64;
        let (least, most) = self.conditions.latency;
        least + most.saturating_sub(least).mul_f64(share)
    }
}

/// The finalizer of SplitMix64: every bit of the input changes about half of the output's.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// One node's way into the network.
#[derive(Clone)]
pub struct SimLink {
    network: SimNetwork,
    number: u32,
    id: NodeId,
    ip: IpAddr,
}

impl SimLink {
    /// This node as others know it.
    #[must_use]
    pub fn contact(&self) -> Contact {
        Contact { id: self.id, addrs: self.listening().into() }
    }

    async fn travel(self, to: NodeId, request: Arc<Request>, deadline: Deadline) -> Result<Reply, Failure> {
        let is_ping = matches!(*request, Request::Ping { .. });
        let flight = self.network.lock().depart(self.number, &to, is_ping);
        let Some(back) = flight.back.filter(|back| *back < deadline.instant()) else {
            tokio::time::sleep_until(deadline.instant()).await;
            return Err(Failure::Timeout);
        };
        tokio::time::sleep_until(back).await;
        let is_encoded = self.network.conditions().is_encoded;
        let method = request.method();
        let request = if is_encoded {
            let (method, body) = request.encode();
            Request::decode(method, &body).map_err(|_| Failure::Invalid)?
        } else {
            Arc::unwrap_or_clone(request)
        };
        let served = self.network.arrive(&flight, Sender { id: self.id, ip: self.ip }, request, deadline);
        let answer = match served {
            Some(Served::Now(answer)) => Some(answer),
            Some(Served::Later(answer)) => Some(answer.await),
            None => None,
        };
        let Some(answer) = answer.filter(|_| !flight.is_answer_lost) else {
            {
                let mut state = self.network.lock();
                state.messages.lost += 1;
                state.note(Mark::Lost, flight.to, flight.from);
            }
            tokio::time::sleep_until(deadline.instant()).await;
            return Err(Failure::Timeout);
        };
        let mut state = self.network.lock();
        state.messages.answered += 1;
        state.note(if answer.is_ok() { Mark::Answered } else { Mark::Refused }, flight.to, flight.from);
        let observed = state.places[flight.to as usize].ip;
        drop(state);
        let mut answer = answer.map_err(|fault| failure(&fault))?;
        if is_encoded {
            answer = Answer::decode(method, &answer.encode().1).map_err(|_| Failure::Invalid)?;
        }
        Ok(Reply { answer, observed, dialled: Some(SocketAddr::new(observed, PORT)) })
    }
}

impl Network for SimLink {
    fn ask(
        &self,
        to: &Contact,
        request: Arc<Request>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Result<Reply, Failure>> {
        Box::pin(self.clone().travel(to.id, request, deadline))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::new(self.ip, PORT)]
    }
}

fn failure(fault: &Fault) -> Failure {
    match fault.code {
        Code::Busy => Failure::Busy { retry_after: fault.retry_after.unwrap_or_default() },
        Code::Timeout => Failure::Timeout,
        Code::Unavailable => Failure::Unreachable,
        _ => Failure::Invalid,
    }
}

/// Answers for those who are not there.
struct Nobody;

impl Answers for Nobody {
    fn answer(&self, _: Sender, _: Request, _: Deadline) -> Served {
        Served::Now(Err(Fault::new(Code::Unavailable, "nobody is here")))
    }
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("SimNetwork")
            .field("seed", &state.seed)
            .field("nodes", &state.places.len())
            .field("messages", &state.messages)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SimLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLink({})", self.ip)
    }
}
