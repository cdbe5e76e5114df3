//! SSE2, which every x86-64 has, AVX2, and AVX-512 as Ice Lake and Zen 4 brought it.

use std::arch::x86_64::*;

use super::floats::vector_floats;
use super::portable::Portable;
use super::{Kernel, Masks, Simd, BLOCK, RANKS};

// Each private field keeps others from making a value without asking the CPU.
#[derive(Clone, Copy, Debug)]
pub struct Sse2(());
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Sse2 {
    pub fn always() -> Self {
        Self(())
    }
}

impl Avx2 {
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        found.then_some(Self(()))
    }
}

impl Avx512 {
    pub fn detect() -> Option<Self> {
        let found = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi2");
        found.then_some(Self(()))
    }
}

impl Simd for Sse2 {
    type Ranks = [u16; RANKS];

    vector_floats!(
        [0 1 2 3] of __m128, _mm_loadu_ps, _mm_storeu_ps, _mm_set1_ps, _mm_add_ps, _mm_sub_ps, _mm_mul_ps,
        (a, b, c) => (_mm_add_ps(c, _mm_mul_ps(a, b)), _mm_sub_ps(c, _mm_mul_ps(a, b)))
    );

    #[inline(always)]
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
        // SAFETY: every x86-64 has SSE2.
        unsafe { sse2_masks(block) }
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

impl Simd for Avx2 {
    type Ranks = __m256i;

    vector_floats!(
        [0 1] of __m256, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_sub_ps,
        _mm256_mul_ps, (a, b, c) => (_mm256_fmadd_ps(a, b, c), _mm256_fnmadd_ps(a, b, c))
    );

    #[inline(always)]
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { avx2_masks(block) }
    }

    #[inline(always)]
    fn ranks(self, ranks: &[u16; RANKS]) -> __m256i {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { load_ranks(ranks) }
    }

    #[inline(always)]
    fn lowest(self, ranks: __m256i) -> (u16, usize) {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { lowest_rank(ranks) }
    }

    #[inline(always)]
    fn replace(self, ranks: __m256i, place: usize, rank: u16) -> __m256i {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { avx2_replace(ranks, place, rank) }
    }

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        fn run<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` says that the CPU has all of these.
        unsafe { run(self, kernel) }
    }
}

impl Simd for Avx512 {
    type Ranks = __m256i;

    vector_floats!(
        [0] of __m512, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_sub_ps,
        _mm512_mul_ps, (a, b, c) => (_mm512_fmadd_ps(a, b, c), _mm512_fnmadd_ps(a, b, c))
    );

    #[inline(always)]
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
        // SAFETY: `self` says that the CPU has AVX-512 F and BW.
        unsafe { avx512_masks(block) }
    }

    #[inline(always)]
    fn places(self, bits: u64, base: usize, places: &mut [usize; BLOCK]) {
        // SAFETY: `self` says that the CPU has AVX-512 F, BW and VBMI2.
        unsafe { avx512_places(bits, base, places) }
    }

    #[inline(always)]
    fn ranks(self, ranks: &[u16; RANKS]) -> __m256i {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { load_ranks(ranks) }
    }

    #[inline(always)]
    fn lowest(self, ranks: __m256i) -> (u16, usize) {
        // SAFETY: `self` says that the CPU has AVX2.
        unsafe { lowest_rank(ranks) }
    }

    #[inline(always)]
    fn replace(self, ranks: __m256i, place: usize, rank: u16) -> __m256i {
        // SAFETY: `self` says that the CPU has AVX-512 BW and VL.
        unsafe { avx512_replace(ranks, place, rank) }
    }

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        fn run<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` says that the CPU has all of these.
        unsafe { run(self, kernel) }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn sse2_masks(block: &[u8; BLOCK]) -> Masks {
    // all ones where `first <= byte <= last`: the distance from `first` does not saturate upwards
    let in_range = |bytes, first: u8, last: u8| {
        let distance = _mm_sub_epi8(bytes, _mm_set1_epi8(first as i8));
        _mm_cmpeq_epi8(_mm_subs_epu8(distance, _mm_set1_epi8((last - first) as i8)), _mm_setzero_si128())
    };
    let bits = |bytes| u64::from(_mm_movemask_epi8(bytes) as u32);
    let mut masks = Masks::default();
    for (part, sixteen) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: the load may be unaligned; it reads the 16 bytes.
        let bytes = unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) };
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
#[target_feature(enable = "avx2")]
fn avx2_masks(block: &[u8; BLOCK]) -> Masks {
    let in_range = |bytes, first: u8, last: u8| {
        let distance = _mm256_sub_epi8(bytes, _mm256_set1_epi8(first as i8));
        _mm256_cmpeq_epi8(_mm256_subs_epu8(distance, _mm256_set1_epi8((last - first) as i8)), _mm256_setzero_si256())
    };
    let bits = |bytes| u64::from(_mm256_movemask_epi8(bytes) as u32);
    let mut masks = Masks::default();
    for (part, half) in block.as_chunks::<32>().0.iter().enumerate() {
        // SAFETY: the load may be unaligned; it reads the 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
        let shift = 32 * part;
        let space = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b' ' as i8));
        let lower = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
        masks.letters |= bits(in_range(lower, b'a', b'z')) << shift;
        masks.numbers |= bits(in_range(bytes, b'0', b'9')) << shift;
        masks.white |= bits(_mm256_or_si256(space, in_range(bytes, 9, 13))) << shift;
        masks.spaces |= bits(space) << shift;
        masks.apostrophes |= bits(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'\'' as i8))) << shift;
        masks.high |= bits(bytes) << shift;
    }
    masks
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512_masks(block: &[u8; BLOCK]) -> Masks {
    let in_range = |bytes, first: u8, last: u8| {
        let distance = _mm512_sub_epi8(bytes, _mm512_set1_epi8(first as i8));
        _mm512_cmple_epu8_mask(distance, _mm512_set1_epi8((last - first) as i8))
    };
    // SAFETY: the load may be unaligned; it reads the 64 bytes.
    let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    let lower = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
    let spaces = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b' ' as i8));
    Masks {
        letters: in_range(lower, b'a', b'z'),
        numbers: in_range(bytes, b'0', b'9'),
        white: spaces | in_range(bytes, 9, 13),
        spaces,
        apostrophes: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\'' as i8)),
        high: _mm512_movepi8_mask(bytes),
    }
}

