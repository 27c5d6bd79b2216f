//! A network of pretended peers, who know everybody and keep whatever they are given, with as many real nodes among them
//! as a test wants.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Deadline, Metrics, NodeId, Supervisor,
    net::{BoxFuture, Identity, oap::Code},
    now,
    prometheus_client::{encoding::text::encode, registry::Registry},
};
use ron_dht::{
    Builder, Contact, Dht, DhtError, Failure, Key, ProviderRecord, Value,
    network::{Answer, Answers, Network, Put, RecordOutcome, Reply, Request, Sender, Served, Want},
};
use tokio::time::Instant;

/// The wall clock at the start of every world.
pub(crate) const START: u64 = 1_800_000_000;

#[derive(Clone)]
pub(crate) struct World {
    inner: Arc<Inner>,
}

struct Inner {
    born: Instant,
    state: Mutex<State>,
    /// Questions of each kind, by method.
    asked: [AtomicUsize; 6],
}

#[derive(Default)]
struct State {
    /// Everybody, sorted.
    peers: Vec<NodeId>,
    real: HashMap<NodeId, Weak<dyn Answers>>,
    /// What pretended peers keep.
    kept: BTreeMap<(Key, NodeId), u64>,
    records: HashMap<Key, Vec<bytes::Bytes>>,
    /// What single peers say instead.
    told: HashMap<(Key, NodeId), Vec<bytes::Bytes>>,
    values: HashMap<(Key, NodeId), Value>,
    /// These say that they keep what they are given, and keep nothing.
    forgetful: HashSet<NodeId>,
    /// Where these say that they are, if it does not follow from their ids.
    moved: HashMap<NodeId, SocketAddr>,
    /// Where these are seen, if it does not follow from their ids.
    places: HashMap<NodeId, IpAddr>,
    /// Those who opened their links themselves.
    callers: HashSet<NodeId>,
    /// Where everybody says that these are.
    misplaced: HashMap<NodeId, SocketAddr>,
    silent: HashSet<NodeId>,
    /// How often these still say that they are busy.
    busy: HashMap<NodeId, usize>,
    /// And for how long they want to be left alone.
    busy_for: Duration,
    latency: Duration,
    /// These take so much longer.
    late: HashMap<NodeId, Duration>,
    refuse_records: bool,
    /// Those who are silent when they are asked to keep something.
    silent_keepers: HashSet<NodeId>,
    /// Whoever is asked to keep something is silent, or busy.
    silent_storage: bool,
    busy_storage: bool,
    panics: bool,
    /// Whoever asks every so many-th FIND_NODE panics; nobody if it is zero.
    panic_at: usize,
    /// Where the lies of pretended peers come from; without it they are honest.
    lies: Option<fastrand::Rng>,
}

