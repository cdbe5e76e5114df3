//! Multi-query associative recall: key-value pairs, then each key once more somewhere; the label there
//! is its value.
//!
//! ```text
//! k1 v1 k2 v2  .  .  k2  .  .  .  k1  .       inputs
//! -  -  -  -   -  -  v2  -  -  -  v1  -       labels (- is ignored)
//! ```
//!
//! Fillers `.`, keys and values come from disjoint ranges of ids, so a look-up solver is always right.
//! Every position behind the pairs can hold a query.

use super::fill::for_chunks;
use super::random::RowRandom;
use crate::error::{Error, Result};
use crate::simd::{Kernel, Level, Simd};

/// Label of the positions that are not scored, as PyTorch's cross entropy ignores it.
pub const IGNORE: i32 = -100;

#[derive(Clone, Debug)]
pub struct Mqar {
    pub vocab_size: u32,
    pub length: usize,
    pub pairs: usize,
    /// Position `g` behind the pairs is drawn with weight `(g + 1)^(power_a - 1)`: 1 is uniform, small
    /// values favour the first ones.
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
    /// A quarter of the ids are fillers, the rest is split evenly between keys and values.
    pub fn ranges(&self) -> Ranges {
        let first_key = (self.vocab_size / 4).max(1);
        let num_keys = self.vocab_size.saturating_sub(first_key) / 2;
        Ranges { first_key, first_value: first_key + num_keys, vocab_size: self.vocab_size }
    }

    pub fn check(&self) -> Result<()> {
        let Self { vocab_size, length, pairs, power_a } = *self;
        if !(4..=1 << 30).contains(&vocab_size) {
            return Err(Error::value(format!("vocab_size={vocab_size}: must be in 4 .. {}", 1 << 30)));
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
        let places = QueryPlaces::new(self.length - 2 * self.pairs, self.power_a);
        let widths = (self.length, self.length);
        for_chunks((inputs, labels), widths, first_row, threads, |first_row, inputs, labels| {
            level.run(WriteRows { config: self, places: places.clone(), seed, first_row, inputs, labels });
        });
        Ok(())
    }
}

struct WriteRows<'a> {
    config: &'a Mqar,
    places: QueryPlaces,
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
        let random = RowRandom::new(simd, b"mqar v2 ", seed);
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
    places: QueryPlaces,
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
        for pair in context.chunks_exact(2) {
            let place = places.take(random);
            rest[place] = pair[0];
            labels[place] = pair[1];
        }
        places.put_back();
    }
}

/// Draws different numbers; remembers between rows only the room it needs.
#[derive(Default)]
struct Distinct {
    chosen: Vec<u32>,
    /// One bit a number; all clear between calls.
    taken: Vec<u64>,
}

impl Distinct {
    /// `count` different numbers below `bound` in random order (Floyd's method, then a shuffle).
    #[inline(always)]
    fn draw<S: Simd>(&mut self, random: &mut RowRandom<S>, bound: u32, count: usize) -> &[u32] {
        let Self { chosen, taken } = self;
        chosen.clear();
        taken.resize(taken.len().max(bound as usize / 64 + 1), 0);
        for top in bound - count as u32..bound {
            let draw = random.below(top + 1);
            let is_new = taken[draw as usize / 64] >> (draw % 64) & 1 == 0;
            let number = if is_new { draw } else { top };
            taken[number as usize / 64] |= 1 << (number % 64);
            chosen.push(number);
        }
        for &number in &*chosen {
            taken[number as usize / 64] = 0;
        }
        for i in (1..count).rev() {
            chosen.swap(i, random.below(i as u32 + 1) as usize);
        }
        chosen
    }
}

/// Draws different places with given weights: each with the share of its weight in what is left.
#[derive(Clone)]
struct QueryPlaces {
    /// A binary heap of sums: node `i` is the sum of `2 i` and `2 i + 1`; the second half are the places.
    /// Whole numbers, so that taking a weight out and putting it back leaves no trace.
    sums: Vec<u64>,
    taken: Vec<(usize, u64)>,
}

impl QueryPlaces {
    fn new(count: usize, power_a: f64) -> Self {
        let weights: Vec<f64> = (0..count).map(|place| (place as f64 + 1.0).powf(power_a - 1.0)).collect();
        // fine enough that rounding moves no share by more than 2^-50 or so
        let unit = (1u64 << 60) as f64 / weights.iter().sum::<f64>();
        let num_leaves = count.next_power_of_two();
        let mut sums = vec![0; 2 * num_leaves];
        for (sum, weight) in sums[num_leaves..].iter_mut().zip(weights) {
            *sum = ((weight * unit) as u64).max(1);
        }
        for node in (1..num_leaves).rev() {
            sums[node] = sums[2 * node] + sums[2 * node + 1];
        }
        Self { sums, taken: Vec::new() }
    }