const ALL_PLACES: [u8; BLOCK] = {
    let mut places = [0; BLOCK];
    let mut i = 0;
    while i < BLOCK {
        places[i] = i as u8;
        i += 1;
    }
    places
};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
fn avx512_places(bits: u64, base: usize, places: &mut [usize; BLOCK]) {
    let mut found = [0u8; BLOCK];
    // SAFETY: the load and the store may be unaligned; both are of 64 bytes, as are the arrays.
    unsafe {
        let all = _mm512_loadu_si512(ALL_PLACES.as_ptr().cast());
        _mm512_storeu_si512(found.as_mut_ptr().cast(), _mm512_maskz_compress_epi8(bits, all));
    }
    let (found, places) = (found.as_chunks::<8>().0, places.as_chunks_mut::<8>().0);
    let mut write = |eight: usize| places[eight] = found[eight].map(|place| base + usize::from(place));
    // most blocks have up to 16: no branch before that
    write(0);
    write(1);
    for eight in 2..(bits.count_ones() as usize).div_ceil(8) {
        write(eight);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_ranks(ranks: &[u16; RANKS]) -> __m256i {
    // SAFETY: the load may be unaligned; it reads the 32 bytes.
    unsafe { _mm256_loadu_si256(ranks.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lowest_rank(ranks: __m256i) -> (u16, usize) {
    // the instruction gives the minimum of eight in bits 0 .. 16 and its first place above
    let lowest = |eight| (_mm_cvtsi128_si32(_mm_minpos_epu16(eight)) as u32).rotate_left(16);
    let low = lowest(_mm256_castsi256_si128(ranks));
    let high = lowest(_mm256_extracti128_si256::<1>(ranks)) + 8;
    let first = low.min(high);
    ((first >> 16) as u16, first as usize % RANKS)
}

#[inline]
#[target_feature(enable = "avx2")]
fn avx2_replace(ranks: __m256i, place: usize, rank: u16) -> __m256i {
    let places = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let chosen = _mm256_cmpeq_epi16(places, _mm256_set1_epi16(place.min(RANKS) as i16));
    _mm256_blendv_epi8(ranks, _mm256_set1_epi16(rank as i16), chosen)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn avx512_replace(ranks: __m256i, place: usize, rank: u16) -> __m256i {
    _mm256_mask_set1_epi16(ranks, (1u32 << place.min(RANKS)) as u16, rank as i16)
}