impl World {
    pub(crate) fn of(peers: u64) -> World {
        let mut state = State { latency: Duration::from_millis(1), ..State::default() };
        state.peers = (0..peers).map(id).collect();
        state.peers.sort();
        let inner = Inner {
            born: now(),
            state: Mutex::new(state),
            asked: std::array::from_fn(|_| AtomicUsize::new(0)),
        };
        World { inner: Arc::new(inner) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap()
    }

    pub(crate) fn unix(&self) -> u64 {
        START + self.inner.born.elapsed().as_secs()
    }

    /// Starts a real node, with the first three peers as its seeds.
    pub(crate) async fn start(
        &self,
        number: u64,
        host: &Supervisor,
        builder: Builder,
    ) -> Result<Dht, DhtError> {
        let identity = Arc::new(Identity::from_seed(blake3::hash(&number.to_be_bytes()).as_bytes()));
        let own = identity.node_id();
        let seeds: Vec<Contact> =
            self.state().peers.iter().filter(|id| **id != own).take(3).map(contact).collect();
        let (world, clock) = (self.clone(), self.clone());
        let builder = builder.seeds(seeds).seed(number).unix_clock(move || clock.unix());
        let network = |answers: Weak<dyn Answers>, _: &Supervisor| -> Result<Arc<dyn Network>, DhtError> {
            let mut state = world.state();
            state.real.insert(own, answers);
            if let Err(at) = state.peers.binary_search(&own) {
                state.peers.insert(at, own);
            }
            drop(state);
            Ok(Arc::new(Link { world: world.clone(), own }))
        };
        builder.start_on(identity, host, network).await
    }

    /// Starts a real node and waits until it is ready.
    pub(crate) async fn node(&self, number: u64, host: &Supervisor, builder: Builder) -> Dht {
        let dht = self.start(number, host, builder).await.unwrap();
        ready(&dht).await;
        dht
    }

    pub(crate) fn closest(&self, key: &Key, count: usize, except: &NodeId) -> Vec<NodeId> {
        nearest(&self.state().peers, key, count, except)
    }

    /// With which number this peer keeps the key.
    pub(crate) fn kept_by(&self, key: &Key, peer: &NodeId) -> Option<u64> {
        self.state().kept.get(&(*key, *peer)).copied()
    }

    pub(crate) fn copies(&self) -> usize {
        self.state().kept.len()
    }

    pub(crate) fn silence(&self, peers: impl IntoIterator<Item = NodeId>) {
        self.state().silent.extend(peers);
    }

    /// Nobody but these is silent from now on.
    pub(crate) fn silence_only(&self, peers: impl IntoIterator<Item = NodeId>) {
        self.state().silent = peers.into_iter().collect();
    }

    pub(crate) fn busy(&self, times: usize) {
        let mut state = self.state();
        let peers = state.peers.clone();
        state.busy = peers.into_iter().map(|id| (id, times)).collect();
    }

    /// From now on these, and nobody else, are silent when they are asked to keep something.
    pub(crate) fn silence_keepers(&self, peers: impl IntoIterator<Item = NodeId>) {
        self.state().silent_keepers = peers.into_iter().collect();
    }

    /// From now on these take so much longer.
    pub(crate) fn delay(&self, peers: impl IntoIterator<Item = NodeId>, by: Duration) {
        self.state().late = peers.into_iter().map(|peer| (peer, by)).collect();
    }

    /// How long the busy ask to be left alone.
    pub(crate) fn busy_for(&self, pause: Duration) {
        self.state().busy_for = pause;
    }

    pub(crate) fn silence_storage(&self) {
        self.state().silent_storage = true;
    }

    pub(crate) fn busy_storage(&self, busy: bool) {
        self.state().busy_storage = busy;
    }

    /// More peers.
    pub(crate) fn add(&self, peers: u64) {
        self.join((0..peers).map(id));
    }

    /// More peers, with these ids.
    pub(crate) fn join(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut state = self.state();
        state.peers.extend(ids);
        state.peers.sort();
    }

    /// More peers, all seen at one address.
    pub(crate) fn join_at(&self, ids: impl IntoIterator<Item = NodeId>, ip: IpAddr) {
        let ids: Vec<NodeId> = ids.into_iter().collect();
        self.state().places.extend(ids.iter().map(|id| (*id, ip)));
        self.join(ids);
    }

    /// Where a peer is dialled, unless it is one that has called itself.
    fn dialled(&self, id: &NodeId) -> Option<SocketAddr> {
        let called = self.state().callers.contains(id);
        (!called).then(|| SocketAddr::new(self.ip(id), 4710))
    }

    /// These are asked over links that they opened.
    pub(crate) fn callers(&self, peers: impl IntoIterator<Item = NodeId>) {
        self.state().callers.extend(peers);
    }

    /// Has everybody name these addresses for this peer.
    pub(crate) fn misplace(&self, peer: NodeId, addr: SocketAddr) {
        self.state().misplaced.insert(peer, addr);
    }

    fn ip(&self, id: &NodeId) -> IpAddr {
        self.state().places.get(id).copied().unwrap_or_else(|| ip(id))
    }

    /// From its next start on, this node listens elsewhere.
    pub(crate) fn move_to(&self, id: NodeId, addr: SocketAddr) {
        self.state().moved.insert(id, addr);
    }

    /// The record of a key that was last brought to a pretended peer.
    pub(crate) fn record(&self, key: &Key) -> Option<ProviderRecord> {
        ProviderRecord::decode(self.state().records.get(key)?.last()?).ok()
    }

    pub(crate) fn refuse_records(&self, refuse: bool) {
        self.state().refuse_records = refuse;
    }

    pub(crate) fn latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    pub(crate) fn panics(&self, panics: bool) {
        self.state().panics = panics;
    }

    /// From now on whoever asks every so many-th FIND_NODE panics.
    pub(crate) fn panic_at(&self, questions: usize) {
        self.state().panic_at = questions;
    }

    /// From now on pretended peers answer anything.
    pub(crate) fn lie(&self, seed: u64) {
        self.state().lies = Some(fastrand::Rng::with_seed(seed));
    }

    pub(crate) fn peers(&self) -> Vec<NodeId> {
        self.state().peers.clone()
    }

    pub(crate) fn forgetful(&self, peers: impl IntoIterator<Item = NodeId>) {
        self.state().forgetful.extend(peers);
    }

    /// Has `peer` hold this record as the only provider of its key that it knows.
    pub(crate) fn hold_record(&self, peer: NodeId, record: &ProviderRecord) {
        let mut state = self.state();
        state.kept.insert((record.key(), peer), record.seq());
        state.records.entry(record.key()).or_default().push(record.encoded().clone());
    }

    /// Has `peer` name these providers of the key, whatever others name.
    pub(crate) fn tell(&self, peer: NodeId, key: Key, records: Vec<bytes::Bytes>) {
        self.state().told.insert((key, peer), records);
    }

    pub(crate) fn hold_value(&self, peer: NodeId, value: &Value) {
        self.state().values.insert((value.key(), peer), value.clone());
    }

    pub(crate) fn forget_values(&self) {
        self.state().values.clear();
    }

    pub(crate) fn real(&self, id: &NodeId) -> Weak<dyn Answers> {
        self.state().real[id].clone()
    }

    /// How many questions of this method were asked.
    pub(crate) fn asked(&self, method: u16) -> usize {
        self.inner.asked[usize::from(method)].load(Ordering::Relaxed)
    }

    fn answer(&self, to: NodeId, request: &Request) -> Result<Answer, Failure> {
        let mut state = self.state();
        if let Some(times) = state.busy.get_mut(&to).filter(|times| **times > 0) {
            *times -= 1;
            return Err(Failure::Busy { retry_after: state.busy_for });
        }
        if let Some(mut rng) = state.lies.take() {
            let lie = lie(&state.peers, to, request, &mut rng);
            state.lies = Some(rng);
            return lie;
        }
        let named = |state: &State, id: &NodeId| match state.misplaced.get(id) {
            Some(addr) => Contact { id: *id, addrs: [*addr].into() },
            None => contact(id),
        };
        let closer = |state: &State, key: &Key| {
            nearest(&state.peers, key, 20, &to).iter().map(|id| named(state, id)).collect()
        };
        Ok(match request {
            Request::Ping { .. } => Answer::Pong,
            Request::FindNode { target } => Answer::Nodes { closer: closer(&state, target) },
            Request::FindValue { key, want, .. } => {
                let providers = match want {
                    Want::Providers if state.told.contains_key(&(*key, to)) => {
                        state.told[&(*key, to)].clone()
                    }
                    Want::Providers if state.kept.contains_key(&(*key, to)) => {
                        state.records.get(key).cloned().unwrap_or_default()
                    }
                    _ => Vec::new(),
                };
                let value = state.values.get(&(*key, to)).map(|value| value.encoded().clone());
                Answer::Found { closer: closer(&state, key), providers, value }
            }
            Request::Provide { records } => {
                let mut results = Vec::new();
                for encoded in records {
                    let record = ProviderRecord::decode(encoded).unwrap();
                    results.push(if state.refuse_records {
                        RecordOutcome::Full
                    } else {
                        RecordOutcome::Kept
                    });
                    if !state.refuse_records && !state.forgetful.contains(&to) {
                        state.kept.insert((record.key(), to), record.seq());
                        state.records.insert(record.key(), vec![encoded.clone()]);
                    }
                }
                Answer::Provided { results }
            }
            Request::Store { values } => {
                let results = values.iter().map(|put| state.store(to, put)).collect();
                Answer::Stored { results }
            }
        })
    }
}

impl State {
    fn store(&mut self, to: NodeId, put: &Put) -> RecordOutcome {
        let value = Value::decode(&put.value).unwrap();
        let seq = |value: &Value| value.signer().map_or(0, |signer| signer.seq);
        let held = self.values.get(&(value.key(), to)).map(seq);
        match held {
            Some(held) if held > seq(&value) => return RecordOutcome::Stale { held },
            Some(held) if put.expected.is_some_and(|expected| expected != held) => {
                return RecordOutcome::Conflict { held };
            }
            _ if self.forgetful.contains(&to) => {}
            _ => drop(self.values.insert((value.key(), to), value)),
        }
        RecordOutcome::Kept
    }
}

#[derive(Debug)]
struct Link {
    world: World,
    own: NodeId,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl Network for Link {
    fn ask(
        &self,
        to: &Contact,
        request: Arc<Request>,
        deadline: Deadline,
    ) -> BoxFuture<'static, Result<Reply, Failure>> {
        let (world, to, own) = (self.world.clone(), to.id, self.own);
        let asked = world.inner.asked[usize::from(request.method())].fetch_add(1, Ordering::Relaxed);
        let (panics, panic_at) = {
            let state = world.state();
            (state.panics, state.panic_at)
        };
        let is_search = matches!(*request, Request::FindNode { .. });
        let is_due = is_search && panic_at > 0 && asked % panic_at == 0;
        assert!(!panics && !is_due, "on purpose");
        Box::pin(async move {
            let (latency, is_silent, real) = {
                let state = world.state();
                let is_storage = matches!(*request, Request::Provide { .. } | Request::Store { .. });
                if is_storage && state.busy_storage {
                    return Err(Failure::Busy { retry_after: Duration::ZERO });
                }
                let keeps_not = state.silent_storage || state.silent_keepers.contains(&to);
                let is_silent = state.silent.contains(&to) || is_storage && keeps_not;
                let late = state.late.get(&to).copied().unwrap_or_default();
                (state.latency + late, is_silent, state.real.get(&to).cloned())
            };
            if is_silent {
                tokio::time::sleep_until(deadline.instant()).await;
                return Err(Failure::Timeout);
            }
            if !latency.is_zero() {
                tokio::time::sleep(latency.min(deadline.remaining())).await;
                if deadline.has_passed() {
                    return Err(Failure::Timeout);
                }
            }
            let Some(real) = real else {
                let (observed, dialled) = (world.ip(&to), world.dialled(&to));
                return world.answer(to, &request).map(|answer| Reply { answer, observed, dialled });
            };
            let real = real.upgrade().ok_or(Failure::Unreachable)?;
            let served = real.answer(Sender { id: own, ip: ip(&own) }, (*request).clone(), deadline);
            let answered = match served {
                Served::Now(answered) => answered,
                Served::Later(later) => later.await,
            };
            match answered {
                Ok(answer) => Ok(Reply { answer, observed: ip(&to), dialled: world.dialled(&to) }),
                Err(fault) if fault.code == Code::Busy => {
                    Err(Failure::Busy { retry_after: fault.retry_after.unwrap_or_default() })
                }
                Err(_) => Err(Failure::Unreachable),
            }
        })
    }

