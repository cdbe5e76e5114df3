//! A seeded permutation of all documents in bounded memory: an external sort by random keys.
//!
//! The key of a document is drawn from ChaCha8 at (seed, file, row) alone. Documents go into bucket
//! files by the leading part of their key; each bucket is then sorted in memory. The order is that of
//! the keys, so neither threads nor the number of buckets show in it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::splits::SplitWriter;
use crate::bpe::id::Id;
use crate::error::{Error, Result};

const MAX_BUCKETS: u64 = 256;
/// Key and number of tokens, before the tokens of each document in a bucket.
const RECORD_HEAD: usize = 16;

pub struct Shuffle<T> {
    random: ChaCha8Rng,
    buckets: Vec<Bucket>,
    document: Vec<T>,
    bytes: Vec<u8>,
}

struct Bucket {
    path: PathBuf,
    file: BufWriter<File>,
}

impl<T: Id> Shuffle<T> {
    /// Buckets under `directory`, about `corpus_bytes / bucket_bytes` of them.
    pub fn new(directory: &Path, seed: u64, corpus_bytes: u64, bucket_bytes: u64) -> Result<Self> {
        let count = corpus_bytes.div_ceil(bucket_bytes.max(1)).clamp(1, MAX_BUCKETS);
        let create = |index| {
            let path = directory.join(format!("shuffle_{index:03}.tmp"));
            let file = BufWriter::new(File::create(&path).map_err(Error::io(&path))?);
            Ok(Bucket { path, file })
        };
        let buckets = (0..count).map(create).collect::<Result<_>>()?;
        Ok(Self { random: ChaCha8Rng::seed_from_u64(seed), buckets, document: Vec::new(), bytes: Vec::new() })
    }

    /// Adds to the current document.
    pub fn write(&mut self, tokens: &[T]) {
        self.document.extend_from_slice(tokens);
    }

    /// Puts the current document, a row of file number `source`, into its bucket.
    pub fn end_document(&mut self, source: usize, row: u64) -> Result<()> {
        self.random.set_stream(source as u64);
        self.random.set_word_pos(2 * u128::from(row));
        let key = self.random.next_u64();
        self.bytes.clear();
        self.bytes.extend_from_slice(&key.to_le_bytes());
        self.bytes.extend_from_slice(&(self.document.len() as u64).to_le_bytes());
        T::extend_bytes(&self.document, &mut self.bytes);
        self.document.clear();
        let index = (u128::from(key) * self.buckets.len() as u128) >> 64;
        let bucket = &mut self.buckets[index as usize];
        bucket.file.write_all(&self.bytes).map_err(Error::io(&bucket.path))
    }

    /// Writes all documents in the order of their keys and removes the buckets.
    pub fn drain(self, writer: &mut SplitWriter<T>) -> Result<()> {
        for Bucket { path, mut file } in self.buckets {
            file.flush().map_err(Error::io(&path))?;
            drop(file);
            write_sorted(&path, writer)?;
            std::fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }
}

fn write_sorted<T: Id>(path: &Path, writer: &mut SplitWriter<T>) -> Result<()> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let mut documents = Vec::new();
    let mut at = 0;
    while let Some((key, count)) = bytes.get(at..at + RECORD_HEAD).and_then(record_head) {
        let start = at + RECORD_HEAD;
        at = start + count as usize * size_of::<T>();
        documents.push((key, start, at));
    }
    // equal keys keep the order of the corpus
    documents.sort_by_key(|&(key, _, _)| key);
    let mut tokens = Vec::new();
    for (_, start, end) in documents {
        tokens.clear();
        T::extend_from_bytes(&bytes[start..end], &mut tokens);
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            match writer.write(rest)? {
                0 => writer.finish_shard()?,
                written => rest = &rest[written..],
            }
        }
        writer.end_document()?;
    }
    Ok(())
}

fn record_head(head: &[u8]) -> Option<(u64, u64)> {
    let (key, count) = head.split_at(8);
    Some((u64::from_le_bytes(key.try_into().ok()?), u64::from_le_bytes(count.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bpe::encoder::Model;
    use crate::shards::manifest::Splits;

    /// The shard that 500 documents of known tokens make with buckets of this size.
    fn shuffled(model: &Arc<Model>, folder: &Path, bucket_bytes: u64) -> Vec<u8> {
        std::fs::create_dir_all(folder).unwrap();
        let mut shuffle = Shuffle::<u16>::new(folder, 5, 100_000, bucket_bytes).unwrap();
        for row in 0..500 {
            shuffle.write(&vec![row as u16; row % 9]);
            shuffle.write(&[50_256]);
            shuffle.end_document(row % 3, row as u64).unwrap();
        }
        let mut writer = SplitWriter::new(folder.to_owned(), model.clone(), 1 << 20, 0, Splits::default());
        shuffle.drain(&mut writer).unwrap();
        writer.finish_shard().unwrap();
        let bytes = std::fs::read(folder.join("train_000000.bin")).unwrap();
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "the buckets are gone");
        std::fs::remove_dir_all(folder).unwrap();
        bytes
    }

    #[test]
    fn buckets_do_not_show() {
        let model = Arc::new(Model::gpt2().unwrap());
        let folder = std::env::temp_dir().join(format!("rust_data_shuffle_{}", std::process::id()));
        let one = shuffled(&model, &folder, 1 << 20);
        assert!(one == shuffled(&model, &folder, 1_000));
        assert!(one == shuffled(&model, &folder, 1));
    }
}
