//! The same work on several threads, until it has nothing left to take.

/// Calls `work` on this thread and on up to `threads - 1` more, and returns when all have returned. The threads end
/// with the call, so a later fork finds none. Where the system starts no more threads, those that run do it all.
pub fn on_threads(threads: usize, work: impl Fn() + Sync) {
    if threads <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}
