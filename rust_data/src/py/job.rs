//! The tokenization job as a Python object.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::detached;
use super::tokenizer::Tokenizer;
use crate::bpe::encoder::Model;
use crate::error::Error;
use crate::job::progress::Progress;
use crate::job::{self, OnError, Options};

/// One tokenization run; `progress` and `cancel` may be called from another thread.
#[pyclass(frozen)]
pub struct TokenizeJob {
    model: Arc<Model>,
    inputs: Vec<String>,
    options: Options,
    progress: Arc<Progress>,
}

#[pymethods]
impl TokenizeJob {
    #[new]
    #[pyo3(signature = (
        tokenizer, inputs, out, *,
        column, shard_tokens, val_tokens, seed, threads, part, skip_errors, memory, resume
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        tokenizer: &Tokenizer,
        inputs: Vec<String>,
        out: PathBuf,
        column: String,
        shard_tokens: u64,
        val_tokens: u64,
        seed: u64,
        threads: usize,
        part: (u64, u64),
        skip_errors: bool,
        memory: u64,
        resume: bool,
    ) -> Self {
        let on_error = if skip_errors { OnError::Skip } else { OnError::Stop };
        let options = Options { out, column, shard_tokens, val_tokens, seed, threads, part, on_error, memory, resume };
        Self { model: tokenizer.model(), inputs, options, progress: Arc::default() }
    }

    /// Runs to the end; the manifest as JSON.
    fn run(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let plan = job::plan(&self.inputs, &self.options)?;
            let manifest = job::run(plan, &self.options, &self.model, &self.progress)?;
            serde_json::to_string(&manifest).map_err(|error| Error::value(error.to_string()))
        })
    }

    /// What the run would read: (file, bytes, units of work of this part) for each of its files.
    fn plan(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, usize)>> {
        detached(py, || {
            let plan = job::plan(&self.inputs, &self.options)?;
            let units = |index| plan.units.iter().filter(|unit| unit.source == index).count();
            let files = plan.sources.iter().enumerate();
            let files = files.map(|(index, source)| (source.path.display().to_string(), source.bytes, units(index)));
            Ok(files.filter(|&(_, _, units)| units > 0).collect())
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
