//! What gossip costs on this machine: many nodes in one process, over TLS on the loopback interface.
//!
//! `cargo run --release --example load -- [nodes] [publishers] [messages a second] [seconds] [signed]`

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ron_core::{
    Deadline, Supervisor, TaskSpec,
    net::{Endpoint, Identity},
    now,
};
use ron_overlay::{Delivery, Overlay, OverlayError, Topic};

const READER: TaskSpec = TaskSpec::new("load", "reader");
const WRITER: TaskSpec = TaskSpec::new("load", "writer");

fn cpu() -> Duration {
    // utime and stime, in ticks of 10 ms, behind the name of the program.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(usual);
    let (nodes, publishers, rate, seconds) =
        (number(0, 64) as usize, number(1, 8) as usize, number(2, 1000), number(3, 5));
    let is_signed = args.get(4).is_some_and(|arg| arg == "signed");
    let soon = || Deadline::after(Duration::from_secs(20));

    let host = Supervisor::new("load");
    let mut topics: Vec<Topic> = Vec::new();
    let mut contacts = Vec::new();
    let counted: Arc<[AtomicU64; 4]> = Arc::default();
    for _ in 0..nodes {
        let endpoint =
            Endpoint::builder(Identity::generate()?).listen("127.0.0.1:0".parse()?).start(&host)?;
        let overlay = Overlay::builder().start(&endpoint, &host).await?;
        let topic = overlay.topic("load");
        let topic = if is_signed { topic } else { topic.unsigned() };
        let known: Vec<_> = contacts.iter().rev().take(2).cloned().collect();
        let topic = topic.join(known, soon()).await?;
        contacts.push(overlay.contact());
        let mut heard = topic.subscribe(soon()).await?;
        let counted = Arc::clone(&counted);
        host.spawn(READER, move |_| async move {
            while let Some(delivery) = heard.recv().await {
                match delivery {
                    Delivery::Message { message, .. } => {
                        let sent =
                            message.payload().first_chunk::<8>().map_or(0, |at| u64::from_le_bytes(*at));
                        let took = (now_micros()).saturating_sub(sent);
                        counted[0].fetch_add(1, Ordering::Relaxed);
                        counted[1].fetch_max(took, Ordering::Relaxed);
                    }
                    Delivery::Gap(gap) => {
                        counted[2].fetch_add(gap.seqs.end() + 1 - gap.seqs.start(), Ordering::Relaxed);
                    }
                    _ => {
                        counted[3].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        topics.push(topic);
    }
    for topic in &topics {
        topic.joined(soon()).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Trees grow with the first messages.
    for topic in topics.iter().take(publishers) {
        topic.publish(vec![0; 1024], soon()).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = counts(&topics).await;
    counted.iter().for_each(|count| count.store(0, Ordering::Relaxed));

    let (began, cpu_began) = (now(), cpu());
    let (accepted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut writers = Vec::new();
    for topic in topics.iter().take(publishers) {
        let topic = topic.clone();
        let (accepted, refused) = (Arc::clone(&accepted), Arc::clone(&refused));
        let every = Duration::from_secs(1) * publishers as u32 / rate as u32;
        writers.push(host.spawn(WRITER, move |_| async move {
            let mut at = began;
            while began.elapsed() < Duration::from_secs(seconds) {
                let mut payload = vec![7; 1024];
                payload[..8].copy_from_slice(&now_micros().to_le_bytes());
                match topic.publish(payload, Deadline::after(Duration::from_secs(5))).await {
                    Ok(_) => {
                        accepted.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(OverlayError::Busy { retry_after, .. }) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(retry_after).await;
                    }
                    Err(error) => println!("{error}"),
                }
                at += every;
                tokio::time::sleep_until(at).await;
            }
        }));
    }
    for writer in writers {
        writer.ended().await;
    }
    let accepted = accepted.load(Ordering::Relaxed);
    let expected = accepted * (nodes as u64 - 1);
    let (mut last, mut quiet) = (0, 0);
    while counted[0].load(Ordering::Relaxed) < expected && quiet < 40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let heard = counted[0].load(Ordering::Relaxed);
        quiet = if heard == last { quiet + 1 } else { 0 };
        last = heard;
    }
    let (took, used) = (began.elapsed(), cpu() - cpu_began);
    let heard = counted[0].load(Ordering::Relaxed);
    let after = counts(&topics).await;
    println!(
        "{nodes} nodes, {publishers} publishers, {rate}/s offered: {accepted} accepted ({:.0}/s), {} refused, \
         {heard} of {expected} delivered, {} gaps, {} lags, slowest {:.1} ms, {:.1} µs of CPU per delivery, \
         RMR {:.3}, {} recovered, {} repaired, {:.0} % of a core",
        accepted as f64 / took.as_secs_f64(),
        refused.load(Ordering::Relaxed),
        counted[2].load(Ordering::Relaxed),
        counted[3].load(Ordering::Relaxed),
        counted[1].load(Ordering::Relaxed) as f64 / 1e3,
        used.as_secs_f64() * 1e6 / heard.max(1) as f64,
        (after.0 - before.0) as f64 / heard.max(1) as f64 - 1.0,
        after.1 - before.1,
        after.2 - before.2,
        used.as_secs_f64() / took.as_secs_f64() * 100.0,
    );
    host.shutdown().await;
    Ok(())
}

async fn counts(topics: &[Topic]) -> (u64, u64, u64) {
    let mut sums = (0, 0, 0);
    for topic in topics {
        if let Ok(status) = topic.status(Deadline::after(Duration::from_secs(20))).await {
            let counts = status.counts;
            sums = (sums.0 + counts.received, sums.1 + counts.recovered, sums.2 + counts.repaired);
        }
    }
    sums
}

fn now_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
