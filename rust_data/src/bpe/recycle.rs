//! Keeps the memory of released arrays for later ones. Fresh pages cost up to a third of the time that encoding into
//! them takes.

use std::sync::Mutex;

use super::pages::with_capacity;

/// Larger buffers are not kept.
const MAX_BYTES: usize = 64 << 20;

/// A kept buffer is not used for a request of less than one part in this many of its size.
const MAX_SURPLUS: usize = 4;

/// Holds the largest buffer that was given back.
pub struct Recycler<T> {
    spare: Mutex<Vec<T>>,
}

impl<T> Default for Recycler<T> {
    fn default() -> Self {
        Self { spare: Mutex::new(Vec::new()) }
    }
}

impl<T> Recycler<T> {
    /// Returns an empty vector with capacity for `count` elements. The lock is only tried, here and in `give`, because
    /// after a fork it may be held for ever.
    pub fn take(&self, count: usize) -> Vec<T> {
        match self.spare.try_lock() {
            // a small array must not keep the memory of a large one
            Ok(mut spare) if (count..=MAX_SURPLUS.saturating_mul(count)).contains(&spare.capacity()) => {
                std::mem::take(&mut spare)
            }
            _ => with_capacity(count),
        }
    }

    pub fn give(&self, mut buffer: Vec<T>) {
        buffer.clear();
        if buffer.capacity() * size_of::<T>() <= MAX_BYTES {
            if let Ok(mut spare) = self.spare.try_lock() {
                if spare.capacity() < buffer.capacity() {
                    *spare = buffer;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_buffer_is_used_again() {
        let recycler = Recycler::<u16>::default();
        let (small, mut large) = (recycler.take(10), recycler.take(1000));
        large.extend(0..1000);
        let place = large.as_ptr();
        recycler.give(large);
        recycler.give(small);
        let again = recycler.take(900);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        // it is lent only once, and nothing smaller than what is asked for
        assert!(recycler.take(10).capacity() < 1000);
        recycler.give(again);
        assert!(recycler.take(1001).capacity() >= 1001);
        // one element does not take the room of a thousand with it
        assert!(recycler.take(1).capacity() < 1000);
        let again = recycler.take(1000);
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn very_large_buffers_are_not_kept() {
        let recycler = Recycler::<u8>::default();
        recycler.give(Vec::with_capacity(MAX_BYTES + 1));
        assert!(recycler.take(1).capacity() < MAX_BYTES);
    }
}
