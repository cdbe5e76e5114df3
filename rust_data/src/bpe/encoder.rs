//! Text to ids: split into words, look each up, merge the ones not seen before.

use std::sync::Arc;

use super::id::Id;
use super::merge::Merges;
use super::vocab::Vocab;
use super::words::{Words, BATCH};
use crate::error::Result;
use crate::text::blocks::{Blocks, BLOCK};
use crate::text::pattern::Splitter;

/// What all threads share: vocabulary, merges and pattern.
pub struct Model {
    pub vocab: Vocab,
    pub splitter: Splitter,
    pub(super) merges: Merges,
    whole_first: bool,
}

impl Model {
    pub fn gpt2() -> Result<Self> {
        let (vocab, pairs) = Vocab::gpt2_with_merges()?;
        let merges = Merges::from_pairs(&vocab, &pairs);
        Ok(Self::with_merges(vocab, merges, Splitter::Gpt2, true))
    }

    /// The rules of tiktoken: any two tokens whose join is a token may merge.
    pub fn new(vocab: Vocab, splitter: Splitter) -> Self {
        let merges = Merges::new(&vocab);
        Self::with_merges(vocab, merges, splitter, true)
    }

    /// Listed merges only; `whole_first` says whether a pretoken that is a token is left as it is.
    pub fn with_merges(vocab: Vocab, merges: Merges, splitter: Splitter, whole_first: bool) -> Self {
        Self { vocab, splitter, merges, whole_first }
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
    borders: Vec<usize>,
}

impl<T: Id> Encoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        // room for a batch, what the block that ends it adds, and the end of the text
        let borders = vec![0; BATCH + 2 * BLOCK];
        Self { words: Words::new(&model), model, borders }
    }

    /// Appends the ids of `text`; special tokens in it are plain text.
    pub fn encode(&mut self, text: &str, out: &mut Vec<T>) -> Result<()> {
        let Self { model, words, .. } = self;
        match &model.splitter {
            Splitter::Gpt2 => {
                self.encode_blocks(text, out);
                Ok(())
            }
            Splitter::Regex(regex) => regex.for_each(text, |word| words.encode_rare(model, word, out)),
        }
    }

    fn encode_blocks(&mut self, text: &str, out: &mut Vec<T>) {
        let Self { model, words, borders } = self;
        let mut blocks = Blocks::new(text);
        let mut count = 0;
        while !blocks.is_done() {
            while count < BATCH && !blocks.is_done() {
                if let Some(place) = borders[count..].first_chunk_mut() {
                    count += blocks.next(place);
                }
            }
            if blocks.is_done() {
                borders[count] = text.len();
                words.encode_all(model, text.as_bytes(), &borders[..=count], out);
            } else {
                // where the last word ends is not known yet
                words.encode_all(model, text.as_bytes(), &borders[..count], out);
                borders[0] = borders[count - 1];
                count = 1;
            }
        }
    }
}
