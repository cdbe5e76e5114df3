//! The few operations of the hot loops that every instruction set does in its own way, and the choice of
//! the instruction set when the program runs.
//!
//! A value of a type that implements [`Simd`] is a proof that this CPU has the instructions, because only
//! [`Level`] makes such values, after asking the CPU. Code that shall be compiled for an instruction set
//! is a [`Kernel`], run by [`Level::run`]; everything it calls must be `#[inline(always)]`.

mod floats;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use portable::Portable;

use crate::error::{Error, Result};

/// Bytes that are classified at a time.
pub const BLOCK: usize = 64;

/// Places in [`Simd::Ranks`].
pub const RANKS: usize = 16;

/// Numbers in [`Simd::Floats`].
pub const FLOATS: usize = 16;

/// Names the instruction set to use instead of the best one, for tests and benches.
pub const VARIABLE: &str = "RUST_DATA_SIMD";

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

/// Asks for the cache line at `address`, which may be anywhere: nothing but speed depends on it.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and cannot fault.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

pub trait Simd: Copy {
    /// Sixteen 16-bit numbers, in registers where that is possible.
    type Ranks: Copy;
    /// Sixteen 32-bit floating-point numbers, likewise.
    type Floats: Copy;

    fn masks(self, block: &[u8; BLOCK]) -> Masks;
    /// Writes the places of the set bits, each plus `base`; what is written behind them is garbage.
    #[inline(always)]
    fn places(self, mut bits: u64, base: usize, places: &mut [usize; BLOCK]) {
        let (eights, _) = places.as_chunks_mut::<8>();
        for (i, eight) in eights.iter_mut().enumerate() {
            // most blocks have up to 16: no branch before that
            if i >= 2 && bits == 0 {
                break;
            }
            for place in eight {
                *place = base + bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
            }
        }
    }
    fn ranks(self, ranks: &[u16; RANKS]) -> Self::Ranks;
    /// The lowest rank and the first place that has it.
    fn lowest(self, ranks: Self::Ranks) -> (u16, usize);
    /// Changes nothing if there is no such place.
    fn replace(self, ranks: Self::Ranks, place: usize, rank: u16) -> Self::Ranks;
    fn floats(self, numbers: &[f32; FLOATS]) -> Self::Floats;
    fn store(self, floats: Self::Floats, numbers: &mut [f32; FLOATS]);
    fn splat(self, number: f32) -> Self::Floats;
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once where there is such an instruction.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a * b`, likewise.
    fn multiply_subtract(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Runs a kernel in code compiled for this instruction set, never inlined.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
}

/// A piece of work for the instruction set that is given to it.
pub trait Kernel {
    type Output;

    /// Must be `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Sse2(x86::Sse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Level {
    /// All that this CPU has, from the slowest to the fastest.
    pub fn all() -> Vec<Self> {
        let mut levels = vec![Self::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.push(Self::Sse2(x86::Sse2::always()));
            levels.extend(x86::Avx2::detect().map(Self::Avx2));
            levels.extend(x86::Avx512::detect().map(Self::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        levels.push(Self::Neon(neon::Neon::always()));
        levels
    }

    /// The fastest, or the one that the environment variable `RUST_DATA_SIMD` names.
    pub fn choose() -> Result<Self> {
        let mut levels = Self::all();
        if let Some(wanted) = std::env::var_os(VARIABLE) {
            let names = levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ");
            levels.retain(|level| wanted == level.name());
            let text = format!("{VARIABLE}={}: this CPU has {names}", wanted.display());
            return levels.pop().ok_or_else(|| Error::value(text));
        }
        Ok(levels.pop().unwrap_or(Self::Portable(Portable)))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Sse2(_) => "sse2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
        }
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Sse2(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(simd) => simd.run(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a level makes of one set of inputs, to be compared with another level.
    struct Sample<'a> {
        block: &'a [u8; BLOCK],
        bits: u64,
        ranks: [u16; RANKS],
        replaced: (usize, u16),
    }

    impl Kernel for Sample<'_> {
        type Output = (Masks, Vec<usize>, (u16, usize), (u16, usize));

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut places = [0; BLOCK];
            simd.places(self.bits, 1000, &mut places);
            let ranks = simd.ranks(&self.ranks);
            let replaced = simd.replace(ranks, self.replaced.0, self.replaced.1);
            let places = places[..self.bits.count_ones() as usize].to_vec();
            (simd.masks(self.block), places, simd.lowest(ranks), simd.lowest(replaced))
        }
    }

    fn assert_all_same(block: &[u8; BLOCK], bits: u64, ranks: [u16; RANKS], replaced: (usize, u16)) {
        let run = |level: Level| level.run(Sample { block, bits, ranks, replaced });
        let expected = run(Level::Portable(Portable));
        for level in Level::all() {
            assert_eq!(run(level), expected, "{}", level.name());
        }
    }

    #[test]
    fn every_byte_in_every_place() {
        for byte in 0..=255u8 {
            for place in 0..BLOCK {
                let mut block = [b'x'; BLOCK];
                block[place] = byte;
                assert_all_same(&block, 1 << place, [u16::from(byte); RANKS], (place % RANKS, u16::from(byte) / 2));
            }
        }
    }

    #[test]
    fn random_bits_and_ranks() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 32
        };
        for round in 0..20_000 {
            let block = std::array::from_fn(|_| next() as u8);
            // sparse, even and dense bits; many equal ranks, some of them the highest
            let bits = (next() << 32 | next()) & if round % 3 == 0 { next() << 32 | next() } else { u64::MAX };
            let bits = if round % 5 == 0 { !bits } else { bits };
            let ranks = std::array::from_fn(|_| [u16::MAX, 0x8000, 0x7FFF, next() as u16 % 8][next() as usize % 4]);
            assert_all_same(&block, bits, ranks, (next() as usize % RANKS, next() as u16));
        }
        assert_all_same(&[b'a'; BLOCK], u64::MAX, [u16::MAX; RANKS], (15, u16::MAX));
        assert_all_same(&[b'a'; BLOCK], 0, [u16::MAX; RANKS], (15, 0));
    }

    #[test]
    fn portable_masks_are_the_definition() {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(b"aZ09 \n'\x80");
        let masks = Portable.masks(&block);
        assert_eq!((masks.letters, masks.numbers, masks.white), (0b11, 0b1100, 0b11_0000));
        assert_eq!((masks.spaces, masks.apostrophes, masks.high), (0b1_0000, 0b100_0000, 0b1000_0000));
        assert_eq!(Portable.lowest([7, 3, 9, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]), (3, 1));
    }
}
