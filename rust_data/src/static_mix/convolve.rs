//! Convolution of all lanes with one spectrum, in place.
//!
//! The forward transform leaves the frequencies in the order of its stages, and the inverse one starts from that
//! order, so nothing is reordered. Stages with large blocks run over all positions. A block that fits into the first
//! cache goes through the other forward stages, the product and the inverse stages before the next block.

use super::complex::{small_transform, Complex, Factor, Position};
use super::plan::{Plan, Stage};
use crate::simd::Simd;

/// Positions that fit into the first-level cache: 32 KiB.
const CACHED: usize = 256;

/// Replaces each lane by `plan.size` times its cyclic convolution with the weights of `spectrum`, or its correlation
/// with them if `correlate`.
#[inline(always)]
pub fn convolve<S: Simd>(simd: S, plan: &Plan, positions: &mut [Position], spectrum: &[Factor], correlate: bool) {
    let num_outer = plan.stages.iter().take_while(|stage| stage.block() > CACHED).count();
    let (outer, inner) = plan.stages.split_at(num_outer);
    for stage in outer {
        forward(simd, stage, positions);
    }
    let block = inner.first().map_or(1, Stage::block);
    for (block, frequencies) in positions.chunks_exact_mut(block).zip(plan.frequencies.chunks_exact(block)) {
        for stage in inner {
            forward(simd, stage, block);
        }
        for (position, &frequency) in block.iter_mut().zip(frequencies) {
            position.load(simd).times(&spectrum[frequency as usize], correlate).store(position);
        }
        for stage in inner.iter().rev() {
            backward(simd, stage, block);
        }
    }
    for stage in outer.iter().rev() {
        backward(simd, stage, positions);
    }
}

#[inline(always)]
fn forward<S: Simd>(simd: S, stage: &Stage, positions: &mut [Position]) {
    match stage.radix {
        2 => forward_stage::<S, 2>(simd, stage, positions),
        3 => forward_stage::<S, 3>(simd, stage, positions),
        4 => forward_stage::<S, 4>(simd, stage, positions),
        _ => forward_stage::<S, 5>(simd, stage, positions),
    }
}

#[inline(always)]
fn backward<S: Simd>(simd: S, stage: &Stage, positions: &mut [Position]) {
    match stage.radix {
        2 => backward_stage::<S, 2>(simd, stage, positions),
        3 => backward_stage::<S, 3>(simd, stage, positions),
        4 => backward_stage::<S, 4>(simd, stage, positions),
        _ => backward_stage::<S, 5>(simd, stage, positions),
    }
}

/// Decimation in frequency.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // j is a place in every part
fn forward_stage<S: Simd, const R: usize>(simd: S, stage: &Stage, positions: &mut [Position]) {
    for block in positions.chunks_exact_mut(stage.block()) {
        let parts = parts_of::<R>(block, stage.span);
        for j in 0..stage.span {
            let factors = &stage.factors[(R - 1) * j..][..R - 1];
            let mut x = [Complex::zero(simd); R];
            for k in 0..R {
                x[k] = parts[k][j].load(simd);
            }
            let y = small_transform(x, false);
            y[0].store(&mut parts[0][j]);
            for q in 1..R {
                y[q].times(&factors[q - 1], false).store(&mut parts[q][j]);
            }
        }
    }
}

/// Decimation in time with conjugate factors: undoes `forward_stage` up to a factor R.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // as above
fn backward_stage<S: Simd, const R: usize>(simd: S, stage: &Stage, positions: &mut [Position]) {
    for block in positions.chunks_exact_mut(stage.block()) {
        let parts = parts_of::<R>(block, stage.span);
        for j in 0..stage.span {
            let factors = &stage.factors[(R - 1) * j..][..R - 1];
            let mut x = [Complex::zero(simd); R];
            x[0] = parts[0][j].load(simd);
            for q in 1..R {
                x[q] = parts[q][j].load(simd).times(&factors[q - 1], true);
            }
            let y = small_transform(x, true);
            for k in 0..R {
                y[k].store(&mut parts[k][j]);
            }
        }
    }
}

/// The R parts of a block, each `span` positions.
#[inline(always)]
fn parts_of<const R: usize>(block: &mut [Position], span: usize) -> [&mut [Position]; R] {
    let mut rest = block;
    std::array::from_fn(|_| {
        let (part, behind) = std::mem::take(&mut rest).split_at_mut(span);
        rest = behind;
        part
    })
}
