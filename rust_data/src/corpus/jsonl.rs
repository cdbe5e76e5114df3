//! JSON lines: the text is one string field of the object on each line.

use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, Read};
use std::path::PathBuf;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::codec::Stream;
use super::sources::{Codec, Source};
use super::{push_pieces, Batch, Fill, Rows, BYTE_ORDER_MARK};
use crate::error::{Error, Result};
use crate::text::utf8::from_utf8;

/// A line longer than this is read only when the writer needs it next.
const LONG_LINE_BYTES: u64 = 4 << 20;
/// A line is read in steps of this size, or of a quarter of its length so far, so that its buffer is not much too
/// large.
const STEP_BYTES: usize = 256 << 10;

pub struct JsonLines {
    stream: Stream,
    path: PathBuf,
    column: String,
    max_line_bytes: u64,
    line: Vec<u8>,
    /// Whether `line` holds the beginning of a long line, which waits until the writer needs it next.
    unfinished: bool,
    row: u64,
    /// Rest of a long row that did not fit into the last batch.
    pending: Option<Pending>,
}

struct Pending {
    row: u64,
    text: String,
    /// Bytes of the text that have been handed out.
    used: usize,
}

enum Line {
    Whole,
    /// The line is too long to be read before the writer needs it next.
    Later,
    End,
}

impl JsonLines {
    /// Opens the file and passes over its first `skip` lines.
    pub fn open(source: &Source, codec: Codec, column: &str, max_line_bytes: u64, skip: u64) -> Result<Self> {
        let stream = Stream::open(source, codec)?;
        let mut rows = Self {
            stream,
            path: source.path.clone(),
            column: column.to_owned(),
            max_line_bytes,
            line: Vec::new(),
            unfinished: false,
            row: 0,
            pending: None,
        };
        while rows.row < skip && rows.discard_line()? {
            rows.row += 1;
        }
        Ok(rows)
    }

    /// Reads the next line into `self.line`, but at most one byte more than the longest line that is accepted.
    fn next_line(&mut self, first: bool) -> Result<Line> {
        if !self.unfinished {
            self.line.clear();
            self.line.shrink_to(LONG_LINE_BYTES as usize);
        }
        let most = self.max_line_bytes + 1;
        let limit = if first { most } else { most.min(LONG_LINE_BYTES) } as usize;
        while self.line.len() < limit && self.line.last() != Some(&b'\n') {
            let step = STEP_BYTES.max(self.line.len() / 4).min(limit - self.line.len());
            self.line.reserve_exact(step);
            let mut limited = (&mut self.stream.reader).take(step as u64);
            if limited.read_until(b'\n', &mut self.line).map_err(Error::io(&self.path))? == 0 {
                break;
            }
        }
        let is_whole = self.line.last() == Some(&b'\n') || self.line.len() < limit;
        if !is_whole && (limit as u64) < most {
            self.unfinished = true;
            return Ok(Line::Later);
        }
        self.unfinished = false;
        if self.line.is_empty() {
            return Ok(Line::End);
        }
        self.row += 1;
        // some editors put a byte order mark in front of a file
        if self.row == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        if !is_whole {
            self.discard_line()?;
        }
        Ok(Line::Whole)
    }

    /// Passes over the rest of a line. Returns false at the end of the file.
    fn discard_line(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            let buffer = self.stream.reader.fill_buf().map_err(Error::io(&self.path))?;
            let (used, found) = match memchr::memchr(b'\n', buffer) {
                Some(at) => (at + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            any |= used > 0;
            self.stream.reader.consume(used);
            if found {
                return Ok(any);
            }
        }
    }

    /// Returns the text of the current line, or the reason why it has none.
    fn text(&self) -> std::result::Result<Cow<'_, str>, String> {
        if self.line.len() as u64 > self.max_line_bytes {
            return Err(format!("line longer than {} MiB, the most that --memory allows", self.max_line_bytes >> 20));
        }
        let line =
            from_utf8(self.line.trim_ascii_end()).map_err(|e| format!("invalid UTF-8 at byte {}", e.valid_up_to()))?;
        let text = match text_of(line, &self.column) {
            Err(error) => match finite(line) {
                // Python's own writer puts such words into JSON
                Some(line) => text_of(&line, &self.column).map(|text| text.map(|text| Cow::Owned(text.into_owned()))),
                None => Err(error),
            },
            text => text,
        };
        // the parser sees a single line, so its line numbers mean nothing
        let describe =
            |error: serde_json::Error| format!("bad JSON: {error}").replace(" at line 1 column", " at column");
        match text.map_err(describe)? {
            Some(bytes) => Ok(replace_surrogates(bytes)),
            None => Err(format!("field {:?} is missing or null", self.column)),
        }
    }

