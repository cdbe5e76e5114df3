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
