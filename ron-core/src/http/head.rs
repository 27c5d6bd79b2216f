//! Where a request's head ends, and whether two readers could disagree about what it says.
//!
//! Request smuggling lives on leniency: a bare line feed that one reader takes for a line end, a length given twice, a
//! folded line. The parser behind this is lenient in some of these, so the bytes are judged here first, and what any
//! reader could take two ways is refused before anybody reads it.

/// The bounds of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadLimits {
    pub(super) bytes_max: usize,
    pub(super) headers_max: usize,
    pub(super) line_max: usize,
}

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The request line is too long: 414.
    Line,
    /// Too many header bytes or lines: 431.
    Headers,
    /// Ambiguous: 400, with the reason.
    Ambiguous(&'static str),
}

/// The longest header name that matters here, `transfer-encoding`, and one more to tell it from a longer one.
const NAME_MAX: usize = 18;

/// Reads one head byte by byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadScan {
    limits: HeadLimits,
    seen: usize,
    /// Lines that have ended; the first is the request line.
    lines: usize,
    line_bytes: usize,
    after_cr: bool,
    name: [u8; NAME_MAX],
    name_ended: bool,
    has_length: bool,
    has_encoding: bool,
}

impl HeadScan {
    pub(super) fn new(limits: HeadLimits) -> Self {
        HeadScan {
            limits,
            seen: 0,
            lines: 0,
            line_bytes: 0,
            after_cr: false,
            name: [0; NAME_MAX],
            name_ended: false,
            has_length: false,
            has_encoding: false,
        }
    }

    /// Whether anything of the head has come.
    pub(super) fn has_begun(&self) -> bool {
        self.seen > 0
    }

    /// Reads on. When the head ends in `bytes`, returns how many of them belong to it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at += 1;
            if self.step(*byte)? {
                return Ok(Some(at));
            }
            at += self.skip(&bytes[at..]);
        }
        Ok(None)
    }

    /// Counts, of what comes next, the bytes that nothing depends on but how many they are: most of the request line, and of
    /// a header's value.
    fn skip(&mut self, bytes: &[u8]) -> usize {
        let in_line = self.lines == 0 && self.line_bytes > 0;
        if self.after_cr || !(in_line || self.name_ended) {
            return 0;
        }
        // Up to the limits and no further: whatever crosses them is told by the step that does.
        let room = self.limits.bytes_max.saturating_sub(self.seen);
        let line_room =
            if self.lines == 0 { self.limits.line_max.saturating_sub(self.line_bytes) } else { room };
        let bytes = &bytes[..bytes.len().min(room).min(line_room)];
        let plain = plain(bytes);
        self.seen += plain;
        self.line_bytes += plain;
        plain
    }

    fn step(&mut self, byte: u8) -> Result<bool, Fault> {
        self.seen += 1;
        if self.seen > self.limits.bytes_max {
            return Err(if self.lines == 0 { Fault::Line } else { Fault::Headers });
        }
        match (self.after_cr, byte) {
            (true, b'\n') => {
                self.after_cr = false;
                return self.end_line();
            }
            (true, _) => return Err(Fault::Ambiguous("a carriage return without a line feed")),
            (false, b'\n') => return Err(Fault::Ambiguous("a line feed without a carriage return")),
            (false, b'\r') => {
                self.after_cr = true;
                return Ok(false);
            }
            (false, 0) => return Err(Fault::Ambiguous("a zero byte")),
            (false, _) => {}
        }
        let first = self.line_bytes == 0;
        self.line_bytes += 1;
        if self.lines == 0 {
            let fits = self.line_bytes <= self.limits.line_max;
            return if fits { Ok(false) } else { Err(Fault::Line) };
        }
        if self.name_ended {
            return Ok(false);
        }
        match byte {
            b' ' | b'\t' if first => Err(Fault::Ambiguous("a folded header line")),
            b' ' | b'\t' => Err(Fault::Ambiguous("white space in a header name")),
            b':' => {
                self.name_ended = true;
                self.end_name()
            }
            _ => {
                if let Some(place) = self.name.get_mut(self.line_bytes - 1) {
                    *place = byte.to_ascii_lowercase();
                }
                Ok(false)
            }
        }
    }

    fn end_name(&mut self) -> Result<bool, Fault> {
        match self.name.get(..self.line_bytes - 1) {
            Some(b"content-length") if std::mem::replace(&mut self.has_length, true) => {
                return Err(Fault::Ambiguous("two content lengths"));
            }
            Some(b"transfer-encoding") if std::mem::replace(&mut self.has_encoding, true) => {
                return Err(Fault::Ambiguous("two transfer encodings"));
            }
            _ => {}
        }
        if self.has_length && self.has_encoding {
            return Err(Fault::Ambiguous("a content length and a transfer encoding"));
        }
        Ok(false)
    }

    fn end_line(&mut self) -> Result<bool, Fault> {
        if self.line_bytes == 0 {
            // RFC 9112 lets a client send one empty line before its request; more are somebody's experiment.
            return match (self.lines, self.seen) {
                (0, 2) => Ok(false),
                (0, _) => Err(Fault::Ambiguous("empty lines before the request")),
                _ => Ok(true),
            };
        }
        if self.lines > 0 && !self.name_ended {
            return Err(Fault::Ambiguous("a header line without a colon"));
        }
        self.lines += 1;
        if self.lines > self.limits.headers_max + 1 {
            return Err(Fault::Headers);
        }
        (self.line_bytes, self.name_ended, self.name) = (0, false, [0; NAME_MAX]);
        Ok(false)
    }
}

