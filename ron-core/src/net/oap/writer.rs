//! Frames onto a byte stream: the one owner of the write half.
//!
//! Small frames are gathered, so that many of them cost one system call and one TLS record, and nothing waits for
//! company: what is queued is written at once, and flushed when the queue is empty. Large payloads are not copied.
//! However writing ends, the write half is shut down, so that the peer reads an end and not a reset.

use std::{collections::VecDeque, future::poll_fn, io::IoSlice, pin::Pin, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::{Alarm, Frame, FrameError, WireError};
use crate::{Counter, Deadline, Held, Inbox, Metrics, Stop};

/// A payload up to this size is copied next to its header: cheaper than a vector entry of its own.
const COPY_MAX: usize = 4 << 10;

/// Bytes gathered before they are written: four full TLS records. More would fall out of the cache on the way.
const BATCH_BYTES: usize = 64 << 10;

/// What is taken from the lane in one visit. Whoever waits for room is woken once for all of it.
const TAKE_FRAMES: usize = 256;
const TAKE_BYTES: usize = 256 << 10;

/// Pieces in one vectored write.
const PIECES_MAX: usize = 64;

/// Progress that earns another write timeout, as in the reader: the slowest peer takes 64 KiB in that time.
const RATE_BYTES: usize = 64 << 10;

/// Writes the frames of a lane onto a byte stream, as many at a time as there are.
#[derive(Debug)]
pub struct FrameWriter<W> {
    io: W,
    /// Written in order, then what is in `scratch`.
    pieces: VecDeque<Bytes>,
    scratch: BytesMut,
    /// Bytes in both.
    queued: usize,
    timeout: Duration,
    alarm: Alarm,
    metrics: Metrics,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// How long the peer may take no byte. The default of [`FrameWriter::new`].
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// A writer that owns the write half.
    pub fn new(io: W, metrics: &Metrics) -> Self {
        FrameWriter {
            io,
            pieces: VecDeque::new(),
            scratch: BytesMut::new(),
            queued: 0,
            timeout: Self::TIMEOUT,
            alarm: Alarm::default(),
            metrics: metrics.clone(),
        }
    }

    /// Another write timeout: within it the peer must take what is queued, or 64 KiB of it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Writes what comes out of `inbox` until it ends, `stop` is requested (what is queued then is still written) or
    /// the stream fails, and shuts the write half down in every case. From then on the lane takes nothing.
    ///
    /// # Errors
    /// The [`WireError`] that ended it. A task that runs this should not fail by it: a connection that ends is no
    /// fault of the supervisor's.
    pub async fn run(mut self, inbox: Inbox<Frame>, stop: Stop) -> Result<(), WireError> {
        let written = self.pump(&inbox, &stop).await;
        inbox.close();
        let closed = self.shutdown().await;
        written.and(closed)
    }

    async fn pump(&mut self, inbox: &Inbox<Frame>, stop: &Stop) -> Result<(), WireError> {
        let mut stopping = false;
        loop {
            let next = tokio::select! {
                biased;
                () = stop.requested(), if !stopping => {
                    stopping = true;
                    inbox.close();
                    continue;
                }
                next = inbox.recv() => next,
            };
            let Some(frame) = next else { return Ok(()) };
            self.queue(frame)?;
            let mut taken = Vec::new();
            loop {
                // Frames that come while others are written share the flush.
                take(inbox, &mut taken);
                if taken.is_empty() && self.queued == 0 {
                    break;
                }
                // Encoded where they are: a frame is larger than most of what it carries.
                for frame in &taken {
                    self.encode(&frame.item)?;
                    if self.is_full() {
                        self.write().await?;
                    }
                }
                if taken.is_empty() {
                    self.write().await?;
                }
                taken.clear();
            }
            self.flush().await?;
        }
    }

    /// Gathers a frame. Nothing is written before [`write`](Self::write) or [`flush`](Self::flush).
    ///
    /// # Errors
    /// The [`FrameError`] that the peer would find; the frame is dropped and the stream is as good as before.
    pub fn queue(&mut self, frame: Frame) -> Result<(), FrameError> {
        self.encode(&frame)
    }

    fn encode(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let header = frame.header()?;
        let Frame { cap, payload, .. } = frame;
        let copied = if payload.len() <= COPY_MAX { payload.len() } else { 0 };
        self.queued += header.len() + cap.len() + payload.len();
        self.scratch.reserve(header.len() + cap.len() + copied);
        self.scratch.extend_from_slice(&header);
        self.scratch.extend_from_slice(cap);
        if copied == payload.len() {
            self.scratch.extend_from_slice(payload);
        } else {
            self.seal();
            self.pieces.push_back(payload.clone());
        }
        Ok(())
    }

    /// Whether a batch has gathered, and it is time to write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued >= BATCH_BYTES || self.pieces.len() >= PIECES_MAX
    }

    /// Bytes gathered and not yet written.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Writes what was gathered. Dropping the future leaves the rest to the next call.
    ///
    /// # Errors
    /// [`WireError::Slow`] or [`WireError::Io`], after which the stream is of no use.
    pub async fn write(&mut self) -> Result<(), WireError> {
        while self.queued > 0 {
            let (mut until, goal) = (None, self.queued.saturating_sub(RATE_BYTES));
            while self.queued > goal {
                let timeout = self.timeout;
                let until = || *until.get_or_insert_with(|| Deadline::after(timeout));
                let write = write_some(&mut self.io, &self.pieces, &self.scratch);
                let written = within(&mut self.alarm, until, &self.metrics, "frame_write", write).await?;
                if written == 0 {
                    return Err(WireError::io("frame_write", &std::io::ErrorKind::WriteZero.into()));
                }
                self.advance(written);
            }
        }
        Ok(())
    }

    /// Writes what was gathered and sees it off: behind TLS there may be a buffer of its own.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn flush(&mut self) -> Result<(), WireError> {
        self.write().await?;
        // Sessions are mostly quiet. One that is not flushes once for many frames, and can allocate for that.
        self.scratch = BytesMut::new();
        let until = || Deadline::after(self.timeout);
        within(&mut self.alarm, until, &self.metrics, "frame_write", self.io.flush()).await
    }

    /// Says that nothing more will come. What was gathered and not written is dropped: flush first.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn shutdown(mut self) -> Result<(), WireError> {
        let until = || Deadline::after(self.timeout);
        within(&mut self.alarm, until, &self.metrics, "frame_close", self.io.shutdown()).await
    }

    /// Makes what was gathered a piece, so that a payload can follow it.
    fn seal(&mut self) {
        if !self.scratch.is_empty() {
            self.pieces.push_back(self.scratch.split().freeze());
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.queued -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        self.scratch.advance(written);
    }
}

