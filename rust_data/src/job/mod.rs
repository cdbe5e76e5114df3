//! The tokenization job: units of work read and encoded by all threads, shards written in order.

pub mod journal;
mod lanes;
pub mod progress;
mod run;
mod shuffle;
mod sink;
mod splits;

pub use run::{plan, run, Plan};

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Options {
    pub out: PathBuf,
    /// Field or column that holds the text.
    pub column: String,
    pub shard_tokens: u64,
    /// The leading whole documents that reach this many tokens make the val split.
    pub val_tokens: u64,
    /// 0 keeps the order of the input, any other seed permutes the documents.
    pub seed: u64,
    pub threads: usize,
    /// This job does part `part.0` of `part.1`.
    pub part: (u64, u64),
    pub on_error: OnError,
    /// Bytes that batches waiting for their turn may take, and the size limit of a line.
    pub memory: u64,
    pub resume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Stop,
    Skip,
}
