//! Plain text: one file is one document, read in pieces.

use std::io::Read;

use super::codec::Stream;
use super::sources::{Codec, Source};
use super::{word_border, Batch, Fill, Rows, BATCH_BYTES, BYTE_ORDER_MARK, MAX_PIECE_BYTES, TOO_LONG};
use crate::error::{Error, Result};
use crate::text::utf8::from_utf8;

pub struct PlainText {
    stream: Stream,
    path: std::path::PathBuf,
    /// Bytes that were read and are in no batch yet.
    rest: Vec<u8>,
    /// Position in the file's text of the first byte of `rest`.
    offset: u64,
}

impl PlainText {
    pub fn open(source: &Source, codec: Codec) -> Result<Self> {
        Ok(Self { stream: Stream::open(source, codec)?, path: source.path.clone(), rest: Vec::new(), offset: 0 })
    }

    /// Reads until `rest` holds more than `target` bytes. Returns true at the end of the file.
    fn read_to(&mut self, target: usize) -> Result<bool> {
        let missing = (target + 1).saturating_sub(self.rest.len()) as u64;
        let mut reader = (&mut self.stream.reader).take(missing);
        reader.read_to_end(&mut self.rest).map_err(Error::io(&self.path))?;
        Ok(self.rest.len() <= target)
    }

    /// Puts the bytes that were read before the file broke off into the batch.
    fn keep_whole_characters(&self, batch: &mut Batch) {
        let valid = from_utf8(&self.rest).map_or_else(|error| error.valid_up_to(), str::len);
        match from_utf8(&self.rest[..valid]) {
            // a file that cannot be read at all is not an empty document
            Ok(text) if !text.is_empty() => batch.push(0, text, false),
            _ => {}
        }
    }
}

impl Rows for PlainText {
    fn fill(&mut self, batch: &mut Batch, _first: bool) -> Result<Fill> {
        let target = if batch.whole_documents { MAX_PIECE_BYTES } else { BATCH_BYTES };
        let mut at_end = self.read_to(target).inspect_err(|_| self.keep_whole_characters(batch))?;
        // some editors put a byte order mark in front of a file
        if self.offset == 0 && self.rest.starts_with(BYTE_ORDER_MARK) {
            self.rest.drain(..BYTE_ORDER_MARK.len());
            self.offset = BYTE_ORDER_MARK.len() as u64;
        }
        if batch.whole_documents && !at_end {
            batch.reject(0, TOO_LONG);
            return Ok(Fill::End);
        }
        let mut cut = word_border(&self.rest, BATCH_BYTES);
        if cut.is_none() && !at_end {
            at_end = self.read_to(MAX_PIECE_BYTES).inspect_err(|_| self.keep_whole_characters(batch))?;
            cut = word_border(&self.rest, BATCH_BYTES);
        }
        let cut = match cut {
            _ if at_end && self.rest.len() <= MAX_PIECE_BYTES => self.rest.len(),
            Some(cut) => cut,
            None => {
                let reason = format!("no word border in {} MiB of text at byte {}", MAX_PIECE_BYTES >> 20, self.offset);
                batch.reject(0, reason);
                return Ok(Fill::End);
            }
        };
        let complete = at_end && cut == self.rest.len();
        match from_utf8(&self.rest[..cut]) {
            Ok(text) => batch.push(0, text, complete),
            Err(error) => {
                let reason = format!("invalid UTF-8 at byte {}", self.offset + error.valid_up_to() as u64);
                batch.reject(0, reason);
                return Ok(Fill::End);
            }
        }
        self.offset += cut as u64;
        self.rest.drain(..cut);
        Ok(if complete { Fill::End } else { Fill::More })
    }

    fn progress(&self) -> u64 {
        self.stream.position()
    }
}