/// How many bytes come before the first that ends a line or should not be there.
fn plain(bytes: &[u8]) -> usize {
    let ends = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
    // Eight at a time: the subtraction reaches the top bit of a byte that had none only where that is below what is taken off,
    // and the three are. Of the others there a tab may come; the one by one look behind it is only slower.
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let is_clean = |block: &&[u8]| {
        let word = <[u8; 8]>::try_from(*block).map_or(0, u64::from_ne_bytes);
        word.wrapping_sub(ONES * (b'\r' as u64 + 1)) & !word & (ONES << 7) == 0
    };
    let skipped = 8 * bytes.chunks_exact(8).take_while(is_clean).count();
    skipped + bytes[skipped..].iter().position(ends).unwrap_or(bytes.len() - skipped)
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: HeadLimits = HeadLimits { bytes_max: 512, headers_max: 4, line_max: 64 };

    fn scan(text: &[u8]) -> Result<Option<usize>, Fault> {
        HeadScan::new(LIMITS).push(text)
    }

    #[test]
    fn the_end_is_found_and_what_follows_left() {
        assert_eq!(scan(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /2"), Ok(Some(27)));
        assert_eq!(scan(b"\r\nGET / HTTP/1.1\r\n\r\n"), Ok(Some(20)));
        assert_eq!(scan(b"GET / HTTP/1.1\r\nhost: a\r\n"), Ok(None));
    }

    #[test]
    fn whatever_can_be_read_two_ways_is_refused() {
        for text in [
            "GET / HTTP/1.1\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET / HTTP/1.1\r\nhost: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nx: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nx : a\r\n\r\n",
            "GET / HTTP/1.1\r\nx\r\n\r\n",
            "GET / HTTP/1.1\r\nx: \0\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
        ] {
            assert!(matches!(scan(text.as_bytes()), Err(Fault::Ambiguous(_))), "{text:?}");
        }
        // Longer names that begin the same are other headers.
        let text =
            "GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-lengthy: 1\r\ntransfer-encodings: 1\r\n\r\n";
        assert_eq!(scan(text.as_bytes()), Ok(Some(text.len())));
    }

    #[test]
    fn limits_hold() {
        let line = |length: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(length - 14));
        assert_eq!(scan(line(64).as_bytes()), Ok(Some(68)));
        assert_eq!(scan(line(65).as_bytes()), Err(Fault::Line));
        let headers = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(scan(headers(4).as_bytes()).is_ok_and(|end| end.is_some()));
        assert_eq!(scan(headers(5).as_bytes()), Err(Fault::Headers));
        let long = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(600));
        assert_eq!(scan(long.as_bytes()), Err(Fault::Headers));
    }

    /// Byte by byte, as the rules are written.
    fn scan_slowly(bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let mut scan = HeadScan::new(LIMITS);
        for (at, byte) in bytes.iter().enumerate() {
            if scan.step(*byte)? {
                return Ok(Some(at + 1));
            }
        }
        Ok(None)
    }

    proptest! {
        /// What is skipped would not have been judged.
        #[test]
        fn skipping_changes_nothing(
            bytes in proptest::collection::vec(
                prop_oneof![2 => Just(b'\r'), 2 => Just(b'\n'), 2 => Just(b':'), 1 => Just(b' '), 20 => Just(b'a'), 1 => any::<u8>()],
                0..700),
            lines in proptest::collection::vec("[a-z]{1,20}: {0,1}[ -~]{0,80}", 0..6),
        ) {
            prop_assert_eq!(scan(&bytes), scan_slowly(&bytes));
            let head = format!("GET /{} HTTP/1.1\r\n{}\r\n\r\nrest", "a".repeat(bytes.len() / 9), lines.join("\r\n"));
            prop_assert_eq!(scan(head.as_bytes()), scan_slowly(head.as_bytes()));
        }

        /// How the bytes are cut into reads changes nothing, and nothing panics.
        #[test]
        fn every_split_judges_alike(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b' '), Just(b'a'), any::<u8>()], 0..80),
            cut in 0usize..80,
        ) {
            let whole = scan(&bytes);
            let (left, right) = bytes.split_at(cut.min(bytes.len()));
            let mut scan = HeadScan::new(LIMITS);
            let parts = match scan.push(left) {
                Ok(None) => scan.push(right).map(|end| end.map(|end| end + left.len())),
                decided => decided,
            };
            prop_assert_eq!(whole, parts);
        }
    }
}
