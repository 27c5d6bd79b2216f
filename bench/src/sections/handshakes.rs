//! New links per second: full handshakes with both keys proved and X25519MLKEM768, over the loopback interface.
//!
//! A link counts when its first byte has come from the end that listens: only then does the end that dialled know that
//! its own key was taken, too.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    runtime::Runtime,
    task::JoinSet,
};

use crate::{
    measure::{Bench, Contender, Outcome, Sample, Stopwatch, interleave, runtime, table, whole},
    peers::{
        ron::{Carrier, End, Node},
        tls::Tls,
    },
};

const HANDSHAKES: u64 = 1000;

/// Several, since a pair of addresses has 28 thousand ports and each stays taken for a while.
pub(super) const ADDRESSES: [&str; 4] = ["127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:0"];

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let runtime = runtime()?;
    let count = bench.scaled(HANDSHAKES);
    let mut rows = Vec::new();
    for concurrency in [1, 8] {
        let contenders = vec![
            Contender::new("tokio-rustls", || bare(&runtime, concurrency, count)),
            Contender::new("`Endpoint`", || ours(&runtime, concurrency, count)),
        ];
        let series = interleave(bench, contenders)?;
        for contender in &series {
            rows.push(vec![
                format!("{}, {concurrency} at once", contender.name),
                whole(contender.median(Sample::per_second)),
                whole(contender.median(Sample::cpu_micros)),
                format!("{:.2}", contender.ratio(&series[0], Sample::per_second)),
            ]);
        }
    }
    table(&["Links", "Handshakes/s", "CPU µs each, both ends", "Ratio"], &rows);
    Ok(())
}

fn bare(runtime: &Runtime, concurrency: u64, count: u64) -> Outcome<Sample> {
    runtime.block_on(async {
        let tls = Tls::new()?;
        let (mut listeners, mut addrs) = (JoinSet::new(), Vec::new());
        for addr in ADDRESSES {
            let listener = TcpListener::bind(addr).await?;
            addrs.push(listener.local_addr()?);
            let tls = tls.clone();
            listeners.spawn(async move {
                while let Ok((tcp, _)) = listener.accept().await {
                    let tls = tls.clone();
                    tokio::spawn(async move { welcome(tls.accept(tcp).await?).await });
                }
            });
        }
        time(&Dialler::Bare(tls), concurrency, count, &addrs).await
    })
}

fn ours(runtime: &Runtime, concurrency: u64, count: u64) -> Outcome<Sample> {
    runtime.block_on(async {
        let addrs: Vec<SocketAddr> = ADDRESSES.iter().map(|addr| addr.parse()).collect::<Result<_, _>>()?;
        let there = Node::start(End::Listens, Carrier::Tcp, &addrs, 1024)?;
        let here = Arc::new(Node::start(End::Dials, Carrier::Tcp, &[], 16)?);
        let (inbox, addrs) = (there.inbox, there.endpoint.local_addrs().to_vec());
        tokio::spawn(async move {
            while let Some(link) = inbox.recv().await {
                tokio::spawn(welcome(link.stream));
            }
        });
        let sample = time(&Dialler::Ours(Arc::clone(&here)), concurrency, count, &addrs).await;
        here.supervisor.shutdown().await;
        there.supervisor.shutdown().await;
        sample
    })
}

#[derive(Clone)]
enum Dialler {
    Bare(Tls),
    Ours(Arc<Node>),
}

impl Dialler {
    async fn handshake(&self, addr: SocketAddr) -> Outcome<()> {
        match self {
            Dialler::Bare(tls) => confirm(tls.dial(addr).await?).await,
            Dialler::Ours(node) => confirm(node.dial(addr).await?.stream).await,
        }
    }
}

/// `concurrency` tasks that dial one link after the other.
async fn time(dialler: &Dialler, concurrency: u64, count: u64, addrs: &[SocketAddr]) -> Outcome<Sample> {
    let each = count.div_ceil(concurrency);
    let began = Stopwatch::start();
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        let (dialler, addrs) = (dialler.clone(), addrs.to_vec());
        tasks.spawn(async move {
            for addr in addrs.into_iter().cycle().take(usize::try_from(each)?) {
                dialler.handshake(addr).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(began.stop(each * concurrency))
}

/// The end that listens: one byte, then wait for the other to leave.
async fn welcome(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Outcome<()> {
    stream.write_all(&[1]).await?;
    stream.flush().await?;
    let _ends = stream.read(&mut [0]).await?;
    Ok(())
}

/// The end that dialled.
async fn confirm(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Outcome<()> {
    stream.read_exact(&mut [0]).await?;
    Ok(())
}
