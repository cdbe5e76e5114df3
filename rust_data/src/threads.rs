//! The same work on several threads, until it has nothing left to take.

/// Calls `work` on this thread and on `threads - 1` more, and returns when all have returned. Threads of its
/// own rather than a pool's: they end here, so a fork finds none.
pub fn on_threads(threads: usize, work: impl Fn() + Sync) {
    if threads <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
}