    fn listening(&self) -> Vec<SocketAddr> {
        let moved = self.world.state().moved.get(&self.own).copied();
        vec![moved.unwrap_or(SocketAddr::new(ip(&self.own), 4710))]
    }
}

/// By looking at everybody. The first half of an id tells peers apart.
fn nearest(peers: &[NodeId], key: &Key, count: usize, except: &NodeId) -> Vec<NodeId> {
    let short = |bytes: &[u8; 32]| u128::from_be_bytes(*bytes.first_chunk().unwrap());
    let target = short(key.as_bytes());
    let mut near: Vec<(u128, &NodeId)> = peers.iter().map(|id| (short(id.as_bytes()) ^ target, id)).collect();
    let count = count + 1;
    if count < near.len() {
        near.select_nth_unstable(count);
        near.truncate(count);
    }
    near.sort_unstable();
    near.into_iter().map(|(_, id)| *id).filter(|id| id != except).take(count - 1).collect()
}

/// Whatever a peer may answer: failures, answers to other questions, crowds that do not exist or are asked already, itself.
fn lie(peers: &[NodeId], to: NodeId, request: &Request, rng: &mut fastrand::Rng) -> Result<Answer, Failure> {
    let target = match request {
        Request::FindNode { target } => *target,
        Request::FindValue { key, .. } => *key,
        _ => Key::from(to),
    };
    let names = rng.usize(..60);
    let mut name = || match rng.u8(..5) {
        0 => to,
        1 => NodeId::from_bytes(*target.as_bytes()),
        2 => peers[rng.usize(..peers.len())],
        // Nobody, and the nearer to the target the more bytes are left.
        kind => {
            let mut id = *target.as_bytes();
            let kept = if kind == 3 { rng.usize(..32) } else { 31 };
            rng.fill(&mut id[kept..]);
            NodeId::from_bytes(id)
        }
    };
    let closer: Vec<Contact> = std::iter::repeat_with(|| contact(&name())).take(names).collect();
    Ok(match rng.u8(..8) {
        0 => return Err(Failure::Busy { retry_after: Duration::ZERO }),
        1 => return Err(Failure::Invalid),
        2 => Answer::Pong,
        3 => Answer::Provided { results: Vec::new() },
        4 => {
            Answer::Found { closer, providers: vec![vec![7; 200].into(); 5], value: Some(vec![9; 50].into()) }
        }
        _ => Answer::Nodes { closer },
    })
}

pub(crate) fn id(number: u64) -> NodeId {
    NodeId::of_public_key(blake3::hash(&number.to_be_bytes()).as_bytes())
}

pub(crate) fn key(number: u64) -> Key {
    Key::from_bytes(*blake3::hash(format!("key {number}").as_bytes()).as_bytes())
}

pub(crate) fn contact(id: &NodeId) -> Contact {
    Contact { id: *id, addrs: [SocketAddr::new(ip(id), 4710)].into() }
}

fn ip(id: &NodeId) -> IpAddr {
    let [a, b, c, ..] = *id.as_bytes();
    [10, a, b, c].into()
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// What a node counts, as a scrape shows it.
pub(crate) struct Counts {
    registry: Registry,
    metrics: Metrics,
}

impl Counts {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register("ron_dht", &mut registry);
        Counts { registry, metrics }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The value of a series without its prefix; zero if there is none.
    pub(crate) fn get(&self, series: &str) -> u64 {
        let text = self.text();
        let value = text.lines().find_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            (name.strip_prefix("ron_dht_")? == series).then(|| value.parse::<f64>().unwrap())
        });
        value.unwrap_or_default() as u64
    }
}

/// A host whose blocking calls run inline, so that the paused clock waits for them.
pub(crate) fn host() -> Supervisor {
    Supervisor::builder("host").inline_blocking(true).start()
}

pub(crate) async fn ready(dht: &Dht) {
    let ready = async {
        while !dht.ready().reads {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready)
        .await
        .unwrap_or_else(|_| panic!("{:?}", dht.ready()));
}
