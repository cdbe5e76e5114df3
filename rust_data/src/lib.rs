//! Exact GPT-2 tokenization to shards and synthetic sequence generators.
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
pub mod text;
