//! The table of the pairs that merge, small enough for the L2 cache, and the merge loops that use it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::id::{Id, Pair};
use crate::simd::{Simd, RANKS};

/// Number of bits in the filter for each slot.
const FILTER_BITS: usize = 2;

/// A hash table from pairs of tokens to the token that they make. `I` must be wide enough for all ids and `I::NONE`.
pub struct PairTable<I: Id> {
    byte_ids: [I; 256],
    /// The token that two bytes make, at index 256 * first + second.
    byte_pairs: Vec<I>,
    /// A Bloom filter with one hash: a pair whose bit is not set does not merge. Most pairs are answered here, without
    /// a look into the larger table.
    filter: Vec<u64>,
    /// Hash table with open addressing: each token is at the place that the hash of its halves gives, or behind it.
    slots: Vec<I>,
    halves: Vec<[I; 2]>,
}

impl<I: Id> PairTable<I> {
    /// Makes the table. `byte_ids` are the tokens of single bytes. At most one pair may make a token.
    pub fn new(byte_ids: &[u32; 256], pairs: &[Pair], num_tokens: usize) -> Self {
        let num_slots = (2 * pairs.len() + 1).next_power_of_two();
        let mut table = Self {
            byte_ids: byte_ids.map(I::from_u32),
            byte_pairs: vec![I::NONE; 1 << 16],
            filter: vec![0; (FILTER_BITS * num_slots).div_ceil(64)],
            slots: vec![I::NONE; num_slots],
            halves: vec![[I::NONE; 2]; num_tokens],
        };
        for &(left, right, token) in pairs {
            let (left, right) = (I::from_u32(left), I::from_u32(right));
            let (bit, mut slot) = table.places(left, right);
            table.filter[bit / 64] |= 1 << (bit % 64);
            while table.slots[slot] != I::NONE {
                slot = (slot + 1) & (num_slots - 1);
            }
            table.slots[slot] = I::from_u32(token);
            table.halves[token as usize] = [left, right];
        }
        for first in 0..256 {
            for second in 0..256 {
                table.byte_pairs[256 * first + second] = table.join(table.byte_ids[first], table.byte_ids[second]);
            }
        }
        table
    }

    /// Returns the pairs in the order of the tokens that they make.
    pub fn pairs(&self) -> Vec<Pair> {
        let made = self.halves.iter().enumerate().filter(|(_, halves)| **halves != [I::NONE; 2]);
        made.map(|(token, [left, right])| (left.to_u32(), right.to_u32(), token as u32)).collect()
    }

    /// Returns the bit of a pair in `filter` and its place in `slots`.
    #[inline(always)]
    fn places(&self, left: I, right: I) -> (usize, usize) {
        let key = u64::from(left.to_u32()) << 32 | u64::from(right.to_u32());
        let hash = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        (hash & (FILTER_BITS * self.slots.len() - 1), (hash >> 8) & (self.slots.len() - 1))
    }

