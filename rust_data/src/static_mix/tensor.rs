//! Views of tensors [batch, time, heads, channels] whose channels lie side by side.

use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::simd::FLOATS;

/// Number of channels that most writes have; they are compiled for this length.
const WHOLE: usize = 2 * FLOATS;

/// An element type of tensors.
pub trait Element: Copy + Send + Sync {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// A bfloat16: the upper 16 bits of a float32.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Element for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest, ties to even.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        // rounding could carry a NaN over to zero
        Self(if value.is_nan() { 0x7FC0 } else { rounded as u16 })
    }
}

/// Shape and strides of [batch, time, heads, channels], in elements; channels have the stride 1.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub shape: [usize; 4],
    pub strides: [usize; 3],
}

impl Layout {
    /// Returns the distance from the first element to the last one, plus one.
    pub fn extent(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let steps = self.shape.iter().zip(&self.strides).map(|(&n, &stride)| (n - 1) * stride);
        steps.sum::<usize>() + self.shape[3]
    }

    /// Returns whether two indices may address the same element.
    fn overlaps(&self) -> bool {
        let mut dims: Vec<(usize, usize)> = self.strides.into_iter().zip(self.shape).filter(|&(_, n)| n > 1).collect();
        dims.sort_unstable();
        let mut reach = self.shape[3];
        dims.into_iter().any(|(stride, n)| {
            let overlaps = stride < reach;
            reach += (n - 1) * stride;
            overlaps
        })
    }

    #[inline(always)]
    fn offset(&self, batch: usize, time: usize, head: usize) -> usize {
        batch * self.strides[0] + time * self.strides[1] + head * self.strides[2]
    }
}

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a, E> {
    elements: &'a [E],
    pub layout: Layout,
}

impl<'a, E: Element> Source<'a, E> {
    /// `elements`: from the first one of the tensor to its last one.
    pub fn new(elements: &'a [E], layout: Layout) -> Result<Self> {
        check(elements.len(), &layout)?;
        Ok(Self { elements, layout })
    }

    /// Channels of one head at one position.
    #[inline(always)]
    pub fn row(&self, batch: usize, time: usize, head: usize) -> &'a [E] {
        &self.elements[self.layout.offset(batch, time, head)..][..self.layout.shape[3]]
    }
}

/// A tensor that several threads write to, each its own elements.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a, E> {
    first: *mut E,
    len: usize,
    pub layout: Layout,
    lifetime: PhantomData<&'a mut [E]>,
}

// SAFETY: a target is only written through `write`, whose callers keep threads apart.
unsafe impl<E: Element> Send for Target<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Target<'_, E> {}

impl<'a, E: Element> Target<'a, E> {
    /// `elements`: from the first one of the tensor to its last one.
    pub fn new(elements: &'a mut [E], layout: Layout) -> Result<Self> {
        check(elements.len(), &layout)?;
        if layout.overlaps() {
            return Err(Error::value(format!("elements of y overlap: {layout:?}")));
        }
        Ok(Self { first: elements.as_mut_ptr(), len: elements.len(), layout, lifetime: PhantomData })
    }

    /// Writes channels of one head at one position, from `first_channel` on.
    ///
    /// # Safety
    /// No other thread may write the same elements at the same time.
    #[inline(always)]
    pub unsafe fn write(&self, [batch, time, head]: [usize; 3], first_channel: usize, values: &[f32]) {
        let start = self.layout.offset(batch, time, head) + first_channel;
        assert!(start + values.len() <= self.len);
        // SAFETY: by the assertion, inside the slice that the target was made of; by the contract, written by no other thread.
        let places = unsafe { std::slice::from_raw_parts_mut(self.first.add(start), values.len()) };
        // with a length that is known at compile time, the loop becomes vector instructions
        if let (Ok(places), Ok(values)) = (<&mut [E; WHOLE]>::try_from(&mut *places), <&[f32; WHOLE]>::try_from(values))
        {
            for (place, &value) in places.iter_mut().zip(values) {
                *place = E::from_f32(value);
            }
            return;
        }
        for (place, &value) in places.iter_mut().zip(values) {
            *place = E::from_f32(value);
        }
    }
}

fn check(len: usize, layout: &Layout) -> Result<()> {
    if len < layout.extent() {
        return Err(Error::value(format!("{len} elements are too few for {layout:?}")));
    }
    Ok(())
}
