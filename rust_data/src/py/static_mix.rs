//! Static mixing of NumPy arrays, which share their memory with tensors. bfloat16 comes as its bits, in uint16.

use numpy::{
    ndarray::Dimension, Element as NumpyElement, PyArray4, PyArrayMethods, PyReadonlyArray, PyReadonlyArray2,
    PyReadonlyArray4, PyUntypedArrayMethods,
};
use pyo3::prelude::*;

use super::detached;
use crate::error::{Error, Result};
use crate::simd::Level;
use crate::static_mix::{Bf16, Element, Head, Layout, Mixer, Source, Target};

/// Writes `P x`, or `P^T x`, of some heads of x to y, both [B, T, H, D] with D side by side.
///
/// heads: for each head to mix, (pattern, head of x, head of y). scale, weight, inv_z: [patterns, T or more]. spectra: real and imaginary parts
/// of half the spectra, cyclic and twisted, [patterns, 2, N, 2]. heavy: columns [patterns, M], ascending; those
/// from T on are ignored.
#[pyfunction]
#[pyo3(signature = (x, y, heads, scale, weight, inv_z, spectra, heavy, *, transpose, threads))]
#[allow(clippy::too_many_arguments)]
pub fn mix_heads(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
    heads: Vec<(usize, usize, usize)>,
    scale: PyReadonlyArray2<'_, f32>,
    weight: PyReadonlyArray2<'_, f32>,
    inv_z: PyReadonlyArray2<'_, f32>,
    spectra: PyReadonlyArray4<'_, f32>,
    heavy: PyReadonlyArray2<'_, i64>,
    transpose: bool,
    threads: usize,
) -> PyResult<()> {
    let patterns = Patterns { scale, weight, inv_z, spectra, heavy };
    if let (Ok(x), Ok(y)) = (x.cast::<PyArray4<f32>>(), y.cast::<PyArray4<f32>>()) {
        mix::<_, f32>(py, x, y, &heads, &patterns, transpose, threads)
    } else if let (Ok(x), Ok(y)) = (x.cast::<PyArray4<u16>>(), y.cast::<PyArray4<u16>>()) {
        mix::<_, Bf16>(py, x, y, &heads, &patterns, transpose, threads)
    } else {
        Err(Error::value("x and y must be arrays of four dimensions, both of float32 or both of uint16").into())
    }
}

/// `N` is the element type of the NumPy arrays, `E` what its bits mean (uint16 holds bfloat16).
fn mix<N: NumpyElement, E: Element>(
    py: Python<'_>,
    x: &Bound<'_, PyArray4<N>>,
    y: &Bound<'_, PyArray4<N>>,
    heads: &[(usize, usize, usize)],
    patterns: &Patterns<'_>,
    transpose: bool,
    threads: usize,
) -> PyResult<()> {
    const { assert!(size_of::<N>() == size_of::<E>() && align_of::<N>() == align_of::<E>()) }
    let (x, y) = (x.try_readonly()?, y.try_readwrite()?);
    let (from, to) = (layout("x", &x)?, layout("y", &y)?);
    let bytes = |first: *mut N, layout: &Layout| first as usize..first as usize + layout.extent() * size_of::<N>();
    let (read, written) = (bytes(x.data(), &from), bytes(y.data(), &to));
    if read.start < written.end && written.start < read.end {
        return Err(Error::value("x and y share memory").into());
    }
    // SAFETY: a layout reaches from the first element of its array to the last one; both arrays are borrowed until the end
    // and do not meet; `layout` has seen to the alignment; and every bit pattern is a number in E, which is as wide as N.
    let source = Source::new(unsafe { std::slice::from_raw_parts(x.data().cast::<E>(), from.extent()) }, from)?;
    // SAFETY: as above.
    let target = Target::new(unsafe { std::slice::from_raw_parts_mut(y.data().cast::<E>(), to.extent()) }, to)?;
    let time = from.shape[1];
    let heads = heads.iter().map(|&(pattern, from, to)| patterns.head(pattern, (from, to), time));
    let mixer = Mixer { heads: heads.collect::<Result<_>>()?, transpose };
    detached(py, || mixer.mix(Level::choose()?, &source, &target, threads))
}

