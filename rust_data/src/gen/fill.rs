//! Generates rows on several threads; each thread writes its rows into their place in the output.

use std::sync::{Mutex, PoisonError};

use crate::threads::on_threads;

/// Number of rows that a thread takes from the queue at a time.
const CHUNK_ROWS: usize = 256;

/// Cuts two arrays into chunks of whole rows and calls `work(row, a, b)` for each chunk, on `threads` threads.
/// A row of the two arrays has `widths` numbers. `row` is the number of the first row of the chunk; the first
/// row of the arrays has the number `first_row`.
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
