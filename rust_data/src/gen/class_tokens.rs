//! Class tokens: sequences whose class can be read off the tokens that occur in them, for experiments on what attention
//! learns to look at (Tian et al. 2023; Vashisht and Ramaswamy 2026).
//!
//! Each of `classes` classes owns `distinct` token types; `common` types belong to none. A sequence is a
//! context of both kinds and a query in its last place; its label is the class. Ids: the distinct types
//! of class n are `n * distinct ..`, behind them all the common types, then the query or queries.

use super::fill::for_chunks;
use super::random::RowRandom;
use crate::error::{Error, Result};
use crate::simd::{Kernel, Level, Simd};

#[derive(Clone, Debug)]
pub struct ClassTokens {
    pub classes: u32,
    pub distinct: u32,
    pub common: u32,
    pub context: Context,
    /// One query token for all classes, or one for each class.
    pub shared_query: bool,
}

#[derive(Clone, Debug)]
pub enum Context {
    /// `length` tokens. Each is a distinct one with probability `gamma`, and uniform among the tokens of its kind.
    Iid { length: usize, gamma: f64 },
    /// So many distinct and common tokens, of uniformly drawn types, in random order.
    Counts { distinct: usize, common: usize },
    /// The same counts, and nothing is drawn: types and classes take turns, and distinct tokens come first.
    Deterministic { distinct: usize, common: usize },
}

impl Context {
    fn len(&self) -> usize {
        match *self {
            Self::Iid { length, .. } => length,
            Self::Counts { distinct, common } | Self::Deterministic { distinct, common } => distinct + common,
        }
    }
}

impl ClassTokens {
    pub fn vocab_size(&self) -> u32 {
        let queries = if self.shared_query { 1 } else { self.classes };
        self.classes * self.distinct + self.common + queries
    }

    /// Number of tokens of a row, the query included.
    pub fn length(&self) -> usize {
        self.context.len() + 1
    }

    pub fn check(&self) -> Result<()> {
        let Self { classes, distinct, common, .. } = *self;
        if classes == 0 || distinct == 0 || common == 0 || [classes, distinct, common].iter().any(|&n| n > 1 << 14) {
            return Err(Error::value(format!(
                "classes={classes}, distinct={distinct}, common={common}: each must be in 1 .. {}",
                1 << 14
            )));
        }
        match self.context {
            Context::Iid { gamma, .. } if !(0.0..=1.0).contains(&gamma) => {
                return Err(Error::value(format!("gamma={gamma}: must be in [0, 1]")));
            }
            _ => {}
        }
        if !(1..=1 << 24).contains(&self.context.len()) {
            return Err(Error::value(format!("{} context tokens: must be in 1 .. {}", self.context.len(), 1 << 24)));
        }
        Ok(())
    }

    /// Fills `tokens` [rows, length] and `labels` [rows] with the rows from `first_row` on.
    pub fn generate(
        &self,
        seed: u64,
        first_row: u64,
        tokens: &mut [i32],
        labels: &mut [i32],
        threads: usize,
    ) -> Result<()> {
        self.check()?;
        let level = Level::choose()?;
        for_chunks((tokens, labels), (self.length(), 1), first_row, threads, |first_row, tokens, labels| {
            level.run(WriteRows { config: self, seed, first_row, tokens, labels });
        });
        Ok(())
    }

    /// Writes one row and returns its class.
    #[inline(always)]
    fn write_row<S: Simd>(&self, row: u64, mixture: &Mixture, random: &mut RowRandom<S>, tokens: &mut [i32]) -> u32 {
        random.seek(row);
        let class = match self.context {
            Context::Deterministic { .. } => (row % u64::from(self.classes)) as u32,
            _ => random.below(self.classes),
        };
        let first_common = self.classes * self.distinct;
        let (context, query) = tokens.split_at_mut(self.context.len());
        let first_query = first_common + self.common;
        query[0] = if self.shared_query { first_query } else { first_query + class } as i32;
        match self.context {
            Context::Iid { .. } => {
                let first_distinct = class * self.distinct;
                match *mixture {
                    Mixture::Distinct => random.fill_below(self.distinct, first_distinct, context),
                    Mixture::Common => random.fill_below(self.common, first_common, context),
                    Mixture::Both { border, of_class, of_none } => random.fill_from_words(context, |word| {
                        let (first, word, shares) = match word < border {
                            true => (first_distinct, word, of_class),
                            false => (first_common, word - border, of_none),
                        };
                        (first + shares.index(word)) as i32
                    }),
                }
            }
            Context::Counts { distinct, .. } => {
                let (of_class, of_none) = context.split_at_mut(distinct);
                let first = class * self.distinct;
                random.fill_below(self.distinct, first, of_class);
                random.fill_below(self.common, first_common, of_none);
                for i in (1..context.len()).rev() {
                    context.swap(i, random.below(i as u32 + 1) as usize);
                }
            }
            Context::Deterministic { distinct, .. } => {
                let (of_class, of_none) = context.split_at_mut(distinct);
                let types = (0..self.distinct).cycle().map(|kind| (class * self.distinct + kind) as i32);
                of_class.iter_mut().zip(types).for_each(|(token, kind)| *token = kind);
                let types = (0..self.common).cycle().map(|kind| (first_common + kind) as i32);
                of_none.iter_mut().zip(types).for_each(|(token, kind)| *token = kind);
            }
        }
        class
    }
}

/// Which random words stand for which tokens.
enum Mixture {
    Distinct,
    Common,
    /// Words below this border stand for distinct tokens.
    Both {
        border: u32,
        of_class: Shares,
        of_none: Shares,
    },
}

