//! Caches of words and their ids: two tables of bounded size.
//!
//! Words of up to 15 bytes are in slots of 32 bytes, two in a cache line, with their ids beside them. Almost every word
//! of real text is found there. Longer words are in a second table.

use super::id::Id;
use super::pages::table;
use crate::simd::prefetch;

/// Longest word that fits into a key.
pub const SHORT: usize = 15;
/// Number of buckets that a search looks at: first the word's own bucket, then the other one of the two cache lines
/// that the CPU fetches together, then the pairs of lines nearby.
const MAX_PROBES: usize = 8;

/// The bytes of a short word, padded with zeros, and its length in the last byte. The key zero stands for no word.
pub type Key = [u64; 2];

#[inline]
pub fn key_of(word: &[u8]) -> Key {
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word);
    bytes[15] = word.len() as u8;
    split(u128::from_le_bytes(bytes))
}

/// Returns the key of the first `len` bytes of `bytes`; `len` must be at most 15.
#[inline(always)]
pub fn key_within(bytes: &[u8; 16], len: usize) -> Key {
    let [low, high] = split(u128::from_le_bytes(*bytes));
    let [low_kept, high_kept] = KEPT[len];
    [low & low_kept, high & high_kept | (len as u64) << 56]
}

/// For each length of a word, the mask of the bytes of a key that belong to the word.
const KEPT: [Key; SHORT + 1] = {
    let mut kept = [[0; 2]; SHORT + 1];
    let mut len = 0;
    while len <= SHORT {
        let mask = (1u128 << (8 * len)) - 1;
        kept[len] = [mask as u64, (mask >> 64) as u64];
        len += 1;
    }
    kept
};

#[inline(always)]
fn split(word: u128) -> Key {
    [word as u64, (word >> 64) as u64]
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9E37_79B9_7F4A_7C15) * u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    product as u64 ^ (product >> 64) as u64
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Slot<T: Id> {
    key: Key,
    /// The ids, and their count in the last place. If the count is zero, the ids are in `ShortCache::spilled`, and the
    /// first 8 bytes hold their start and end there.
    ids: T::Packed,
}

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket<T: Id>([Slot<T>; 2]);

/// The cache of short words. `BUCKETS`, a power of two, is a constant, so that a mask replaces the check of bounds.
pub struct ShortCache<T: Id, const BUCKETS: usize> {
    buckets: Box<[Bucket<T>; BUCKETS]>,
    /// Number of words that may still be added.
    room: usize,
    /// Ids of the words that have more ids than a slot holds.
    spilled: Vec<T>,
}

impl<T: Id, const BUCKETS: usize> ShortCache<T, BUCKETS> {
    /// Returns an empty cache. Each bucket holds two words of 32 bytes; a quarter of the slots stays free, so that a
    /// search ends soon.
    pub fn new() -> Self {
        let Ok(buckets) = table(BUCKETS).into_boxed_slice().try_into() else {
            unreachable!("the table has as many buckets as asked for")
        };
        Self { buckets, room: BUCKETS / 2 * 3, spilled: Vec::new() }
    }

    #[inline(always)]
    pub fn bucket_of(key: Key) -> usize {
        const { assert!(BUCKETS.is_power_of_two()) }
        fold(key[0], key[1]) as usize % BUCKETS
    }

    #[inline(always)]
    pub fn prefetch(&self, bucket: usize) {
        prefetch(&self.buckets[bucket % BUCKETS]);
    }

    /// Returns the packed ids of a word if it is in its own bucket and its ids fit into the slot.
    #[inline(always)]
    pub fn get(&self, bucket: usize, key: Key) -> Option<&T::Packed> {
        let [first, second] = &self.buckets[bucket % BUCKETS].0;
        let (is_first, is_second) = (first.key == key, second.key == key);
        let slot = if is_first { first } else { second };
        // a count of zero means that the ids are in `spilled`, or that the key of no word has matched a free slot
        ((is_first | is_second) & (count_of::<T>(&slot.ids) != 0)).then_some(&slot.ids)
    }

    /// Returns the ids of a word, in whichever bucket it is.
    pub fn find(&self, bucket: usize, key: Key) -> Option<&[T]> {
        for probe in 0..MAX_PROBES {
            for slot in &self.buckets[(bucket ^ probe) % BUCKETS].0 {
                // compare the halves one by one: the key was just stored in halves, and loading both at once would wait
                // for the stores
                if (slot.key[0] ^ key[0]) | (slot.key[1] ^ key[1]) == 0 {
                    return Some(self.ids_in(slot));
                }
                if slot.key[1] == 0 {
                    return None;
                }
            }
        }
        None
    }

    fn ids_in<'a>(&'a self, slot: &'a Slot<T>) -> &'a [T] {
        match count_of::<T>(&slot.ids) {
            0 => {
                let [start, end] = T::unpack_range(&slot.ids);
                &self.spilled[start as usize..end as usize]
            }
            count => &slot.ids.as_ref()[..count],
        }
    }

    /// Adds a word that `find` did not find. Returns false if there is no place for it.
    pub fn insert(&mut self, bucket: usize, key: Key, ids: &[T]) -> bool {
        if self.room == 0 {
            return false;
        }
        let mut near = (0..MAX_PROBES).map(|probe| (bucket ^ probe) % BUCKETS);
        let free = near.find_map(|at| Some((at, self.buckets[at].0.iter().position(|slot| slot.key[1] == 0)?)));
        let Some((at, place)) = free else { return false };
        let slot = &mut self.buckets[at].0[place];
        slot.key = key;
        if ids.len() < T::PACKED {
            slot.ids.as_mut()[..ids.len()].copy_from_slice(ids);
            slot.ids.as_mut()[T::PACKED - 1] = T::from_u32(ids.len() as u32);
        } else {
            let start = self.spilled.len() as u32;
            slot.ids = T::pack_range([start, start + ids.len() as u32]);
            self.spilled.extend_from_slice(ids);
        }
        self.room -= 1;
        true
    }
}