    /// Puts the text of the current line into the batch. The rest of a long text is kept without copying it.
    fn push_line(&mut self, batch: &mut Batch, row: u64) {
        let (rest, text) = match self.text() {
            Ok(text) => match (push_pieces(batch, row, &text).map(str::len), text) {
                (None, _) => return,
                (Some(rest), Cow::Owned(text)) => (rest, text),
                (Some(rest), Cow::Borrowed(text)) => {
                    let start = text.as_ptr() as usize - self.line.as_ptr() as usize;
                    let end = start + text.len();
                    self.line.truncate(end);
                    self.line.drain(..start);
                    let line = std::mem::take(&mut self.line);
                    (rest, String::from_utf8(line).unwrap_or_default())
                }
            },
            Err(reason) => return batch.reject(row, reason),
        };
        self.line = Vec::new();
        self.pending = Some(Pending { row, used: text.len() - rest, text });
    }
}

/// Returns the string in the field `column` of a line, as bytes.
fn text_of<'a>(line: &'a str, column: &str) -> serde_json::Result<Option<Cow<'a, [u8]>>> {
    let mut deserializer = serde_json::Deserializer::from_str(line);
    let text = Field(column).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(text)
}

/// Returns the line with `null` in place of each `NaN`, `Infinity` and `-Infinity` outside of strings, or `None` if
/// there is none. Python's writer writes these words, although JSON does not have them.
fn finite(line: &str) -> Option<String> {
    let mut out = String::new();
    let (mut from, mut at, mut in_string) = (0, 0, false);
    let bytes = line.as_bytes();
    while at < bytes.len() {
        let word = match bytes[at] {
            b'"' => {
                in_string = !in_string;
                None
            }
            b'\\' if in_string => {
                at += 1;
                None
            }
            b'N' | b'I' | b'-' if !in_string => {
                ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| line[at..].starts_with(word))
            }
            _ => None,
        };
        match word {
            Some(word) => {
                out.push_str(&line[from..at]);
                out.push_str("null");
                at += word.len();
                from = at;
            }
            None => at += 1,
        }
    }
    (from > 0).then(|| out + &line[from..])
}

impl Rows for JsonLines {
    fn fill(&mut self, batch: &mut Batch, first: bool) -> Result<Fill> {
        if let Some(mut pending) = self.pending.take() {
            if let Some(rest) = push_pieces(batch, pending.row, &pending.text[pending.used..]) {
                pending.used = pending.text.len() - rest.len();
                self.pending = Some(pending);
            }
        }
        while !batch.is_full() {
            match self.next_line(first)? {
                Line::Whole => {}
                Line::Later => return Ok(Fill::Later),
                Line::End => return Ok(Fill::End),
            }
            if !self.line.iter().all(u8::is_ascii_whitespace) {
                self.push_line(batch, self.row - 1);
            }
        }
        Ok(Fill::More)
    }

    fn progress(&self) -> u64 {
        self.stream.position()
    }
}

/// Finds the one field that matters and skips the others.
struct Field<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<Cow<'de, [u8]>>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<Cow<'de, [u8]>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object with a string field {:?}", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.0 {
                found = map.next_value_seed(TextBytes)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A string as bytes, because escaped lone surrogates are not valid UTF-8. `null` gives `None`.
struct TextBytes;

impl<'de> DeserializeSeed<'de> for TextBytes {
    type Value = Option<Cow<'de, [u8]>>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for TextBytes {
    type Value = Option<Cow<'de, [u8]>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> std::result::Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(bytes)))
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> std::result::Result<Self::Value, E> {
        Ok(Some(Cow::Owned(bytes.to_owned())))
    }
    fn visit_none<E>(self) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }
    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, _: A) -> std::result::Result<Self::Value, A::Error> {
        Err(A::Error::custom("expected a string, found an array"))
    }
}

/// Replaces lone surrogates, three bytes each, by U+FFFD. Nothing else in `bytes` can be invalid.
fn replace_surrogates(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(without_surrogates(bytes)),
        },
        Cow::Owned(bytes) => {
            Cow::Owned(String::from_utf8(bytes).unwrap_or_else(|error| without_surrogates(error.as_bytes())))
        }
    }
}

fn without_surrogates(mut bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    while let Err(error) = std::str::from_utf8(bytes) {
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(&String::from_utf8_lossy(valid));
        out.push('\u{fffd}');
        bytes = rest.get(3..).unwrap_or_default();
    }
    out.push_str(&String::from_utf8_lossy(bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_null() {
        assert_eq!(finite(r#"{"a": NaN, "b": [-Infinity, Infinity]}"#).unwrap(), r#"{"a": null, "b": [null, null]}"#);
        for line in [r#"{"a": "NaN \" Infinity"}"#, r#"{"a": -1}"#, "", "é"] {
            assert_eq!(finite(line), None);
        }
        assert_eq!(finite("é\"\\é\"NaN").unwrap(), "é\"\\é\"null");
    }
}