fn layout<N: NumpyElement>(name: &str, array: &Bound<'_, PyArray4<N>>) -> Result<Layout> {
    let (size, shape, strides) = (size_of::<N>(), array.shape(), array.strides());
    let in_elements =
        |&stride: &isize| usize::try_from(stride).ok().filter(|stride| stride % size == 0).map(|n| n / size);
    let whole: Option<Vec<usize>> = strides.iter().map(in_elements).collect();
    let is_aligned = (array.data() as usize).is_multiple_of(align_of::<N>());
    match whole.as_deref() {
        Some(&[b, t, h, d]) if is_aligned && (d == 1 || shape[3] <= 1) => {
            Ok(Layout { shape: std::array::from_fn(|dim| shape[dim]), strides: [b, t, h] })
        }
        _ => Err(Error::value(format!(
            "{name} has strides of {strides:?} bytes: they must be positive multiples of {size}, with channels side by \
             side, and the array aligned; make it contiguous"
        ))),
    }
}

/// Returns the elements of an array in C order. `as_slice` alone also returns those of a Fortran-ordered array, in the order
/// of its memory.
fn in_c_order<'a, N: NumpyElement, D: Dimension>(array: &'a PyReadonlyArray<'_, N, D>, name: &str) -> Result<&'a [N]> {
    let in_order = array.is_c_contiguous().then(|| array.as_slice().ok()).flatten();
    in_order.ok_or_else(|| {
        Error::value(format!("{name} is not C-contiguous: pass numpy.ascontiguousarray({name}), which copies it"))
    })
}

/// The patterns that the caller passes; the factors are [patterns, length].
struct Patterns<'py> {
    scale: PyReadonlyArray2<'py, f32>,
    weight: PyReadonlyArray2<'py, f32>,
    inv_z: PyReadonlyArray2<'py, f32>,
    spectra: PyReadonlyArray4<'py, f32>,
    heavy: PyReadonlyArray2<'py, i64>,
}

impl Patterns<'_> {
    fn head(&self, pattern: usize, places: (usize, usize), time: usize) -> Result<Head<'_>> {
        let factor = |array, name| Ok(row(array, name, pattern)?.get(..time).unwrap_or_default());
        let shape = self.spectra.shape();
        let [count, size] = [shape[0], shape[2]];
        if pattern >= count || shape[1] != 2 || shape[3] != 2 {
            return Err(Error::value(format!(
                "pattern {pattern}: spectra must be [patterns, 2, N, 2], but are {shape:?}"
            )));
        }
        let spectra = in_c_order(&self.spectra, "spectra")?.as_chunks().0;
        let (cyclic, twisted) = spectra[2 * pattern * size..][..2 * size].split_at(size);
        let heavy = row(&self.heavy, "heavy", pattern)?.iter().map(|&column| column as usize);
        Ok(Head {
            scale: factor(&self.scale, "scale")?,
            weight: factor(&self.weight, "weight")?,
            inv_z: factor(&self.inv_z, "inv_z")?,
            spectra: [cyclic, twisted],
            heavy: heavy.take_while(|&column| column < time).collect(),
            places,
        })
    }
}

/// Returns row number `row` of a C-ordered matrix.
fn row<'a, N: NumpyElement>(array: &'a PyReadonlyArray2<'_, N>, name: &str, row: usize) -> Result<&'a [N]> {
    let numbers = in_c_order(array, name)?;
    let width = array.shape()[1];
    numbers.get(row * width..(row + 1) * width).ok_or_else(|| Error::value(format!("there is no pattern {row}")))
}
