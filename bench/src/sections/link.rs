//! Frames over one link, one way: what our framing, our writer and its queue cost beside the bare stream.
//!
//! One task sends, another receives, and the receiver's clock counts, from the first frame after a warm-up to the
//! last. Every contender sends the same number of payloads of the same memory. The bare sender feeds its codec and
//! leaves the flushing to it. "With a queue" is what it becomes when more than one task has something to send: a
//! bounded channel and a task that owns the write half, which is the only form that ours has in use.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt as _};
use ron_core::{
    Lane,
    net::oap::{Frame, FrameReader, FrameWriter, ReadSettings},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Runtime,
    sync::mpsc,
};
use tokio_util::codec::{FramedRead, FramedWrite};

use crate::{
    measure::{Bench, Contender, Outcome, Sample, Stopwatch, interleave, runtime, table, whole},
    peers::{
        BUFFER_BYTES, codec,
        quic::OneWay,
        ron::{Carrier, EGRESS, Pair, QUEUE, soon},
        tls::Tls,
    },
};

/// Bytes of a payload, how they are called, and how many are sent in a round: about half a second.
const SIZES: [(usize, &str, u64); 3] =
    [(64, "64 B", 3_000_000), (1 << 10, "1 KiB", 800_000), (64 << 10, "64 KiB", 15_000)];

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let runtime = runtime()?;
    let tls = Tls::new()?;
    let pair = runtime.block_on(async { Pair::start(Carrier::Tcp) })?;
    let quic = runtime.block_on(async { Pair::start(Carrier::Quic) })?;
    let mut rows = Vec::new();
    for (size, called, frames) in SIZES {
        let load = Load { payload: Bytes::from(vec![7; size]), frames: bench.scaled(frames) };
        let contenders = vec![
            Contender::new("tokio-rustls, LengthDelimitedCodec", || bare_tls(&runtime, &tls, &load)),
            Contender::new("the same with a queue", || queued_tls(&runtime, &tls, &load)),
            Contender::new("OAP/1 over TLS, without the queue", || direct(&runtime, &pair, &load)),
            Contender::new("OAP/1 over TLS", || ours(&runtime, &pair, &load)),
            Contender::new("quinn, LengthDelimitedCodec", || bare_quic(&runtime, &tls, &load)),
            Contender::new("OAP/1 over QUIC", || ours(&runtime, &quic, &load)),
        ];
        let series = interleave(bench, contenders)?;
        for contender in &series {
            let rate = contender.median(Sample::per_second);
            rows.push(vec![
                format!("{called}: {}", contender.name),
                whole(rate),
                whole(rate * size as f64 / f64::from(1 << 20)),
                format!("{:.2}", contender.median(Sample::cpu_micros)),
                format!("{:.2}", contender.ratio(&series[0], Sample::per_second)),
            ]);
        }
    }
    table(&["Payloads", "Frames/s", "MiB/s", "CPU µs per frame, both ends", "Ratio"], &rows);
    runtime.block_on(async { tokio::join!(pair.stop(), quic.stop()) });
    Ok(())
}

/// What is sent: the payload so many times.
struct Load {
    payload: Bytes,
    frames: u64,
}

impl Load {
    /// Frames before the clock starts.
    fn warm_up(&self) -> u64 {
        self.frames / 10
    }

    fn total(&self) -> u64 {
        self.warm_up() + self.frames
    }

    fn meter(&self) -> Meter {
        let began = (self.warm_up() == 0).then(Stopwatch::start);
        Meter { seen: 0, warm_up: self.warm_up(), frames: self.frames, size: self.payload.len(), began }
    }
}

/// The receiver's clock.
struct Meter {
    seen: u64,
    warm_up: u64,
    frames: u64,
    size: usize,
    began: Option<Stopwatch>,
}

impl Meter {
    /// Counts a payload; the last one gives the result.
    fn count(&mut self, payload: &[u8]) -> Option<Sample> {
        assert_eq!(payload.len(), self.size, "a payload of another size came");
        self.seen += 1;
        if self.seen == self.warm_up {
            self.began = Some(Stopwatch::start());
        }
        if self.seen < self.warm_up + self.frames {
            None
        } else {
            self.began.map(|began| began.stop(self.frames))
        }
    }
}

fn bare_tls(runtime: &Runtime, tls: &Tls, load: &Load) -> Outcome<Sample> {
    runtime.block_on(async {
        let (dialled, accepted) = tls.pair().await?;
        let receiver = tokio::spawn(receive_bare(accepted, load.meter()));
        feed_bare(dialled, load).await??;
        receiver.await?
    })
}

