//! Mixing of whole heads: scale, convolve, scale, with a few columns apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::complex::{Complex, Factor, Position};
use super::convolve::convolve;
use super::plan::Plan;
use super::tensor::{Element, Source, Target};
use crate::error::{Error, Result};
use crate::simd::{Kernel, Level, Simd, FLOATS};
use crate::threads::on_threads;

/// Channels that are mixed together: each lane holds two, as the real and the imaginary part.
const CHANNELS: usize = 2 * FLOATS;

/// Positions that justify one more thread: about a tenth of a millisecond of work.
const POSITIONS_A_THREAD: usize = 2048;

/// Positions in a partial sum. `saf_titan/ops/certificate.py` relies on it for its error bounds.
const WEIGHTED_AT_ONCE: usize = 256;

/// The pattern diag(inv_z) Toeplitz(weight) diag(scale) of one head, cut to the length of the sequences.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    pub scale: &'a [f32],
    pub weight: &'a [f32],
    pub inv_z: &'a [f32],
    /// Half the spectra of the weights, cyclic and twisted, each of the size of the transform.
    pub spectra: [&'a [Factor]; 2],
    /// Columns that are left out of the transforms and mixed one by one: ascending, below the length.
    pub heavy: Vec<usize>,
    /// Index of the head in the source and in the target.
    pub places: (usize, usize),
}

/// `y = P x`, or `P^T x`, for some heads of a batch of sequences.
#[derive(Clone, Debug)]
pub struct Mixer<'a> {
    pub heads: Vec<Head<'a>>,
    pub transpose: bool,
}

impl Mixer<'_> {
    /// Writes the mixed heads to the target and touches no other head. Heads, sequences and groups of channels are
    /// divided among threads; the result does not depend on the number of threads.
    pub fn mix<E: Element>(
        &self,
        level: Level,
        source: &Source<'_, E>,
        target: &Target<'_, E>,
        threads: usize,
    ) -> Result<()> {
        let [batch, time, _, channels] = source.layout.shape;
        self.check(source, target)?;
        if batch * time * channels * self.heads.len() == 0 {
            return Ok(());
        }
        let plan = Plan::of(self.heads[0].spectra[0].len())?;
        let groups = channels.div_ceil(CHANNELS);
        let num_tasks = self.heads.len() * batch * groups;
        let next = AtomicUsize::new(0);
        let drain = || {
            let mut room = vec![Position::ZERO; 2 * plan.size];
            let (cyclic, negacyclic) = room.split_at_mut(plan.size);
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= num_tasks {
                    return;
                }
                let (group, rest) = (task % groups, task / groups);
                let (batch, head) = (rest % batch, &self.heads[rest / batch]);
                let (cyclic, negacyclic, plan) = (&mut *cyclic, &mut *negacyclic, &*plan);
                let first_channel = group * CHANNELS;
                let transpose = self.transpose;
                level.run(Task { source, target, head, plan, batch, first_channel, transpose, cyclic, negacyclic });
            }
        };
        let threads = threads.min(num_tasks).min(num_tasks * plan.size / POSITIONS_A_THREAD);
        on_threads(threads, drain);
        Ok(())
    }

    fn check<E: Element>(&self, source: &Source<'_, E>, target: &Target<'_, E>) -> Result<()> {
        let (from, to) = (source.layout.shape, target.layout.shape);
        let [_, time, _, _] = from;
        if [from[0], from[1], from[3]] != [to[0], to[1], to[3]] {
            return Err(Error::value(format!("source {from:?} and target {to:?} differ in more than heads")));
        }
        for head in &self.heads {
            let size = head.spectra[0].len();
            let lengths = [head.scale.len(), head.weight.len(), head.inv_z.len()];
            let places_fit = head.places.0 < from[2] && head.places.1 < to[2];
            let columns_fit = head.heavy.iter().all(|&column| column < time);
            let sizes_fit = size >= time && head.spectra[1].len() == size && size == self.heads[0].spectra[0].len();
            if lengths != [time; 3] || !places_fit || !columns_fit || !sizes_fit {
                return Err(Error::value(format!(
                    "a head of lengths {lengths:?}, size {size}, at {:?}, with heavy columns {:?} does not fit \
                     sequences {from:?} to {to:?}",
                    head.places, head.heavy
                )));
            }
        }
        let mut written: Vec<usize> = self.heads.iter().map(|head| head.places.1).collect();
        written.sort_unstable();
        if written.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::value(format!("heads are written twice: {written:?}")));
        }
        Ok(())
    }
}

