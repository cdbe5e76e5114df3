//! The tokenization job as a Python object.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use super::detached;
use super::tokenizer::Tokenizer;
use crate::bpe::encoder::Model;
use crate::error::Error;
use crate::job::options::default_memory;
use crate::job::progress::Progress;
use crate::job::{self, Options};
use crate::shards::settings::{Form, OnError};

/// One tokenization run; `progress` and `cancel` may be called from another thread.
#[pyclass(frozen)]
pub struct TokenizeJob {
    model: Arc<Model>,
    inputs: Vec<PathBuf>,
    options: Options,
    progress: Arc<Progress>,
    passed_over: Mutex<Vec<(String, &'static str)>>,
}

#[pymethods]
impl TokenizeJob {
    #[new]
    #[pyo3(signature = (
        tokenizer, inputs, out, *,
        nanogpt, column, shard_tokens, val_tokens, seed, threads, part, skip_errors, memory, resume
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        tokenizer: &Tokenizer,
        inputs: Vec<PathBuf>,
        out: PathBuf,
        nanogpt: bool,
        column: String,
        shard_tokens: u64,
        val_tokens: u64,
        seed: u64,
        threads: usize,
        part: (u64, u64),
        skip_errors: bool,
        memory: Option<u64>,
        resume: bool,
    ) -> Self {
        let on_error = if skip_errors { OnError::Skip } else { OnError::Stop };
        let format = if nanogpt { Form::Nanogpt } else { Form::Shards };
        let memory = memory.unwrap_or_else(|| default_memory(threads));
        let options =
            Options { out, format, column, shard_tokens, val_tokens, seed, threads, part, on_error, memory, resume };
        let (progress, passed_over) = (Arc::default(), Mutex::default());
        Self { model: tokenizer.model(), inputs, options, progress, passed_over }
    }

    /// Runs to the end; the manifest as JSON.
    fn run(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let plan = self.make_plan()?;
            let manifest = job::run(plan, &self.options, &self.model, &self.progress)?;
            serde_json::to_string(&manifest).map_err(|error| Error::value(error.to_string()))
        })
    }

    /// What the run would read: (file, bytes, units of work of this part) for each of its files, and (name, reason)
    /// for what cannot be read. Raises what the run would raise before its first row.
    #[allow(clippy::type_complexity)]
    fn plan(&self, py: Python<'_>) -> PyResult<(Vec<(String, u64, usize)>, Vec<(String, String)>)> {
        detached(py, || {
            let plan = self.make_plan()?;
            job::check_out(&plan, &self.options, &self.model)?;
            let path = |index: usize| plan.sources[index].path.display().to_string();
            let units = |index| plan.units.iter().filter(|unit| unit.source == index).count();
            let files = plan.sources.iter().enumerate();
            let files = files.map(|(index, source)| (path(index), source.bytes, units(index)));
            let broken = plan.broken.iter().map(|(index, reason)| (path(*index), reason.clone())).collect();
            Ok((files.filter(|&(_, _, units)| units > 0).collect(), broken))
        })
    }

    /// (name, reason) for each name in folders and globs that was passed over, once `run` or `plan` has looked.
    fn passed_over(&self) -> Vec<(String, &'static str)> {
        self.passed_over.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

impl TokenizeJob {
    fn make_plan(&self) -> crate::error::Result<job::Plan> {
        let plan = job::plan(&self.inputs, &self.options)?;
        let passed_over = plan.passed_over.iter().map(|passed| (passed.path.display().to_string(), passed.reason));
        *self.passed_over.lock().unwrap_or_else(PoisonError::into_inner) = passed_over.collect();
        Ok(plan)
    }
}
