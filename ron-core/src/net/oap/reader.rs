//! Frames off a byte stream, within limits of time and memory.
//!
//! Memory follows what has arrived and not what was announced: a stream that says nothing, or little, has no buffer
//! between frames, and a frame's buffer grows with its bytes, at most doubling. Time follows the rate: once a frame has
//! begun, the next 64 KiB of it (or its end) must come within the read timeout, so a peer can be slow but cannot hold a
//! half-read frame for ever.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use super::{Alarm, Decoder, FRAME_BYTES_MAX, Frame, WireError};
use crate::{Counter, Deadline, Metrics};

/// Bytes that one read asks for. A stream that fills them gets a buffer that it keeps, and larger ones up to where a
/// system call is no longer what costs.
const READ_LEAST: usize = 4 << 10;
const READ_MOST: usize = 64 << 10;

/// After this long without a byte, the buffer is given back: ten thousand sessions are mostly quiet ones.
const SHRINK_AFTER: Duration = Duration::from_secs(1);

/// Progress that earns another read timeout.
const RATE_BYTES: usize = 64 << 10;

/// Limits of a [`FrameReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSettings {
    /// Bytes of the longest frame that is taken. Default 1 MiB, the most there is.
    pub frame_bytes_max: usize,
    /// How long the stream may be silent between frames. Default 60 s; above the peer's keepalive.
    pub idle_timeout: Duration,
    /// Within this the rest of a frame, or 64 KiB of it, must come. Default 5 s.
    pub read_timeout: Duration,
}

impl Default for ReadSettings {
    fn default() -> Self {
        ReadSettings {
            frame_bytes_max: FRAME_BYTES_MAX,
            idle_timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(5),
        }
    }
}

/// Reads frames. Illegal ones are counted by their reason.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    decoder: Decoder,
    settings: ReadSettings,
    /// What the next read asks for.
    read_bytes: usize,
    wait: Wait,
    alarm: Alarm,
    metrics: Metrics,
}

/// What is waited for, and until when. Kept here rather than on the stack: a caller that polls the future in a
/// `select!` drops it all the time, and must not give the peer a new deadline each time.
#[derive(Debug, Clone, Copy)]
enum Wait {
    Nothing,
    Frame { until: Deadline },
    Bytes { until: Deadline, left: usize },
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that owns the read half.
    pub fn new(io: R, settings: ReadSettings, metrics: &Metrics) -> Self {
        FrameReader {
            io,
            buffer: BytesMut::new(),
            decoder: Decoder::new(settings.frame_bytes_max),
            settings,
            read_bytes: READ_LEAST,
            wait: Wait::Nothing,
            alarm: Alarm::default(),
            metrics: metrics.clone(),
        }
    }

    /// The next frame; `None` when the peer closed between frames. Dropping the future loses nothing.
    ///
    /// # Errors
    /// A [`WireError`], after which there is nothing more to read, except for a frame error that is not fatal, which
    /// tells of a frame that was skipped, and [`WireError::Idle`], after which one may wait as long again.
    pub async fn next(&mut self) -> Result<Option<Frame>, WireError> {
        loop {
            match self.decoder.decode(&mut self.buffer) {
                Ok(None) => {}
                Ok(frame) => {
                    self.wait = Wait::Nothing;
                    return Ok(frame);
                }
                Err(error) => {
                    self.wait = Wait::Nothing;
                    self.metrics.tally(Counter::FrameRejects, error.reason()).add(1);
                    return Err(error.into());
                }
            }
            if self.fill().await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(WireError::Truncated) };
            }
        }
    }

    /// One read; zero at the end of the stream.
    async fn fill(&mut self) -> Result<usize, WireError> {
        self.set_wait();
        loop {
            let is_between = self.buffer.is_empty();
            let is_caught = is_between && self.read_bytes == READ_LEAST;
            let shrinks = is_between && !is_caught;
            if is_caught {
                self.buffer = BytesMut::new();
            } else {
                self.make_room();
            }
            let room = if is_caught { READ_LEAST } else { self.buffer.capacity() - self.buffer.len() };
            let (until, late) = match self.wait {
                Wait::Bytes { until, .. } => (until, WireError::Slow { op: "frame_read" }),
                Wait::Frame { until } => (until, WireError::Idle),
                Wait::Nothing => unreachable!("set above"),
            };
            let until_now = || if shrinks { until.within(SHRINK_AFTER) } else { until };
            let read = read(&mut self.io, &mut self.buffer, is_caught);
            match self.alarm.limit(until_now, read).await {
                Some(read) => {
                    let read = read.map_err(|error| WireError::io("frame_read", &error))?;
                    self.learn(read, room);
                    return Ok(read);
                }
                None if shrinks && !until.has_passed() => {
                    self.read_bytes = READ_LEAST;
                }
                None => {
                    // A caller that has a reason to wait on asks again, and waits as long again.
                    self.wait = Wait::Nothing;
                    self.metrics.tally(Counter::IoTimeouts, "frame_read").add(1);
                    return Err(late);
                }
            }
        }
    }

    fn set_wait(&mut self) {
        let within_frame = !self.buffer.is_empty();
        self.wait = match self.wait {
            Wait::Frame { until } if !within_frame => Wait::Frame { until },
            Wait::Bytes { until, left } if left > 0 => Wait::Bytes { until, left },
            _ if within_frame => {
                Wait::Bytes { until: Deadline::after(self.settings.read_timeout), left: RATE_BYTES }
            }
            _ => Wait::Frame { until: Deadline::after(self.settings.idle_timeout) },
        };
    }

    /// Room for a read: what the frame still needs, as long as that is not more than has come already. It is made as
    /// soon as the need is known, while there is little to move.
    fn make_room(&mut self) {
        let spare = self.buffer.capacity() - self.buffer.len();
        let earned = self.buffer.len().max(self.read_bytes);
        let least = if self.buffer.is_empty() { self.read_bytes / 2 } else { READ_LEAST };
        let wanted = self.decoder.missing(&self.buffer).min(earned).max(least);
        if spare < wanted {
            self.buffer.reserve(wanted.max(self.read_bytes));
        }
    }

    fn learn(&mut self, read: usize, room: usize) {
        if let Wait::Bytes { left, .. } = &mut self.wait {
            *left = left.saturating_sub(read);
        }
        if read == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_MOST);
        } else if read < self.read_bytes / 4 {
            self.read_bytes /= 2;
        }
        self.read_bytes = self.read_bytes.max(READ_LEAST);
    }
}

