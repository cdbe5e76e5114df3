//! Allocates large tables and buffers in huge pages if the system has them.

/// Returns `count` default elements.
pub fn table<T: Copy + Default>(count: usize) -> Vec<T> {
    // ask for huge pages before the elements are written: the system applies the advice to untouched pages only
    let mut table = with_capacity(count);
    table.resize(count, T::default());
    table
}

/// Returns an empty vector with capacity for `count` elements.
pub fn with_capacity<T>(count: usize) -> Vec<T> {
    let buffer = Vec::with_capacity(count);
    advise(&buffer);
    buffer
}

/// Asks the system to use huge pages for a vector's memory. Only speed depends on the answer.
#[cfg(target_os = "linux")]
fn advise<T>(vector: &Vec<T>) {
    const HUGE: usize = 2 << 20;
    let start = (vector.as_ptr() as usize).next_multiple_of(HUGE);
    let end = vector.as_ptr() as usize + vector.capacity() * size_of::<T>();
    if start + HUGE <= end {
        // SAFETY: the range lies inside the vector's allocation, and the advice changes no content.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_vector: &Vec<T>) {}
