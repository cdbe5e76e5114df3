//! The merges of a vocabulary, in the table that fits its size.

use super::id::{Id, Pair};
use super::pairs::PairTable;
use super::vocab::Vocab;
use crate::simd::{Simd, RANKS};

/// The merges of a vocabulary. Ids of 16 bits are used if the vocabulary allows it, to keep the table in the L2 cache.
#[expect(clippy::large_enum_variant, reason = "one a tokenizer, and never moved")]
pub enum Merges {
    Narrow(PairTable<u16>),
    Wide(PairTable<u32>),
}

impl Merges {
    /// The rules of tiktoken, where any two tokens whose join is a token may merge.
    ///
    /// Under these rules only one pair makes a given token: the merges of lower rank inside the token's bytes are the
    /// same whatever text surrounds them, so they always leave the same two parts.
    pub fn new(vocab: &Vocab) -> Self {
        Self::from_pairs(vocab, &vocab.pairs())
    }

    /// Only the given pairs merge. Each token must be made by at most one pair.
    pub fn from_pairs(vocab: &Vocab, pairs: &[Pair]) -> Self {
        let (byte_ids, size) = (vocab.byte_ids(), vocab.size());
        if size <= usize::from(u16::MAX) {
            Self::Narrow(PairTable::new(&byte_ids, pairs, size))
        } else {
            Self::Wide(PairTable::new(&byte_ids, pairs, size))
        }
    }

    /// Returns the pairs that merge, in the order of the tokens that they make.
    pub fn pairs(&self) -> Vec<Pair> {
        match self {
            Self::Narrow(table) => table.pairs(),
            Self::Wide(table) => table.pairs(),
        }
    }

    /// Returns the tokens of a piece of text.
    pub fn merge(&self, piece: &[u8]) -> Vec<u32> {
        let mut ids = Vec::new();
        match self {
            Self::Narrow(table) => table.encode(piece, &mut ids),
            Self::Wide(table) => table.encode(piece, &mut ids),
        }
        ids
    }

    /// Appends the tokens of a piece of text to `ids`, in the way that is fastest for its length.
    #[inline(always)]
    pub fn encode<S: Simd, T: Id>(&self, simd: S, piece: &[u8], ids: &mut Vec<T>) {
        match self {
            Self::Narrow(table) if piece.len() <= RANKS => table.merge_short(simd, piece, ids),
            Self::Narrow(table) => table.encode(piece, ids),
            Self::Wide(table) => table.encode(piece, ids),
        }
    }
}
