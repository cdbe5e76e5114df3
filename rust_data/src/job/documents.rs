//! Writes a corpus document by document, for a caller that reads the texts itself or joins parts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::splits::{check_train, SplitWriter};
use crate::bpe::encoder::Model;
use crate::bpe::id::Id;
use crate::error::{Error, Result};
use crate::shards::header::MAX_SHARD_TOKENS;
use crate::shards::manifest::Splits;
use crate::shards::reader::Shard;

/// Number of tokens of a shard that are read at a time.
const PIECE_TOKENS: u64 = 1 << 20;

pub struct DocumentWriter<T: Id> {
    writer: SplitWriter<T>,
    eot: T,
    val_tokens: u64,
}

impl<T: Id> DocumentWriter<T> {
    /// Starts a corpus in `directory`. Its shards are the same as those of a job with the same documents and settings.
    pub fn new(directory: PathBuf, model: Arc<Model>, shard_tokens: u64, val_tokens: u64) -> Result<Self> {
        if !(1..=MAX_SHARD_TOKENS).contains(&shard_tokens) {
            return Err(Error::value(format!("shard_tokens={shard_tokens}: must be in 1 .. {MAX_SHARD_TOKENS}")));
        }
        let eot = T::from_u32(model.vocab.eot);
        Ok(Self { writer: SplitWriter::new(directory, model, shard_tokens, val_tokens), eot, val_tokens })
    }

    /// Writes documents, each with the end-of-text token behind it; document `i` is `offsets[i] .. offsets[i + 1]` of
    /// `ids`.
    pub fn write(&mut self, ids: &[T], offsets: &[i64]) -> Result<()> {
        for pair in offsets.windows(2) {
            let document = ids.get(pair[0] as usize..pair[1] as usize);
            let document = document.ok_or_else(|| Error::value("offsets: must ascend and lie in the ids"))?;
            self.writer.write_all(document)?;
            self.writer.write_all(&[self.eot])?;
            self.writer.end_document()?;
        }
        Ok(())
    }

    /// Writes the tokens `start .. start + count` of a shard, in which the end-of-text token ends a document.
    pub fn copy(&mut self, shard: &Path, start: u64, count: u64) -> Result<()> {
        let mut shard = Shard::open(shard)?;
        let end = start.saturating_add(count).min(shard.header.tokens);
        for from in (start..end).step_by(PIECE_TOKENS as usize) {
            let piece = shard.tokens(from, PIECE_TOKENS.min(end - from))?;
            let piece: Vec<T> = piece.into_iter().map(T::from_u32).collect();
            for document in piece.split_inclusive(|&id| id == self.eot) {
                self.writer.write_all(document)?;
                if document.last() == Some(&self.eot) {
                    self.writer.end_document()?;
                }
            }
        }
        Ok(())
    }

    /// Completes the last shard. A corpus without a sequence to train on is removed and is an error.
    pub fn finish(mut self) -> Result<Splits> {
        self.writer.finish_shard()?;
        let splits = self.writer.splits().clone();
        if let Err(error) = check_train(self.val_tokens, &splits) {
            self.writer.remove_shards()?;
            return Err(error);
        }
        Ok(splits)
    }
}
