//! The tokenization job: units of work read and encoded by all threads, shards written in order.

mod begin;
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
    /// Bytes that the job may take in all.
    pub memory: u64,
    pub resume: bool,
}

/// What a thread takes: word caches, a batch of text, the pages that it is cut from.
const THREAD_BYTES: u64 = 96 << 20;

/// What is more memory than this serves more threads, not longer lines.
const MOST_FOR_LINES: u64 = 1_000_000_000;

impl Options {
    /// Bytes without which the job cannot run.
    pub fn least_memory(&self) -> u64 {
        (self.threads as u64 + 1) * THREAD_BYTES
    }

    /// Bytes that encoded batches waiting for their turn may take.
    fn waiting_bytes(&self) -> u64 {
        self.memory.saturating_sub(self.threads as u64 * THREAD_BYTES)
    }

    /// Bytes of documents that are put in order at a time.
    fn bucket_bytes(&self) -> u64 {
        self.waiting_bytes() / 4
    }

    /// Longest line of a text file that is read; not a matter of threads, of which the output is independent.
    fn max_line_bytes(&self) -> u64 {
        self.memory.min(MOST_FOR_LINES) / 12
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    Stop,
    Skip,
}
