//! Complex numbers of many channels at one position, and the small transforms over positions.

use crate::simd::{Simd, FLOATS};

/// A factor that all lanes share.
pub type Factor = [f32; 2];

/// One position of a transform in memory: a complex number a lane.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Position {
    pub re: [f32; FLOATS],
    pub im: [f32; FLOATS],
}

impl Position {
    pub const ZERO: Self = Self { re: [0.0; FLOATS], im: [0.0; FLOATS] };

    #[inline(always)]
    pub fn load<S: Simd>(&self, simd: S) -> Complex<S> {
        Complex::new(simd, &self.re, &self.im)
    }
}

/// The numbers of a position in registers.
#[derive(Clone, Copy)]
pub struct Complex<S: Simd> {
    simd: S,
    re: S::Floats,
    im: S::Floats,
}

impl<S: Simd> Complex<S> {
    #[inline(always)]
    pub fn new(simd: S, re: &[f32; FLOATS], im: &[f32; FLOATS]) -> Self {
        Self { simd, re: simd.floats(re), im: simd.floats(im) }
    }

    #[inline(always)]
    pub fn zero(simd: S) -> Self {
        Self { simd, re: simd.splat(0.0), im: simd.splat(0.0) }
    }

    #[inline(always)]
    pub fn store(self, position: &mut Position) {
        self.simd.store(self.re, &mut position.re);
        self.simd.store(self.im, &mut position.im);
    }

    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        let Self { simd, re, im } = self;
        Self { simd, re: simd.add(re, other.re), im: simd.add(im, other.im) }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        let Self { simd, re, im } = self;
        Self { simd, re: simd.subtract(re, other.re), im: simd.subtract(im, other.im) }
    }

    /// `self + factor * other`.
    #[inline(always)]
    pub fn plus_scaled(self, factor: f32, other: Self) -> Self {
        let Self { simd, re, im } = self;
        let factor = simd.splat(factor);
        Self { simd, re: simd.multiply_add(factor, other.re, re), im: simd.multiply_add(factor, other.im, im) }
    }

    #[inline(always)]
    pub fn scaled(self, factor: f32) -> Self {
        let Self { simd, re, im } = self;
        let factor = simd.splat(factor);
        Self { simd, re: simd.multiply(factor, re), im: simd.multiply(factor, im) }
    }

    /// The product with a factor, or with its conjugate.
    #[inline(always)]
    pub fn times(self, factor: &Factor, conjugate: bool) -> Self {
        let Self { simd, re, im } = self;
        let (along, across) = (simd.splat(factor[0]), simd.splat(factor[1]));
        let (along_re, along_im) = (simd.multiply(along, re), simd.multiply(along, im));
        let (re, im) = if conjugate {
            (simd.multiply_add(across, im, along_re), simd.multiply_subtract(across, re, along_im))
        } else {
            (simd.multiply_subtract(across, im, along_re), simd.multiply_add(across, re, along_im))
        };
        Self { simd, re, im }
    }

    /// `self - i * other`, or `self + i * other`.
    #[inline(always)]
    fn plus_turned(self, other: Self, inverse: bool) -> Self {
        let Self { simd, re, im } = self;
        if inverse {
            Self { simd, re: simd.subtract(re, other.im), im: simd.add(im, other.re) }
        } else {
            Self { simd, re: simd.add(re, other.im), im: simd.subtract(im, other.re) }
        }
    }
}

/// Sums of `x[k] exp(-2 pi i k q / R)` over k for each q, or of the conjugate factors; R is 2, 3, 4 or 5.
#[inline(always)]
pub fn small_transform<S: Simd, const R: usize>(x: [Complex<S>; R], inverse: bool) -> [Complex<S>; R] {
    let mut y = x;
    match R {
        2 => {
            y[0] = x[0].plus(x[1]);
            y[1] = x[0].minus(x[1]);
        }
        3 => {
            let (sum, difference) = (x[1].plus(x[2]), x[1].minus(x[2]).scaled(0.866_025_4));
            let mean = x[0].plus_scaled(-0.5, sum);
            y[0] = x[0].plus(sum);
            y[1] = mean.plus_turned(difference, inverse);
            y[2] = mean.plus_turned(difference, !inverse);
        }
        4 => {
            let (even, odd) = (x[0].plus(x[2]), x[1].plus(x[3]));
            let (even_difference, odd_difference) = (x[0].minus(x[2]), x[1].minus(x[3]));
            y[0] = even.plus(odd);
            y[1] = even_difference.plus_turned(odd_difference, inverse);
            y[2] = even.minus(odd);
            y[3] = even_difference.plus_turned(odd_difference, !inverse);
        }
        5 => {
            const COS: [f32; 2] = [0.309_017, -0.809_017];
            const SIN: [f32; 2] = [0.951_056_5, 0.587_785_25];
            let sums = [x[1].plus(x[4]), x[2].plus(x[3])];
            let differences = [x[1].minus(x[4]), x[2].minus(x[3])];
            let side = [
                differences[0].scaled(SIN[0]).plus_scaled(SIN[1], differences[1]),
                differences[0].scaled(SIN[1]).plus_scaled(-SIN[0], differences[1]),
            ];
            y[0] = x[0].plus(sums[0]).plus(sums[1]);
            for near in 0..2 {
                let mean = x[0].plus_scaled(COS[near], sums[0]).plus_scaled(COS[1 - near], sums[1]);
                y[1 + near] = mean.plus_turned(side[near], inverse);
                y[4 - near] = mean.plus_turned(side[near], !inverse);
            }
        }
        _ => unreachable!("plans have no other radix"),
    }
    y
}