    /// Returns the token that `left` and `right` make, or `NONE`.
    #[inline(always)]
    fn join(&self, left: I, right: I) -> I {
        let (bit, mut slot) = self.places(left, right);
        if self.filter[bit / 64] >> (bit % 64) & 1 == 0 {
            return I::NONE;
        }
        loop {
            let token = self.slots[slot];
            if token == I::NONE || self.halves[token.to_u32() as usize] == [left, right] {
                return token;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Appends the tokens of a piece of text to `ids`.
    pub fn encode<T: Id>(&self, piece: &[u8], ids: &mut Vec<T>) {
        match piece.len() {
            0..=16 => self.merge_by_scan::<16, T>(piece, ids),
            17..=64 => self.merge_by_scan::<64, T>(piece, ids),
            _ => self.merge_by_heap(piece, ids),
        }
    }

    /// Merges a piece of at most `N` bytes by looking at all pairs in each round. `N` must be a power of two up to 64.
    fn merge_by_scan<const N: usize, T: Id>(&self, piece: &[u8], ids: &mut Vec<T>) {
        const NEVER: i32 = i32::MAX;
        let bits = N.trailing_zeros();
        // merges are ordered by rank and then by place; the numbers are signed because every CPU has a fast signed
        // minimum
        let order = |token: I, place: usize| match token == I::NONE {
            true => NEVER,
            false => (token.to_u32() << bits) as i32 | place as i32,
        };
        let mut parts = [I::NONE; N];
        let mut merges = [NEVER; N];
        for (part, &byte) in parts.iter_mut().zip(piece) {
            *part = self.byte_ids[usize::from(byte)];
        }
        for (place, pair) in piece.windows(2).enumerate() {
            merges[place] = order(self.byte_pairs[256 * usize::from(pair[0]) + usize::from(pair[1])], place);
        }
        // a set bit is a place where a part starts
        let mut alive = u64::MAX >> (64 - piece.len().max(1));
        loop {
            let first = merges.iter().copied().fold(NEVER, i32::min);
            if first == NEVER {
                break;
            }
            let (place, token) = (first as usize & (N - 1), I::from_u32(first as u32 >> bits));
            let behind = alive & (!1 << place);
            let gone = behind.trailing_zeros() as usize;
            alive &= !(1 << gone);
            parts[place] = token;
            merges[gone] = NEVER;
            let next = behind & (behind - 1);
            merges[place] = match next {
                0 => NEVER,
                _ => order(self.join(token, parts[next.trailing_zeros() as usize & (N - 1)]), place),
            };
            let before = alive & ((1 << place) - 1);
            if before != 0 {
                let previous = 63 - before.leading_zeros() as usize;
                merges[previous] = order(self.join(parts[previous & (N - 1)], token), previous);
            }
        }
        for (place, part) in parts.iter().enumerate().take(piece.len()) {
            if alive >> place & 1 == 1 {
                ids.push(T::from_u32(part.to_u32()));
            }
        }
    }

    /// Merges a long piece with a heap of candidate merges, in O(n log n).
    fn merge_by_heap<T: Id>(&self, piece: &[u8], ids: &mut Vec<T>) {
        let n = piece.len() as u32;
        let mut parts: Vec<I> = piece.iter().map(|&byte| self.byte_ids[usize::from(byte)]).collect();
        // a doubly linked list of the places where a part starts; n stands for its end
        let mut next: Vec<u32> = (1..=n).collect();
        let mut previous: Vec<u32> = (0..n).map(|place| place.checked_sub(1).unwrap_or(n)).collect();
        let candidate = |parts: &[I], left: u32, right: u32| {
            let pair = (parts[left as usize], parts[right as usize]);
            let token = self.join(pair.0, pair.1);
            (token != I::NONE).then_some(Reverse((token, left, pair.0, pair.1)))
        };
        let mut heap: BinaryHeap<_> = (1..n).filter_map(|place| candidate(&parts, place - 1, place)).collect();
        while let Some(Reverse((token, place, left, right))) = heap.pop() {
            let at = place as usize;
            // skip a candidate if one of its halves has been merged with another part since
            if parts[at] != left || next[at] == n || parts[next[at] as usize] != right {
                continue;
            }
            let gone = next[at] as usize;
            parts[at] = token;
            parts[gone] = I::NONE;
            next[at] = next[gone];
            if next[at] < n {
                previous[next[at] as usize] = place;
                heap.extend(candidate(&parts, place, next[at]));
            }
            if previous[at] < n {
                heap.extend(candidate(&parts, previous[at], place));
            }
        }
        ids.extend(parts.iter().filter(|&&part| part != I::NONE).map(|part| T::from_u32(part.to_u32())));
    }
}

impl PairTable<u16> {
    /// Merges a piece of at most `RANKS` bytes. The ranks of all possible merges stay in registers.
    #[inline(always)]
    pub fn merge_short<S: Simd, T: Id>(&self, simd: S, piece: &[u8], ids: &mut Vec<T>) {
        // part i is at index i + 1, and `NONE` is at both ends
        let mut parts = [u16::NONE; RANKS + 2];
        let mut first_ranks = [u16::NONE; RANKS];
        for (part, &byte) in parts[1..].iter_mut().zip(piece) {
            *part = self.byte_ids[usize::from(byte)];
        }
        for (rank, pair) in first_ranks.iter_mut().zip(piece.windows(2)) {
            *rank = self.byte_pairs[256 * usize::from(pair[0]) + usize::from(pair[1])];
        }
        let mut ranks = simd.ranks(&first_ranks);
        // a set bit is a place where a part starts; the bit behind the last byte stays set
        let mut alive = (2u32 << piece.len()) - 1;
        loop {
            let (token, place) = simd.lowest(ranks);
            if token == u16::NONE {
                break;
            }
            let behind = alive & (!1 << place);
            alive &= !(behind & behind.wrapping_neg());
            parts[1 + place] = token;
            // no branch for the ends: `NONE` merges with nothing, and `replace` ignores places outside
            let right = (behind & behind.wrapping_sub(1)).trailing_zeros() as usize % 32;
            let before = alive & ((1 << place) - 1);
            let left = 32 - before.leading_zeros() as usize;
            let (left_rank, right_rank) = (self.join(parts[left], token), self.join(token, parts[1 + right]));
            ranks = simd.replace(ranks, behind.trailing_zeros() as usize, u16::NONE);
            ranks = simd.replace(ranks, place, right_rank);
            ranks = simd.replace(ranks, left.wrapping_sub(1), left_rank);
        }
        alive &= (1 << piece.len()) - 1;
        while alive != 0 {
            ids.push(T::from_u32(u32::from(parts[1 + alive.trailing_zeros() as usize % RANKS])));
            alive &= alive - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::Vocab;
    use super::*;
    use crate::simd::{Kernel, Level};

    struct MergeShort<'a>(&'a PairTable<u16>, &'a [u8]);

    impl Kernel for MergeShort<'_> {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<u32> {
            let mut ids = Vec::new();
            self.0.merge_short(simd, self.1, &mut ids);
            ids
        }
    }

    /// The definition, without any table.
    fn naive(vocab: &Vocab, piece: &[u8]) -> Vec<u32> {
        let by_bytes = vocab.by_bytes();
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|&byte| vec![byte]).collect();
        loop {
            let joins = parts.windows(2).enumerate();
            let lowest = joins.filter_map(|(at, pair)| Some((*by_bytes.get(&pair.concat()[..])?, at))).min();
            let Some((_, at)) = lowest else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| by_bytes[&part[..]]).collect()
    }

    #[test]
    fn all_forms_follow_the_definition() {
        let vocab = Vocab::gpt2().unwrap();
        let (byte_ids, pairs) = (vocab.byte_ids(), vocab.pairs());
        let narrow = PairTable::<u16>::new(&byte_ids, &pairs, vocab.size());
        let wide = PairTable::<u32>::new(&byte_ids, &pairs, vocab.size());
        let mut state = 1u64;
        for round in 0..600 {
            let len = 1 + round % 64;
            let piece: Vec<u8> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    b"aaaaeeetthinosr  \xe3\x81\x82\xff"[(state >> 33) as usize % 21]
                })
                .collect();
            let expected = naive(&vocab, &piece);
            let mut found: [Vec<u32>; 4] = Default::default();
            narrow.merge_by_scan::<64, _>(&piece, &mut found[0]);
            narrow.merge_by_heap(&piece, &mut found[1]);
            wide.encode(&piece, &mut found[2]);
            narrow.encode(&piece, &mut found[3]);
            let mut found = found.to_vec();
            if piece.len() <= RANKS {
                found.extend(Level::all().into_iter().map(|level| level.run(MergeShort(&narrow, &piece))));
            }
            assert!(found.iter().all(|ids| *ids == expected), "{piece:?}: {found:?}, expected {expected:?}");
        }
    }
}
