//! The tokenizer as a Python object: strings in, NumPy arrays out.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1, PyArrayMethods};
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList, PyString};

use super::detached;
use crate::bpe::batch::{self, BatchEncoder, Encodings};
use crate::bpe::id::Id;
use crate::bpe::model::Model;
use crate::bpe::recycle::Recycler;
use crate::bpe::tokenizer_json;
use crate::bpe::vocab::{hex, Vocab};
use crate::error::{Error, Result};
use crate::text::pattern::Splitter;
use crate::text::utf8::from_utf8;

/// The encoder for the width of the tokenizer's ids.
enum Batch {
    U16(BatchEncoder<u16>),
    U32(BatchEncoder<u32>),
}

#[pyclass(frozen)]
pub struct Tokenizer {
    model: Arc<Model>,
    batch: Batch,
}

impl Tokenizer {
    fn of(model: Arc<Model>) -> Self {
        let batch = if model.vocab.size() <= 1 << 16 {
            Batch::U16(BatchEncoder::new(model.clone()))
        } else {
            Batch::U32(BatchEncoder::new(model.clone()))
        };
        Self { model, batch }
    }

    pub fn model(&self) -> Arc<Model> {
        self.model.clone()
    }

    fn encode<'py, S: batch::Text + Send>(
        &self,
        py: Python<'py>,
        texts: &[S],
        threads: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>)> {
        Ok(match &self.batch {
            Batch::U16(batch) => {
                let Encodings { ids, offsets } = detached(py, || batch.encode(texts, threads))?;
                (lend(py, ids, &batch.recycler)?.into_any(), PyArray1::from_vec(py, offsets))
            }
            Batch::U32(batch) => {
                let Encodings { ids, offsets } = detached(py, || batch.encode(texts, threads))?;
                (lend(py, ids, &batch.recycler)?.into_any(), PyArray1::from_vec(py, offsets))
            }
        })
    }
}

/// The memory behind a NumPy array of ids. It goes back to the recycler when the array is deleted.
struct Lent<T: Id> {
    ids: Vec<T>,
    recycler: Arc<Recycler<T>>,
}

impl<T: Id> Drop for Lent<T> {
    fn drop(&mut self) {
        self.recycler.give(std::mem::take(&mut self.ids));
    }
}

/// The base object of an array: it owns the memory that the array shows.
#[pyclass(frozen)]
struct Keeper(#[expect(dead_code, reason = "only dropped")] Box<dyn Send + Sync>);

fn lend<'py, T: Id + Element>(
    py: Python<'py>,
    ids: Vec<T>,
    recycler: &Arc<Recycler<T>>,
) -> PyResult<Bound<'py, PyArray1<T>>> {
    let mut lent = Box::new(Lent { ids, recycler: recycler.clone() });
    let (len, first) = (lent.ids.len(), lent.ids.as_mut_ptr());
    // SAFETY: the pointer is to the elements of the vector, which stay where they are when the vector moves; nothing
    // else accesses them before the keeper drops the vector, and the pointer may be written through.
    let ids = unsafe { ArrayView1::from_shape_ptr(len, first.cast_const()) };
    let keeper = Bound::new(py, Keeper(lent))?;
    // SAFETY: the array holds a reference to the keeper, which owns the elements.
    Ok(unsafe { PyArray1::borrow_from_array(&ids, keeper.into_any()) })
}

/// A text in the memory of Python.
enum Text {
    Str(PyBackedStr),
    /// The bytes and their number among the texts. They are checked to be UTF-8 just before they are encoded, while
    /// they are in the CPU's caches.
    Bytes(usize, PyBackedBytes),
}

impl Text {
    /// From a `str` or `bytes`. Lone surrogates in a `str` become U+FFFD, as in tiktoken.
    fn new(index: usize, text: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = text.cast::<PyBytes>() {
            return Ok(Self::Bytes(index, bytes.clone().into()));
        }
        let text = text.cast::<PyString>()?;
        match PyBackedStr::try_from(text.clone()) {
            Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(text.py()) => {
                let units = text.call_method1("encode", ("utf-16", "surrogatepass"))?;
                let clean = units.call_method1("decode", ("utf-16", "replace"))?;
                Ok(Self::Str(PyBackedStr::try_from(clean.cast_into::<PyString>()?)?))
            }
            other => other.map(Self::Str),
        }
    }
}