    /// A place that has not been taken since the last `put_back`.
    #[inline(always)]
    fn take<S: Simd>(&mut self, random: &mut RowRandom<S>) -> usize {
        let num_leaves = self.sums.len() / 2;
        let mut left = random.below_u64(self.sums[1]);
        let mut node = 1;
        while node < num_leaves {
            let sum = self.sums[2 * node];
            let is_right = left >= sum;
            left -= if is_right { sum } else { 0 };
            node = 2 * node + usize::from(is_right);
        }
        let (place, weight) = (node - num_leaves, self.sums[node]);
        self.taken.push((node, weight));
        while node > 0 {
            self.sums[node] -= weight;
            node /= 2;
        }
        place
    }

    #[inline(always)]
    fn put_back(&mut self) {
        for (mut node, weight) in self.taken.drain(..) {
            while node > 0 {
                self.sums[node] += weight;
                node /= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

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

    fn random() -> RowRandom<Portable> {
        let mut random = RowRandom::new(Portable, b"test    ", 1);
        random.seek(0);
        random
    }

    #[test]
    fn places_follow_the_power_law() {
        let mut places = QueryPlaces::new(50, 0.01);
        let mut random = random();
        let total: f64 = (0..50).map(|g| (g as f64 + 1.0).powf(-0.99)).sum();
        let mut counts = [0u32; 50];
        let draws = 200_000;
        for _ in 0..draws {
            counts[places.take(&mut random)] += 1;
            places.put_back();
        }
        for (g, &count) in counts.iter().enumerate() {
            let expected = (g as f64 + 1.0).powf(-0.99) / total;
            assert!((f64::from(count) / f64::from(draws) - expected).abs() < 0.003, "place {g}");
        }
    }

    #[test]
    fn later_places_share_what_is_left() {
        // drawing again until the place is free gives the same law: here by its formula
        let weights: Vec<f64> = (0..5).map(|g| (g as f64 + 1.0).powf(-0.5)).collect();
        let total: f64 = weights.iter().sum();
        let mut places = QueryPlaces::new(5, 0.5);
        let before = places.sums.clone();
        let mut random = random();
        let mut counts = [0u32; 25];
        let draws = 200_000;
        for _ in 0..draws {
            let (first, second) = (places.take(&mut random), places.take(&mut random));
            counts[5 * first + second] += 1;
            places.put_back();
        }
        assert_eq!(places.sums, before);
        for (pair, &count) in counts.iter().enumerate() {
            let (first, second) = (pair / 5, pair % 5);
            let expected = weights[first] / total * weights[second] / (total - weights[first]);
            let expected = if first == second { 0.0 } else { expected };
            assert!((f64::from(count) / f64::from(draws) - expected).abs() < 0.003, "{first}, {second}");
        }
    }

    #[test]
    fn all_places_can_be_taken() {
        let mut random = random();
        for power_a in [0.01, 1.0, 10.0] {
            let mut places = QueryPlaces::new(700, power_a);
            for _ in 0..2 {
                let mut taken: Vec<usize> = (0..700).map(|_| places.take(&mut random)).collect();
                taken.sort_unstable();
                assert!(taken.into_iter().eq(0..700));
                places.put_back();
            }
        }
    }

    #[test]
    fn the_order_of_all_places_has_its_law() {
        let weights: Vec<f64> = (0..4).map(|g| (g as f64 + 1.0).powf(-0.99)).collect();
        let mut expected = [0.0; 256];
        for order in 0..256usize {
            let places = [order / 64, order / 16 % 4, order / 4 % 4, order % 4];
            let mut left: f64 = weights.iter().sum();
            let mut probability = 1.0;
            for (i, &place) in places.iter().enumerate() {
                probability *= if places[..i].contains(&place) { 0.0 } else { weights[place] / left };
                left -= weights[place];
            }
            expected[order] = probability;
        }
        let mut places = QueryPlaces::new(4, 0.01);
        let mut random = random();
        let mut counts = [0u32; 256];
        let draws = 200_000;
        for _ in 0..draws {
            counts[(0..4).fold(0, |order, _| 4 * order + places.take(&mut random))] += 1;
            places.put_back();
        }
        for (order, (&count, expected)) in counts.iter().zip(expected).enumerate() {
            assert!((f64::from(count) / f64::from(draws) - expected).abs() < 0.004, "{order}");
        }
    }

    #[test]
    fn distinct_is_uniform_over_ordered_pairs() {
        let mut random = random();
        let mut counts = [0u32; 16];
        let mut distinct = Distinct::default();
        for _ in 0..24_000 {
            let chosen = distinct.draw(&mut random, 4, 2);
            counts[(4 * chosen[0] + chosen[1]) as usize] += 1;
        }
        for (pair, &count) in counts.iter().enumerate() {
            let expected = if pair / 4 == pair % 4 { 0..1 } else { 1_850..2_150 };
            assert!(expected.contains(&count), "{counts:?}");
        }
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
