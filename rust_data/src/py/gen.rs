//! The generators from Python: they fill arrays that NumPy has made.

use numpy::{PyReadonlyArray1, PyReadwriteArray1, PyReadwriteArray2};
use pyo3::prelude::*;

use super::detached;
use crate::error::{Error, Result};
use crate::gen::class_tokens::{ClassTokens, Context};
use crate::gen::mqar::Mqar;
use crate::gen::zoology::Zoology;

fn contiguous<E: std::fmt::Display>(slice: std::result::Result<&mut [i32], E>) -> Result<&mut [i32]> {
    slice.map_err(|error| Error::value(error.to_string()))
}

/// Fills inputs and labels [rows, length] with MQAR rows from `first_row` on; the filler and key borders.
#[pyfunction]
#[pyo3(signature = (inputs, labels, *, vocab_size, pairs, power_a, seed, first_row, threads))]
#[allow(clippy::too_many_arguments)]
pub fn mqar(
    py: Python<'_>,
    mut inputs: PyReadwriteArray2<'_, i32>,
    mut labels: PyReadwriteArray2<'_, i32>,
    vocab_size: u32,
    pairs: usize,
    power_a: f64,
    seed: u64,
    first_row: u64,
    threads: usize,
) -> PyResult<(u32, u32)> {
    let config = Mqar { vocab_size, length: inputs.as_array().ncols(), pairs, power_a };
    let (inputs, labels) = (contiguous(inputs.as_slice_mut())?, contiguous(labels.as_slice_mut())?);
    detached(py, || config.generate(seed, first_row, inputs, labels, threads))?;
    Ok((config.ranges().first_key, config.ranges().first_value))
}

/// Fills inputs and labels [examples, length] by the published procedure, zeros where a filler may go.
#[pyfunction]
#[pyo3(signature = (inputs, labels, *, vocab_size, pairs, slot_weights, seed))]
pub fn zoology_mqar(
    py: Python<'_>,
    mut inputs: PyReadwriteArray2<'_, i32>,
    mut labels: PyReadwriteArray2<'_, i32>,
    vocab_size: u32,
    pairs: usize,
    slot_weights: PyReadonlyArray1<'_, f64>,
    seed: u32,
) -> PyResult<()> {
    let length = inputs.as_array().ncols();
    let slot_weights = slot_weights.as_slice().map_err(|error| Error::value(error.to_string()))?;
    let (inputs, labels) = (contiguous(inputs.as_slice_mut())?, contiguous(labels.as_slice_mut())?);
    let config = Zoology { vocab_size, length, pairs, slot_weights };
    detached(py, || config.generate(seed, inputs, labels))
}

/// Fills tokens [rows, length] and labels [rows] with class-token rows from `first_row` on.
///
/// The context is iid with `gamma`, or has `num_distinct` and the rest common tokens.
#[pyfunction]
#[pyo3(signature = (
    tokens, labels, *,
    classes, distinct, common, gamma, num_distinct, deterministic, shared_query, seed, first_row, threads
))]
#[allow(clippy::too_many_arguments)]
pub fn class_tokens(
    py: Python<'_>,
    mut tokens: PyReadwriteArray2<'_, i32>,
    mut labels: PyReadwriteArray1<'_, i32>,
    classes: u32,
    distinct: u32,
    common: u32,
    gamma: Option<f64>,
    num_distinct: usize,
    deterministic: bool,
    shared_query: bool,
    seed: u64,
    first_row: u64,
    threads: usize,
) -> PyResult<()> {
    let length = tokens.as_array().ncols().saturating_sub(1);
    let counts = (num_distinct, length.saturating_sub(num_distinct));
    let context = match (gamma, deterministic) {
        (Some(gamma), _) => Context::Iid { length, gamma },
        (None, false) => Context::Counts { distinct: counts.0, common: counts.1 },
        (None, true) => Context::Deterministic { distinct: counts.0, common: counts.1 },
    };
    let config = ClassTokens { classes, distinct, common, context, shared_query };
    let (tokens, labels) = (contiguous(tokens.as_slice_mut())?, contiguous(labels.as_slice_mut())?);
    detached(py, || config.generate(seed, first_row, tokens, labels, threads))
}
