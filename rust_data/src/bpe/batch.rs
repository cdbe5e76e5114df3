//! Many texts at once, on several threads, with encoders that keep their word caches between calls.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::encoder::{Encoder, Model};
use super::id::Id;
use super::pages::with_capacity;
use super::recycle::Recycler;
use crate::error::{Error, Result};

/// Text that a thread takes at a time.
const CHUNK_BYTES: usize = 512 << 10;

/// Room made beforehand: fewer bytes a token than most text has.
const LIKELY_TOKEN_BYTES: usize = 4;

/// Ids of all texts in one array; text `i` has `offsets[i] .. offsets[i + 1]`.
pub struct Encodings<T> {
    pub ids: Vec<T>,
    pub offsets: Vec<i64>,
}

/// A text that may turn out not to be one when its turn comes.
pub trait Text: Sync {
    fn num_bytes(&self) -> usize;
    fn text(&self) -> Result<&str>;
}

pub struct BatchEncoder<T: Id> {
    model: Arc<Model>,
    idle: Mutex<Vec<Encoder<T>>>,
    /// Where ids that are no longer wanted may be given back.
    pub recycler: Arc<Recycler<T>>,
}

impl<T: Id> BatchEncoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, idle: Mutex::new(Vec::new()), recycler: Arc::default() }
    }

    /// Encodes `texts` on up to `threads` threads. The threads end with the call, so a later fork is safe.
    pub fn encode<S: Text>(&self, texts: &[S], threads: usize) -> Result<Encodings<T>> {
        let chunks = chunks_of(texts);
        let threads = threads.min(chunks.len());
        if threads <= 1 {
            return self.with_encoder(|encoder| encode_chunk(encoder, texts, |room| self.recycler.take(room)));
        }
        let next = AtomicUsize::new(0);
        let work = || {
            self.with_encoder(|encoder| {
                let mut done = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(chunk) = chunks.get(index) else { return done };
                    done.push((index, encode_chunk(encoder, &texts[chunk.clone()], with_capacity)));
                }
            })
        };
        let mut done = Vec::new();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                done.extend(worker.join().map_err(|_| Error::value("internal error in an encoder thread"))?);
            }
            Ok::<_, Error>(())
        })?;
        done.sort_by_key(|&(index, _)| index);
        join(done.into_iter().map(|(_, encodings)| encodings), |room| self.recycler.take(room))
    }

    /// Lends an idle encoder. The lock is only tried: in a child process it may be held by a thread
    /// that the fork left behind.
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

fn encode_chunk<T: Id, S: Text>(
    encoder: &mut Encoder<T>,
    texts: &[S],
    buffer: impl FnOnce(usize) -> Vec<T>,
) -> Result<Encodings<T>> {
    let bytes: usize = texts.iter().map(Text::num_bytes).sum();
    let (mut ids, mut offsets) = (buffer(bytes / LIKELY_TOKEN_BYTES), Vec::with_capacity(texts.len() + 1));
    offsets.push(0);
    for text in texts {
        encoder.encode(text.text()?, &mut ids)?;
        offsets.push(ids.len() as i64);
    }
    Ok(Encodings { ids, offsets })
}

fn join<T: Id>(
    parts: impl Iterator<Item = Result<Encodings<T>>>,
    buffer: impl FnOnce(usize) -> Vec<T>,
) -> Result<Encodings<T>> {
    let parts: Vec<Encodings<T>> = parts.collect::<Result<_>>()?;
    let mut ids = buffer(parts.iter().map(|part| part.ids.len()).sum());
    let mut offsets = vec![0];
    for part in parts {
        let before = ids.len() as i64;
        offsets.extend(part.offsets[1..].iter().map(|&offset| before + offset));
        ids.extend_from_slice(&part.ids);
    }
    Ok(Encodings { ids, offsets })
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