/// Up to 32 channels of one head of one sequence.
struct Task<'a, 'b, E> {
    source: &'a Source<'b, E>,
    target: &'a Target<'b, E>,
    head: &'a Head<'b>,
    plan: &'a Plan,
    batch: usize,
    first_channel: usize,
    transpose: bool,
    cyclic: &'a mut [Position],
    negacyclic: &'a mut [Position],
}

impl<E: Element> Kernel for Task<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { source, target, head, plan, batch, first_channel, transpose, cyclic, negacyclic } = self;
        let [_, time, _, channels] = source.layout.shape;
        let width = (channels - first_channel).min(CHANNELS);
        let (before, after) = if transpose { (head.inv_z, head.scale) } else { (head.scale, head.inv_z) };
        for (t, &factor) in before.iter().enumerate() {
            let row = &source.row(batch, t, head.places.0)[first_channel..][..width];
            let x = load(simd, row).scaled(factor);
            x.store(&mut cyclic[t]);
            x.times(&plan.twist[t], false).store(&mut negacyclic[t]);
        }
        cyclic[time..].fill(Position::ZERO);
        negacyclic[time..].fill(Position::ZERO);

        // the inputs of the heavy columns; of the transpose, their outputs
        let mut of_heavy: Vec<Position> = Vec::with_capacity(head.heavy.len());
        for &column in &head.heavy {
            of_heavy.push(if transpose {
                weighted_sum(simd, head.weight, &cyclic[column..time])
            } else {
                negacyclic[column] = Position::ZERO;
                std::mem::replace(&mut cyclic[column], Position::ZERO)
            });
        }

        convolve(simd, plan, cyclic, head.spectra[0], transpose);
        convolve(simd, plan, negacyclic, head.spectra[1], transpose);

        // a forward and an inverse transform together multiply by the size
        let size = plan.size as f32;
        for (&column, heavy) in head.heavy.iter().zip(&mut of_heavy) {
            heavy.load(simd).scaled(size).store(heavy);
            if transpose {
                cyclic[column] = *heavy;
                negacyclic[column] = Position::ZERO;
            }
        }
        for (t, &factor) in after.iter().enumerate() {
            let mut sum = cyclic[t].load(simd).plus(negacyclic[t].load(simd).times(&plan.twist[t], true));
            if !transpose {
                for (&column, heavy) in head.heavy.iter().zip(&of_heavy).take_while(|(&column, _)| column <= t) {
                    sum = sum.plus_scaled(head.weight[t - column], heavy.load(simd));
                }
            }
            let mut mixed = Position::ZERO;
            sum.scaled(factor / size).store(&mut mixed);
            let place = [batch, t, head.places.1];
            // SAFETY: tasks differ in sequence, head or channels, and heads in their place, which `check` has seen to.
            unsafe { target.write(place, first_channel, &[mixed.re, mixed.im].as_flattened()[..width]) };
        }
    }
}

/// Returns the sum of positions times weights. Several partial sums are faster, because additions to one sum wait for
/// each other, and more precise.
#[inline(always)]
fn weighted_sum<S: Simd>(simd: S, weight: &[f32], positions: &[Position]) -> Position {
    const PARTS: usize = 4;
    let mut total = Complex::zero(simd);
    for (positions, weights) in positions.chunks(WEIGHTED_AT_ONCE).zip(weight.chunks(WEIGHTED_AT_ONCE)) {
        let mut sums = [Complex::zero(simd); PARTS];
        for (positions, weights) in positions.chunks(PARTS).zip(weights.chunks(PARTS)) {
            for ((sum, position), &weight) in sums.iter_mut().zip(positions).zip(weights) {
                *sum = sum.plus_scaled(weight, position.load(simd));
            }
        }
        total = total.plus(sums[0].plus(sums[1]).plus(sums[2].plus(sums[3])));
    }
    let mut sum = Position::ZERO;
    total.store(&mut sum);
    sum
}

/// Channels of a row as complex numbers: the first 16 are real parts, the next ones imaginary.
#[inline(always)]
fn load<S: Simd, E: Element>(simd: S, row: &[E]) -> Complex<S> {
    if let ([re, im], []) = row.as_chunks::<FLOATS>() {
        return Complex::new(simd, &re.map(E::to_f32), &im.map(E::to_f32));
    }
    let mut position = Position::ZERO;
    let channels = position.re.iter_mut().chain(&mut position.im);
    channels.zip(row).for_each(|(channel, &x)| *channel = x.to_f32());
    position.load(simd)
}
