//! MQAR by the published procedure of zoology, equal to the last bit, with all its peculiarities.
//!
//! One random stream runs through all examples: it draws first the keys of every example, then the values of every
//! example, then the query slots of every example. Queries are at even offsets only, and a slot counts from the end of
//! the context. Positions that are not written stay 0; the caller may replace zeros by random fillers.

use super::mqar::IGNORE;
use super::mt19937::Mt19937;
use crate::error::{Error, Result};

pub struct Zoology<'a> {
    pub vocab_size: u32,
    pub length: usize,
    pub pairs: usize,
    /// Probability of each slot, normalised. The caller computes it, because the draws depend on its last bits.
    pub slot_weights: &'a [f64],
}

impl Zoology<'_> {
    pub fn check(&self) -> Result<()> {
        let (length, pairs) = (self.length, self.pairs);
        if length % 2 == 1 || pairs == 0 || 4 * pairs > length {
            return Err(Error::value(format!(
                "pairs={pairs}, length={length}: need an even length of at least 4 * pairs"
            )));
        }
        if self.vocab_size as usize <= length {
            let vocab_size = self.vocab_size;
            return Err(Error::value(format!("vocab_size={vocab_size}: must be more than length={length}")));
        }
        let slots = (length - 2 * pairs) / 2;
        if self.slot_weights.len() != slots {
            return Err(Error::value(format!("{} slot weights, expected {slots}", self.slot_weights.len())));
        }
        Ok(())
    }

    /// Fills `inputs` and `labels`, both [examples, length].
    pub fn generate(&self, seed: u32, inputs: &mut [i32], labels: &mut [i32]) -> Result<()> {
        self.check()?;
        let (length, pairs) = (self.length, self.pairs);
        let first_value = self.vocab_size / 2;
        let mut random = Mt19937::new(seed);
        inputs.fill(0);
        labels.fill(IGNORE);
        // keys are 1 .. first_value, values first_value .. vocab_size
        for (first, end, column) in [(1, first_value, 0), (first_value, self.vocab_size, 1)] {
            let mut order = vec![0; (end - first) as usize];
            for row in inputs.chunks_exact_mut(length) {
                random.permutation(&mut order);
                for (pair, &place) in row.chunks_exact_mut(2).zip(&order[..pairs]) {
                    pair[column] = (first + place) as i32;
                }
            }
        }
        for (row, labels) in inputs.chunks_exact_mut(length).zip(labels.chunks_exact_mut(length)) {
            let slots = random.choice(&mut self.slot_weights.to_vec(), pairs);
            let (context, rest) = row.split_at_mut(2 * pairs);
            for (pair, &slot) in context.chunks_exact(2).zip(&slots) {
                rest[2 * slot as usize] = pair[0];
                labels[2 * pairs + 2 * slot as usize] = pair[1];
            }
        }
        Ok(())
    }
}
