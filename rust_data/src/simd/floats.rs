//! Arithmetic on sixteen floats: plain arrays for the compiler to make vectors of, or vectors of n.

/// The methods of [`Simd`](super::Simd) on arrays; not fused, because where that is no instruction it is slow.
macro_rules! array_floats {
    () => {
        type Floats = [f32; $crate::simd::FLOATS];

        #[inline(always)]
        fn floats(self, numbers: &Self::Floats) -> Self::Floats {
            *numbers
        }

        #[inline(always)]
        fn store(self, floats: Self::Floats, numbers: &mut Self::Floats) {
            *numbers = floats;
        }

        #[inline(always)]
        fn splat(self, number: f32) -> Self::Floats {
            [number; $crate::simd::FLOATS]
        }

        #[inline(always)]
        fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            std::array::from_fn(|lane| a[lane] + b[lane])
        }

        #[inline(always)]
        fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            std::array::from_fn(|lane| a[lane] - b[lane])
        }

        #[inline(always)]
        fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            std::array::from_fn(|lane| a[lane] * b[lane])
        }

        #[inline(always)]
        fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
        }

        #[inline(always)]
        fn multiply_subtract(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            std::array::from_fn(|lane| c[lane] - a[lane] * b[lane])
        }
    };
}

/// The same on registers, given the instructions for one of them; `$i` counts the registers. Spelled out without closures,
/// into which the compiler would not carry the instruction set.
#[allow(unused_macros)]
macro_rules! vector_floats {
    ([$($i:literal)*] of $Vector:ty, $load:ident, $store:ident, $splat:ident, $add:ident, $subtract:ident,
     $multiply:ident, ($a:ident, $b:ident, $c:ident) => ($multiply_add:expr, $multiply_subtract:expr)) => {
        type Floats = [$Vector; [$($i),*].len()];

        #[inline(always)]
        fn floats(self, numbers: &[f32; $crate::simd::FLOATS]) -> Self::Floats {
            let (parts, _) = numbers.as_chunks::<{ $crate::simd::FLOATS / [$($i),*].len() }>();
            // SAFETY: the CPU has the instructions, as `self` proves; a load may be unaligned and reads one part.
            [$(unsafe { $load(parts[$i].as_ptr()) }),*]
        }

        #[inline(always)]
        fn store(self, floats: Self::Floats, numbers: &mut [f32; $crate::simd::FLOATS]) {
            let (parts, _) = numbers.as_chunks_mut::<{ $crate::simd::FLOATS / [$($i),*].len() }>();
            // SAFETY: as for the load.
            $(unsafe { $store(parts[$i].as_mut_ptr(), floats[$i]) };)*
        }

        #[inline(always)]
        fn splat(self, number: f32) -> Self::Floats {
            // SAFETY: the CPU has the instructions, as `self` proves.
            [unsafe { $splat(number) }; [$($i),*].len()]
        }

        #[inline(always)]
        fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            // SAFETY: as above.
            [$(unsafe { $add(a[$i], b[$i]) }),*]
        }

        #[inline(always)]
        fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            // SAFETY: as above.
            [$(unsafe { $subtract(a[$i], b[$i]) }),*]
        }

        #[inline(always)]
        fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            // SAFETY: as above.
            [$(unsafe { $multiply(a[$i], b[$i]) }),*]
        }

        #[inline(always)]
        fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            // SAFETY: as above.
            [$({
                let ($a, $b, $c) = (a[$i], b[$i], c[$i]);
                unsafe { $multiply_add }
            }),*]
        }

        #[inline(always)]
        fn multiply_subtract(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            // SAFETY: as above.
            [$({
                let ($a, $b, $c) = (a[$i], b[$i], c[$i]);
                unsafe { $multiply_subtract }
            }),*]
        }
    };
}

pub(super) use array_floats;
#[allow(unused_imports)]
pub(super) use vector_floats;
