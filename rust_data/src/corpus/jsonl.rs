//! JSON lines: the text is one string field of the object on each line.

use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, Read};
use std::path::PathBuf;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::codec::Stream;
use super::sources::{Codec, Source};
use super::{push_pieces, Batch, Rows};
use crate::error::{Error, Result};
use crate::text::utf8::from_utf8;

const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();

pub struct JsonLines {
    stream: Stream,
    path: PathBuf,
    column: String,
    max_line_bytes: u64,
    line: Vec<u8>,
    row: u64,
    /// Rest of a long row that did not fit into the last batch.
    pending: Option<(u64, String)>,
}

impl JsonLines {
    /// Opens the file behind its first `skip` lines.
    pub fn open(source: &Source, codec: Codec, column: &str, max_line_bytes: u64, skip: u64) -> Result<Self> {
        let stream = Stream::open(source, codec)?;
        let mut rows = Self {
            stream,
            path: source.path.clone(),
            column: column.to_owned(),
            max_line_bytes,
            line: Vec::new(),
            row: 0,
            pending: None,
        };
        while rows.row < skip && rows.next_line()? {}
        Ok(rows)
    }

    /// Reads the next line into `self.line`, at most one byte more than allowed; false at the end.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        let mut limited = (&mut self.stream.reader).take(self.max_line_bytes + 1);
        let read = limited.read_until(b'\n', &mut self.line).map_err(Error::io(&self.path))?;
        self.row += u64::from(read > 0);
        // some editors put a byte order mark in front of a file
        if self.row == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        if self.line.len() as u64 > self.max_line_bytes {
            self.discard_line()?;
        }
        Ok(read > 0)
    }

    fn discard_line(&mut self) -> Result<()> {
        loop {
            let buffer = self.stream.reader.fill_buf().map_err(Error::io(&self.path))?;
            let (used, found) = match memchr::memchr(b'\n', buffer) {
                Some(at) => (at + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.stream.reader.consume(used);
            if found {
                return Ok(());
            }
        }
    }

    /// The text of the current line, or why it has none.
    fn text(&self) -> std::result::Result<Cow<'_, str>, String> {
        if self.line.len() as u64 > self.max_line_bytes {
            return Err(format!("line longer than {} MiB, the most that --memory allows", self.max_line_bytes >> 20));
        }
        let line =
            from_utf8(self.line.trim_ascii_end()).map_err(|e| format!("invalid UTF-8 at byte {}", e.valid_up_to()))?;
        let mut deserializer = serde_json::Deserializer::from_str(line);
        let field =
            Field(&self.column).deserialize(&mut deserializer).and_then(|text| deserializer.end().map(|()| text));
        // a line of ours is all that the parser sees
        let describe =
            |error: serde_json::Error| format!("bad JSON: {error}").replace(" at line 1 column", " at column");
        match field.map_err(describe)? {
            Some(bytes) => Ok(replace_surrogates(bytes)),
            None => Err(format!("field {:?} is missing or null", self.column)),
        }
    }
}

impl Rows for JsonLines {
    fn fill(&mut self, batch: &mut Batch) -> Result<bool> {
        if let Some((row, text)) = self.pending.take() {
            self.pending = push_pieces(batch, row, &text).map(|rest| (row, rest.to_owned()));
        }
        while !batch.is_full() {
            if !self.next_line()? {
                return Ok(false);
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let row = self.row - 1;
            let rest = match self.text() {
                Ok(text) => push_pieces(batch, row, &text).map(|rest| (row, rest.to_owned())),
                Err(reason) => {
                    batch.reject(row, reason);
                    None
                }
            };
            self.pending = rest;
        }
        Ok(true)
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

/// A string as bytes, so that escaped lone surrogates come through; null is none.
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

/// Lone surrogates, three bytes each, become U+FFFD; nothing else in `bytes` can be invalid.
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
