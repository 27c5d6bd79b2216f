//! Many sessions on one node of the overlay, from another process, and what happens to those beyond.
//!
//! The node is a process of its own, and so is whoever dials it, with a key for each session. This one gives them orders
//! and checks what they answer: as many sessions as the node may have, what each costs it, that it says it is full once it
//! is and that it has room again when some have gone, and that nothing is turned away without being counted.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use ron_core::{
    Deadline, Metrics, NodeId, Supervisor,
    net::{
        Endpoint, EndpointSettings, Identity,
        rpc::{RpcSettings, Session, Side},
    },
    prometheus_client::{encoding::text, registry::Registry},
};
use ron_overlay::{ALPN, Overlay, Settings};

use super::{handshakes::ADDRESSES, idle::Process};
use crate::measure::{Bench, Outcome, raise_file_limit, resident, runtime, table, whole};

/// As many as the node may have.
const SESSIONS: u64 = 8_000;

/// As many more are tried, out of so many.
const BEYOND: u64 = 16;

/// Sessions that are opened first, and not counted: they pay for what is allocated once.
const WARM_UP: usize = 100;

/// File descriptors of a process beside its sessions.
const SPARE_FILES: u64 = 200;

/// Dials at once.
const DIALS: usize = 32;

/// What the node takes to see that it is full, or is not any more, and more than a second, after which a reader gives a
/// large buffer back.
const SETTLE: Duration = Duration::from_secs(3);

/// No session ends for saying nothing, however long opening them all takes.
const IDLE: Duration = Duration::from_secs(3600);

/// The number of the overlay's frames.
const PROTO: u16 = 2;

/// KiB that a session may cost the node.
const BUDGET_KIB: f64 = 32.0;

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let files = raise_file_limit()?;
    let room = files.saturating_sub(SPARE_FILES) * BEYOND / (BEYOND + 1);
    let sessions = bench.scaled(SESSIONS).max(WARM_UP as u64 * 2).min(room) as usize;
    if (sessions as u64) < bench.scaled(SESSIONS) {
        println!("Only {sessions} sessions: the limit on file descriptors is {files}.\n");
    }
    let beyond = sessions / BEYOND as usize;
    let mut node = Process::start(&["--sessions-node", &sessions.to_string()])?;
    let at = node.ask("at")?;
    let mut dialler = Process::start(&["--sessions-dial", &at])?;
    dialler.ask(&format!("open {WARM_UP}"))?;
    std::thread::sleep(SETTLE);
    let before = node.resident()?;
    let began = Instant::now();
    dialler.ask(&format!("open {}", sessions - WARM_UP))?;
    let took = began.elapsed();
    std::thread::sleep(SETTLE);
    let full = Look::at(&mut node)?;
    let each = (full.resident - before) / (sessions - WARM_UP) as f64;
    dialler.ask(&format!("open {beyond}"))?;
    std::thread::sleep(SETTLE);
    let over = Look::at(&mut node)?;
    dialler.ask(&format!("close {}", sessions / 2))?;
    std::thread::sleep(SETTLE);
    let half = Look::at(&mut node)?;
    let row = |called: &str, look: &Look| {
        let Look { sessions, resident, ready, turned_away } = look;
        let cells = [whole(*sessions), whole(resident / 1024.0), whole(*turned_away)];
        [vec![called.to_owned()], cells.to_vec(), vec![ready.clone()]].concat()
    };
    let rows = [
        row("as many as it may have", &full),
        row(&format!("{beyond} more tried"), &over),
        row(&format!("{} closed by their peers", sessions / 2), &half),
    ];
    table(&["Sessions", "Open", "MiB", "Turned away, as counted", "Ready for writes"], &rows);
    println!(
        "\n{each:.1} KiB a session, of {BUDGET_KIB:.0} KiB; {} a second, both processes on one machine.",
        whole((sessions - WARM_UP) as f64 / took.as_secs_f64())
    );
    let holds = [
        ("all sessions are open", full.sessions == sessions as f64),
        ("each costs what it may", each <= BUDGET_KIB),
        ("a full node says so", full.ready.starts_with("no")),
        ("none is open beyond", over.sessions <= sessions as f64),
        ("each beyond is counted", over.turned_away - full.turned_away >= beyond as f64),
        ("it has room again", half.ready == "yes" && half.sessions <= (sessions - sessions / 2) as f64),
    ];
    match holds.iter().find(|(_, holds)| !holds) {
        Some((what, _)) => Err(format!("does not hold: {what}").into()),
        None => Ok(()),
    }
}

/// The node at one moment.
struct Look {
    sessions: f64,
    resident: f64,
    ready: String,
    turned_away: f64,
}

impl Look {
    fn at(node: &mut Process) -> Outcome<Self> {
        Ok(Look {
            sessions: node.ask("sessions")?.parse()?,
            resident: node.resident()?,
            ready: node.ask("ready")?,
            turned_away: node.ask("turned away")?.parse()?,
        })
    }
}

/// Carries out one order.
type Obey = dyn Fn(&str) -> Outcome<String>;

