//! Multi-query associative recall: pairs of a key and a value, and then each key once more, at a place whose label is
//! the value of the key.
//!
//! ```text
//! k1 v1 k2 v2  .  .  k2  .  .  .  k1  .       inputs
//! -  -  -  -   -  -  v2  -  -  -  v1  -       labels (- is ignored)
//! ```
//!
//! Fillers `.`, keys and values have ids in disjoint ranges, so a solver that looks keys up is always right.
//! Every position behind the pairs can hold a query.

use super::fill::for_chunks;
use super::random::RowRandom;
use super::without_replacement::{Distinct, WeightedPlaces};
use crate::error::{Error, Result};
use crate::simd::{Kernel, Level, Simd};

/// Label of the positions that are not scored. PyTorch's cross entropy ignores it.
pub const IGNORE: i32 = -100;

#[derive(Clone, Debug)]
pub struct Mqar {
    pub vocab_size: u32,
    pub length: usize,
    pub pairs: usize,
    /// Position `g` behind the pairs is drawn with weight `(g + 1)^(power_a - 1)`: 1 is uniform, and small values
    /// favour the first positions.
    pub power_a: f64,
}

/// The ranges of ids: fillers are `0 .. first_key`, keys up to `first_value`, values up to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranges {
    pub first_key: u32,
    pub first_value: u32,
    pub vocab_size: u32,
}

impl Mqar {
    /// Gives a quarter of the ids to fillers, and half of the others to keys and half to values.
    pub fn ranges(&self) -> Ranges {
        let first_key = (self.vocab_size / 4).max(1);
        let num_keys = self.vocab_size.saturating_sub(first_key) / 2;
        Ranges { first_key, first_value: first_key + num_keys, vocab_size: self.vocab_size }
    }

    pub fn check(&self) -> Result<()> {
        let Self { vocab_size, length, pairs, power_a } = *self;
        if !(4..=1 << 24).contains(&vocab_size) {
            return Err(Error::value(format!("vocab_size={vocab_size}: must be in 4 .. {}", 1 << 24)));
        }
        if pairs == 0 || length < 3 * pairs || length > 1 << 24 {
            return Err(Error::value(format!(
                "pairs={pairs}, length={length}: need 1 <= pairs and 3 * pairs <= length <= {} (pairs and queries)",
                1 << 24
            )));
        }
        let num_keys = self.ranges().first_value - self.ranges().first_key;
        if pairs > num_keys as usize {
            return Err(Error::value(format!("pairs={pairs}: vocab_size={vocab_size} has only {num_keys} keys")));
        }
        if !(power_a > 0.0 && power_a <= 10.0) {
            return Err(Error::value(format!("power_a={power_a}: must be in (0, 10]")));
        }
        Ok(())
    }

    /// Fills `inputs` and `labels`, both [rows, length], with the rows from `first_row` on.
    pub fn generate(
        &self,
        seed: u64,
        first_row: u64,
        inputs: &mut [i32],
        labels: &mut [i32],
        threads: usize,
    ) -> Result<()> {
        self.check()?;
        let level = Level::choose()?;
        let places = WeightedPlaces::new(self.length - 2 * self.pairs, self.power_a);
        let widths = (self.length, self.length);
        for_chunks((inputs, labels), widths, first_row, threads, |first_row, inputs, labels| {
            level.run(WriteRows { config: self, places: places.clone(), seed, first_row, inputs, labels });
        });
        Ok(())
    }
}

struct WriteRows<'a> {
    config: &'a Mqar,
    places: WeightedPlaces,
    seed: u64,
    first_row: u64,
    inputs: &'a mut [i32],
    labels: &'a mut [i32],
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { config, places, seed, first_row, inputs, labels } = self;
        let random = RowRandom::new(simd, b"mqar v3 ", seed);
        let ranges = config.ranges();
        let mut writer = RowWriter { pairs: config.pairs, ranges, places, random, distinct: Distinct::default() };
        let rows = inputs.chunks_exact_mut(config.length).zip(labels.chunks_exact_mut(config.length));
        for (row, (inputs, labels)) in (first_row..).zip(rows) {
            writer.write(row, inputs, labels);
        }
    }
}

struct RowWriter<S: Simd> {
    pairs: usize,
    ranges: Ranges,
    places: WeightedPlaces,
    random: RowRandom<S>,
    distinct: Distinct,
}

impl<S: Simd> RowWriter<S> {
    #[inline(always)]
    fn write(&mut self, row: u64, inputs: &mut [i32], labels: &mut [i32]) {
        let Self { pairs, ranges, places, random, distinct } = self;
        random.seek(row);
        let (context, rest) = inputs.split_at_mut(2 * *pairs);
        let keys = distinct.draw(random, ranges.first_value - ranges.first_key, *pairs);
        for (pair, &key) in context.chunks_exact_mut(2).zip(keys) {
            pair[0] = (ranges.first_key + key) as i32;
        }
        let values = distinct.draw(random, ranges.vocab_size - ranges.first_value, *pairs);
        for (pair, &value) in context.chunks_exact_mut(2).zip(values) {
            pair[1] = (ranges.first_value + value) as i32;
        }
        random.fill_below(ranges.first_key, 0, rest);
        labels.fill(IGNORE);
        let labels = &mut labels[2 * *pairs..];
        for (pair, &place) in context.chunks_exact(2).zip(places.draw(random, *pairs)) {
            rest[place as usize] = pair[0];
            labels[place as usize] = pair[1];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vocab_size: u32, length: usize, pairs: usize, power_a: f64) -> Mqar {
        Mqar { vocab_size, length, pairs, power_a }
    }

    fn generate(config: &Mqar, seed: u64, first_row: u64, rows: usize, threads: usize) -> (Vec<i32>, Vec<i32>) {
        let mut inputs = vec![0; rows * config.length];
        let mut labels = inputs.clone();
        config.generate(seed, first_row, &mut inputs, &mut labels, threads).unwrap();
        (inputs, labels)
    }

    #[test]
    fn rows_stand_alone() {
        let config = config(256, 64, 8, 0.01);
        let all = generate(&config, 3, 0, 700, 1);
        assert_eq!(generate(&config, 3, 0, 700, 8), all);
        let (inputs, labels) = generate(&config, 3, 650, 1, 1);
        assert_eq!(inputs, all.0[650 * 64..651 * 64]);
        assert_eq!(labels, all.1[650 * 64..651 * 64]);
        assert_ne!(generate(&config, 4, 0, 700, 1).0, all.0);
    }

    #[test]
    fn wrong_settings_are_named() {
        for (bad, text) in [
            (config(3, 64, 8, 1.0), "vocab_size=3"),
            (config(256, 23, 8, 1.0), "length=23"),
            (config(16, 64, 8, 1.0), "has only 6 keys"),
            (config(256, 64, 8, 0.0), "power_a=0"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(text));
        }
    }
}
