//! Byte-pair encoding: the vocabulary, the merge loop, the word cache and the encoder that joins them.

pub mod batch;
pub mod cache;
pub mod encoder;
pub mod merge;
pub mod tokenizer_json;
pub mod vocab;
