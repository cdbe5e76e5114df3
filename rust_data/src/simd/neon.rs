//! NEON, which every 64-bit ARM has.

use std::arch::aarch64::*;

use super::floats::vector_floats;
use super::portable::Portable;
use super::{Kernel, Masks, Simd, BLOCK, RANKS};

#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    pub fn always() -> Self {
        Self(())
    }
}

impl Simd for Neon {
    type Ranks = [u16; RANKS];

    vector_floats!(
        [0 1 2 3] of float32x4_t, vld1q_f32, vst1q_f32, vdupq_n_f32, vaddq_f32, vsubq_f32, vmulq_f32,
        (a, b, c) => (vfmaq_f32(c, a, b), vfmsq_f32(c, a, b))
    );

    #[inline(always)]
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
        // SAFETY: every 64-bit ARM has NEON.
        unsafe { masks(block) }
    }

    #[inline(always)]
    fn ranks(self, ranks: &[u16; RANKS]) -> Self::Ranks {
        *ranks
    }

    #[inline(always)]
    fn lowest(self, ranks: Self::Ranks) -> (u16, usize) {
        Portable.lowest(ranks)
    }

    #[inline(always)]
    fn replace(self, ranks: Self::Ranks, place: usize, rank: u16) -> Self::Ranks {
        Portable.replace(ranks, place, rank)
    }

    #[inline(never)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn masks(block: &[u8; BLOCK]) -> Masks {
    let in_range = |bytes, first: u8, last: u8| vcleq_u8(vsubq_u8(bytes, vdupq_n_u8(first)), vdupq_n_u8(last - first));
    let mut masks = Masks::default();
    for (part, sixteen) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: the load reads the 16 bytes.
        let bytes = unsafe { vld1q_u8(sixteen.as_ptr()) };
        let shift = 16 * part;
        let space = vceqq_u8(bytes, vdupq_n_u8(b' '));
        let lower = vorrq_u8(bytes, vdupq_n_u8(0x20));
        masks.letters |= bits(in_range(lower, b'a', b'z')) << shift;
        masks.numbers |= bits(in_range(bytes, b'0', b'9')) << shift;
        masks.white |= bits(vorrq_u8(space, in_range(bytes, 9, 13))) << shift;
        masks.spaces |= bits(space) << shift;
        masks.apostrophes |= bits(vceqq_u8(bytes, vdupq_n_u8(b'\''))) << shift;
        masks.high |= bits(vcgeq_u8(bytes, vdupq_n_u8(0x80))) << shift;
    }
    masks
}

/// One bit a byte out of a mask of bytes: weights 1 .. 128 in each half, then a sum.
#[inline]
#[target_feature(enable = "neon")]
fn bits(mask: uint8x16_t) -> u64 {
    const WEIGHTS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: the load reads the 16 bytes of WEIGHTS.
    let weighted = vandq_u8(mask, unsafe { vld1q_u8(WEIGHTS.as_ptr()) });
    u64::from(vaddv_u8(vget_low_u8(weighted))) | u64::from(vaddv_u8(vget_high_u8(weighted))) << 8
}
