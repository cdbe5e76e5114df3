//! Documents out of files: parquet, JSON lines and plain text, read as a stream of batches.

mod codec;
mod jsonl;
mod parquet;
mod plain;
pub mod sources;
pub mod units;

use crate::error::Result;

/// Text read at a time: enough to amortise a hand-over between threads, small enough for the L2 cache.
pub const BATCH_BYTES: usize = 1 << 20;
/// A document is read in pieces cut at word borders; text without a border for longer than this is refused.
pub const MAX_PIECE_BYTES: usize = 8 << 20;

/// Text of some consecutive rows.
#[derive(Default)]
pub struct Batch {
    pub text: String,
    pub rows: Vec<RowText>,
    pub rejected: Vec<Rejected>,
}

/// The part of `Batch::text` up to `end` that belongs to `row`.
pub struct RowText {
    pub row: u64,
    pub end: usize,
    /// False when more of this row follows in the next batch.
    pub complete: bool,
}

pub struct Rejected {
    pub row: u64,
    pub reason: String,
}

impl Batch {
    pub fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
        self.rejected.clear();
    }

    fn push(&mut self, row: u64, text: &str, complete: bool) {
        self.text.push_str(text);
        self.rows.push(RowText { row, end: self.text.len(), complete });
    }

    fn reject(&mut self, row: u64, reason: impl Into<String>) {
        self.rejected.push(Rejected { row, reason: reason.into() });
    }

    fn is_full(&self) -> bool {
        self.text.len() >= BATCH_BYTES || self.rows.len() >= BATCH_BYTES / 16
    }
}

/// A reader of one unit of work.
pub trait Rows: Send {
    /// Reads on until the batch is full; false once the unit has no more rows.
    fn fill(&mut self, batch: &mut Batch) -> Result<bool>;

    /// Share of the unit's weight that has been read, in the unit's own measure.
    fn progress(&self) -> u64;
}

/// Appends `text` in pieces of about a batch; gives back what is left when the batch is full.
///
/// `text` must be the rest of the row; the row is rejected if it has no word border for too long.
fn push_pieces<'a>(batch: &mut Batch, row: u64, mut text: &'a str) -> Option<&'a str> {
    while text.len() > BATCH_BYTES {
        if batch.is_full() {
            return Some(text);
        }
        let Some(cut) = word_border(text.as_bytes(), BATCH_BYTES) else {
            if text.len() > MAX_PIECE_BYTES {
                batch.reject(row, format!("no word border in {} MiB of text", text.len().min(MAX_PIECE_BYTES) >> 20));
                return None;
            }
            break;
        };
        let (piece, rest) = text.split_at(cut);
        batch.push(row, piece, false);
        text = rest;
    }
    batch.push(row, text, true);
    None
}

/// A place near `target` where every known pattern starts a pretoken whatever comes later: a space,
/// newline or mark between two ASCII letters.
fn word_border(text: &[u8], target: usize) -> Option<usize> {
    let is_border = |at: usize| {
        at > 0
            && at + 1 < text.len()
            && matches!(text[at], b' ' | b'\n' | b',' | b'.' | b';' | b':')
            && text[at - 1].is_ascii_alphabetic()
            && text[at + 1].is_ascii_alphabetic()
    };
    let end = text.len().min(MAX_PIECE_BYTES);
    (1..target.min(end)).rev().find(|&at| is_border(at)).or_else(|| (target..end).find(|&at| is_border(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_row_and_cut_before_words() {
        let text = "some words here. ".repeat(300_000);
        let mut batch = Batch::default();
        let mut joined = String::new();
        let mut rest = Some(text.as_str());
        while let Some(left) = rest {
            batch.clear();
            rest = push_pieces(&mut batch, 7, left);
            joined.push_str(&batch.text);
            assert!(batch.text.len() < 3 * BATCH_BYTES);
            assert_eq!(batch.rows.last().unwrap().complete, rest.is_none());
        }
        assert!(joined == text);
    }

    #[test]
    fn text_without_a_border_is_rejected() {
        let mut batch = Batch::default();
        assert!(push_pieces(&mut batch, 3, &"a".repeat(MAX_PIECE_BYTES + 1)).is_none());
        assert_eq!(batch.rejected[0].row, 3);
        assert!(batch.rows.is_empty());
    }
}
