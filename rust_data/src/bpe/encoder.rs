//! Text to ids: split into pretokens, look each up, merge the ones not seen before.

use std::collections::HashMap;
use std::sync::Arc;

use super::cache::{key_of, Id, WordCache, SHORT};
use super::merge::Merges;
use super::vocab::Vocab;
use crate::error::Result;
use crate::text::pattern::Splitter;

const CACHE_BITS: u32 = 20;

/// What all threads share: vocabulary, merges and pattern.
pub struct Model {
    pub vocab: Vocab,
    pub splitter: Splitter,
    merges: Merges,
    /// Pretokens that are a token as they stand, whatever the merges say.
    whole: HashMap<Box<[u8]>, u32>,
}

impl Model {
    pub fn gpt2() -> Result<Self> {
        Ok(Self::new(Vocab::gpt2()?, Splitter::Gpt2))
    }

    /// The rules of tiktoken: any two tokens whose join is a token may merge.
    pub fn new(vocab: Vocab, splitter: Splitter) -> Self {
        let merges = Merges::new(&vocab);
        Self::with_merges(vocab, merges, splitter, true)
    }

    /// Listed merges only; `whole_first` says whether a pretoken that is a token is left as it is.
    pub fn with_merges(vocab: Vocab, merges: Merges, splitter: Splitter, whole_first: bool) -> Self {
        let all = vocab.by_bytes().into_iter().filter(|_| whole_first);
        let whole = all.map(|(bytes, id)| (bytes.into(), id)).collect();
        Self { vocab, splitter, merges, whole }
    }
}

/// One thread's encoder.
pub struct Encoder<T: Id> {
    model: Arc<Model>,
    words: Words<T>,
}

impl<T: Id> Encoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, words: Words { cache: WordCache::new(CACHE_BITS), merged: Vec::new(), ids: Vec::new() } }
    }

    /// Appends the ids of `text`; special tokens in it are plain text.
    pub fn encode(&mut self, text: &str, out: &mut Vec<T>) -> Result<()> {
        let Self { model, words } = self;
        model.splitter.for_each(text, |word| words.encode(model, word, out))
    }
}

/// Words already seen, and room to work.
struct Words<T: Id> {
    cache: WordCache<T>,
    merged: Vec<u32>,
    ids: Vec<T>,
}

impl<T: Id> Words<T> {
    #[inline]
    fn encode(&mut self, model: &Model, word: &[u8], out: &mut Vec<T>) {
        if word.len() <= SHORT {
            let key = key_of(word);
            if let Some(ids) = self.cache.get(key) {
                out.extend_from_slice(ids);
                return;
            }
            self.merge(model, word);
            self.cache.insert(key, &self.ids);
        } else {
            if let Some(ids) = self.cache.get_long(word) {
                out.extend_from_slice(ids);
                return;
            }
            self.merge(model, word);
            self.cache.insert_long(word, &self.ids);
        }
        out.extend_from_slice(&self.ids);
    }

    /// Leaves the ids of `word` in `self.ids`.
    fn merge(&mut self, model: &Model, word: &[u8]) {
        self.ids.clear();
        if let Some(&id) = model.whole.get(word) {
            self.ids.push(T::from_u32(id));
            return;
        }
        model.merges.encode(word, &mut self.merged);
        self.ids.extend(self.merged.iter().map(|&id| T::from_u32(id)));
    }
}
