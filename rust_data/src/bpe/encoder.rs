//! Text to ids: split into pretokens, look each up, merge the ones not seen before.

use std::sync::Arc;

use super::cache::{key_of, Id, WordCache, SHORT};
use super::merge::Merges;
use super::vocab::Vocab;
use crate::text::scalar::pretoken_end;

const CACHE_BITS: u32 = 20;

/// What all threads share: vocabulary and merges.
pub struct Model {
    pub vocab: Vocab,
    merges: Merges,
    whole: std::collections::HashMap<Box<[u8]>, u32>,
}

impl Model {
    pub fn new(vocab: Vocab) -> Self {
        let merges = Merges::new(&vocab);
        let whole = vocab.by_bytes().into_iter().map(|(bytes, id)| (bytes.into(), id)).collect();
        Self { vocab, merges, whole }
    }
}

/// One thread's encoder.
pub struct Encoder<T: Id> {
    model: Arc<Model>,
    cache: WordCache<T>,
    merged: Vec<u32>,
    ids: Vec<T>,
}

impl<T: Id> Encoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, cache: WordCache::new(CACHE_BITS), merged: Vec::new(), ids: Vec::new() }
    }

    /// Appends the ids of `text`; special tokens in it are plain text.
    pub fn encode(&mut self, text: &str, out: &mut Vec<T>) {
        let mut start = 0;
        while start < text.len() {
            let end = pretoken_end(text, start);
            self.encode_word(&text.as_bytes()[start..end], out);
            start = end;
        }
    }

    #[inline]
    fn encode_word(&mut self, word: &[u8], out: &mut Vec<T>) {
        if word.len() <= SHORT {
            let key = key_of(word);
            if let Some(ids) = self.cache.get(key) {
                out.extend_from_slice(ids);
                return;
            }
            self.merge(word);
            self.cache.insert(key, &self.ids);
        } else {
            if let Some(ids) = self.cache.get_long(word) {
                out.extend_from_slice(ids);
                return;
            }
            self.merge(word);
            self.cache.insert_long(word, &self.ids);
        }
        out.extend_from_slice(&self.ids);
    }

    /// Leaves the ids of `word` in `self.ids`.
    fn merge(&mut self, word: &[u8]) {
        self.ids.clear();
        if let Some(&id) = self.model.whole.get(word) {
            self.ids.push(T::from_u32(id));
            return;
        }
        self.model.merges.encode(word, &mut self.merged);
        self.ids.extend(self.merged.iter().map(|&id| T::from_u32(id)));
    }
}