/// One read into the buffer. Or what comes is caught on the stack and copied, so that waiting for it takes no memory, and
/// what came takes no more than it has bytes.
async fn read<R: AsyncRead + Unpin>(io: &mut R, buffer: &mut BytesMut, is_caught: bool) -> io::Result<usize> {
    if !is_caught {
        return io.read_buf(buffer).await;
    }
    poll_fn(|cx| {
        let mut bytes = [const { MaybeUninit::uninit() }; READ_LEAST];
        let mut bytes = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut *io).poll_read(cx, &mut bytes))?;
        let bytes = bytes.filled();
        *buffer = BytesMut::from(bytes);
        Poll::Ready(Ok(bytes.len()))
    })
    .await
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use allocation_counter::measure;
    use bytes::{Buf as _, BufMut as _};
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    fn reader(capacity: usize, settings: ReadSettings) -> (DuplexStream, FrameReader<DuplexStream>, Metrics) {
        let (ours, theirs) = duplex(capacity);
        let metrics = Metrics::default();
        (ours, FrameReader::new(theirs, settings, &metrics), metrics)
    }

    fn bytes_of(frame: Frame) -> Vec<u8> {
        let mut encoded = frame.encode().expect("legal");
        encoded.copy_to_bytes(encoded.remaining()).to_vec()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_come_in_order_and_the_end_is_clean() {
        let (mut peer, mut reader, _) = reader(10_000, ReadSettings::default());
        let sizes = [0, 1, 100, 5_000, 64 << 10, FRAME_BYTES_MAX - 38, 3];
        let send = async {
            for (corr, size) in sizes.into_iter().enumerate() {
                peer.write_all(&bytes_of(Frame::request(1, corr as u64, vec![7; size]))).await.unwrap();
            }
            drop(peer);
        };
        let receive = async {
            for (corr, size) in sizes.into_iter().enumerate() {
                let frame = reader.next().await.unwrap().unwrap();
                assert_eq!((frame.corr, frame.payload.len()), (corr as u64, size));
            }
            assert_eq!(reader.next().await, Ok(None));
        };
        tokio::join!(send, receive);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_within_a_frame_is_told_apart() {
        let (mut peer, mut reader, _) = reader(1000, ReadSettings::default());
        peer.write_all(&bytes_of(Frame::request(1, 1, vec![7; 100]))[..60]).await.unwrap();
        drop(peer);
        assert_eq!(reader.next().await, Err(WireError::Truncated));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_idle_and_half_a_frame_is_slow() {
        let began = crate::now();
        let (_peer, mut idle, metrics) = reader(1000, ReadSettings::default());
        assert_eq!(idle.next().await, Err(WireError::Idle));
        assert_eq!(crate::now() - began, Duration::from_secs(60));
        assert_eq!(metrics.tally(Counter::IoTimeouts, "frame_read").get(), 1);

        let began = crate::now();
        let (mut peer, mut slow, _) = reader(1000, ReadSettings::default());
        peer.write_all(&[0]).await.unwrap();
        assert_eq!(slow.next().await, Err(WireError::Slow { op: "frame_read" }));
        assert_eq!(crate::now() - began, Duration::from_secs(5));
    }

    /// One byte every four seconds never trips a timeout that any byte renews.
    #[tokio::test(start_paused = true)]
    async fn a_dribble_does_not_renew_the_timeout_and_neither_does_a_dropped_wait() {
        let (mut peer, mut reader, _) = reader(1000, ReadSettings::default());
        let frame = bytes_of(Frame::request(1, 1, vec![7; 100]));
        let began = crate::now();
        let ended = async {
            loop {
                // As a `select!` does that has something else to do every second.
                if let Ok(ended) = tokio::time::timeout(Duration::from_secs(1), reader.next()).await {
                    return ended;
                }
            }
        };
        let dribble = async {
            for byte in frame {
                peer.write_all(&[byte]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(4)).await;
            }
        };
        tokio::select! {
            ended = ended => assert_eq!(ended, Err(WireError::Slow { op: "frame_read" })),
            () = dribble => panic!("the whole dribble was taken"),
        }
        assert_eq!(crate::now() - began, Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_may_take_long_if_it_keeps_its_rate() {
        let (mut peer, mut reader, _) = reader(1 << 16, ReadSettings::default());
        let bytes = bytes_of(Frame::request(1, 1, vec![7; FRAME_BYTES_MAX - 38]));
        let send = async {
            for part in bytes.chunks(20 << 10) {
                peer.write_all(part).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let (frame, ()) = tokio::join!(reader.next(), send);
        assert_eq!(frame.unwrap().unwrap().payload.len(), FRAME_BYTES_MAX - 38);
    }

    #[tokio::test(start_paused = true)]
    async fn an_illegal_frame_is_counted_and_a_compressed_one_is_skipped() {
        let (mut peer, mut reader, metrics) = reader(1000, ReadSettings::default());
        let mut compressed = bytes_of(Frame::request(1, 1, &b"zip"[..]));
        compressed[7] |= 64;
        peer.write_all(&compressed).await.unwrap();
        peer.write_all(&bytes_of(Frame::request(1, 2, &b"plain"[..]))).await.unwrap();
        peer.write_all(&[0xff; 38]).await.unwrap();
        let Err(WireError::Frame(skipped)) = reader.next().await else { panic!("it was compressed") };
        assert!(!skipped.is_fatal());
        assert_eq!(reader.next().await.unwrap().unwrap().corr, 2);
        let Err(WireError::Frame(fatal)) = reader.next().await else { panic!("it was too long") };
        assert!(fatal.is_fatal());
        for reason in ["compressed", "too_long"] {
            assert_eq!(metrics.tally(Counter::FrameRejects, reason).get(), 1);
        }
    }

    /// Announcing a mebibyte, or four gibibytes, and sending nothing of it costs what an idle stream costs.
    #[test]
    fn memory_follows_what_has_come() {
        for claimed in [u32::MAX, FRAME_BYTES_MAX as u32] {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let runtime = runtime.unwrap();
            let (mut peer, mut reader, _) = reader(1000, ReadSettings::default());
            let mut header = bytes_of(Frame::request(1, 1, &b""[..]));
            (&mut header[..4]).put_u32(claimed);
            runtime.block_on(peer.write_all(&header)).unwrap();
            let used = measure(|| assert!(runtime.block_on(reader.next()).is_err()));
            assert!(used.bytes_max < 64 << 10, "{used:?}");
            assert!(reader.buffer.capacity() <= 2 * READ_LEAST, "{}", reader.buffer.capacity());
        }
    }

    /// Sixty sessions with a buffer each were a quarter of a node's memory, although each has a small frame now and then.
    #[tokio::test(start_paused = true)]
    async fn between_small_frames_there_is_no_buffer() {
        let (mut peer, mut reader, _) = reader(1 << 20, ReadSettings::default());
        for size in [0, 100, 3_000] {
            let began = crate::now();
            peer.write_all(&bytes_of(Frame::request(1, 1, vec![7; size]))).await.unwrap();
            assert_eq!(reader.next().await.unwrap().unwrap().payload.len(), size);
            assert!(tokio::time::timeout(Duration::ZERO, reader.next()).await.is_err());
            assert_eq!((reader.buffer.capacity(), crate::now()), (0, began));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_gives_its_buffer_back() {
        let (mut peer, mut reader, _) = reader(1 << 20, ReadSettings::default());
        peer.write_all(&bytes_of(Frame::request(1, 1, vec![7; 500_000]))).await.unwrap();
        assert!(reader.next().await.unwrap().is_some());
        peer.write_all(&bytes_of(Frame::request(1, 2, vec![7; 60_000]))).await.unwrap();
        assert!(reader.next().await.unwrap().is_some());
        assert!(tokio::time::timeout(Duration::from_secs(3), reader.next()).await.is_err());
        assert_eq!(reader.buffer.capacity(), 0);
    }
}
