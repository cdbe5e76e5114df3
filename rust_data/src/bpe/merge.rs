//! The merge loop: join the pair of the lowest rank, leftmost first, until no pair is a token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocab::Vocab;

/// Longest piece that is merged by scanning; longer ones use a heap, O(n log n).
const SCAN_LIMIT: usize = 256;
const NO_TOKEN: u32 = u32::MAX;

/// The table of mergeable pairs. Ids are ranks: the token that a pair makes is also its priority.
pub struct Merges {
    byte_ids: [u32; 256],
    /// Open addressing over `pairs`; `NO_TOKEN` marks a free slot.
    slots: Vec<u32>,
    pairs: Vec<Pair>,
}

/// Left token, right token, the token they make.
type Pair = (u32, u32, u32);

impl Merges {
    /// Every pair of tokens whose join is a token.
    pub fn new(vocab: &Vocab) -> Self {
        let by_bytes = vocab.by_bytes();
        let mut pairs = Vec::new();
        for (token, bytes) in vocab.tokens.iter().enumerate() {
            for cut in 1..bytes.len() {
                if let (Some(&left), Some(&right)) = (by_bytes.get(&bytes[..cut]), by_bytes.get(&bytes[cut..])) {
                    pairs.push((left, right, token as u32));
                }
            }
        }
        Self::from_pairs(vocab, pairs)
    }

    /// The given pairs only.
    pub fn from_pairs(vocab: &Vocab, pairs: Vec<Pair>) -> Self {
        let mut byte_ids = [NO_TOKEN; 256];
        for (token, bytes) in vocab.tokens.iter().enumerate() {
            if let [byte] = **bytes {
                byte_ids[usize::from(byte)] = token as u32;
            }
        }
        let mut slots = vec![NO_TOKEN; (2 * pairs.len() + 1).next_power_of_two()];
        for (index, &(left, right, _)) in pairs.iter().enumerate() {
            let mut slot = slot_of(left, right, slots.len());
            while slots[slot] != NO_TOKEN {
                slot = (slot + 1) & (slots.len() - 1);
            }
            slots[slot] = index as u32;
        }
        Self { byte_ids, slots, pairs }
    }

    /// The token that `left` and `right` make, or `NO_TOKEN`.
    #[inline]
    fn join(&self, left: u32, right: u32) -> u32 {
        let mut slot = slot_of(left, right, self.slots.len());
        loop {
            let index = self.slots[slot];
            if index == NO_TOKEN {
                return NO_TOKEN;
            }
            let pair = self.pairs[index as usize];
            if (pair.0, pair.1) == (left, right) {
                return pair.2;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Replaces `ids` by the tokens of `piece`.
    pub fn encode(&self, piece: &[u8], ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(piece.iter().map(|&byte| self.byte_ids[usize::from(byte)]));
        if piece.len() <= SCAN_LIMIT {
            self.merge_by_scan(ids);
        } else {
            self.merge_by_heap(ids);
        }
    }

    fn merge_by_scan(&self, ids: &mut Vec<u32>) {
        let mut joins = [NO_TOKEN; SCAN_LIMIT];
        for (join, pair) in joins.iter_mut().zip(ids.windows(2)) {
            *join = self.join(pair[0], pair[1]);
        }
        loop {
            let num_pairs = ids.len().saturating_sub(1);
            let lowest = joins[..num_pairs].iter().enumerate().min_by_key(|&(_, &join)| join);
            let Some((at, &token)) = lowest.filter(|&(_, &token)| token != NO_TOKEN) else {
                return;
            };
            ids[at] = token;
            ids.remove(at + 1);
            joins.copy_within(at + 1..num_pairs, at);
            if at + 1 < ids.len() {
                joins[at] = self.join(token, ids[at + 1]);
            }
            if at > 0 {
                joins[at - 1] = self.join(ids[at - 1], token);
            }
        }
    }

    fn merge_by_heap(&self, ids: &mut Vec<u32>) {
        let n = ids.len();
        // a doubly linked list over the positions that are still alive; n ends it
        let mut next: Vec<usize> = (1..=n).collect();
        let mut previous: Vec<usize> = (0..n).map(|i| if i == 0 { n } else { i - 1 }).collect();
        let mut heap = BinaryHeap::new();
        let candidate = |ids: &[u32], left: usize, right: usize| {
            let token = self.join(ids[left], ids[right]);
            (token != NO_TOKEN).then_some(Reverse((token, left, ids[left], ids[right])))
        };
        heap.extend((1..n).filter_map(|i| candidate(ids, i - 1, i)));
        while let Some(Reverse((token, left, left_id, right_id))) = heap.pop() {
            // an entry is stale once either side has been merged into something else
            if ids[left] != left_id || next[left] == n || ids[next[left]] != right_id {
                continue;
            }
            let gone = next[left];
            ids[left] = token;
            ids[gone] = NO_TOKEN;
            next[left] = next[gone];
            if next[left] < n {
                previous[next[left]] = left;
                heap.extend(candidate(ids, left, next[left]));
            }
            if previous[left] < n {
                heap.extend(candidate(ids, previous[left], left));
            }
        }
        ids.retain(|&id| id != NO_TOKEN);
    }
}

#[inline]
fn slot_of(left: u32, right: u32, num_slots: usize) -> usize {
    let key = u64::from(left) << 32 | u64::from(right);
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & (num_slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn scan_and_heap_follow_the_definition() {
        let vocab = Vocab::gpt2().unwrap();
        let merges = Merges::new(&vocab);
        let mut state = 1u64;
        for round in 0..400 {
            let len = 1 + round % 90;
            let piece: Vec<u8> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    b"aaaaeeetthinosr  \xe3\x81\x82\xff"[(state >> 33) as usize % 21]
                })
                .collect();
            let expected = naive(&vocab, &piece);
            let start: Vec<u32> = piece.iter().map(|&byte| merges.byte_ids[usize::from(byte)]).collect();
            let (mut scanned, mut heaped) = (start.clone(), start);
            merges.merge_by_scan(&mut scanned);
            merges.merge_by_heap(&mut heaped);
            assert_eq!(scanned, expected, "{piece:?}");
            assert_eq!(heaped, expected, "{piece:?}");
        }
    }
}
