//! Reading shards from Python.

use std::path::PathBuf;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::detached;
use crate::bpe::vocab::hex;
use crate::shards::reader::Shard;
use crate::shards::writer::sha256_of_file;

/// The header of a shard, checked against the size of its file.
#[pyfunction]
pub fn read_header(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let header = Shard::open(&path)?.header;
    let dict = PyDict::new(py);
    dict.set_item("tokens", header.tokens)?;
    dict.set_item("token_bytes", header.token_bytes)?;
    dict.set_item("vocab_size", header.vocab_size)?;
    dict.set_item("eot", header.eot)?;
    dict.set_item("documents", header.documents)?;
    dict.set_item("tokenizer_sha256", hex(&header.tokenizer_sha256))?;
    Ok(dict)
}

/// Tokens `start .. start + count` of a shard, fewer at its end.
#[pyfunction]
pub fn read_tokens(py: Python<'_>, path: PathBuf, start: u64, count: u64) -> PyResult<Bound<'_, PyArray1<u32>>> {
    let tokens = detached(py, || Shard::open(&path)?.tokens(start, count))?;
    Ok(PyArray1::from_vec(py, tokens))
}

/// SHA-256 of a file, in hexadecimal.
#[pyfunction]
pub fn sha256(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    detached(py, || sha256_of_file(&path))
}

/// Raises ValueError if a directory holds shards that a new corpus would overwrite or mix with.
#[pyfunction]
pub fn refuse_shards(directory: PathBuf) -> PyResult<()> {
    Ok(crate::job::refuse_shards(&directory)?)
}
