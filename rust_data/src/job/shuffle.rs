//! Permutes all documents by a seed in bounded memory: an external sort by random keys.
//!
//! The key of a document is drawn from ChaCha8 and depends on (seed, file, row) alone. Documents are written to bucket
//! files by the leading bits of their keys. Each bucket is then sorted in memory; a bucket that is too large is split
//! first. The order is that of the keys, so it does not depend on the threads or the buckets.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::splits::SplitWriter;
use crate::bpe::id::Id;
use crate::error::{Error, Result};

const MAX_BUCKETS: u64 = 256;
const PREFIX: &str = "shuffle";
const ENDING: &str = ".tmp";
/// Bytes before the tokens of each document in a bucket: its key, and the length of its tokens in bytes.
const RECORD_HEAD: usize = 16;

pub struct Shuffle<T> {
    random: ChaCha8Rng,
    buckets: Buckets,
    bucket_bytes: u64,
    document: Vec<T>,
    bytes: Vec<u8>,
}

impl<T: Id> Shuffle<T> {
    /// Makes about `corpus_bytes / bucket_bytes` buckets under `directory`, and removes the buckets of a killed run.
    pub fn new(directory: &Path, seed: u64, corpus_bytes: u64, bucket_bytes: u64) -> Result<Self> {
        for entry in std::fs::read_dir(directory).map_err(Error::io(directory))? {
            let path = entry.map_err(Error::io(directory))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(PREFIX) && name.ends_with(ENDING) {
                std::fs::remove_file(&path).map_err(disk_error(&path))?;
            }
        }
        Ok(Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            buckets: Buckets::create(&directory.join(PREFIX), corpus_bytes.div_ceil(bucket_bytes.max(1)), 0..1 << 64)?,
            bucket_bytes,
            document: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Adds tokens to the current document.
    pub fn write(&mut self, tokens: &[T]) {
        self.document.extend_from_slice(tokens);
    }

    /// Ends the current document, which is a row of file number `source`, and writes it to its bucket.
    pub fn end_document(&mut self, source: usize, row: u64) -> Result<()> {
        self.random.set_stream(source as u64);
        self.random.set_word_pos(2 * u128::from(row));
        let key = self.random.next_u64();
        self.bytes.clear();
        self.bytes.extend_from_slice(&key.to_le_bytes());
        self.bytes.extend_from_slice(&(size_of_val(&*self.document) as u64).to_le_bytes());
        T::extend_bytes(&self.document, &mut self.bytes);
        self.document.clear();
        self.buckets.push(key, &self.bytes)
    }

    /// Writes all documents in the order of their keys and removes the buckets.
    pub fn drain(self, writer: &mut SplitWriter<T>) -> Result<()> {
        self.buckets.drain(self.bucket_bytes, writer)
    }
}

/// Bucket files; each holds the documents of an equal share of a range of keys.
struct Buckets {
    keys: Range<u128>,
    list: Vec<Bucket>,
}

struct Bucket {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    documents: u64,
}

impl Buckets {
    /// Makes `count` buckets, at least 1 and at most `MAX_BUCKETS`. Their paths begin with `prefix`.
    fn create(prefix: &Path, count: u64, keys: Range<u128>) -> Result<Self> {
        let create = |index| {
            let mut path = prefix.as_os_str().to_owned();
            path.push(format!("_{index:03}{ENDING}"));
            let path = PathBuf::from(path);
            let file = BufWriter::new(File::create(&path).map_err(disk_error(&path))?);
            Ok(Bucket { path, file, bytes: 0, documents: 0 })
        };
        let list = (0..count.clamp(1, MAX_BUCKETS)).map(create).collect::<Result<_>>()?;
        Ok(Self { keys, list })
    }

    fn push(&mut self, key: u64, record: &[u8]) -> Result<()> {
        let width = self.keys.end - self.keys.start;
        let index = (u128::from(key) - self.keys.start) * self.list.len() as u128 / width;
        let bucket = &mut self.list[index as usize];
        bucket.bytes += record.len() as u64;
        bucket.documents += 1;
        bucket.file.write_all(record).map_err(disk_error(&bucket.path))
    }

    fn drain<T: Id>(self, most_bytes: u64, writer: &mut SplitWriter<T>) -> Result<()> {
        let (count, start, width) = (self.list.len() as u128, self.keys.start, self.keys.end - self.keys.start);
        for (index, Bucket { path, mut file, bytes, documents }) in (0u128..).zip(self.list) {
            file.flush().map_err(disk_error(&path))?;
            drop(file);
            // bucket `index` holds the keys whose share of the range, times the number of buckets, rounds down to it
            let keys = start + (index * width).div_ceil(count)..start + ((index + 1) * width).div_ceil(count);
            // there are more documents than the size of the input suggested
            if bytes > most_bytes && documents > 1 && keys.end - keys.start > 1 {
                let smaller = split(&path, bytes.div_ceil(most_bytes.max(1)).max(2), keys)?;
                std::fs::remove_file(&path).map_err(disk_error(&path))?;
                smaller.drain(most_bytes, writer)?;
            } else {
                write_sorted(&path, writer)?;
                std::fs::remove_file(&path).map_err(disk_error(&path))?;
            }
        }
        Ok(())
    }
}

/// Splits a bucket into `count` smaller ones. Documents keep their order within each of them.
fn split(path: &Path, count: u64, keys: Range<u128>) -> Result<Buckets> {
    let mut smaller = Buckets::create(&path.with_extension(""), count, keys)?;
    let mut file = BufReader::new(File::open(path).map_err(disk_error(path))?);
    let mut record = Vec::new();
    loop {
        record.clear();
        (&mut file).take(RECORD_HEAD as u64).read_to_end(&mut record).map_err(disk_error(path))?;
        let Some((key, bytes)) = record.get(..RECORD_HEAD).and_then(record_head) else { return Ok(smaller) };
        (&mut file).take(bytes).read_to_end(&mut record).map_err(disk_error(path))?;
        smaller.push(key, &record)?;
    }
}

fn write_sorted<T: Id>(path: &Path, writer: &mut SplitWriter<T>) -> Result<()> {
    let bytes = std::fs::read(path).map_err(disk_error(path))?;
    let mut documents = Vec::new();
    let mut at = 0;
    while let Some((key, len)) = bytes.get(at..at + RECORD_HEAD).and_then(record_head) {
        let start = at + RECORD_HEAD;
        at = start + len as usize;
        documents.push((key, start, at));
    }
    // equal keys keep the order of the corpus
    documents.sort_by_key(|&(key, _, _)| key);
    let mut tokens = Vec::new();
    for (_, start, end) in documents {
        tokens.clear();
        T::extend_from_bytes(&bytes[start..end], &mut tokens);
        writer.write_all(&tokens)?;
        writer.end_document()?;
    }
    Ok(())
}

/// Names the folder in an error: the buckets are temporary files whose names mean nothing to a user.
fn disk_error(bucket: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    Error::io(bucket.parent().unwrap_or(bucket))
}

/// The key of a document, and the length of its tokens in bytes.
fn record_head(head: &[u8]) -> Option<(u64, u64)> {
    let (key, count) = head.split_at(8);
    Some((u64::from_le_bytes(key.try_into().ok()?), u64::from_le_bytes(count.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bpe::encoder::Model;

    /// Returns the shard that 500 documents of known tokens make with buckets of this size.
    fn shuffled(model: &Arc<Model>, folder: &Path, corpus_bytes: u64, bucket_bytes: u64) -> Vec<u8> {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("shuffle_000_007.tmp"), "of a killed run").unwrap();
        let mut shuffle = Shuffle::<u16>::new(folder, 5, corpus_bytes, bucket_bytes).unwrap();
        for row in 0..500 {
            shuffle.write(&vec![row as u16; row % 9]);
            shuffle.write(&[50_256]);
            shuffle.end_document(row % 3, row as u64).unwrap();
        }
        let mut writer = SplitWriter::new(folder.to_owned(), model.clone(), 1 << 20, 0);
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
        let one = shuffled(&model, &folder, 100_000, 1 << 20);
        assert!(one == shuffled(&model, &folder, 100_000, 1_000));
        assert!(one == shuffled(&model, &folder, 100_000, 1));
        // bucket sizes that force splits, down to single documents
        assert!(one == shuffled(&model, &folder, 1, 3_000));
        assert!(one == shuffled(&model, &folder, 2, 1));
    }
}
