//! Byte-pair encoding: vocabularies, merges, the word caches, and the encoder that joins them.

pub mod added;
pub mod batch;
mod cache;
pub mod encoder;
pub mod id;
pub mod merge;
pub mod model;
mod pages;
mod pairs;
pub mod recycle;
pub mod tokenizer_json;
pub mod vocab;
mod words;
