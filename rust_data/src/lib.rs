//! Exact GPT-2 tokenization to shards, synthetic sequence generators, and the CPU's static mixing.
//!
//! The core knows nothing of Python; `py` (feature `python`) only converts.

pub mod bpe;
pub mod corpus;
pub mod error;
pub mod gen;
pub mod job;
#[cfg(feature = "python")]
mod py;
pub mod shards;
pub mod simd;
pub mod static_mix;
pub mod text;
mod threads;

// random texts against naive forms, by the public names alone: a module, because a test outside of the crate has the
// crate compiled once more, with optimisation
#[cfg(test)]
extern crate self as rust_data;
#[cfg(test)]
#[path = "../tests/properties.rs"]
mod properties;
