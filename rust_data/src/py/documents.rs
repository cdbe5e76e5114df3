//! The writer of documents as a Python object.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use super::detached;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::job;
use crate::shards::manifest::Splits;

/// Writers by the width of the ids.
enum Writer {
    U16(job::DocumentWriter<u16>),
    U32(job::DocumentWriter<u32>),
}

/// Writes the shards of one folder; a call waits for one that another thread has made.
#[pyclass(frozen)]
pub struct DocumentWriter {
    /// None once it is finished.
    writer: Mutex<Option<Writer>>,
}

#[pymethods]
impl DocumentWriter {
    #[new]
    #[pyo3(signature = (tokenizer, out, *, shard_tokens, val_tokens))]
    fn new(tokenizer: &Tokenizer, out: PathBuf, shard_tokens: u64, val_tokens: u64) -> PyResult<Self> {
        let model = tokenizer.model();
        let writer = if model.vocab.size() <= 1 << 16 {
            Writer::U16(job::DocumentWriter::new(out, model, shard_tokens, val_tokens)?)
        } else {
            Writer::U32(job::DocumentWriter::new(out, model, shard_tokens, val_tokens)?)
        };
        Ok(Self { writer: Mutex::new(Some(writer)) })
    }

    /// Documents as `Tokenizer.encode_batch` gives them, each followed by the end-of-text token.
    fn write(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, offsets: &Bound<'_, PyArray1<i64>>) -> PyResult<()> {
        let offsets = offsets.readonly();
        let offsets = offsets.as_slice()?;
        if let Ok(ids) = ids.cast::<PyArray1<u16>>() {
            let ids = ids.readonly();
            let ids = ids.as_slice()?;
            detached(py, || {
                self.with(|writer| match writer {
                    Writer::U16(writer) => writer.write(ids, offsets),
                    Writer::U32(_) => Err(Error::value("ids: uint32 expected, got uint16")),
                })
            })
        } else {
            let ids = ids.cast::<PyArray1<u32>>()?.readonly();
            let ids = ids.as_slice()?;
            detached(py, || {
                self.with(|writer| match writer {
                    Writer::U16(_) => Err(Error::value("ids: uint16 expected, got uint32")),
                    Writer::U32(writer) => writer.write(ids, offsets),
                })
            })
        }
    }

    /// The tokens `start .. start + count` of a shard; its end-of-text tokens end documents.
    fn copy(&self, py: Python<'_>, shard: PathBuf, start: u64, count: u64) -> PyResult<()> {
        detached(py, || {
            self.with(|writer| match writer {
                Writer::U16(writer) => writer.copy(&shard, start, count),
                Writer::U32(writer) => writer.copy(&shard, start, count),
            })
        })
    }

    /// Completes the last shard; the splits as the manifest lists them, as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let splits: Splits = match self.lock().take() {
                Some(Writer::U16(writer)) => writer.finish()?,
                Some(Writer::U32(writer)) => writer.finish()?,
                None => return Err(finished()),
            };
            serde_json::to_string(&splits).map_err(|error| Error::value(error.to_string()))
        })
    }
}

impl DocumentWriter {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, write: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        self.lock().as_mut().map_or_else(|| Err(finished()), write)
    }
}

fn finished() -> Error {
    Error::value("the writer has finished already")
}
