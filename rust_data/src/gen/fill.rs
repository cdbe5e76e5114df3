//! Rows generated on several threads, each into its own place.

use std::sync::{Mutex, PoisonError};

use crate::threads::on_threads;

/// Rows that a thread takes at a time.
const CHUNK_ROWS: usize = 256;

/// Calls `work(row, a, b)` for chunks of whole rows of two arrays with rows of `widths` numbers; `row` is
/// the first one of the chunk, counted from `first_row`.
pub fn for_chunks(
    (a, b): (&mut [i32], &mut [i32]),
    widths: (usize, usize),
    first_row: u64,
    threads: usize,
    work: impl Fn(u64, &mut [i32], &mut [i32]) + Sync,
) {
    let chunks = a.chunks_mut(CHUNK_ROWS * widths.0).zip(b.chunks_mut(CHUNK_ROWS * widths.1));
    let queue = Mutex::new((first_row..).step_by(CHUNK_ROWS).zip(chunks));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    on_threads(threads, || {
        while let Some((row, (a, b))) = next() {
            work(row, a, b);
        }
    });
}
