//! Which bytes of an object a request gets: `Range`, `If-Range`, `If-None-Match` and `If-Match` (RFC 9110).
//!
//! The rules, where the RFC leaves a choice:
//!
//! * A range in another unit than bytes is ignored, as the RFC demands: the answer is the whole object.
//! * Whatever begins like byte ranges and is not well formed, or asks for more than [`RANGES_MAX`] of them, or for the same
//!   byte twice, is refused with 416. Ignoring it would answer a broken request for a kilobyte with a terabyte.
//! * Ranges behind the end are left out; if none is left, 416. One that is left is answered by itself, several as
//!   `multipart/byteranges` in the order in which they were asked for.
//! * The empty object has no bytes to give a range of: a suffix of it is the whole of it, every other range is behind it.
//!
//! The tag of an object is its name, which is as strong as a tag can be. There are no dates: a name never changes what it
//! stands for.

use std::ops::Range;

/// Byte ranges in one request. Enough for a viewer that wants the head, the index and a few pages at once; a request for
/// thousands is an attack.
pub const RANGES_MAX: usize = 16;

/// One range as it is asked for, before the size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// From a byte to another, both included; without the second to the end.
    From(u64, Option<u64>),
    /// The last bytes, so many.
    Last(u64),
}

impl Asked {
    /// The bytes it stands for in an object of `size` bytes; none when it is behind the end.
    #[must_use]
    pub fn within(self, size: u64) -> Range<u64> {
        match self {
            Asked::From(first, _) if first >= size => size..size,
            Asked::From(first, last) => first..last.map_or(size, |last| last.saturating_add(1).min(size)),
            Asked::Last(len) => size.saturating_sub(len)..size,
        }
    }
}

/// Why a request for ranges is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// It is not what the RFC describes.
    #[error("byte ranges are written bytes=0-99 or bytes=100- or bytes=-100, with commas between them")]
    Malformed,
    /// It is more than is answered.
    #[error("more than {RANGES_MAX} ranges")]
    TooMany,
    /// Two of them share a byte.
    #[error("the ranges overlap")]
    Overlap,
    /// None of them is inside the object.
    #[error("the object has {size} bytes")]
    Outside {
        /// Its size.
        size: u64,
    },
}

/// Members of a list that may be empty: RFC 9110 wants a reasonable number of them ignored.
const EMPTY_MAX: usize = 16;

/// What is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All of it: 200.
    Whole,
    /// One range: 206.
    One(Range<u64>),
    /// Several, each inside the object and apart from the others: 206 in parts.
    Many(Vec<Range<u64>>),
}

/// Reads the value of a `Range` header; `None` if it is in a unit that is not ours to understand.
///
/// # Errors
/// [`RangeError::Malformed`] or [`RangeError::TooMany`].
pub fn parse(header: &[u8]) -> Result<Option<Vec<Asked>>, RangeError> {
    let header = header.trim_ascii();
    let Some(at) = header.iter().position(|byte| *byte == b'=') else {
        return if header.eq_ignore_ascii_case(b"bytes") { Err(RangeError::Malformed) } else { Ok(None) };
    };
    let (unit, set) = (&header[..at], &header[at + 1..]);
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return Ok(None);
    }
    parse_set(set).map(Some)
}

/// Reads what stands behind `bytes=`.
///
/// # Errors
/// [`RangeError::Malformed`] or [`RangeError::TooMany`].
pub fn parse_set(set: &[u8]) -> Result<Vec<Asked>, RangeError> {
    let mut asked = Vec::new();
    let (mut empty, all) = (0, set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
    for one in all {
        // Members of a list may be empty, a few of them.
        if one.is_empty() && empty < EMPTY_MAX {
            empty += 1;
            continue;
        }
        if asked.len() == RANGES_MAX {
            return Err(RangeError::TooMany);
        }
        asked.push(parse_one(one)?);
    }
    if asked.is_empty() { Err(RangeError::Malformed) } else { Ok(asked) }
}

fn parse_one(one: &[u8]) -> Result<Asked, RangeError> {
    let at = one.iter().position(|byte| *byte == b'-').ok_or(RangeError::Malformed)?;
    let (first, last) = (&one[..at], &one[at + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Err(RangeError::Malformed),
        (true, false) => Ok(Asked::Last(number(last)?)),
        (false, true) => Ok(Asked::From(number(first)?, None)),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first { Err(RangeError::Malformed) } else { Ok(Asked::From(first, Some(last))) }
        }
    }
}

/// A number of any length: beyond the largest it is the largest, which is behind the end of every object.
fn number(digits: &[u8]) -> Result<u64, RangeError> {
    digits.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => Ok(number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))),
        _ => Err(RangeError::Malformed),
    })
}

