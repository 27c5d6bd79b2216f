//! Memory to read into, used again and again.
//!
//! Fresh memory of this size comes from the kernel, which clears and maps every page of it, and that takes longer than
//! filling it from the page cache. So a buffer that was sent comes back here and waits for the next read, up to a limit in
//! all. Its old content is overwritten, or cut off if less is read.

use std::{fmt, mem, sync::Arc};

use bytes::Bytes;
use ron_core::{Lock, LockSpec, Metrics};

pub(crate) const BUFFERS: LockSpec = LockSpec::new("ron-storage", "buffers", 740)
    .guards("memory that waits for the next read; held while a piece is taken or given back");

/// Sizes are whole steps and a page for what surrounds a record in its file, so that a group fits into one step.
const STEP: usize = 64 << 10;
const SLACK: usize = 4 << 10;

/// Sizes that are kept: up to a mebibyte, the longest piece of a stream by default. Longer ones are rare.
const SIZES: usize = 16;

/// Less than this is quicker to allocate than to share.
const SMALL: usize = 16 << 10;

/// Bytes that wait for use: what 64 streams have on their way at 256 KiB each. The rest goes back to the system.
const WAITING_MAX: usize = 16 << 20;

/// Memory that waits for the next read.
pub(crate) struct Buffers {
    waiting: Lock<Waiting>,
}

#[derive(Default)]
struct Waiting {
    sizes: [Vec<Vec<u8>>; SIZES],
    bytes: usize,
}

impl Buffers {
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(Buffers { waiting: Lock::new(BUFFERS, Waiting::default(), metrics) })
    }

    /// Memory of this length. Its content is unspecified.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let Some(size) = size(len) else { return Buffer { bytes: vec![0; len], len, home: None } };
        let waiting = {
            let mut waiting = self.waiting.lock();
            let found = waiting.sizes[size].pop();
            waiting.bytes -= found.as_ref().map_or(0, Vec::len);
            found
        };
        let bytes = waiting.unwrap_or_else(|| vec![0; (size + 1) * STEP + SLACK]);
        Buffer { bytes, len, home: Some(Arc::clone(self)) }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let Some(size) = size(bytes.len()) else { return };
        let mut waiting = self.waiting.lock();
        if waiting.bytes + bytes.len() <= WAITING_MAX {
            waiting.bytes += bytes.len();
            waiting.sizes[size].push(bytes);
        } else {
            drop(waiting);
            drop(bytes);
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// Which of the sizes holds `len` bytes, if any is meant for it.
fn size(len: usize) -> Option<usize> {
    let size = len.saturating_sub(SLACK + 1) / STEP;
    (len >= SMALL && size < SIZES).then_some(size)
}

/// Memory to read into. It goes back when it is dropped, as bytes too.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffer {
    /// Leaves out what is behind the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// As bytes that many can share.
    pub(crate) fn freeze(mut self) -> Bytes {
        if self.home.is_some() {
            return Bytes::from_owner(self);
        }
        self.bytes.truncate(self.len);
        mem::take(&mut self.bytes).into()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.give_back(mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(buffers: &Buffers) -> usize {
        buffers.waiting.lock().bytes
    }

    #[test]
    fn memory_comes_back_from_whoever_has_the_last_part_of_it() {
        let buffers = Buffers::new(&Metrics::default());
        let mut buffer = buffers.take(65_536 + 64);
        buffer.as_mut().fill(7);
        buffer.truncate(65_536);
        let bytes = buffer.freeze();
        assert_eq!((bytes.len(), bytes[65_535]), (65_536, 7));
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(waiting(&buffers), 0);
        drop(part);
        assert_eq!(waiting(&buffers), STEP + SLACK);
        // The same memory, and no more of it than asked for.
        assert_eq!(buffers.take(40_000).as_ref(), &[7; 40_000][..]);
        assert_eq!(waiting(&buffers), STEP + SLACK);
    }

    #[test]
    fn what_waits_has_a_limit() {
        let buffers = Buffers::new(&Metrics::default());
        let taken: Vec<Buffer> = (0..64).map(|_| buffers.take(1 << 20)).collect();
        drop(taken);
        let waits = waiting(&buffers);
        assert!(waits <= WAITING_MAX && waits > WAITING_MAX - (2 << 20), "{waits}");
        // Others are allocated as they are needed, and freed.
        drop([buffers.take(100), buffers.take(8 << 20)]);
        assert_eq!(waiting(&buffers), waits);
    }

    #[test]
    fn every_length_fits() {
        for len in [SMALL, STEP, STEP + SLACK, STEP + SLACK + 1, 16 * STEP + SLACK] {
            let size = size(len).unwrap();
            assert!(len <= (size + 1) * STEP + SLACK && (len > size * STEP + SLACK || size == 0), "{len}");
            assert_eq!(super::size((size + 1) * STEP + SLACK), Some(size));
        }
        assert_eq!((size(SMALL - 1), size(16 * STEP + SLACK + 1)), (None, None));
    }
}
