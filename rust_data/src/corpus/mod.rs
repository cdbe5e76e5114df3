//! Reads documents from parquet, JSON lines and plain text files, as a stream of batches.

mod codec;
pub mod find;
mod jsonl;
mod parquet;
mod plain;
pub mod sources;
pub mod units;

use crate::error::Result;
use crate::text::classes::{class_of, Class};

/// Bytes of text in a batch: enough that handing it to another thread costs little, and few enough for the L2 cache.
pub const BATCH_BYTES: usize = 1 << 20;
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();
/// A document is read in pieces that are cut at word borders. A text without a border for more bytes than this is
/// refused.
pub const MAX_PIECE_BYTES: usize = 8 << 20;

/// The reason for refusing a longer document where it may not be cut.
const TOO_LONG: &str =
    "the document has more than 8 MiB, and this tokenizer's pre-tokenizer or added tokens do not allow \
                        to cut it at word borders; split it into shorter documents";

/// Text of some consecutive rows.
#[derive(Default)]
pub struct Batch {
    pub text: String,
    pub rows: Vec<RowText>,
    pub rejected: Vec<Rejected>,
    /// Documents are put into the batch whole, because a pretoken of the tokenizer may lie across any place of a text.
    pub whole_documents: bool,
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

/// What is left of a unit after a batch has been filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// More rows may follow.
    More,
    /// The next line is long: reading goes on only with `first`.
    Later,
    /// The unit has no more rows.
    End,
}

/// A reader of one unit of work.
pub trait Rows: Send {
    /// Reads until the batch is full. `first` says that the writer needs this batch next; only then may a reader hold a
    /// long line in memory.
    fn fill(&mut self, batch: &mut Batch, first: bool) -> Result<Fill>;

    /// Share of the unit's weight that has been read, in the unit's own measure.
    fn progress(&self) -> u64;
}

/// Appends `text` in pieces of about a batch. Returns the rest of the text if the batch is full.
///
/// `text` must be the rest of the row; the row is rejected if it has no word border for too long.
fn push_pieces<'a>(batch: &mut Batch, row: u64, mut text: &'a str) -> Option<&'a str> {
    if batch.whole_documents && text.len() > MAX_PIECE_BYTES {
        batch.reject(row, TOO_LONG);
        return None;
    }
    while text.len() > BATCH_BYTES && !batch.whole_documents {
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

/// Returns a place near `target` where every known pattern starts a pretoken whatever text follows: at a space between
/// two characters that are not spaces, at a newline behind a letter or number, or at a mark between letters.
fn word_border(text: &[u8], target: usize) -> Option<usize> {
    let is_border = |at: usize| {
        // in any script most bytes are none of these
        if !matches!(text[at], b' ' | b'\n' | b',' | b'.' | b';' | b':' | 0xE3 | 0xEF) {
            return false;
        }
        let (before, after) = text.split_at(at);
        let start = before.iter().rposition(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
        let (Some(last), Some(mark)) = (first_char(&before[start..]), first_char(after)) else { return false };
        let Some(next) = first_char(&after[mark.len_utf8()..]) else { return false };
        let [last, next] = [last, next].map(|c| class_of(u32::from(c)));
        match mark {
            ' ' => last != Class::Space && next != Class::Space,
            '\n' => matches!(last, Class::Letter | Class::Number) && next != Class::Space,
            ',' | '.' | ';' | ':' | '、' | '。' | '！' | '，' | '：' | '；' | '？' => {
                [last, next] == [Class::Letter; 2]
            }
            _ => false,
        }
    };
    let end = text.len().min(MAX_PIECE_BYTES);
    (1..target.min(end)).rev().find(|&at| is_border(at)).or_else(|| (target..end).find(|&at| is_border(at)))
}

/// Returns the first character, if it is complete.
fn first_char(text: &[u8]) -> Option<char> {
    let len = match text.first()? {
        0..=0x7F => 1,
        0..=0xDF => 2,
        0..=0xEF => 3,
        _ => 4,
    };
    std::str::from_utf8(text.get(..len)?).ok()?.chars().next()
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
    fn every_script_has_borders() {
        for (text, borders) in [
            ("слово слово, да", vec![10, 22]),
            ("你好，世界。再见", vec![6, 15]),
            ("12 345\n6", vec![2, 6]),
            ("x  y \u{3000}z.\n!", vec![]),
            ("a\u{301}\nb", vec![]),
        ] {
            let found: Vec<_> =
                (1..text.len()).filter(|&at| word_border(text.as_bytes(), at + 1) == Some(at)).collect();
            assert_eq!(found, borders, "{text}");
        }
        // cut inside characters
        let text = "да нет".as_bytes();
        assert_eq!(word_border(&text[1..], 8), Some(3));
        assert_eq!(word_border(&text[..5], 8), None);
    }

    #[test]
    fn text_without_a_border_is_rejected() {
        let mut batch = Batch::default();
        assert!(push_pieces(&mut batch, 3, &"a".repeat(MAX_PIECE_BYTES + 1)).is_none());
        assert_eq!(batch.rejected[0].row, 3);
        assert!(batch.rows.is_empty());
    }
}
