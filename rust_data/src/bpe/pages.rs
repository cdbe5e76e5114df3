//! Large tables and buffers in huge pages, where the system has them.

/// `count` default elements, spread over as few pages as can be.
pub fn table<T: Copy + Default>(count: usize) -> Vec<T> {
    // the advice counts for pages that nobody has touched yet
    let mut table = with_capacity(count);
    table.resize(count, T::default());
    table
}

/// An empty vector with room for `count` elements.
pub fn with_capacity<T>(count: usize) -> Vec<T> {
    let buffer = Vec::with_capacity(count);
    advise(&buffer);
    buffer
}

/// Asks for huge pages behind a vector's memory; nothing but speed depends on the answer.
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
