//! Static mixing on the CPU: causal convolutions of many channels between two scalings, made for
//! the cache and the vector registers. The mathematics is that of `saf_titan/ops/static_mix/fft.py`, which
//! does the same in torch; both are tested against the product with the whole matrix.

mod complex;
mod convolve;
mod mix;
mod plan;
mod tensor;
#[cfg(test)]
mod tests;

pub use mix::{Head, Mixer};
pub use tensor::{Bf16, Element, Layout, Source, Target};