impl Mixture {
    fn new(gamma: f64, distinct: u32, common: u32) -> Self {
        match u32::try_from((gamma * (1u64 << 32) as f64).round() as u64) {
            Ok(0) => Self::Common,
            Ok(border) => {
                let (of_class, of_none) = (Shares::new(distinct, border), Shares::new(common, border.wrapping_neg()));
                Self::Both { border, of_class, of_none }
            }
            Err(_) => Self::Distinct,
        }
    }
}

/// Divides a range of words into shares that are equal up to a few words.
#[derive(Clone, Copy)]
struct Shares {
    /// Shares in a word, as a multiple of `2^-shift`.
    factor: u32,
    shift: u32,
}

impl Shares {
    /// Divides the words `0 .. range` into `count` shares.
    fn new(count: u32, range: u32) -> Self {
        let (count, range) = (u64::from(count), u64::from(range));
        // the finest multiple that fits
        let factor = |shift: u32| (count << shift) / range;
        let fits = |&shift: &u32| factor(shift) <= u64::from(u32::MAX);
        let shift = (0..count.leading_zeros()).rev().find(fits).unwrap_or(0);
        Self { factor: factor(shift) as u32, shift }
    }

    /// Returns the number of the share that a word is in.
    #[inline(always)]
    fn index(self, word: u32) -> u32 {
        ((u64::from(word) * u64::from(self.factor)) >> self.shift) as u32
    }
}

struct WriteRows<'a> {
    config: &'a ClassTokens,
    seed: u64,
    first_row: u64,
    tokens: &'a mut [i32],
    labels: &'a mut [i32],
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut random = RowRandom::new(simd, b"class v3", self.seed);
        let mixture = match self.config.context {
            Context::Iid { gamma, .. } => Mixture::new(gamma, self.config.distinct, self.config.common),
            Context::Counts { .. } | Context::Deterministic { .. } => Mixture::Common,
        };
        let rows = self.tokens.chunks_exact_mut(self.config.length()).zip(self.labels);
        for (row, (tokens, label)) in (self.first_row..).zip(rows) {
            *label = self.config.write_row(row, &mixture, &mut random, tokens) as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(context: Context) -> ClassTokens {
        ClassTokens { classes: 4, distinct: 3, common: 5, context, shared_query: false }
    }

    fn generate(config: &ClassTokens, first_row: u64, rows: usize, threads: usize) -> (Vec<i32>, Vec<i32>) {
        let (mut tokens, mut labels) = (vec![0; rows * config.length()], vec![0; rows]);
        config.generate(9, first_row, &mut tokens, &mut labels, threads).unwrap();
        (tokens, labels)
    }

    #[test]
    fn words_are_shared_evenly() {
        for (count, range) in [(1, 1), (3, 7), (4, 429_496_730), (64, 3_865_470_566), (1 << 14, 5), (1 << 14, u32::MAX)]
        {
            let shares = Shares::new(count, range);
            assert_eq!(shares.index(0), 0);
            assert!(shares.index(range - 1) < count);
            // the start of share k, up to a few words
            for k in [0, 1, count / 2, count - 1] {
                let start = (u64::from(k) * u64::from(range)).div_ceil(u64::from(count)) as u32;
                if start < range {
                    assert!(shares.index(start.saturating_sub(3)) <= k, "{count} {range} {k}");
                    assert!(shares.index(start.saturating_add(3).min(range - 1)) >= k, "{count} {range} {k}");
                }
            }
        }
    }

    #[test]
    fn rows_stand_alone() {
        for context in [
            Context::Iid { length: 11, gamma: 0.3 },
            Context::Counts { distinct: 4, common: 7 },
            Context::Deterministic { distinct: 4, common: 7 },
        ] {
            let config = config(context);
            let all = generate(&config, 0, 600, 1);
            assert_eq!(generate(&config, 0, 600, 5), all);
            assert_eq!(generate(&config, 599, 1, 1).0, all.0[599 * 12..]);
        }
    }

    #[test]
    fn iid_types_have_their_probabilities() {
        let config = config(Context::Iid { length: 200, gamma: 0.3 });
        let (tokens, labels) = generate(&config, 0, 2000, 1);
        let mut counts = [0f64; 8]; // three distinct types of the row's class, five common ones
        for (row, &class) in tokens.chunks_exact(201).zip(&labels) {
            for &token in &row[..200] {
                let place = if token >= 12 { token - 12 + 3 } else { token - 3 * class };
                counts[place as usize] += 1.0 / 400_000.0;
            }
            assert_eq!(row[200], 17 + class);
        }
        for (place, share) in counts.iter().enumerate() {
            let expected = if place < 3 { 0.3 / 3.0 } else { 0.7 / 5.0 };
            assert!((share - expected).abs() < 0.003, "{counts:?}");
        }
    }

    #[test]
    fn deterministic_rows_take_turns() {
        let config = config(Context::Deterministic { distinct: 4, common: 6 });
        let (tokens, labels) = generate(&config, 0, 5, 1);
        assert_eq!(labels, [0, 1, 2, 3, 0]);
        assert_eq!(tokens[11..22], [3, 4, 5, 3, 12, 13, 14, 15, 16, 12, 18]);
    }

    #[test]
    fn all_or_nothing_gamma() {
        for (gamma, low, high) in [(0.0, 12, 16), (1.0, 0, 11)] {
            let (tokens, _) = generate(&config(Context::Iid { length: 50, gamma }), 0, 50, 1);
            for row in tokens.chunks_exact(51) {
                assert!(row[..50].iter().all(|token| (low..=high).contains(token)), "gamma {gamma}");
            }
        }
    }
}
