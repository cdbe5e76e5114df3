//! The settings of a job, and how it shares out its memory.

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
    /// Bytes that the job may take in all.
    pub memory: u64,
    pub resume: bool,
}

/// Memory of one thread: its word caches, its batch of text, and the pages that the text is cut from.
const THREAD_BYTES: u64 = 96 << 20;

/// Memory of a job that is not told how much to take, if its threads do not need more.
const DEFAULT_MEMORY: u64 = 1_000_000_000;

/// Memory above this limit is used for more threads; it does not raise the longest line that is accepted.
const MOST_FOR_LINES: u64 = 1_000_000_000;

/// Least memory with which `threads` threads can run.
fn least_memory(threads: usize) -> u64 {
    (threads as u64).saturating_add(1).saturating_mul(THREAD_BYTES)
}

/// Memory of a job that is not told how much to take.
pub fn default_memory(threads: usize) -> u64 {
    DEFAULT_MEMORY.max(least_memory(threads))
}

impl Options {
    /// Bytes that encoded batches may take while they wait for their turn. The longest line is in memory about
    /// five times while it is read: the line in a buffer that grows, and its text in another and as a copy.
    pub fn waiting_bytes(&self) -> u64 {
        let free = self.memory.saturating_sub(self.threads as u64 * THREAD_BYTES);
        free.saturating_sub(5 * self.max_line_bytes()).max(free / 4)
    }

    /// Bytes of documents that are sorted at a time.
    pub fn bucket_bytes(&self) -> u64 {
        self.waiting_bytes() / 4
    }

    /// Longest line of a text file that is read. The number of threads must not matter: the output is independent of it.
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

/// Bytes of address space that the system grants this process; none if there is no limit.
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