impl batch::Text for Text {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::Bytes(_, bytes) => bytes.len(),
        }
    }

    fn text(&self) -> Result<&str> {
        match self {
            Self::Str(text) => Ok(text),
            Self::Bytes(index, bytes) => {
                from_utf8(bytes).map_err(|error| Error::value(format!("text {index}: {error}")))
            }
        }
    }
}

/// A text in the buffer of a column, with its number.
struct Slice<'a>(usize, &'a [u8]);

impl batch::Text for Slice<'_> {
    fn num_bytes(&self) -> usize {
        self.1.len()
    }

    fn text(&self) -> Result<&str> {
        from_utf8(self.1).map_err(|error| Error::value(format!("text {}: {error}", self.0)))
    }
}

#[pymethods]
impl Tokenizer {
    #[staticmethod]
    fn gpt2(py: Python<'_>) -> PyResult<Self> {
        detached(py, Model::shared_gpt2).map(Self::of)
    }

    #[staticmethod]
    fn from_tokenizer_json(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || tokenizer_json::load(&path).map(Arc::new)).map(Self::of)
    }

    #[staticmethod]
    fn from_tiktoken_file(py: Python<'_>, path: PathBuf, name: &str, pattern: &str, eot: u32) -> PyResult<Self> {
        let load = || Model::new(Vocab::from_tiktoken_file(&path, name, eot)?, Splitter::new(pattern)?).map(Arc::new);
        detached(py, load).map(Self::of)
    }

    /// Makes a tokenizer from tokens in the order of their ranks, as a tiktoken encoding holds them.
    #[staticmethod]
    fn from_tokens(tokens: Vec<Vec<u8>>, name: &str, pattern: &str, eot: u32) -> PyResult<Self> {
        let tokens = tokens.into_iter().map(Vec::into_boxed_slice).collect();
        let vocab = Vocab::new(name, tokens, eot).checked()?;
        Ok(Self::of(Arc::new(Model::new(vocab, Splitter::new(pattern)?)?)))
    }

    /// Returns the ids of all texts, and the offset where each text starts.
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        threads: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>)> {
        let texts = texts.iter().enumerate().map(|(i, text)| Text::new(i, &text)).collect::<PyResult<Vec<_>>>()?;
        self.encode(py, &texts, threads)
    }

    /// The same for texts that lie one behind the other in `data`: text `i` is `bounds[i] .. bounds[i + 1]`.
    fn encode_buffer<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyArray1<u8>>,
        bounds: &Bound<'py, PyArray1<i64>>,
        threads: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>)> {
        let (data, bounds) = (data.readonly(), bounds.readonly());
        let (data, bounds) = (data.as_slice()?, bounds.as_slice()?);
        let text = |(index, pair): (usize, &[i64])| {
            data.get(pair[0] as usize..pair[1] as usize).map(|text| Slice(index, text))
        };
        let texts = bounds.windows(2).enumerate().map(text).collect::<Option<Vec<_>>>();
        let texts = texts.ok_or_else(|| Error::value("bounds: must ascend and lie in the data"))?;
        self.encode(py, &texts, threads)
    }

    /// Returns the bytes that `ids`, an array of uint32, stand for.
    fn decode<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyArray1<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        let ids = ids.to_vec().map_err(|error| Error::value(error.to_string()))?;
        Ok(PyBytes::new(py, &self.model.vocab.decode(ids)?))
    }

    /// Returns the bytes of each token by id; they are empty for ids that are not ordinary tokens.
    fn tokens<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.model.vocab.tokens.iter().map(|token| PyBytes::new(py, token)).collect()
    }

    #[getter]
    fn name(&self) -> &str {
        &self.model.vocab.name
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.model.vocab.size()
    }

    #[getter]
    fn eot(&self) -> u32 {
        self.model.vocab.eot
    }

    #[getter]
    fn sha256(&self) -> String {
        hex(&self.model.digest())
    }

    #[getter]
    fn splitter(&self) -> &'static str {
        self.model.splitter.name()
    }
}
