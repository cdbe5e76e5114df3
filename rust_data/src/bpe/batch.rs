//! Encodes many texts at once on several threads. The encoders keep their word caches between calls.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::encoder::{Encoder, Model};
use super::id::Id;
use super::recycle::Recycler;
use crate::error::{Error, Result};
use crate::threads::on_threads;

/// Number of bytes of text that a thread takes at a time.
const CHUNK_BYTES: usize = 512 << 10;

/// Bytes of text for which memory for one id is reserved. Most text has more bytes per token, so the memory is enough.
const LIKELY_TOKEN_BYTES: usize = 4;

/// The ids of all texts in one array. Those of text `i` are at `offsets[i] .. offsets[i + 1]`.
#[derive(Default)]
pub struct Encodings<T> {
    pub ids: Vec<T>,
    pub offsets: Vec<i64>,
}

/// A text whose bytes are checked to be UTF-8 only when it is encoded.
pub trait Text: Sync {
    fn num_bytes(&self) -> usize;
    fn text(&self) -> Result<&str>;
}

pub struct BatchEncoder<T: Id> {
    model: Arc<Model>,
    idle: Mutex<Vec<Encoder<T>>>,
    /// Takes back the memory of ids that are no longer needed.
    pub recycler: Arc<Recycler<T>>,
}

impl<T: Id> BatchEncoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, idle: Mutex::new(Vec::new()), recycler: Arc::default() }
    }

    /// Encodes `texts` on up to `threads` threads. The threads end with the call, so a later fork is safe.
    pub fn encode<S: Text>(&self, texts: &[S], threads: usize) -> Result<Encodings<T>> {
        let chunks = chunks_of(texts);
        let bytes: usize = texts.iter().map(Text::num_bytes).sum();
        let mut whole = Encodings { ids: self.recycler.take(bytes / LIKELY_TOKEN_BYTES), offsets: vec![0] };
        whole.offsets.reserve(texts.len());
        if threads <= 1 || chunks.len() <= 1 {
            return self.with_encoder(|encoder| whole.encode(encoder, texts)).map(|()| whole);
        }
        let next = AtomicUsize::new(0);
        let joined = Mutex::new(Joined { whole, num_parts: 0, early: BTreeMap::new(), spare: Vec::new(), error: None });
        on_threads(threads.min(chunks.len()), || {
            self.with_encoder(|encoder| {
                let mut part = Encodings::default();
                while let Some((index, chunk)) = take_next(&next, &chunks) {
                    part.clear();
                    let result = part.encode(encoder, &texts[chunk.clone()]);
                    let mut joined = joined.lock().unwrap_or_else(PoisonError::into_inner);
                    if !joined.add(index, result, &mut part) {
                        return;
                    }
                }
            });
        });
        let Joined { whole, error, .. } = joined.into_inner().unwrap_or_else(PoisonError::into_inner);
        error.map_or(Ok(whole), |(_, error)| Err(error))
    }

    /// Runs `work` with an idle encoder, or with a new one. The lock is only tried: after a fork a thread that does not
    /// exist in the child process may hold it.
    fn with_encoder<R>(&self, work: impl FnOnce(&mut Encoder<T>) -> R) -> R {
        let idle = self.idle.try_lock().ok().and_then(|mut idle| idle.pop());
        let mut encoder = idle.unwrap_or_else(|| Encoder::new(self.model.clone()));
        let result = work(&mut encoder);
        if let Ok(mut idle) = self.idle.try_lock() {
            idle.push(encoder);
        }
        result
    }
}

fn chunks_of<S: Text>(texts: &[S]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, text) in texts.iter().enumerate() {
        bytes += text.num_bytes();
        if bytes >= CHUNK_BYTES {
            chunks.push(start..index + 1);
            (start, bytes) = (index + 1, 0);
        }
    }
    if start < texts.len() {
        chunks.push(start..texts.len());
    }
    chunks
}

fn take_next<'a>(next: &AtomicUsize, chunks: &'a [Range<usize>]) -> Option<(usize, &'a Range<usize>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, chunks.get(index)?))
}

impl<T: Id> Encodings<T> {
    fn clear(&mut self) {
        self.ids.clear();
        self.offsets.clear();
        self.offsets.push(0);
    }

    /// Appends the ids of `texts`.
    fn encode<S: Text>(&mut self, encoder: &mut Encoder<T>, texts: &[S]) -> Result<()> {
        for text in texts {
            encoder.encode(text.text()?, &mut self.ids)?;
            self.offsets.push(self.ids.len() as i64);
        }
        Ok(())
    }

    fn append(&mut self, other: &Self) {
        let before = self.ids.len() as i64;
        self.offsets.extend(other.offsets[1..].iter().map(|&offset| before + offset));
        self.ids.extend_from_slice(&other.ids);
    }
}

/// Joins parts in order. A part is appended as soon as all parts before it have been, so that few parts are in memory
/// at a time and their memory is used again.
struct Joined<T> {
    whole: Encodings<T>,
    /// Number of parts that are in `whole`.
    num_parts: usize,
    /// Parts that arrived before the ones that precede them.
    early: BTreeMap<usize, Encodings<T>>,
    /// Parts whose memory can be used again.
    spare: Vec<Encodings<T>>,
    /// The error of the first part that failed, and the number of that part.
    error: Option<(usize, Error)>,
}

impl<T: Id> Joined<T> {
    /// Adds part number `index`, and leaves `part` ready for the next one. Returns false once any part has failed.
    fn add(&mut self, index: usize, result: Result<()>, part: &mut Encodings<T>) -> bool {
        if let Err(error) = result {
            if self.error.as_ref().is_none_or(|&(first, _)| index < first) {
                self.error = Some((index, error));
            }
        } else if index > self.num_parts {
            self.early.insert(index, std::mem::replace(part, self.spare.pop().unwrap_or_default()));
        } else {
            self.whole.append(part);
            self.num_parts += 1;
            while let Some(early) = self.early.remove(&self.num_parts) {
                self.whole.append(&early);
                self.num_parts += 1;
                self.spare.push(early);
            }
        }
        self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Text for String {
        fn num_bytes(&self) -> usize {
            self.len()
        }

        fn text(&self) -> Result<&str> {
            if self.contains('!') {
                Err(Error::value(self))
            } else {
                Ok(self)
            }
        }
    }

    #[test]
    fn the_first_bad_text_is_named() {
        let batch = BatchEncoder::<u16>::new(Arc::new(Model::gpt2().unwrap()));
        let mut texts: Vec<String> = (0..4).map(|_| "words ".repeat(100_000)).collect();
        (texts[1], texts[3]) = ("bad 1!".into(), "bad 3!".into());
        for threads in [1, 3] {
            let error = batch.encode(&texts, threads).err().unwrap();
            assert_eq!(error.to_string(), "bad 1!");
        }
    }

    #[test]
    fn threads_do_not_show_in_the_result() {
        let model = Arc::new(Model::gpt2().unwrap());
        let texts: Vec<String> = (0..40).map(|i| format!("text number {i} with words. ").repeat(i * 70)).collect();
        let encode = |threads| BatchEncoder::<u16>::new(model.clone()).encode(&texts, threads).unwrap();
        let (one, three) = (encode(1), encode(3));
        assert_eq!(one.offsets, three.offsets);
        assert!(one.ids == three.ids);
        assert_eq!(one.offsets.len(), 41);
        assert_eq!(one.offsets[1], 0);
    }
}
