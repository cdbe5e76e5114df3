//! Draws without replacement: numbers that are all alike, and places with weights.

use super::random::RowRandom;
use crate::simd::Simd;

/// Draws different numbers; remembers between rows only the room it needs.
#[derive(Default)]
pub struct Distinct {
    chosen: Vec<u32>,
    /// One bit a number; all clear between calls.
    taken: Vec<u64>,
}

impl Distinct {
    /// `count` different numbers below `bound` in random order (Floyd's method, then a shuffle).
    #[inline(always)]
    pub fn draw<S: Simd>(&mut self, random: &mut RowRandom<S>, bound: u32, count: usize) -> &[u32] {
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
pub struct WeightedPlaces {
    /// A binary heap of sums: node `i` is the sum of `2 i` and `2 i + 1`; the second half are the places.
    /// Whole numbers, so that taking a weight out and putting it back leaves no trace.
    sums: Vec<u64>,
    /// The sums while nothing is taken.
    full: Vec<u64>,
    taken: Vec<(usize, u64)>,
}

impl WeightedPlaces {
    pub fn new(count: usize, power_a: f64) -> Self {
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
        Self { full: sums.clone(), sums, taken: Vec::new() }
    }

    /// A place that has not been taken since the last `put_back`.
    #[inline(always)]
    pub fn take<S: Simd>(&mut self, random: &mut RowRandom<S>) -> usize {
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
    pub fn put_back(&mut self) {
        let num_levels = self.sums.len().ilog2() as usize;
        if self.taken.len() * num_levels >= self.sums.len() {
            self.taken.clear();
            self.sums.copy_from_slice(&self.full);
            return;
        }
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
        let mut places = WeightedPlaces::new(5, 0.5);
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
            let mut places = WeightedPlaces::new(700, power_a);
            for _ in 0..2 {
                let mut taken: Vec<usize> = (0..700).map(|_| places.take(&mut random)).collect();
                taken.sort_unstable();
                assert!(taken.into_iter().eq(0..700));
                places.put_back();
                assert_eq!(places.sums, places.full);
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
}
