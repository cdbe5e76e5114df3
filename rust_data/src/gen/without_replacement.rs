//! Draws without replacement: numbers of equal weight, and places with weights.
//!
//! Both draw with replacement and leave out numbers that were drawn before. The result has the law of drawing without
//! replacement, because the next new number has the share of its weight in the numbers that are left. Many candidates
//! are drawn at a time, so that no draw waits for the one before it.

use super::alias::Alias;
use super::random::RowRandom;
use crate::simd::Simd;

/// When the places that are left have less than this share of the weight of the table in use, a new table of them is
/// made.
const RARELY_NEW: u64 = 8;

/// The different numbers among the candidates, in the order in which they were drawn.
#[derive(Clone, Default)]
struct Chosen {
    /// Only the first `len` entries count. They may be more than are wanted.
    numbers: Vec<u32>,
    len: usize,
    wanted: usize,
    /// For each number, whether it was drawn before. Bytes, not bits: writing a byte does not wait for other numbers.
    has_come: Vec<bool>,
}

impl Chosen {
    /// Starts anew, for `wanted` numbers below `bound`.
    #[inline(always)]
    fn start(&mut self, bound: usize, wanted: usize) {
        for &number in &self.numbers[..self.len] {
            self.has_come[number as usize] = false;
        }
        self.has_come.resize(self.has_come.len().max(bound), false);
        (self.len, self.wanted) = (0, wanted);
    }

    fn num_missing(&self) -> usize {
        self.wanted.saturating_sub(self.len)
    }

    /// Takes the candidates that are new. There is no branch, because a CPU could not predict which ones are new.
    #[inline(always)]
    fn offer(&mut self, candidates: impl ExactSizeIterator<Item = u32>) {
        let Self { numbers, len, has_come, .. } = self;
        numbers.resize(numbers.len().max(*len + candidates.len()), 0);
        let (numbers, has_come) = (&mut **numbers, &mut **has_come);
        let mut count = *len;
        for candidate in candidates {
            let has_come = &mut has_come[candidate as usize];
            // the next candidate overwrites one that is not new
            numbers[count] = candidate;
            count += usize::from(!*has_come);
            *has_come = true;
        }
        *len = count;
    }

    fn numbers(&self) -> &[u32] {
        &self.numbers[..self.len.min(self.wanted)]
    }
}

/// Draws different numbers. It keeps only its memory between rows.
#[derive(Default)]
pub struct Distinct {
    chosen: Chosen,
    candidates: Vec<i32>,
    all: Vec<u32>,
}

impl Distinct {
    /// Draws `count` different numbers below `bound` in random order. Every choice and order has the same probability.
    #[inline(always)]
    pub fn draw<S: Simd>(&mut self, random: &mut RowRandom<S>, bound: u32, count: usize) -> &[u32] {
        let Self { chosen, candidates, all } = self;
        if 2 * count > bound as usize {
            // most numbers are wanted: the beginning of a shuffle (Fisher and Yates)
            all.clear();
            all.extend(0..bound);
            for i in 0..count {
                all.swap(i, i + random.below(bound - i as u32) as usize);
            }
            return &all[..count];
        }
        chosen.start(bound as usize, count);
        while chosen.num_missing() > 0 {
            let missing = chosen.num_missing();
            // as many more as are expected to be repeated, and two
            candidates.resize(missing + missing * count / bound as usize + 2, 0);
            random.fill_below(bound, 0, candidates);
            chosen.offer(candidates.iter().map(|&candidate| candidate as u32));
        }
        chosen.numbers()
    }
}

/// Draws different places with given weights. Each draw takes a place with the share of its weight in the places left.
#[derive(Clone)]
pub struct WeightedPlaces {
    /// The weights, as whole numbers, so that every machine draws the same.
    weights: Vec<u64>,
    /// The table of all places, and that of the places left when most of the weight is taken.
    tables: [Alias; 2],
    chosen: Chosen,
}

impl WeightedPlaces {
    /// Place `g` of `count` has the weight `(g + 1)^(power_a - 1)`.
    pub fn new(count: usize, power_a: f64) -> Self {
        let weights: Vec<f64> = (0..count).map(|place| (place as f64 + 1.0).powf(power_a - 1.0)).collect();
        // so fine that rounding changes no share by more than about 2^-50
        let unit = (1u64 << 60) as f64 / weights.iter().sum::<f64>();
        let weights: Vec<u64> = weights.into_iter().map(|weight| ((weight * unit) as u64).max(1)).collect();
        let mut all = Alias::default();
        all.make((0..).zip(weights.iter().copied()));
        Self { weights, tables: [all, Alias::default()], chosen: Chosen::default() }
    }

