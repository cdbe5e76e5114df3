//! Counters that another thread may read while the job runs, and the switch that stops it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Default)]
pub struct Progress {
    /// Bytes of text encoded, end-of-text tokens not counted.
    pub text_bytes: AtomicU64,
    pub tokens: AtomicU64,
    pub documents: AtomicU64,
    pub skipped: AtomicU64,
    pub shards: AtomicU64,
    /// Input read so far and in all, in bytes of the units' own measure.
    pub read: AtomicU64,
    pub total: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub fn set(counter: &AtomicU64, value: u64) {
        counter.store(value, Ordering::Relaxed);
    }

    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Asks the job to stop; what has been written stays resumable.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
