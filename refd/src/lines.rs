//! What is written for people and for programs that read logs: an event is one line, and no words of a client or a peer are
//! an order to a terminal.

use std::{
    borrow::Cow,
    io::{self, Write},
};

/// A letter that ends a line or steers a terminal.
fn is_active(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|letter| is_active(letter) && !is_kept(letter)) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_active(letter) && !is_kept(letter) {
            true => safe.extend(letter.escape_default()),
            false => safe.push(letter),
        }
    }
    safe.into()
}

/// For a terminal, of several lines perhaps.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| matches!(letter, '\n' | '\t'))
}

/// Where events go, each with one call and ended by a line feed.
pub(crate) struct Lines<W>(pub(crate) W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // In one piece, so that events of two threads are not mixed.
        let end = if line.len() < text.len() { "\n" } else { "" };
        self.0.write_all(format!("{}{end}", escaped(line, |_| false)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(event: &str, line: &str) {
        let mut lines = Lines(Vec::new());
        lines.write_all(event.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(lines.0).unwrap(), line);
    }

    #[test]
    fn an_event_is_one_line() {
        check("a \"b\" ä\n", "a \"b\" ä\n");
        check("a\r\nb\n\n", "a\\r\\nb\\n\n");
        check("\u{1b}[31m\u{9b}x\u{2028}\t\0\n", "\\u{1b}[31m\\u{9b}x\\u{2028}\\t\\u{0}\n");
        check("no end", "no end");
    }

    #[test]
    fn what_people_read_may_have_lines() {
        assert_eq!(printable("a\n\tb\u{7}"), "a\n\tb\\u{7}");
    }
}
