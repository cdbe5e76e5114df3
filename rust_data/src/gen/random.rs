//! The random numbers of one row, by ChaCha8. The key is (kind of corpus, seed), and each row has a stream.
//!
//! A row draws 32-bit words. The first words come from 4 blocks of its stream, later ones from 16 blocks at
//! a time. Words of blocks that are computed together are interleaved: the first word of every block, then the
//! second word of every block, and so on, because they lie in vector registers in this order.

use crate::simd::{Kernel, Simd};

/// Number of blocks that a row computes first, and at each later refill. Short rows need only the first ones.
const FIRST_BLOCKS: usize = 4;
const MORE_BLOCKS: usize = 16;
const BLOCK_WORDS: usize = 16;
/// Largest bound for which half a word is drawn. Larger bounds draw a whole word, so that few draws are rejected.
const MAX_HALF_WORD_BOUND: u32 = 1 << 12;

/// The generator of all rows of one corpus; `seek` moves it to a row.
pub struct RowRandom<S: Simd> {
    simd: S,
    key: [u32; 8],
    row: u64,
    next_block: u64,
    /// Random words; those from `used` up to `len` have not been drawn yet.
    words: [u32; MORE_BLOCKS * BLOCK_WORDS],
    used: usize,
    len: usize,
}

impl<S: Simd> RowRandom<S> {
    /// Makes the generator of a corpus. `domain` names its kind and version, so that two kinds of corpora with the
    /// same seed draw different numbers.
    pub fn new(simd: S, domain: &[u8; 8], seed: u64) -> Self {
        let mut key = [0; 8];
        for (words, half) in key.chunks_exact_mut(2).zip([u64::from_le_bytes(*domain), seed]) {
            words.copy_from_slice(&[half as u32, (half >> 32) as u32]);
        }
        Self { simd, key, row: 0, next_block: 0, words: [0; _], used: 0, len: 0 }
    }

    /// Moves to the start of the stream of row `row`.
    pub fn seek(&mut self, row: u64) {
        (self.row, self.next_block, self.used, self.len) = (row, 0, 0, 0);
    }

    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        if self.used == self.len {
            self.refill();
        }
        let word = self.words[self.used];
        self.used += 1;
        word
    }

    fn refill(&mut self) {
        let (key, row, first_block) = (&self.key, self.row, self.next_block);
        let num_blocks = if first_block == 0 { FIRST_BLOCKS } else { MORE_BLOCKS };
        self.len = num_blocks * BLOCK_WORDS;
        let words = &mut self.words[..self.len];
        if first_block == 0 {
            self.simd.run(ChaCha8::<FIRST_BLOCKS> { key, row, first_block, words });
        } else {
            self.simd.run(ChaCha8::<MORE_BLOCKS> { key, row, first_block, words });
        }
        self.next_block += num_blocks as u64;
        self.used = 0;
    }

    /// Returns the next words as two halves of equal length: at most `2 * pairs` words, at least two, always an
    /// even number.
    #[inline(always)]
    pub fn word_pairs(&mut self, pairs: usize) -> (&[u32], &[u32]) {
        if self.len - self.used < 2 {
            self.refill();
        }
        let count = pairs.min((self.len - self.used) / 2);
        let words = &self.words[self.used..self.used + 2 * count];
        self.used += 2 * count;
        words.split_at(count)
    }

    /// Draws a number in `0 .. bound`, exactly uniform (Lemire's method).
    #[inline(always)]
    pub fn below(&mut self, bound: u32) -> u32 {
        let mut product = u64::from(self.next()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Fills `numbers` with draws from `first .. first + bound`, exactly uniform. Small bounds use half a word for
    /// each number. Draws that Lemire's method rejects are repeated with `below` after all others.
    #[inline(always)]
    pub fn fill_below(&mut self, bound: u32, first: u32, numbers: &mut [i32]) {
        const REJECTED: i32 = -1;
        let mut any_rejected = false;
        if bound <= MAX_HALF_WORD_BOUND {
            let threshold = (1 << 16) % bound;
            let mut draw = |number: &mut i32, half: u32| {
                let product = half * bound;
                let rejected = (product & 0xFFFF) < threshold;
                *number = if rejected { REJECTED } else { (first + (product >> 16)) as i32 };
                any_rejected |= rejected;
            };
            let mut rest = &mut *numbers;
            while !rest.is_empty() {
                if self.used == self.len {
                    self.refill();
                }
                let num_words = rest.len().div_ceil(2).min(self.len - self.used);
                let words = &self.words[self.used..self.used + num_words];
                self.used += num_words;
                // low halves first, then high halves
                let (low, others) = rest.split_at_mut(num_words);
                let (high, later) = others.split_at_mut(num_words.min(others.len()));
                low.iter_mut().zip(words).for_each(|(number, word)| draw(number, word & 0xFFFF));
                high.iter_mut().zip(words).for_each(|(number, word)| draw(number, word >> 16));
                rest = later;
            }
        } else {
            numbers.iter_mut().for_each(|number| *number = (first + self.below(bound)) as i32);
        }
        if any_rejected {
            for number in numbers.iter_mut().filter(|number| **number == REJECTED) {
                *number = (first + self.below(bound)) as i32;
            }
        }
    }

    /// Makes each number from a word of its own.
    #[inline(always)]
    pub fn fill_from_words(&mut self, mut numbers: &mut [i32], work: impl Fn(u32) -> i32) {
        while !numbers.is_empty() {
            if self.used == self.len {
                self.refill();
            }
            let count = numbers.len().min(self.len - self.used);
            let (now, later) = numbers.split_at_mut(count);
            now.iter_mut().zip(&self.words[self.used..]).for_each(|(number, &word)| *number = work(word));
            self.used += count;
            numbers = later;
        }
    }
}

/// Computes `LANES` consecutive blocks of one stream. The compiler puts the lanes into vector registers.
struct ChaCha8<'a, const LANES: usize> {
    key: &'a [u32; 8],
    row: u64,
    first_block: u64,
    words: &'a mut [u32],
}

