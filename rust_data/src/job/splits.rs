//! Cuts a stream of documents into the val and train shards of a directory.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use crate::bpe::encoder::Model;
use crate::bpe::id::Id;
use crate::error::{Error, Result};
use crate::shards::manifest::Splits;
use crate::shards::writer::ShardWriter;

/// Returns a value error if the val split leaves no sequence to train on.
pub fn check_train(asked: u64, splits: &Splits) -> Result<()> {
    let (train, val) = (splits.train.tokens, splits.val.tokens);
    // a single end-of-text token is no sequence to train on
    if train > 1 || val == 0 {
        return Ok(());
    }
    let total = val + train;
    Err(Error::value(format!(
        "--val-tokens {asked} takes the whole corpus of {total} tokens; ask for less (a tenth is {}), or for 0",
        total / 10
    )))
}

pub struct SplitWriter<T> {
    directory: PathBuf,
    model: Arc<Model>,
    shard_tokens: u64,
    val_target: u64,
    /// Complete shards.
    splits: Splits,
    shard: Option<ShardWriter>,
    /// Tokens of the val split, those of an unfinished shard included; `None` once the split is closed.
    val_tokens: Option<u64>,
    /// Tokens of the current document that have been written.
    document_tokens: u64,
    tokens: PhantomData<T>,
}

impl<T: Id> SplitWriter<T> {
    /// Begins the val split, or the train split if `val_target` is 0.
    pub fn new(directory: PathBuf, model: Arc<Model>, shard_tokens: u64, val_target: u64) -> Self {
        let val_tokens = (val_target > 0).then_some(0);
        let splits = Splits::default();
        let (shard, document_tokens, tokens) = (None, 0, PhantomData);
        Self { directory, model, shard_tokens, val_target, splits, shard, val_tokens, document_tokens, tokens }
    }

    /// Goes on behind the complete shards in `splits`. They hold `document_tokens` tokens of a document that has not
    /// ended.
    pub fn behind(self, splits: Splits, document_tokens: u64) -> Self {
        let written = splits.val.tokens;
        let val_open = written < self.val_target && splits.train.shards.is_empty();
        Self { splits, val_tokens: val_open.then_some(written), document_tokens, ..self }
    }

    pub fn splits(&self) -> &Splits {
        &self.splits
    }

    /// Deletes the complete shards.
    pub fn remove_shards(self) -> Result<()> {
        for shard in self.splits.val.shards.iter().chain(&self.splits.train.shards) {
            let path = self.directory.join(&shard.file);
            std::fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }

    /// Writes as many tokens as fit into the current shard, and returns their number; 0 if the shard is full. The val
    /// split is full when it holds as many tokens of one document as it was asked for: that document is then split.
    pub fn write(&mut self, tokens: &[T]) -> Result<usize> {
        let mut room = self.shard_tokens - self.shard.as_ref().map_or(0, ShardWriter::tokens);
        if self.val_tokens.is_some() {
            room = room.min(self.val_target - self.document_tokens);
        }
        let count = tokens.len().min(room as usize);
        if count > 0 {
            self.open_shard()?.push(&tokens[..count])?;
            self.document_tokens += count as u64;
            if let Some(written) = &mut self.val_tokens {
                *written += count as u64;
            }
        }
        Ok(count)
    }

    /// Writes all `tokens`, and begins a new shard whenever one is full.
    pub fn write_all(&mut self, mut tokens: &[T]) -> Result<()> {
        while !tokens.is_empty() {
            match self.write(tokens)? {
                0 => self.finish_shard()?,
                written => tokens = &tokens[written..],
            }
        }
        Ok(())
    }

    fn open_shard(&mut self) -> Result<&mut ShardWriter> {
        let shard = match self.shard.take() {
            Some(shard) => shard,
            None => {
                let (name, split) = match self.val_tokens {
                    Some(_) => ("val", &self.splits.val),
                    None => ("train", &self.splits.train),
                };
                let name = format!("{name}_{:06}.bin", split.shards.len());
                ShardWriter::create::<T>(&self.directory, name, &self.model)?
            }
        };
        Ok(self.shard.insert(shard))
    }

    /// Counts a document whose last token has been written. Returns true if that completed the val split.
    pub fn end_document(&mut self) -> Result<bool> {
        self.open_shard()?.end_document();
        self.document_tokens = 0;
        let val_is_full = self.val_tokens.is_some_and(|written| written >= self.val_target);
        if val_is_full {
            self.finish_shard()?;
            self.val_tokens = None;
        }
        Ok(val_is_full)
    }

    /// Completes the current shard, if there is one. Ends the val split if it has enough tokens of a document that is
    /// split.
    pub fn finish_shard(&mut self) -> Result<()> {
        if let Some(shard) = self.shard.take() {
            let info = shard.finish()?;
            let split = if self.val_tokens.is_some() { &mut self.splits.val } else { &mut self.splits.train };
            split.push(info);
        }
        if self.val_tokens.is_some() && self.document_tokens == self.val_target {
            self.splits.val.cut_document = true;
            self.val_tokens = None;
        }
        Ok(())
    }
}