/// Number of ids in a slot; zero if they are in `ShortCache::spilled`.
#[inline(always)]
pub fn count_of<T: Id>(ids: &T::Packed) -> usize {
    ids.as_ref()[T::PACKED - 1].to_u32() as usize
}

/// The cache of long words, found by a hash of their bytes.
pub struct LongCache<T: Id> {
    entries: Vec<Entry>,
    room: usize,
    bytes: Vec<u8>,
    ids: Vec<T>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    hash: u32,
    /// Start of the word's bytes in `LongCache::bytes`. A `len` of zero marks a free entry.
    bytes: u32,
    ids: u32,
    len: u16,
    count: u16,
}

impl<T: Id> LongCache<T> {
    /// Returns an empty cache for half of `2^bits` words. An entry takes 16 bytes, besides the word's bytes and ids.
    pub fn new(bits: u32) -> Self {
        Self { entries: table(1 << bits), room: 1 << (bits - 1), bytes: Vec::new(), ids: Vec::new() }
    }

    pub fn hash(word: &[u8]) -> u64 {
        let (words, rest) = word.as_chunks::<8>();
        // take the last 8 bytes, some of which `words` has too: copying fewer bytes would be slower
        let last = word.last_chunk().copied().unwrap_or_else(|| {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            last
        });
        let start = fold(u64::from_le_bytes(last), word.len() as u64);
        words.iter().fold(start, |hash, &word| fold(hash, u64::from_le_bytes(word)))
    }

    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.entries[hash as usize & (self.entries.len() - 1)]);
    }

    pub fn find(&self, hash: u64, word: &[u8]) -> Option<&[T]> {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = self.entries[at];
            if entry.len == 0 {
                return None;
            }
            let start = entry.bytes as usize;
            if entry.hash == (hash >> 32) as u32 && word == &self.bytes[start..start + usize::from(entry.len)] {
                let start = entry.ids as usize;
                return Some(&self.ids[start..start + usize::from(entry.count)]);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a word of at most 65,535 bytes that `find` did not find. Does nothing if the cache is full.
    pub fn insert(&mut self, hash: u64, word: &[u8], ids: &[T]) {
        if self.room == 0 {
            return;
        }
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        while self.entries[at].len != 0 {
            at = (at + 1) & mask;
        }
        self.entries[at] = Entry {
            hash: (hash >> 32) as u32,
            bytes: self.bytes.len() as u32,
            ids: self.ids.len() as u32,
            len: word.len() as u16,
            count: ids.len() as u16,
        };
        self.bytes.extend_from_slice(word);
        self.ids.extend_from_slice(ids);
        self.room -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_keys_agree() {
        let text = b"abcdefghijklmnopqrstuvwxyz";
        for start in 0..8 {
            let within = text[start..].first_chunk().unwrap();
            for len in 1..=SHORT {
                assert_eq!(key_within(within, len), key_of(&text[start..start + len]), "{len} from {start}");
            }
        }
    }

    #[test]
    fn a_full_cache_forgets_nothing_and_takes_nothing() {
        let mut cache = ShortCache::<u16, 32>::new();
        let bucket_of = ShortCache::<u16, 32>::bucket_of;
        let words: Vec<[u8; 2]> = (0..200u8).map(|i| [b'a' + i % 26, b'a' + i / 26]).collect();
        let kept: Vec<bool> = words
            .iter()
            .enumerate()
            .map(|(i, word)| cache.insert(bucket_of(key_of(word)), key_of(word), &[i as u16, 7]))
            .collect();
        assert!((24..=48).contains(&kept.iter().filter(|&&kept| kept).count()));
        for (i, word) in words.iter().enumerate() {
            let found = cache.find(bucket_of(key_of(word)), key_of(word));
            assert_eq!(found, kept[i].then_some(&[i as u16, 7][..]));
        }
    }

    #[test]
    fn words_with_many_ids_spill() {
        fn check<T: Id + std::fmt::Debug>() {
            let mut cache = ShortCache::<T, 128>::new();
            let ids = |count: usize| (0..count as u32).map(T::from_u32).collect::<Vec<T>>();
            let key = |count: usize| key_of(format!("word {count}").as_bytes());
            for count in 1..=15 {
                assert!(cache.insert(ShortCache::<T, 128>::bucket_of(key(count)), key(count), &ids(count)));
            }
            for count in 1..=15 {
                assert_eq!(cache.find(ShortCache::<T, 128>::bucket_of(key(count)), key(count)), Some(&ids(count)[..]));
            }
        }
        check::<u16>();
        check::<u32>();
    }

    #[test]
    fn long_words_are_told_apart() {
        let mut cache = LongCache::<u16>::new(8);
        let words: Vec<String> = (0..100).map(|i| format!("a rather long word, number {i}")).collect();
        for (i, word) in words.iter().enumerate() {
            cache.insert(LongCache::<u16>::hash(word.as_bytes()), word.as_bytes(), &[i as u16]);
        }
        for (i, word) in words.iter().enumerate() {
            let hash = LongCache::<u16>::hash(word.as_bytes());
            assert_eq!(cache.find(hash, word.as_bytes()), Some(&[i as u16][..]));
            assert_eq!(cache.find(hash, b"another word of the same hash"), None);
        }
    }
}
