//! One small message there and back, again and again: what a frame adds to the latency of the bare stream.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ron_core::{
    Lane,
    net::{
        Link, Stream,
        oap::{Frame, FrameReader, FrameWriter, ReadSettings},
        rpc::Side,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    runtime::Runtime,
};

use crate::{
    measure::{Bench, Contender, Outcome, interleave, quantile, runtime, table},
    peers::{
        ron::{Carrier, EGRESS, Node, Pair, rpc, soon},
        tls::Tls,
    },
};

const MESSAGE: [u8; 64] = [7; 64];
const TRIPS: u64 = 20_000;

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let runtime = runtime()?;
    let tls = Tls::new()?;
    let pair = runtime.block_on(async { Pair::start(Carrier::Tcp) })?;
    let trips = bench.scaled(TRIPS);
    let contenders = vec![
        Contender::new("tokio-rustls, bare bytes", || bare(&runtime, &tls, trips)),
        Contender::new("OAP/1 frames", || frames(&runtime, &pair, trips)),
        Contender::new("OAP/1 frames through a queue and a writer task", || queued(&runtime, &pair, trips)),
        Contender::new("rpc", || calls(&runtime, &pair, trips)),
    ];
    let series = interleave(bench, contenders)?;
    let rows: Vec<_> = series
        .iter()
        .map(|contender| {
            let micros = |of: fn(&Times) -> Duration| contender.median(|times| of(times).as_secs_f64() * 1e6);
            vec![
                contender.name.to_owned(),
                format!("{:.1}", micros(|times| times.p50)),
                format!("{:.1}", micros(|times| times.p99)),
                format!("{:.2}", contender.ratio(&series[0], |times| times.p50.as_secs_f64())),
            ]
        })
        .collect();
    table(&["64 B there and back", "p50 µs", "p99 µs", "p50 ratio"], &rows);
    runtime.block_on(pair.stop());
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Times {
    p50: Duration,
    p99: Duration,
}

/// Notes how long each trip took, but for the first tenth of them.
struct Trips {
    /// Trips made so far, those to warm up included.
    made: u64,
    warm_up: u64,
    began: Instant,
    times: Vec<Duration>,
}

impl Trips {
    fn new(trips: u64) -> Self {
        let times = Vec::with_capacity(usize::try_from(trips).unwrap_or(0));
        Trips { made: 0, warm_up: trips / 10, began: Instant::now(), times }
    }

    /// Ends a trip. Says whether there is another one, and lets it begin.
    fn another(&mut self) -> bool {
        let now = Instant::now();
        if self.made >= self.warm_up {
            self.times.push(now - self.began);
        }
        self.made += 1;
        self.began = now;
        self.times.len() < self.times.capacity()
    }

    fn finish(mut self) -> Times {
        self.times.sort_unstable();
        Times { p50: quantile(&self.times, 0.5), p99: quantile(&self.times, 0.99) }
    }
}

fn bare(runtime: &Runtime, tls: &Tls, trips: u64) -> Outcome<Times> {
    runtime.block_on(async {
        let (mut dialled, mut accepted) = tls.pair().await?;
        let echo = tokio::spawn(async move {
            let mut message = MESSAGE;
            while accepted.read_exact(&mut message).await.is_ok() {
                accepted.write_all(&message).await?;
                accepted.flush().await?;
            }
            Outcome::Ok(())
        });
        let times = tokio::spawn(async move {
            let (mut trips, mut message) = (Trips::new(trips), MESSAGE);
            loop {
                dialled.write_all(&message).await?;
                dialled.flush().await?;
                dialled.read_exact(&mut message).await?;
                if !trips.another() {
                    return Outcome::Ok(trips.finish());
                }
            }
        });
        let times = times.await?;
        echo.await??;
        times
    })
}

fn frames(runtime: &Runtime, pair: &Pair, trips: u64) -> Outcome<Times> {
    runtime.block_on(async {
        let (dialled, accepted) = pair.link().await?;
        let (mut reader, mut writer) = halves(accepted, &pair.there);
        let echo = tokio::spawn(async move {
            while let Some(frame) = reader.next().await? {
                writer.queue(frame)?;
                writer.flush().await?;
            }
            Outcome::Ok(writer.shutdown().await?)
        });
        let (mut reader, mut writer) = halves(dialled, &pair.here);
        let times = tokio::spawn(async move {
            let mut trips = Trips::new(trips);
            loop {
                writer.queue(Frame::event(100, trips.made, Bytes::from_static(&MESSAGE)))?;
                writer.flush().await?;
                reader.next().await?.ok_or("the stream ended early")?;
                if !trips.another() {
                    writer.shutdown().await?;
                    return Outcome::Ok(trips.finish());
                }
            }
        });
        let times = times.await?;
        echo.await??;
        times
    })
}

fn queued(runtime: &Runtime, pair: &Pair, trips: u64) -> Outcome<Times> {
    runtime.block_on(async {
        let (dialled, accepted) = pair.link().await?;
        let (mut reader, writer) = halves(accepted, &pair.there);
        let (lane, inbox) = Lane::open(EGRESS, &pair.there.metrics);
        let there = tokio::spawn(writer.run(inbox, pair.there.supervisor.stop()));
        let echo = tokio::spawn(async move {
            while let Some(frame) = reader.next().await? {
                lane.push(frame, soon()).await?;
            }
            Outcome::Ok(())
        });
        let (mut reader, writer) = halves(dialled, &pair.here);
        let (lane, inbox) = Lane::open(EGRESS, &pair.here.metrics);
        let here = tokio::spawn(writer.run(inbox, pair.here.supervisor.stop()));
        let times = tokio::spawn(async move {
            let mut trips = Trips::new(trips);
            loop {
                lane.push(Frame::event(100, trips.made, Bytes::from_static(&MESSAGE)), soon()).await?;
                reader.next().await?.ok_or("the stream ended early")?;
                if !trips.another() {
                    return Outcome::Ok(trips.finish());
                }
            }
        });
        let times = times.await?;
        echo.await??;
        here.await??;
        there.await??;
        times
    })
}

fn calls(runtime: &Runtime, pair: &Pair, trips: u64) -> Outcome<Times> {
    runtime.block_on(async {
        let (dialled, accepted) = pair.link().await?;
        let (here, there) = tokio::try_join!(
            rpc::session(dialled, Side::Dialer, &pair.here),
            rpc::session(accepted, Side::Acceptor, &pair.there)
        )?;
        let caller = here.clone();
        let times = tokio::spawn(async move {
            let mut trips = Trips::new(trips);
            loop {
                caller.call(rpc::ECHO, &MESSAGE, soon()).await?;
                if !trips.another() {
                    return Outcome::Ok(trips.finish());
                }
            }
        });
        let times = times.await?;
        tokio::join!(here.shutdown(), there.shutdown());
        times
    })
}

type Halves = (FrameReader<ReadHalf<Box<dyn Stream>>>, FrameWriter<WriteHalf<Box<dyn Stream>>>);

fn halves(link: Link, node: &Node) -> Halves {
    let (read, write) = split(link.stream);
    (FrameReader::new(read, ReadSettings::default(), &node.metrics), FrameWriter::new(write, &node.metrics))
}
