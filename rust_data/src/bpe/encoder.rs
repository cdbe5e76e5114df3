//! Text to ids: split into words, look each up, merge the ones not seen before.

use std::sync::Arc;

use super::id::Id;
use super::merge::Merges;
use super::vocab::Vocab;
use super::words::{Lookup, Lookups, WordBatch, Words, BATCH};
use crate::error::Result;
use crate::simd::{Kernel, Level, Simd, BLOCK};
use crate::text::blocks::Blocks;
use crate::text::pattern::Splitter;
use crate::text::seams::Seams;

/// What all threads share: vocabulary, merges and pattern.
pub struct Model {
    pub vocab: Vocab,
    pub splitter: Splitter,
    pub(super) merges: Merges,
    seams: Seams,
    /// Whether a pretoken that is a token is left as it is, whatever the merges say.
    pub whole_first: bool,
    /// The instruction set that encoders use.
    pub level: Level,
}

impl Model {
    pub fn gpt2() -> Result<Self> {
        let (vocab, pairs) = Vocab::gpt2_with_merges()?;
        let merges = Merges::from_pairs(&vocab, &pairs);
        Self::with_merges(vocab, merges, Splitter::Gpt2, true)
    }

    /// The rules of tiktoken: any two tokens whose join is a token may merge.
    pub fn new(vocab: Vocab, splitter: Splitter) -> Result<Self> {
        let merges = Merges::new(&vocab);
        Self::with_merges(vocab, merges, splitter, true)
    }

    /// Listed merges only; `whole_first` says whether a pretoken that is a token is left as it is.
    pub fn with_merges(vocab: Vocab, merges: Merges, splitter: Splitter, whole_first: bool) -> Result<Self> {
        let seams = Seams::new(vocab.tokens.iter().map(|token| &**token));
        Ok(Self { vocab, splitter, merges, seams, whole_first, level: Level::choose()? })
    }

    /// Pretokens that are a token as they stand, whatever the merges say.
    pub(super) fn whole_tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let tokens = self.vocab.tokens.iter().enumerate();
        tokens.filter(|(_, token)| self.whole_first && !token.is_empty()).map(|(id, token)| (id as u32, &**token))
    }
}

/// One thread's encoder.
pub struct Encoder<T: Id> {
    model: Arc<Model>,
    words: Words<T>,
    scratch: Box<Scratch>,
    level: Level,
}

/// Room for a batch of words.
struct Scratch {
    /// Those of a batch, of the block that ends it, and the end of the text.
    borders: [usize; BATCH + 2 * BLOCK],
    lookups: Lookups,
}

impl<T: Id> Encoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        let level = model.level;
        let scratch = Scratch { borders: [0; BATCH + 2 * BLOCK], lookups: [Lookup::NONE; _] };
        Self { words: Words::new(&model), model, scratch: Box::new(scratch), level }
    }

    /// Appends the ids of `text`; special tokens in it are plain text.
    pub fn encode(&mut self, text: &str, out: &mut Vec<T>) -> Result<()> {
        let Self { model, words, scratch, level } = self;
        match &model.splitter {
            Splitter::Gpt2 => {
                level.run(EncodeText { model, words, scratch, text, out });
                Ok(())
            }
            Splitter::Regex(regex) => regex.for_each(text, |word| words.encode(*level, model, word, out)),
        }
    }
}

struct EncodeText<'a, T: Id> {
    model: &'a Model,
    words: &'a mut Words<T>,
    scratch: &'a mut Scratch,
    text: &'a str,
    out: &'a mut Vec<T>,
}

impl<T: Id> Kernel for EncodeText<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { model, words, scratch, text, out } = self;
        let Scratch { borders, lookups } = scratch;
        let mut blocks = Blocks::new(text, &model.seams);
        let mut count = 0;
        while !blocks.is_done() {
            while count < BATCH && !blocks.is_done() {
                if let Some(place) = borders[count..].first_chunk_mut() {
                    count += blocks.next(simd, place);
                }
            }
            if blocks.is_done() {
                borders[count] = text.len();
                let batch = WordBatch { text: text.as_bytes(), borders: &borders[..=count], lookups };
                words.encode_all(simd, batch, model, out);
            } else {
                // where the last word ends is not known yet
                let batch = WordBatch { text: text.as_bytes(), borders: &borders[..count], lookups };
                words.encode_all(simd, batch, model, out);
                borders[0] = borders[count - 1];
                count = 1;
            }
        }
    }
}
