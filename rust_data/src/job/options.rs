//! The settings of a job, and how the job divides its memory.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::shards::header::MAX_SHARD_TOKENS;
use crate::shards::settings::{Form, OnError};

#[derive(Clone, Debug)]
pub struct Options {
    pub out: PathBuf,
    pub format: Form,
    /// Field or column that holds the text.
    pub column: String,
    pub shard_tokens: u64,
    /// The leading documents that reach this many tokens are the val split; a larger document is split.
    pub val_tokens: u64,
    /// 0 keeps the order of the input; any other seed permutes the documents.
    pub seed: u64,
    pub threads: usize,
    /// This job does part `part.0` of `part.1`.
    pub part: (u64, u64),
    pub on_error: OnError,
    /// Memory of the whole job, in bytes.
    pub memory: u64,
    pub resume: bool,
}

/// Memory of one thread: its word caches, its batch of text, and the parquet pages that the text comes from.
const THREAD_BYTES: u64 = 96 << 20;

/// Default memory of a job, unless its threads need more.
const DEFAULT_MEMORY: u64 = 1_000_000_000;

/// Memory above this limit is used for more threads; it does not raise the longest line that is accepted.
const MOST_FOR_LINES: u64 = 1_000_000_000;

/// Least memory with which `threads` threads can run.
fn least_memory(threads: usize) -> u64 {
    (threads as u64).saturating_add(1).saturating_mul(THREAD_BYTES)
}

/// Default memory of a job with `threads` threads.
pub fn default_memory(threads: usize) -> u64 {
    DEFAULT_MEMORY.max(least_memory(threads))
}

impl Options {
    /// Bytes of encoded batches that may wait for their turn. A line takes about five times its length while it is
    /// read: it is in a buffer that grows, and its text is in another one and in a copy.
    pub fn waiting_bytes(&self) -> u64 {
        let free = self.memory.saturating_sub(self.threads as u64 * THREAD_BYTES);
        free.saturating_sub(5 * self.max_line_bytes()).max(free / 4)
    }

    /// Bytes of documents that are sorted in memory at a time.
    pub fn bucket_bytes(&self) -> u64 {
        self.waiting_bytes() / 4
    }

    /// Longest line of a text file that is accepted. It must not depend on the number of threads, because the output
    /// does not.
    pub fn max_line_bytes(&self) -> u64 {
        self.memory.min(MOST_FOR_LINES) / 12
    }

    /// Raises a value error for a setting that is out of range.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_SHARD_TOKENS).contains(&self.shard_tokens) {
            let got = self.shard_tokens;
            return Err(Error::value(format!("--shard-tokens {got}: must be in 1 .. {MAX_SHARD_TOKENS}")));
        }
        if self.part.0 >= self.part.1 {
            let (index, count) = self.part;
            return Err(Error::value(format!("--part {index}/{count}: the part must be in 0 .. {count}")));
        }
        if self.threads == 0 {
            return Err(Error::value("--threads 0: must be at least 1"));
        }
        let (threads, memory, least) = (self.threads, self.memory, least_memory(self.threads));
        if memory < least {
            return Err(Error::value(format!("--memory {memory}: {threads} threads need at least {least} bytes")));
        }
        match address_limit() {
            Some(limit) if memory > limit => Err(Error::value(format!(
                "--memory {memory} (--threads {threads}): this process may take {limit} bytes (ulimit -v); \
                 ask for less memory or fewer threads"
            ))),
            _ => Ok(()),
        }
    }
}

/// Limit of this process's address space in bytes; `None` without a limit.
#[cfg(unix)]
fn address_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a local that lives through the call.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(not(unix))]
fn address_limit() -> Option<u64> {
    None
}
