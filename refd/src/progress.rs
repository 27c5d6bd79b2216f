//! How far a transfer is, for a person who watches: on a terminal only, on standard error.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use ron_core::now;

/// Between two lines. Faster is not seen, slower looks stuck.
const EVERY: Duration = Duration::from_millis(100);

/// One transfer.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    total: Option<u64>,
    /// What was there before it began.
    before: u64,
    moved: u64,
    began: Instant,
    said: Option<Instant>,
    is_watched: bool,
}

impl Progress {
    /// Nothing moved yet, of `total` bytes if that is known.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        let is_watched = std::io::stderr().is_terminal();
        Progress { what, total, before: 0, moved: 0, began: now().into(), said: None, is_watched }
    }

    /// So much of it was there before.
    pub(crate) fn from(mut self, before: u64) -> Self {
        self.before = before;
        self
    }

    /// Nobody watches.
    #[cfg(test)]
    fn quiet(mut self) -> Self {
        self.is_watched = false;
        self
    }

    /// So many bytes more.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
        let now = Instant::from(now());
        if self.is_watched && self.said.is_none_or(|said| now - said >= EVERY) {
            self.said = Some(now);
            // A terminal that is gone is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line(now - self.began));
        }
    }

    /// Takes the line away: what follows is the answer.
    pub(crate) fn end(&mut self) {
        if self.said.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let rate = self.moved as f64 / elapsed.as_secs_f64().max(0.001);
        let done = self.before + self.moved;
        let head = match self.total {
            Some(total) if total > 0 => {
                let share = done as f64 / total as f64;
                let cells = ((share * 20.0) as usize).min(20);
                let bar = format!("[{}{}]", "=".repeat(cells), " ".repeat(20 - cells));
                let left =
                    Duration::from_secs_f64((total.saturating_sub(done) as f64 / rate.max(1.0)).min(1e6));
                format!("{bar} {:3.0} % of {}, {} s left", share * 100.0, size(total as f64), left.as_secs())
            }
            _ => size(done as f64),
        };
        format!("{} {head}, {}/s", self.what, size(rate))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Bytes as people say them.
fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_long() {
        let mut progress = Progress::new("get", Some(4 << 20)).quiet().from(1 << 20);
        progress.moved(1 << 20);
        let line = progress.line(Duration::from_secs(2));
        assert_eq!(line, "get [==========          ]  50 % of 4.0 MiB, 4 s left, 512.0 KiB/s");
        let mut unknown = Progress::new("put", None).quiet();
        unknown.moved(1500);
        assert_eq!(unknown.line(Duration::from_secs(1)), "put 1.5 KiB, 1.5 KiB/s");
    }

    #[test]
    fn sizes() {
        for (bytes, text) in
            [(0.0, "0 B"), (1023.0, "1023 B"), (1024.0, "1.0 KiB"), (3.5e12, "3.2 TiB"), (1e16, "9094.9 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