fn bare_quic(runtime: &Runtime, tls: &Tls, load: &Load) -> Outcome<Sample> {
    runtime.block_on(async {
        let OneWay { send, receive, _alive } = OneWay::open(tls).await?;
        let receiver = tokio::spawn(receive_bare(receive, load.meter()));
        feed_bare(send, load).await??;
        receiver.await?
    })
}

/// Sends from a task of its own. The stream is closed when the last frame is out.
fn feed_bare(
    io: impl AsyncWrite + Send + Unpin + 'static,
    load: &Load,
) -> tokio::task::JoinHandle<Outcome<()>> {
    let (payload, total) = (load.payload.clone(), load.total());
    tokio::spawn(async move {
        let mut writer = FramedWrite::new(io, codec());
        writer.set_backpressure_boundary(BUFFER_BYTES);
        for _ in 0..total {
            writer.feed(payload.clone()).await?;
        }
        Ok(SinkExt::<Bytes>::close(&mut writer).await?)
    })
}

async fn receive_bare(io: impl AsyncRead + Unpin, mut meter: Meter) -> Outcome<Sample> {
    let mut reader = FramedRead::with_capacity(io, codec(), BUFFER_BYTES);
    while let Some(payload) = reader.next().await {
        if let Some(sample) = meter.count(&payload?) {
            return Ok(sample);
        }
    }
    Err("the stream ended early".into())
}

fn queued_tls(runtime: &Runtime, tls: &Tls, load: &Load) -> Outcome<Sample> {
    runtime.block_on(async {
        let (dialled, accepted) = tls.pair().await?;
        let receiver = tokio::spawn(receive_bare(accepted, load.meter()));
        let (sender, mut queue) = mpsc::channel::<Bytes>(QUEUE);
        let writer = tokio::spawn(async move {
            let mut writer = FramedWrite::new(dialled, codec());
            writer.set_backpressure_boundary(BUFFER_BYTES);
            while let Some(payload) = queue.recv().await {
                writer.feed(payload).await?;
                while let Ok(payload) = queue.try_recv() {
                    writer.feed(payload).await?;
                }
                SinkExt::<Bytes>::flush(&mut writer).await?;
            }
            Outcome::Ok(SinkExt::<Bytes>::close(&mut writer).await?)
        });
        let (payload, total) = (load.payload.clone(), load.total());
        let producer = tokio::spawn(async move {
            for _ in 0..total {
                sender.send(payload.clone()).await?;
            }
            Outcome::Ok(())
        });
        producer.await??;
        writer.await??;
        receiver.await?
    })
}

fn direct(runtime: &Runtime, pair: &Pair, load: &Load) -> Outcome<Sample> {
    runtime.block_on(async {
        let (dialled, accepted) = pair.link().await?;
        let reader = FrameReader::new(accepted.stream, ReadSettings::default(), &pair.there.metrics);
        let receiver = tokio::spawn(receive(reader, load.meter()));
        let mut writer = FrameWriter::new(dialled.stream, &pair.here.metrics);
        let (payload, total) = (load.payload.clone(), load.total());
        let producer = tokio::spawn(async move {
            for corr in 0..total {
                writer.queue(Frame::event(100, corr, payload.clone()))?;
                if writer.is_full() {
                    writer.write().await?;
                }
            }
            writer.flush().await?;
            Outcome::Ok(writer.shutdown().await?)
        });
        producer.await??;
        receiver.await?
    })
}

fn ours(runtime: &Runtime, pair: &Pair, load: &Load) -> Outcome<Sample> {
    runtime.block_on(async {
        let (dialled, accepted) = pair.link().await?;
        let reader = FrameReader::new(accepted.stream, ReadSettings::default(), &pair.there.metrics);
        let receiver = tokio::spawn(receive(reader, load.meter()));
        let (lane, inbox) = Lane::open(EGRESS, &pair.here.metrics);
        let writer = FrameWriter::new(dialled.stream, &pair.here.metrics);
        let writer = tokio::spawn(writer.run(inbox, pair.here.supervisor.stop()));
        let (payload, total) = (load.payload.clone(), load.total());
        let producer = tokio::spawn(async move {
            let deadline = soon();
            for corr in 0..total {
                lane.push(Frame::event(100, corr, payload.clone()), deadline).await?;
            }
            Outcome::Ok(())
        });
        producer.await??;
        writer.await??;
        receiver.await?
    })
}

async fn receive<R: AsyncRead + Unpin>(mut reader: FrameReader<R>, mut meter: Meter) -> Outcome<Sample> {
    while let Some(frame) = reader.next().await? {
        if let Some(sample) = meter.count(&frame.payload) {
            return Ok(sample);
        }
    }
    Err("the stream ended early".into())
}
