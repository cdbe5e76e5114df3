//! Which of 64 bytes are letters, digits, spaces: one bit a byte.

/// Bit `i` of each mask says whether byte `i` is of that kind; bytes from 0x80 on are in `high` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masks {
    pub letters: u64,
    pub numbers: u64,
    /// All ASCII white space, the space itself included.
    pub white: u64,
    pub spaces: u64,
    pub apostrophes: u64,
    pub high: u64,
}

#[inline(always)]
pub fn masks_of(block: &[u8; 64]) -> Masks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { x86::masks_of(block) };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every 64-bit ARM has NEON.
    return unsafe { neon::masks_of(block) };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return portable(block);
}

/// One byte at a time; the other forms are tested against it.
#[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), allow(dead_code))]
fn portable(block: &[u8; 64]) -> Masks {
    let mut masks = Masks::default();
    for (i, &byte) in block.iter().enumerate() {
        masks.letters |= u64::from(byte.is_ascii_alphabetic()) << i;
        masks.numbers |= u64::from(byte.is_ascii_digit()) << i;
        masks.white |= u64::from(matches!(byte, b' ' | 9..=13)) << i;
        masks.spaces |= u64::from(byte == b' ') << i;
        masks.apostrophes |= u64::from(byte == b'\'') << i;
        masks.high |= u64::from(byte >= 0x80) << i;
    }
    masks
}

/// SSE2, which every x86-64 has: no choice at run time is needed.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Masks;

    #[inline]
    #[target_feature(enable = "sse2")]
    pub fn masks_of(block: &[u8; 64]) -> Masks {
        let mut masks = Masks::default();
        for part in 0..4 {
            // SAFETY: the load may be unaligned; it reads bytes 16 * part .. 16 * part + 16 of the 64.
            let bytes = unsafe { _mm_loadu_si128(block.as_ptr().add(16 * part).cast()) };
            let shift = 16 * part;
            let space = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b' ' as i8));
            let lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
            masks.letters |= bits(in_range(lower, b'a', b'z')) << shift;
            masks.numbers |= bits(in_range(bytes, b'0', b'9')) << shift;
            masks.white |= bits(_mm_or_si128(space, in_range(bytes, 9, 13))) << shift;
            masks.spaces |= bits(space) << shift;
            masks.apostrophes |= bits(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\'' as i8))) << shift;
            masks.high |= bits(bytes) << shift;
        }
        masks
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn bits(bytes: __m128i) -> u64 {
        _mm_movemask_epi8(bytes) as u32 as u64
    }

    /// All ones where `first <= byte <= last`: the distance from `first` does not saturate upwards.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn in_range(bytes: __m128i, first: u8, last: u8) -> __m128i {
        let above = _mm_subs_epu8(_mm_sub_epi8(bytes, _mm_set1_epi8(first as i8)), _mm_set1_epi8((last - first) as i8));
        _mm_cmpeq_epi8(above, _mm_setzero_si128())
    }
}

/// NEON, which every 64-bit ARM has.
#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::Masks;

    #[inline]
    #[target_feature(enable = "neon")]
    pub fn masks_of(block: &[u8; 64]) -> Masks {
        let mut masks = Masks::default();
        for part in 0..4 {
            // SAFETY: the load reads bytes 16 * part .. 16 * part + 16 of the 64.
            let bytes = unsafe { vld1q_u8(block.as_ptr().add(16 * part)) };
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

    #[inline]
    #[target_feature(enable = "neon")]
    fn in_range(bytes: uint8x16_t, first: u8, last: u8) -> uint8x16_t {
        vcleq_u8(vsubq_u8(bytes, vdupq_n_u8(first)), vdupq_n_u8(last - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_in_every_place() {
        for byte in 0..=255u8 {
            for place in 0..64 {
                let mut block = [b'x'; 64];
                block[place] = byte;
                assert_eq!(masks_of(&block), portable(&block), "byte {byte} at {place}");
            }
        }
    }
}
