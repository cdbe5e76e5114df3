//! Byte-pair encoding: the vocabulary, the merge loop, the word cache and the encoder that joins them.

pub mod cache;
pub mod encoder;
pub mod merge;
pub mod vocab;