    /// Draws `count` different places, in the order of the draws.
    #[inline(always)]
    pub fn draw<S: Simd>(&mut self, random: &mut RowRandom<S>, count: usize) -> &[u32] {
        let Self { weights, tables, chosen } = self;
        let [all, rest] = tables;
        chosen.start(weights.len(), count);
        let (mut is_all, mut left) = (true, all.total());
        loop {
            let table = if is_all { &*all } else { &*rest };
            let known = chosen.len;
            let (high, low) = random.word_pairs(chosen.num_missing() * 3 / 2 + 4);
            offer_places(chosen, table, high, low);
            if chosen.num_missing() == 0 {
                return chosen.numbers();
            }
            left -= chosen.numbers[known..chosen.len].iter().map(|&place| weights[place as usize]).sum::<u64>();
            if left < table.total() / RARELY_NEW {
                let places = (0..).zip(weights.iter().copied());
                rest.make(places.filter(|&(place, _)| !chosen.has_come[place as usize]));
                is_all = false;
            }
        }
    }
}

/// This is a function of its own so that the compiler keeps the parts of the table in registers.
#[inline(never)]
fn offer_places(chosen: &mut Chosen, table: &Alias, high: &[u32], low: &[u32]) {
    let words = high.iter().zip(low).map(|(&high, &low)| u64::from(high) << 32 | u64::from(low));
    chosen.offer(words.map(|word| table.place(word)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    fn random() -> RowRandom<Portable> {
        let mut random = RowRandom::new(Portable, b"test    ", 1);
        random.seek(0);
        random
    }

    #[test]
    fn places_follow_the_power_law() {
        let mut places = WeightedPlaces::new(50, 0.01);
        let mut random = random();
        let total: f64 = (0..50).map(|g| (g as f64 + 1.0).powf(-0.99)).sum();
        let mut counts = [0u32; 50];
        let draws = 200_000;
        for _ in 0..draws {
            counts[places.draw(&mut random, 1)[0] as usize] += 1;
        }
        for (g, &count) in counts.iter().enumerate() {
            let expected = (g as f64 + 1.0).powf(-0.99) / total;
            assert!((f64::from(count) / f64::from(draws) - expected).abs() < 0.003, "place {g}");
        }
    }

    #[test]
    fn later_places_share_what_is_left() {
        // drawing until the place is new has the law that this formula gives
        let weights: Vec<f64> = (0..5).map(|g| (g as f64 + 1.0).powf(-0.5)).collect();
        let total: f64 = weights.iter().sum();
        let mut places = WeightedPlaces::new(5, 0.5);
        let mut random = random();
        let mut counts = [0u32; 25];
        let draws = 200_000;
        for _ in 0..draws {
            let places = places.draw(&mut random, 2);
            counts[(5 * places[0] + places[1]) as usize] += 1;
        }
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
            let mut places = WeightedPlaces::new(700, power_a);
            for _ in 0..2 {
                let mut taken = places.draw(&mut random, 700).to_vec();
                taken.sort_unstable();
                assert!(taken.into_iter().eq(0..700));
            }
        }
    }

    #[test]
    fn the_order_of_all_places_has_its_law() {
        let weights: Vec<f64> = (0..4).map(|g| (g as f64 + 1.0).powf(-0.99)).collect();
        let mut expected = [0.0; 256];
        for (order, expected) in expected.iter_mut().enumerate() {
            let places = [order / 64, order / 16 % 4, order / 4 % 4, order % 4];
            let mut left: f64 = weights.iter().sum();
            let mut probability = 1.0;
            for (i, &place) in places.iter().enumerate() {
                probability *= if places[..i].contains(&place) { 0.0 } else { weights[place] / left };
                left -= weights[place];
            }
            *expected = probability;
        }
        let mut places = WeightedPlaces::new(4, 0.01);
        let mut random = random();
        let mut counts = [0u32; 256];
        let draws = 200_000;
        for _ in 0..draws {
            counts[places.draw(&mut random, 4).iter().fold(0, |order, &place| 4 * order + place as usize)] += 1;
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
}
