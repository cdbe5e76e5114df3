//! Words to ids: from the caches, or by merging.

use super::cache::{count_of, key_of, key_within, Key, LongCache, ShortCache, SHORT};
use super::encoder::Model;
use super::id::Id;

const SHORT_BITS: u32 = 20;
const LONG_BITS: u32 = 18;
/// Longer words are not kept: they hardly come again.
const LONGEST: usize = 128;
/// Words that are looked up together, so that the cache lines of all are under way at once.
pub const BATCH: usize = 256;
/// Room for the words that the last block may add to a batch.
const MAX_BATCH: usize = BATCH + 64;

#[derive(Clone, Copy, Default)]
struct Lookup {
    key: Key,
    bucket: usize,
}

pub struct Words<T: Id> {
    short: ShortCache<T>,
    long: LongCache<T>,
    /// Whether a short word had no place among the short ones, so that it may be among the long ones.
    overflown: bool,
    lookups: Vec<Lookup>,
    /// Ids on their way to the output.
    ready: Vec<T>,
}

impl<T: Id> Words<T> {
    /// Starts with the pretokens that stay whole: no merging can give them another spelling.
    pub fn new(model: &Model) -> Self {
        let mut words = Self {
            short: ShortCache::new(SHORT_BITS),
            long: LongCache::new(LONG_BITS.max((2 * model.vocab.size()).next_power_of_two().trailing_zeros())),
            overflown: false,
            lookups: vec![Lookup::default(); MAX_BATCH],
            ready: vec![T::default(); MAX_BATCH * T::PACKED],
        };
        for (id, token) in model.whole_tokens() {
            words.keep(token, &[T::from_u32(id)]);
        }
        words
    }

    /// Appends the ids of the words between consecutive `borders` of `text`.
    #[inline(always)]
    pub fn encode_all(&mut self, model: &Model, text: &[u8], borders: &[usize], out: &mut Vec<T>) {
        let num_words = borders.len() - 1;
        for (lookup, border) in self.lookups[..num_words].iter_mut().zip(borders.windows(2)) {
            let (start, len) = (border[0], border[1] - border[0]);
            lookup.key = match text[start..].first_chunk() {
                _ if len > SHORT => [0; 2],
                Some(bytes) => key_within(bytes, len),
                None => key_of(&text[start..start + len]),
            };
            lookup.bucket = self.short.bucket_of(lookup.key);
            self.short.prefetch(lookup.bucket);
        }
        let mut num_ready = 0;
        for i in 0..num_words {
            let Lookup { key, bucket } = self.lookups[i];
            match self.short.get(bucket, key) {
                // a key of zero is a long word, a count of zero a word with many ids
                Some(ids) if key[1] != 0 && count_of::<T>(ids) != 0 => {
                    self.ready[num_ready..num_ready + T::PACKED].copy_from_slice(ids.as_ref());
                    num_ready += count_of::<T>(ids);
                }
                _ => {
                    out.extend_from_slice(&self.ready[..num_ready]);
                    num_ready = 0;
                    self.encode_rare(model, &text[borders[i]..borders[i + 1]], out);
                }
            }
        }
        out.extend_from_slice(&self.ready[..num_ready]);
    }

    /// Appends the ids of one word, however rare.
    #[inline(never)]
    pub fn encode_rare(&mut self, model: &Model, word: &[u8], out: &mut Vec<T>) {
        if word.len() <= SHORT {
            let key = key_of(word);
            if let Some(ids) = self.short.find(self.short.bucket_of(key), key) {
                return out.extend_from_slice(ids);
            }
        }
        if word.len() > SHORT || self.overflown {
            if let Some(ids) = self.long.find(LongCache::<T>::hash(word), word) {
                return out.extend_from_slice(ids);
            }
        }
        let start = out.len();
        model.merges.encode(word, out);
        if word.len() <= LONGEST {
            self.keep(word, &out[start..]);
        }
    }

    fn keep(&mut self, word: &[u8], ids: &[T]) {
        if word.len() <= SHORT {
            let key = key_of(word);
            if self.short.insert(self.short.bucket_of(key), key, ids) {
                return;
            }
            self.overflown = true;
        }
        self.long.insert(LongCache::<T>::hash(word), word, ids);
    }
}