/// What of an object of `size` bytes is answered.
///
/// # Errors
/// [`RangeError::Outside`] or [`RangeError::Overlap`].
pub fn select(asked: &[Asked], size: u64) -> Result<Selection, RangeError> {
    if size == 0 && asked.iter().any(|asked| matches!(asked, Asked::Last(1..))) {
        return Ok(Selection::Whole);
    }
    let inside: Vec<Range<u64>> =
        asked.iter().map(|asked| asked.within(size)).filter(|range| !range.is_empty()).collect();
    match &inside[..] {
        [] => Err(RangeError::Outside { size }),
        [one] => Ok(Selection::One(one.clone())),
        several => {
            let mut sorted = several.to_vec();
            sorted.sort_unstable_by_key(|range| range.start);
            if sorted.windows(2).any(|pair| pair[1].start < pair[0].end) {
                return Err(RangeError::Overlap);
            }
            Ok(Selection::Many(inside))
        }
    }
}

/// What a request makes its answer depend on: the values of its headers, each with all of its lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions<'a> {
    /// `If-Match`.
    pub if_match: &'a [&'a [u8]],
    /// `If-None-Match`.
    pub if_none_match: &'a [&'a [u8]],
    /// `If-Range`.
    pub if_range: Option<&'a [u8]>,
}

/// What conditions come to for an object that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Answer; with the ranges asked for.
    Answer,
    /// Answer, but with the whole object.
    AnswerWhole,
    /// 304: the client has it.
    NotModified,
    /// 412: the client wants it only if it were another.
    Failed,
}

impl Conditions<'_> {
    /// Judges them in the RFC's order for an object with the strong tag `etag`, quotes included.
    #[must_use]
    pub fn judge(&self, etag: &str) -> Verdict {
        if !self.if_match.is_empty() && !names(self.if_match, etag, false) {
            return Verdict::Failed;
        }
        if !self.if_none_match.is_empty() && names(self.if_none_match, etag, true) {
            return Verdict::NotModified;
        }
        match self.if_range {
            Some(tag) if tag.trim_ascii() != etag.as_bytes() => Verdict::AnswerWhole,
            _ => Verdict::Answer,
        }
    }
}

