//! The Python module: conversions only. Work runs without the GIL, errors become Python's own.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::bpe::encoder::Model;
use crate::bpe::vocab::Vocab;
use crate::error::Error;
use crate::job::progress::Progress;
use crate::job::{self, OnError, Options};

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Value(_) | Error::Row { .. } => PyValueError::new_err(text),
            Error::Io { source, .. } => match source.raw_os_error() {
                // with the number Python picks the subclass: FileNotFoundError, PermissionError, ...
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            },
            Error::Cancelled => PyKeyboardInterrupt::new_err(text),
        }
    }
}

/// Runs `work` without the GIL; a panic in it becomes a RuntimeError.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> crate::error::Result<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)));
    match outcome {
        Ok(result) => Ok(result?),
        Err(_) => Err(PyRuntimeError::new_err("internal error in rust_data; please report it")),
    }
}

/// One tokenization run; `progress` and `cancel` may be called from another thread.
#[pyclass(frozen)]
struct TokenizeJob {
    inputs: Vec<String>,
    options: Options,
    progress: Arc<Progress>,
}

#[pymethods]
impl TokenizeJob {
    #[new]
    #[pyo3(signature = (inputs, out, *, column, shard_tokens, val_tokens, threads, part, skip_errors, memory, resume))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        inputs: Vec<String>,
        out: PathBuf,
        column: String,
        shard_tokens: u64,
        val_tokens: u64,
        threads: usize,
        part: (u64, u64),
        skip_errors: bool,
        memory: u64,
        resume: bool,
    ) -> Self {
        let on_error = if skip_errors { OnError::Skip } else { OnError::Stop };
        let options = Options { out, column, shard_tokens, val_tokens, threads, part, on_error, memory, resume };
        Self { inputs, options, progress: Arc::default() }
    }

    /// Runs to the end; the manifest as JSON.
    fn run(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let model = Arc::new(Model::new(Vocab::gpt2()?));
            let plan = job::plan(&self.inputs, &self.options)?;
            let manifest = job::run(plan, &self.options, &model, &self.progress)?;
            serde_json::to_string(&manifest).map_err(|error| Error::value(error.to_string()))
        })
    }

    /// (text bytes, tokens, documents, skipped rows, shards, input read, input in all).
    fn progress(&self) -> (u64, u64, u64, u64, u64, u64, u64) {
        let p = &self.progress;
        let get = Progress::get;
        (
            get(&p.text_bytes),
            get(&p.tokens),
            get(&p.documents),
            get(&p.skipped),
            get(&p.shards),
            get(&p.read),
            get(&p.total),
        )
    }

    fn cancel(&self) {
        self.progress.cancel();
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<TokenizeJob>()
}
