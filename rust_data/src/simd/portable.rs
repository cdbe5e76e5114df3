//! Plain code for any CPU; the other forms are tested against it and share what is fast enough here.

use super::floats::array_floats;
use super::{Kernel, Masks, Simd, BLOCK, RANKS};

#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Simd for Portable {
    type Ranks = [u16; RANKS];

    array_floats!();

    #[inline(always)]
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
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

    #[inline(always)]
    fn ranks(self, ranks: &[u16; RANKS]) -> Self::Ranks {
        *ranks
    }

    #[inline(always)]
    fn lowest(self, ranks: Self::Ranks) -> (u16, usize) {
        // signed, because that has a fast minimum everywhere
        let order = |(place, &rank): (usize, &u16)| (i32::from(rank) << 4) | place as i32;
        let lowest = ranks.iter().enumerate().map(order).fold(i32::MAX, i32::min);
        ((lowest >> 4) as u16, lowest as usize % RANKS)
    }

    #[inline(always)]
    fn replace(self, mut ranks: Self::Ranks, place: usize, rank: u16) -> Self::Ranks {
        if let Some(old) = ranks.get_mut(place) {
            *old = rank;
        }
        ranks
    }

    #[inline(never)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}