/// What the two processes do: obey until there are no more orders.
pub(crate) fn child(role: &str, arguments: &[String]) -> Outcome<()> {
    raise_file_limit()?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let argument = arguments.first().ok_or("an argument is missing")?;
    let obey: Box<Obey> = match role {
        "node" => {
            let node = runtime.block_on(Node::start(argument.parse()?))?;
            Box::new(move |order| node.obey(order))
        }
        "dial" => {
            let dialler = Dialler::new(argument)?;
            Box::new(move |order| runtime.block_on(dialler.obey(order)))
        }
        other => return Err(format!("no role {other}").into()),
    };
    for order in std::io::stdin().lines() {
        println!("{}", obey(&order?)?);
    }
    // Not one by one: the other end is going, too.
    std::process::exit(0)
}

/// The node that has the sessions.
struct Node {
    overlay: Overlay,
    registry: Registry,
    addrs: Vec<SocketAddr>,
    _host: Supervisor,
}

impl Node {
    async fn start(sessions: usize) -> Outcome<Self> {
        let mut registry = Registry::default();
        let metrics = Metrics::register("node", &mut registry);
        let host = Supervisor::builder("node").metrics(metrics).start();
        let links = EndpointSettings {
            // All come from few addresses, and half of the places are for addresses not seen before.
            connections_max: sessions as u32 * 4,
            connections_per_ip_max: sessions as u32 * 4,
            ..EndpointSettings::default()
        };
        let mut endpoint = Endpoint::builder(Identity::generate()?).settings(links);
        for addr in ADDRESSES {
            endpoint = endpoint.listen(addr.parse()?);
        }
        let endpoint = endpoint.start(&host)?;
        let settings = Settings { max_conns: sessions, idle_timeout: IDLE, ..Settings::default() };
        let overlay = Overlay::builder().settings(settings).start(&endpoint, &host).await?;
        Ok(Node { addrs: endpoint.local_addrs().to_vec(), overlay, registry, _host: host })
    }

    fn obey(&self, order: &str) -> Outcome<String> {
        Ok(match order {
            "at" => {
                let addrs: Vec<String> = self.addrs.iter().map(ToString::to_string).collect();
                format!("{} {}", self.overlay.node_id(), addrs.join(","))
            }
            "sessions" => self.overlay.peers().len().to_string(),
            "resident" => resident()?.to_string(),
            "ready" => {
                let status = self.overlay.ready();
                let why = |gate: &ron_core::GateStatus| gate.reason.as_deref().unwrap_or("open").to_owned();
                let closed: Vec<String> = status.closed().map(why).collect();
                if status.writes { "yes".to_owned() } else { format!("no: {}", closed.join(", ")) }
            }
            "turned away" => self.turned_away()?.to_string(),
            other => return Err(format!("no order {other}").into()),
        })
    }

    /// Connections and sessions that were refused, or closed to make room.
    fn turned_away(&self) -> Outcome<u64> {
        let mut all = String::new();
        text::encode(&mut all, &self.registry)?;
        let is_one = |line: &&str| {
            ["busy_rejections", "handshake_failures", "sessions_closed"]
                .iter()
                .any(|counter| line.starts_with(&format!("node_{counter}")))
        };
        let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        Ok(all.lines().filter(is_one).filter_map(count).sum())
    }
}

/// Whoever dials, under a new name each time.
struct Dialler {
    node: NodeId,
    addrs: Vec<SocketAddr>,
    host: Supervisor,
    metrics: Metrics,
    sessions: Mutex<Vec<(Endpoint, Session)>>,
}

impl Dialler {
    fn new(at: &str) -> Outcome<Self> {
        let (node, addrs) = at.split_once(' ').ok_or("a node and its addresses")?;
        Ok(Dialler {
            node: node.parse()?,
            addrs: addrs.split(',').map(str::parse).collect::<Result<_, _>>()?,
            host: Supervisor::new("dialler"),
            metrics: Metrics::default(),
            sessions: Mutex::default(),
        })
    }

    async fn obey(&self, order: &str) -> Outcome<String> {
        let (order, count) = order.split_once(' ').unwrap_or((order, "0"));
        match order {
            "open" => {
                let held = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).len();
                let dials = stream::iter(held..held + count.parse::<usize>()?);
                let opened = dials.map(|number| self.open(number)).buffer_unordered(DIALS);
                // Those beyond what the node has room for may end at once, which the node is asked about.
                let opened = opened.filter_map(|opened| std::future::ready(opened.ok()));
                let opened: Vec<_> = opened.collect().await;
                self.sessions.lock().unwrap_or_else(PoisonError::into_inner).extend(opened);
            }
            "close" => {
                let count: usize = count.parse()?;
                let closing: Vec<_> = {
                    let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
                    sessions.retain(|(_, session)| session.is_open());
                    let from = sessions.len().saturating_sub(count);
                    sessions.drain(from..).collect()
                };
                stream::iter(closing)
                    .for_each_concurrent(DIALS, |(_, session)| async move { session.shutdown().await })
                    .await;
            }
            other => return Err(format!("no order {other}").into()),
        }
        Ok("done".to_owned())
    }

    async fn open(&self, number: usize) -> Outcome<(Endpoint, Session)> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let endpoint = Endpoint::builder(Identity::from_seed(&seed)).start(&self.host)?;
        let soon = Deadline::after(Duration::from_secs(20));
        let addr = self.addrs[number % self.addrs.len()];
        let link = endpoint.connect(self.node, &[addr], ALPN, soon).await?;
        let settings = RpcSettings { idle_timeout: IDLE, ..RpcSettings::default() };
        let spawner = self.host.spawner();
        let session =
            Session::start(link, Side::Dialer, PROTO, Arc::new(()), settings, &spawner, &self.metrics)
                .await?;
        Ok((endpoint, session))
    }
}