/// What waits in the lane, up to a limit.
fn take(inbox: &Inbox<Frame>, taken: &mut Vec<Held<Frame>>) {
    let (mut frames, mut bytes) = (0, 0);
    inbox.try_recv_while(taken, |frame| {
        let takes = frames < TAKE_FRAMES && bytes < TAKE_BYTES;
        (frames, bytes) = (frames + 1, bytes + frame.encoded_len());
        takes
    });
}

/// One vectored write of as many pieces as fit. Their list is on the stack and only while it is written: as a part of
/// the task it would be its largest, several times over, in every session that has nothing to send.
async fn write_some<W: AsyncWrite + Unpin>(
    io: &mut W,
    pieces: &VecDeque<Bytes>,
    scratch: &[u8],
) -> std::io::Result<usize> {
    poll_fn(|cx| {
        if pieces.is_empty() {
            return Pin::new(&mut *io).poll_write(cx, scratch);
        }
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let all = pieces.iter().map(|piece| &piece[..]).chain([scratch]);
        let filled = slices.iter_mut().zip(all).map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
        Pin::new(&mut *io).poll_write_vectored(cx, &slices[..filled])
    })
    .await
}

/// One step of the stream, within its time.
async fn within<T>(
    alarm: &mut Alarm,
    until: impl FnMut() -> Deadline,
    metrics: &Metrics,
    op: &'static str,
    step: impl Future<Output = std::io::Result<T>>,
) -> Result<T, WireError> {
    match alarm.limit(until, step).await {
        Some(done) => done.map_err(|error| WireError::io(op, &error)),
        None => {
            metrics.tally(Counter::IoTimeouts, op).add(1);
            Err(WireError::Slow { op })
        }
    }
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use std::{
        io,
        pin::pin,
        sync::{Arc, Mutex},
        task::{Context, Poll, Waker},
    };

    use allocation_counter::measure;

    use super::{super::Decoder, *};
    use crate::{CallError, Lane, LaneSpec};

    const EGRESS: LaneSpec = LaneSpec::new("test", "egress", 1024);

    /// A write half that notes what is done to it.
    #[derive(Debug, Clone, Default)]
    struct Recorder(Arc<Mutex<Record>>);

    #[derive(Debug, Default)]
    struct Record {
        bytes: Vec<u8>,
        writes: usize,
        flushes: usize,
        shutdowns: usize,
        /// Takes nothing more after so many bytes, as a peer that does not read.
        stuck_after: Option<usize>,
        /// Takes at most so many bytes at once.
        piece: Option<usize>,
        fails: bool,
    }

    impl AsyncWrite for Recorder {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut record = self.0.lock().expect("no panic under it");
            if record.fails {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let room = record.stuck_after.map_or(usize::MAX, |most| most - record.bytes.len());
            let room = room.min(record.piece.unwrap_or(usize::MAX));
            let mut taken = 0;
            for slice in slices {
                let part = &slice[..slice.len().min(room - taken)];
                record.bytes.extend_from_slice(part);
                taken += part.len();
            }
            if taken == 0 {
                return Poll::Pending;
            }
            record.writes += 1;
            Poll::Ready(Ok(taken))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.lock().expect("no panic under it").flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.lock().expect("no panic under it").shutdowns += 1;
            Poll::Ready(Ok(()))
        }
    }

    impl Recorder {
        fn frames(&self) -> Vec<Frame> {
            let mut bytes = BytesMut::from(&self.0.lock().expect("no panic under it").bytes[..]);
            std::iter::from_fn(|| Decoder::default().decode(&mut bytes).expect("we wrote it")).collect()
        }
    }

    fn frame(corr: u64, payload: usize) -> Frame {
        Frame::event(5, corr, vec![corr as u8; payload])
    }

    /// Runs a writer over these frames, queued before it begins.
    async fn run(recorder: &Recorder, frames: &[Frame]) -> Result<(), WireError> {
        let (lane, inbox) = Lane::open(EGRESS, &Metrics::default());
        frames.iter().for_each(|frame| lane.try_push(frame.clone()).expect("room"));
        drop(lane);
        FrameWriter::new(recorder.clone(), &Metrics::default()).run(inbox, Stop::new()).await
    }

    #[tokio::test(start_paused = true)]
    async fn many_small_frames_are_one_write_and_one_flush() {
        let recorder = Recorder::default();
        let frames: Vec<Frame> = (0..500).map(|corr| frame(corr, 64)).collect();
        assert_eq!(run(&recorder, &frames).await, Ok(()));
        assert_eq!(recorder.frames(), frames);
        let record = recorder.0.lock().unwrap();
        assert_eq!((record.writes, record.flushes, record.shutdowns), (1, 1, 1));
    }

    /// What is left of a buffer that was written from its front says nothing of how large it is.
    #[test]
    fn what_a_burst_took_is_given_back() {
        for burst in 1..600 {
            let mut writer = FrameWriter::new(tokio::io::sink(), &Metrics::default());
            let used = measure(|| {
                for _ in 0..burst {
                    writer.queue(Frame::event(5, 1, Bytes::from_static(&[7; 64]))).expect("legal");
                }
                let flushed = pin!(writer.flush()).poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(flushed, Poll::Ready(Ok(())));
            });
            let kept = used.bytes_current;
            assert_eq!(kept, 0, "after a burst of {burst} frames");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_and_large_frames_keep_their_order_however_writes_are_cut() {
        let frames: Vec<Frame> =
            (0..40).map(|corr| frame(corr, [0, 10, 4096, 4097, 70_000][corr as usize % 5])).collect();
        for piece in [None, Some(1000), Some(39), Some(65_536)] {
            let recorder = Recorder::default();
            recorder.0.lock().unwrap().piece = piece;
            assert_eq!(run(&recorder, &frames).await, Ok(()));
            assert!(recorder.frames() == frames, "{piece:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_cut_off_after_the_timeout_and_the_half_is_shut_down() {
        let recorder = Recorder::default();
        recorder.0.lock().unwrap().stuck_after = Some(100_000);
        let began = crate::now();
        let ended = run(&recorder, &[frame(1, 500_000)]).await;
        assert_eq!(ended, Err(WireError::Slow { op: "frame_write" }));
        // 64 KiB went through and earned a second timeout, which is not used up by what came before.
        assert_eq!(crate::now() - began, Duration::from_secs(5));
        assert_eq!(recorder.0.lock().unwrap().shutdowns, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_stream_and_a_bad_frame_end_with_a_shutdown_too() {
        let recorder = Recorder::default();
        recorder.0.lock().unwrap().fails = true;
        let ended = run(&recorder, &[frame(1, 10)]).await.unwrap_err();
        assert!(matches!(ended, WireError::Io { kind: io::ErrorKind::ConnectionReset, .. }), "{ended:?}");
        assert_eq!(recorder.0.lock().unwrap().shutdowns, 1);

        let recorder = Recorder::default();
        let ended = run(&recorder, &[Frame::default()]).await;
        assert_eq!(ended, Err(WireError::Frame(FrameError::Kind { bits: 0 })));
        assert_eq!(recorder.0.lock().unwrap().shutdowns, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_writes_what_is_queued_and_refuses_newcomers() {
        let recorder = Recorder::default();
        let (lane, inbox) = Lane::open(EGRESS, &Metrics::default());
        lane.try_push(frame(1, 10)).unwrap();
        let stop = Stop::new();
        stop.request(Deadline::after(Duration::from_secs(1)));
        let ended = FrameWriter::new(recorder.clone(), &Metrics::default()).run(inbox, stop).await;
        assert_eq!(ended, Ok(()));
        assert_eq!(recorder.frames().len(), 1);
        assert_eq!(lane.try_push(frame(2, 10)), Err(CallError::Canceled));
    }

    /// A session that has nothing to send holds this much, ten thousand times.
    #[tokio::test(start_paused = true)]
    async fn an_idle_writer_keeps_little() {
        let mut writer = FrameWriter::new(Recorder::default(), &Metrics::default());
        for corr in 0..100 {
            writer.queue(frame(corr, 4000)).unwrap();
        }
        writer.flush().await.unwrap();
        assert!(writer.pieces.is_empty() && writer.scratch.capacity() == 0);

        let (_lane, inbox) = Lane::open(EGRESS, &Metrics::default());
        let task = size_of_val(&writer.run(inbox, Stop::new()));
        assert!(task <= 2 << 10, "{task} bytes");
    }
}