type Lanes<const LANES: usize> = [u32; LANES];

impl<const LANES: usize> Kernel for ChaCha8<'_, LANES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646E, 0x7962_2D32, 0x6B20_6574];
        let mut start = [[0; LANES]; BLOCK_WORDS];
        for (word, value) in start.iter_mut().zip(CONSTANTS.iter().chain(self.key)) {
            *word = [*value; LANES];
        }
        let blocks: [u64; LANES] = std::array::from_fn(|lane| self.first_block + lane as u64);
        start[12] = blocks.map(|block| block as u32);
        start[13] = blocks.map(|block| (block >> 32) as u32);
        start[14] = [self.row as u32; LANES];
        start[15] = [(self.row >> 32) as u32; LANES];
        let mut state = start;
        for _ in 0..4 {
            for [a, b, c, d] in [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]] {
                quarter_round(&mut state, a, b, c, d);
            }
            for [a, b, c, d] in [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]] {
                quarter_round(&mut state, a, b, c, d);
            }
        }
        // spelled out, because the compiler would turn a loop into scattered stores across the words
        macro_rules! sums {
            ($($word:literal)*) => { [$(add(&state[$word], &start[$word])),*] };
        }
        let sums = sums!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        self.words.copy_from_slice(sums.as_flattened());
    }
}

#[inline(always)]
fn add<const LANES: usize>(a: &Lanes<LANES>, b: &Lanes<LANES>) -> Lanes<LANES> {
    std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
}

#[inline(always)]
fn xor_rotate<const LANES: usize>(a: &Lanes<LANES>, b: &Lanes<LANES>, bits: u32) -> Lanes<LANES> {
    std::array::from_fn(|lane| (a[lane] ^ b[lane]).rotate_left(bits))
}

#[inline(always)]
fn quarter_round<const LANES: usize>(state: &mut [Lanes<LANES>; BLOCK_WORDS], a: usize, b: usize, c: usize, d: usize) {
    for (bits_of_d, bits_of_b) in [(16, 12), (8, 7)] {
        state[a] = add(&state[a], &state[b]);
        state[d] = xor_rotate(&state[d], &state[a], bits_of_d);
        state[c] = add(&state[c], &state[d]);
        state[b] = xor_rotate(&state[b], &state[c], bits_of_b);
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::simd::{Level, Portable};

    fn random(seed: u64, row: u64) -> RowRandom<Portable> {
        let mut random = RowRandom::new(Portable, b"test    ", seed);
        random.seek(row);
        random
    }

    struct Words(u64);

    impl Kernel for Words {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<u32> {
            let mut random = RowRandom::new(simd, b"test    ", 0x0123_4567_89AB_CDEF);
            random.seek(self.0);
            (0..36 * BLOCK_WORDS).map(|_| random.next()).collect()
        }
    }

    #[test]
    fn the_stream_is_chacha8_on_every_instruction_set() {
        for row in [0, 1, u64::MAX / 3] {
            let mut key = [0; 32];
            key[..8].copy_from_slice(b"test    ");
            key[8..16].copy_from_slice(&0x0123_4567_89AB_CDEF_u64.to_le_bytes());
            let mut cipher = ChaCha8Rng::from_seed(key);
            cipher.set_stream(row);
            let mut expected = Vec::new();
            for num_blocks in [4, 16, 16] {
                let words: Vec<u32> = (0..num_blocks * BLOCK_WORDS).map(|_| cipher.next_u32()).collect();
                let places = (0..BLOCK_WORDS).flat_map(|word| (0..num_blocks).map(move |block| (word, block)));
                expected.extend(places.map(|(word, block)| words[block * BLOCK_WORDS + word]));
            }
            for level in Level::all() {
                assert!(level.run(Words(row)) == expected, "{}, row {row}", level.name());
            }
        }
    }

    #[test]
    fn rows_are_reproducible_and_apart() {
        let draw = |domain, seed, row| {
            let mut random = RowRandom::new(Portable, domain, seed);
            random.seek(row);
            [random.next(), random.next()]
        };
        let first = draw(b"mqar    ", 1, 5);
        let mut random = RowRandom::new(Portable, b"mqar    ", 1);
        random.seek(4);
        random.below(1000);
        random.seek(5);
        assert_eq!([random.next(), random.next()], first);
        for other in [draw(b"mqar    ", 1, 6), draw(b"mqar    ", 2, 5), draw(b"class   ", 1, 5)] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn filling_is_uniform_and_in_range() {
        // half words without and with rejections, and whole words
        for (bound, count) in [(1, 500), (4, 40_000), (3000, 3_000_000), (4097, 4_097_000)] {
            let mut numbers = vec![0; count];
            random(3, 1).fill_below(bound, 5, &mut numbers);
            let mut counts = vec![0u32; bound as usize];
            numbers.iter().for_each(|&number| counts[number as usize - 5] += 1);
            let expected = count as f64 / f64::from(bound);
            let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            let freedom = f64::from(bound - 1);
            assert!((chi_square - freedom).abs() <= 5.0 * (2.0 * freedom).sqrt(), "bound {bound}: {chi_square}");
        }
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut random = random(0, 0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }
}