/// Whether one of the lists names the tag; weak tags count only if `weak`.
fn names(lists: &[&[u8]], etag: &str, weak: bool) -> bool {
    lists.iter().any(|list| {
        let mut rest = list.trim_ascii();
        if rest == b"*" {
            return true;
        }
        loop {
            while let Some((b',', after)) = rest.split_first() {
                rest = after.trim_ascii_start();
            }
            if rest.is_empty() {
                return false;
            }
            let is_weak = rest.starts_with(b"W/");
            let tag = if is_weak { &rest[2..] } else { rest };
            // A tag ends at its second quote, wherever commas are; what is no tag ends the list.
            let Some(len) = tag.strip_prefix(b"\"").and_then(|tag| tag.iter().position(|byte| *byte == b'"'))
            else {
                return false;
            };
            let (tag, after) = tag.split_at(len + 2);
            if tag == etag.as_bytes() && (weak || !is_weak) {
                return true;
            }
            rest = after.trim_ascii_start();
            if !rest.starts_with(b",") {
                return false;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(header: &str, size: u64) -> Result<Selection, RangeError> {
        match parse(header.as_bytes())? {
            None => Ok(Selection::Whole),
            Some(asked) => select(&asked, size),
        }
    }

    #[test]
    fn one_range() {
        for (header, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=0-99", 0..100),
            ("Bytes=90-", 90..100),
            ("bytes=-1", 99..100),
            ("bytes=-1000", 0..100),
            ("bytes=99-18446744073709551615", 99..100),
            ("bytes=0-99999999999999999999999999", 0..100),
            (" bytes= 1-2 ", 1..3),
            ("bytes=1-2,200-", 1..3),
            ("bytes=,1-2, ,", 1..3),
        ] {
            assert_eq!(check(header, 100), Ok(Selection::One(range)), "{header}");
        }
    }

    #[test]
    fn several_ranges_keep_their_order() {
        assert_eq!(check("bytes=10-19, 0-4 ,-1", 100), Ok(Selection::Many(vec![10..20, 0..5, 99..100])));
        assert_eq!(check("bytes=0-1,,4-5", 100), Ok(Selection::Many(vec![0..2, 4..6])));
        assert_eq!(check(&format!("bytes={}0-1", ",".repeat(17)), 100), Err(RangeError::Malformed));
        let most = vec!["1-1"; RANGES_MAX].join(",");
        assert_eq!(check(&format!("bytes={most}"), 100), Err(RangeError::Overlap));
        assert_eq!(check(&format!("bytes={most},1-1"), 100), Err(RangeError::TooMany));
    }

    #[test]
    fn what_is_not_answered() {
        for header in ["bytes=0-9,5-", "bytes=0-,-1"] {
            assert_eq!(check(header, 100), Err(RangeError::Overlap), "{header}");
        }
        for header in ["bytes=100-", "bytes=-0", "bytes=100-200,300-", "bytes=99999999999999999999999-"] {
            assert_eq!(check(header, 100), Err(RangeError::Outside { size: 100 }), "{header}");
        }
        for header in [
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=,",
            "bytes=1",
            "bytes=2-1",
            "bytes=+1-2",
            "bytes=a-b",
            "bytes=1--2",
            "bytes=1-2-3",
            "bytes=0x1-",
            "bytes=1 -2",
        ] {
            assert_eq!(check(header, 100), Err(RangeError::Malformed), "{header}");
        }
        for header in ["lines=1-2", "", "none", "byte=1-2", "bytes =0-1"] {
            assert_eq!(check(header, 100), Ok(Selection::Whole), "{header}");
        }
    }

    #[test]
    fn nothing_has_no_ranges() {
        assert_eq!(check("bytes=-5", 0), Ok(Selection::Whole));
        assert_eq!(check("bytes=-0", 0), Err(RangeError::Outside { size: 0 }));
        assert_eq!(check("bytes=0-", 0), Err(RangeError::Outside { size: 0 }));
    }

    /// Abuse case 12: ten thousand ranges cost no more than the first seventeen.
    #[test]
    fn many_ranges_are_refused_early() {
        let many = (0..10_000).map(|n| format!("{n}-{n}")).collect::<Vec<_>>().join(",");
        assert_eq!(check(&format!("bytes={many}"), 1 << 40), Err(RangeError::TooMany));
    }

    const TAG: &str = "\"b3:0a\"";

    fn judge(if_match: &[&str], if_none_match: &[&str], if_range: Option<&str>) -> Verdict {
        let if_match: Vec<&[u8]> = if_match.iter().map(|value| value.as_bytes()).collect();
        let if_none_match: Vec<&[u8]> = if_none_match.iter().map(|value| value.as_bytes()).collect();
        let if_range = if_range.map(str::as_bytes);
        Conditions { if_match: &if_match, if_none_match: &if_none_match, if_range }.judge(TAG)
    }

    #[test]
    fn who_has_it_is_not_sent_it() {
        for list in
            [TAG, "W/\"b3:0a\"", "*", "\"x\", \"b3:0a\"", "\"a,b\" ,W/\"b3:0a\"", ", \"x\",, \"b3:0a\""]
        {
            assert_eq!(judge(&[], &[list], None), Verdict::NotModified, "{list}");
        }
        assert_eq!(judge(&[], &["\"x\"", TAG], None), Verdict::NotModified);
        for list in ["", "\"x\"", "b3:0a", "\"b3:0a", "\"x\" \"b3:0a\"", "w/\"b3:0a\"", "\"b3:0A\""] {
            assert_eq!(judge(&[], &[list], None), Verdict::Answer, "{list}");
        }
    }

    #[test]
    fn conditions_have_an_order() {
        assert_eq!(judge(&["\"x\""], &[TAG], None), Verdict::Failed);
        assert_eq!(judge(&["W/\"b3:0a\""], &[], None), Verdict::Failed);
        assert_eq!(judge(&["*"], &[TAG], Some(TAG)), Verdict::NotModified);
        assert_eq!(judge(&[TAG], &["\"x\""], Some(TAG)), Verdict::Answer);
        for other in ["W/\"b3:0a\"", "\"x\"", "Tue, 15 Nov 1994 12:45:26 GMT", ""] {
            assert_eq!(judge(&[], &[], Some(other)), Verdict::AnswerWhole, "{other}");
        }
    }

    proptest! {
        /// Whatever is asked, what is answered is inside the object, apart, and not empty.
        #[test]
        fn selections_are_inside_and_apart(header in "bytes=[0-9,\\-]{0,40}", size in 0..5000_u64) {
            let ranges = match check(&header, size) {
                Ok(Selection::One(range)) => vec![range],
                Ok(Selection::Many(ranges)) => {
                    prop_assert!(ranges.len() > 1);
                    ranges
                }
                Ok(Selection::Whole) => { prop_assert_eq!(size, 0); vec![] }
                Err(_) => vec![],
            };
            for (place, range) in ranges.iter().enumerate() {
                prop_assert!(range.start < range.end && range.end <= size);
                for other in &ranges[..place] {
                    prop_assert!(range.end <= other.start || other.end <= range.start);
                }
            }
        }

        #[test]
        fn nothing_panics(header in prop::collection::vec(any::<u8>(), 0..64), size: u64) {
            if let Ok(Some(asked)) = parse(&header) {
                let _ = select(&asked, size);
            }
            let _ = Conditions { if_match: &[&header], if_none_match: &[&header], if_range: Some(&header) }.judge(TAG);
        }
    }
}
