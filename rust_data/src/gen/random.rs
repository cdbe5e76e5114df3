//! The random numbers of one row: ChaCha8 keyed by (what is generated, seed), one stream a row.

use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Words fetched from the cipher at a time.
const BLOCK_WORDS: usize = 64;

/// The generator of all rows of one corpus; `seek` moves it to a row.
pub struct RowRandom {
    cipher: ChaCha8Rng,
    block: [u32; BLOCK_WORDS],
    used: usize,
}

impl RowRandom {
    /// `domain` keeps corpora of different kinds apart at the same seed.
    pub fn new(domain: &[u8; 8], seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(domain);
        key[8..16].copy_from_slice(&seed.to_le_bytes());
        Self { cipher: ChaCha8Rng::from_seed(key), block: [0; BLOCK_WORDS], used: BLOCK_WORDS }
    }

    /// Goes to the start of row `row`.
    pub fn seek(&mut self, row: u64) {
        self.cipher.set_stream(row);
        self.cipher.set_word_pos(0);
        self.used = BLOCK_WORDS;
    }

    #[inline]
    pub fn next(&mut self) -> u32 {
        if self.used == BLOCK_WORDS {
            self.refill();
        }
        let word = self.block[self.used];
        self.used += 1;
        word
    }

    #[inline(never)]
    fn refill(&mut self) {
        let mut bytes = [0; 4 * BLOCK_WORDS];
        self.cipher.fill_bytes(&mut bytes);
        for (word, bytes) in self.block.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        self.used = 0;
    }

    /// A number in `0 .. bound`, exactly uniform (Lemire's method).
    #[inline]
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

    /// What as many calls of `below` would give, each plus `first`.
    pub fn fill_below(&mut self, bound: u32, first: u32, mut numbers: &mut [i32]) {
        while !numbers.is_empty() {
            if self.used == BLOCK_WORDS {
                self.refill();
            }
            let count = numbers.len().min(BLOCK_WORDS - self.used);
            let (now, later) = numbers.split_at_mut(count);
            let mut rejected = false;
            for (number, &word) in now.iter_mut().zip(&self.block[self.used..]) {
                let product = u64::from(word) * u64::from(bound);
                *number = (first + (product >> 32) as u32) as i32;
                // one draw in 2^32 / bound may have to be repeated
                rejected |= (product as u32) < bound;
            }
            if rejected {
                now.iter_mut().for_each(|number| *number = (first + self.below(bound)) as i32);
            } else {
                self.used += count;
            }
            numbers = later;
        }
    }

    /// A number in `0 .. 1` with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        let bits = u64::from(self.next()) << 32 | u64::from(self.next());
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_reproducible_and_apart() {
        let draw = |domain, seed, row| {
            let mut random = RowRandom::new(domain, seed);
            random.seek(row);
            [random.next(), random.next()]
        };
        let first = draw(b"mqar    ", 1, 5);
        let mut random = RowRandom::new(b"mqar    ", 1);
        random.seek(4);
        random.below(1000);
        random.seek(5);
        assert_eq!([random.next(), random.next()], first);
        for other in [draw(b"mqar    ", 1, 6), draw(b"mqar    ", 2, 5), draw(b"class   ", 1, 5)] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn filling_is_drawing_one_by_one() {
        // the large bound is rejected often
        for bound in [1, 7, 2048, 3 << 30] {
            let (mut one, mut many) = (RowRandom::new(b"test    ", 3), RowRandom::new(b"test    ", 3));
            one.seek(1);
            many.seek(1);
            for count in [1, 63, 64, 65, 500] {
                let mut filled = vec![0; count];
                many.fill_below(bound, 5, &mut filled);
                assert!(filled.iter().all(|&number| number == (5 + one.below(bound)) as i32), "bound {bound}");
            }
        }
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut random = RowRandom::new(b"test    ", 0);
        random.seek(0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
