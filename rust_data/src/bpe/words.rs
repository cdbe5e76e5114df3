//! Turns words into ids: from the caches, or by merging.

use super::cache::{count_of, key_of, key_within, Key, LongCache, ShortCache, SHORT};
use super::id::Id;
use super::model::Model;
use crate::simd::{Kernel, Level, Simd, BLOCK};

/// Number of buckets in the cache of short words; a bucket holds two words, and all of them take 64 MB. At this size
/// nearly all words of a large corpus are in the bucket that their hash names. At half the size one word in twelve
/// would be in a bucket beside it, and reading that bucket waits for memory.
const BUCKETS: usize = 1 << 20;
const LONG_BITS: u32 = 18;
/// Longer words are not cached, because they rarely occur again.
const LONGEST: usize = 128;
/// Number of words that are looked up together. All their cache lines are fetched at the same time.
pub const BATCH: usize = 256;
/// Most words in a batch: the last block may add up to `BLOCK` words to a batch that is almost full.
const MAX_BATCH: usize = BATCH + BLOCK;

/// The key of a word (zero if the word is long) and the bucket that it belongs to.
#[derive(Clone, Copy, Default)]
pub struct Lookup {
    key: Key,
    bucket: usize,
}

/// The look-ups of a batch.
pub type Lookups = [Lookup; MAX_BATCH];

impl Lookup {
    pub const NONE: Self = Self { key: [0; 2], bucket: 0 };

    #[inline(always)]
    fn new<T: Id>(key: Key) -> Self {
        Self { key, bucket: ShortCache::<T, BUCKETS>::bucket_of(key) }
    }

    fn of<T: Id>(word: &[u8]) -> Self {
        Self::new::<T>(if word.len() <= SHORT { key_of(word) } else { Key::default() })
    }
}

pub struct Words<T: Id> {
    short: ShortCache<T, BUCKETS>,
    long: LongCache<T>,
    /// Whether some short word found no place in the cache of short words. Such words are kept with the long ones.
    overflown: bool,
}

impl<T: Id> Words<T> {
    /// Returns caches that hold the words which get one token whatever the merges say.
    pub fn new(model: &Model) -> Self {
        let mut words = Self {
            short: ShortCache::new(),
            long: LongCache::new(LONG_BITS.max((2 * model.vocab.size()).next_power_of_two().trailing_zeros())),
            overflown: false,
        };
        for (id, token) in model.whole_tokens() {
            words.keep(Lookup::of::<T>(token), token, &[T::from_u32(id)]);
        }
        words
    }

    /// Appends the ids of the words between consecutive `borders` of the text. There must be at least one word.
    #[inline(always)]
    pub fn encode_all<S: Simd>(&mut self, simd: S, batch: WordBatch<'_>, model: &Model, out: &mut Vec<T>) {
        let WordBatch { text, borders, lookups } = batch;
        let (start, end) = (borders[0], borders[borders.len() - 1]);
        for (lookup, border) in lookups.iter_mut().zip(borders.windows(2)) {
            let (at, mut len) = (border[0], border[1] - border[0]);
            if len > SHORT {
                self.long.prefetch(LongCache::<T>::hash(&text[at..at + len]));
                // look up the empty word, which no cache holds
                len = 0;
            }
            *lookup = Lookup::new::<T>(match text[at..].first_chunk() {
                Some(bytes) => key_within(bytes, len),
                None => key_of(&text[at..at + len]),
            });
            self.short.prefetch(lookup.bucket);
        }
        // reserve one id for each byte of text, plus one slot, because the last word is copied as a whole slot
        out.reserve(end - start + T::PACKED);
        let mut num_ids = out.len();
        for (&lookup, border) in lookups.iter().zip(borders.windows(2)) {
            if let Some(ids) = self.short.get(lookup.bucket, lookup.key) {
                // SAFETY: a word has no more ids than bytes, so after the words before this one there is still space
                // for PACKED ids.
                unsafe { out.as_mut_ptr().add(num_ids).cast::<T::Packed>().write_unaligned(*ids) };
                num_ids += count_of::<T>(ids);
            } else {
                // SAFETY: `num_ids` ids have been written.
                unsafe { out.set_len(num_ids) };
                let word = &text[border[0]..border[1]];
                simd.run(EncodeRare { words: self, model, lookup, word, out });
                num_ids = out.len();
            }
        }
        // SAFETY: `num_ids` ids have been written.
        unsafe { out.set_len(num_ids) };
    }

    /// Appends the ids of one word.
    pub fn encode(&mut self, level: Level, model: &Model, word: &[u8], out: &mut Vec<T>) {
        let lookup = Lookup::of::<T>(word);
        level.run(EncodeRare { words: self, model, lookup, word, out });
    }

    fn find(&self, lookup: Lookup, word: &[u8]) -> Option<&[T]> {
        let short = if word.len() <= SHORT { self.short.find(lookup.bucket, lookup.key) } else { None };
        if short.is_none() && (word.len() > SHORT || self.overflown) {
            return self.long.find(LongCache::<T>::hash(word), word);
        }
        short
    }

    fn keep(&mut self, lookup: Lookup, word: &[u8], ids: &[T]) {
        if word.len() <= SHORT {
            if self.short.insert(lookup.bucket, lookup.key, ids) {
                return;
            }
            self.overflown = true;
        }
        self.long.insert(LongCache::<T>::hash(word), word, ids);
    }
}

/// Some words of a text, and memory for their look-ups.
pub struct WordBatch<'a> {
    pub text: &'a [u8],
    pub borders: &'a [usize],
    pub lookups: &'a mut Lookups,
}

/// Appends the ids of a word that is not in its own bucket of the cache of short words.
struct EncodeRare<'a, T: Id> {
    words: &'a mut Words<T>,
    model: &'a Model,
    lookup: Lookup,
    word: &'a [u8],
    out: &'a mut Vec<T>,
}

impl<T: Id> Kernel for EncodeRare<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { words, model, lookup, word, out } = self;
        if let Some(ids) = words.find(lookup, word) {
            return out.extend_from_slice(ids);
        }
        let start = out.len();
        model.merges.encode(simd, word, out);
        if word.len() <= LONGEST {
            words.keep(lookup, word, &out[start..]);
        }
    }
}
