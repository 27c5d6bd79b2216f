//! What a whole network in one process costs, over TLS on the loopback interface.
//!
//! `cargo run --release -p ron-overlay --example load [nodes] [publishers] [messages/s] [seconds] [signed|unsigned]`
//!
//! Publishes 1 KiB messages at a fixed rate and prints what was delivered, how soon the last node had each message, the
//! processor time of a delivery, and the memory of a node: when all have joined, while nothing is said, and at the end.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ron_core::{
    Deadline, Stop, Supervisor, TaskSpec,
    net::{Endpoint, EndpointSettings, Identity},
    now,
};
use ron_overlay::{Delivery, Overlay, Subscription, Topic};

const READER: TaskSpec = TaskSpec::new("load", "reader").what("counts what one node hears");
const PUBLISHER: TaskSpec = TaskSpec::new("load", "publisher").what("publishes at its rate");
const IDLE: Duration = Duration::from_secs(5);

/// When each message was published, how many have it, and when the last one did.
type Book = Arc<Vec<(AtomicU64, AtomicU64, AtomicU64)>>;

struct Node {
    topic: Topic,
    overlay: Overlay,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Memory of this process in KiB, and processor time that it took so far.
fn taken() -> (u64, Duration) {
    let field = |file: &str, place: usize| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let rest = text.rsplit(") ").next().unwrap_or_default().to_owned();
        rest.split_whitespace().nth(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0)
    };
    let ticks = field("/proc/self/stat", 11) + field("/proc/self/stat", 12);
    (field("/proc/self/statm", 1) * 4, Duration::from_millis(ticks * 10))
}

async fn start(
    number: usize,
    nodes: &[Node],
    is_signed: bool,
    host: &Supervisor,
) -> Result<Node, Box<dyn Error>> {
    let most = EndpointSettings { connections_per_ip_max: 1024, ..EndpointSettings::default() };
    let endpoint = Endpoint::builder(Identity::generate()?).settings(most);
    let endpoint = endpoint.listen("127.0.0.1:0".parse()?).start(host)?;
    let overlay = Overlay::builder().start(&endpoint, host).await?;
    let topic = overlay.topic("load");
    let topic = if is_signed { topic } else { topic.unsigned() };
    let contacts = (1..=5).filter_map(|back| nodes.get(number.checked_sub(back * 7 % 11 + 1)?));
    let topic = topic.join(contacts.map(|node| node.overlay.contact()), soon()).await?;
    Ok(Node { topic, overlay })
}

async fn read(
    mut heard: Subscription,
    book: Book,
    began: tokio::time::Instant,
    told: Arc<AtomicU64>,
    stop: Stop,
) {
    loop {
        let delivery = tokio::select! {
            () = stop.requested() => return,
            delivery = heard.recv() => delivery,
        };
        match delivery {
            Some(Delivery::Message { message, .. }) => {
                let number = message.payload().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                let Some((_, count, last)) = book.get(number as usize) else { continue };
                last.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
                count.fetch_add(1, Relaxed);
            }
            Some(_) => drop(told.fetch_add(1, Relaxed)),
            None => return,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |place: usize, usual: usize| args.get(place).and_then(|arg| arg.parse().ok()).unwrap_or(usual);
    let (nodes, publishers, rate, seconds) = (arg(0, 64), arg(1, 8), arg(2, 300), arg(3, 5));
    let is_signed = args.get(4).is_none_or(|arg| arg == "signed");
    let (host, began, messages) = (Supervisor::new("load"), now(), rate * seconds);
    let book: Book = Arc::new((0..messages).map(|_| Default::default()).collect());
    let (told, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (empty, _) = taken();

    let mut network: Vec<Node> = Vec::new();
    for number in 0..nodes {
        let node = start(number, &network, is_signed, &host).await?;
        let heard = node.topic.subscribe(soon()).await?;
        let (book, told) = (Arc::clone(&book), Arc::clone(&told));
        let _ = host.spawn(READER, move |stop| read(heard, book, began, told, stop));
        network.push(node);
    }
    for node in &network {
        node.topic.joined(soon()).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (joined, before) = taken();
    tokio::time::sleep(IDLE).await;
    let (_, after) = taken();
    let idle = (after - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    let per_node = |kib: u64| kib.saturating_sub(empty) / nodes as u64;
    println!("{nodes} nodes joined: {} KiB a node, idle {idle:.1} % of a core", per_node(joined));

    // The first second finds the trees and does not count.
    let (since, warm) = (now(), rate.min(messages));
    let mut at_warm = (now(), before);
    for publisher in 0..publishers {
        let (topic, book, refused) =
            (network[publisher * 7 % nodes].topic.clone(), Arc::clone(&book), Arc::clone(&refused));
        let _ = host.spawn(PUBLISHER, move |_| async move {
            for number in (publisher..messages).step_by(publishers) {
                let due = since + Duration::from_secs_f64(number as f64 / rate as f64);
                tokio::time::sleep_until(due).await;
                book[number].0.store(began.elapsed().as_micros() as u64, Relaxed);
                let mut payload = vec![7; 1024];
                payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
                if topic.publish(payload, soon()).await.is_err() {
                    refused.fetch_add(1, Relaxed);
                }
            }
        });
    }
    tokio::time::sleep_until(since + Duration::from_secs(1)).await;
    if messages > warm {
        at_warm = (now(), taken().1);
    }
    tokio::time::sleep_until(since + Duration::from_secs(seconds as u64)).await;
    for _ in 0..100 {
        if book.iter().all(|(_, count, _)| count.load(Relaxed) as usize + 1 >= nodes) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (end, cpu) = taken();
    let counted = &book[if messages > warm { warm } else { 0 }..];
    let deliveries: u64 = counted.iter().map(|(_, count, _)| count.load(Relaxed)).sum();
    let mut times: Vec<u64> = counted
        .iter()
        .map(|(at, _, last)| last.load(Relaxed).saturating_sub(at.load(Relaxed)) / 1000)
        .collect();
    let quarter = times.len() / 4;
    let mean = |times: &[u64]| times.iter().sum::<u64>() / times.len().max(1) as u64;
    let (first, last) = (mean(&times[..quarter]), mean(&times[times.len() - quarter..]));
    times.sort_unstable();
    let took = at_warm.0.elapsed();
    println!(
        "{publishers} publishers, {rate}/s: {:.2} % delivered, {} refused, {} told; last delivery p50 {} p99 {} ms, first quarter {first} ms, last {last} ms",
        deliveries as f64 * 100.0 / (counted.len() * (nodes - 1)) as f64,
        refused.load(Relaxed),
        told.load(Relaxed),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
    );
    let cpu = cpu - at_warm.1;
    println!(
        "CPU {:.1} µs a delivery, {:.2} cores; {} KiB a node at the end",
        cpu.as_secs_f64() * 1e6 / deliveries.max(1) as f64,
        cpu.as_secs_f64() / took.as_secs_f64(),
        per_node(end)
    );
    Ok(())
}
