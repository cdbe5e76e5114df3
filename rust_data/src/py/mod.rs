//! The Python module: conversions only. Work runs without the GIL, errors become Python's own.

mod documents;
mod gen;
mod job;
mod shards;
mod static_mix;
mod tokenizer;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{Error, Result};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Value(_) | Error::Row { .. } => PyValueError::new_err(text),
            Error::Io { path, source } => match source.raw_os_error() {
                // from the number Python picks the subclass: FileNotFoundError, PermissionError, ...
                Some(number) => PyOSError::new_err((number, reason(&source), path.display().to_string())),
                None => PyOSError::new_err(text),
            },
            Error::Cancelled => PyKeyboardInterrupt::new_err(text),
        }
    }
}

/// The system's text without the number that Python adds itself.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Runs `work` without the GIL; a panic in it becomes a RuntimeError.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)));
    match outcome {
        Ok(result) => Ok(result?),
        Err(_) => Err(PyRuntimeError::new_err("internal error in rust_data; please report it")),
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<documents::DocumentWriter>()?;
    module.add_class::<job::TokenizeJob>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_function(wrap_pyfunction!(gen::mqar, module)?)?;
    module.add_function(wrap_pyfunction!(gen::zoology_mqar, module)?)?;
    module.add_function(wrap_pyfunction!(gen::class_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(shards::read_header, module)?)?;
    module.add_function(wrap_pyfunction!(shards::read_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(shards::sha256, module)?)?;
    module.add_function(wrap_pyfunction!(shards::refuse_shards, module)?)?;
    module.add_function(wrap_pyfunction!(static_mix::mix_heads, module)?)
}
