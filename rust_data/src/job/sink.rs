//! The end of the pipeline: batches in corpus order become shards, and the journal follows them.

use std::path::PathBuf;
use std::sync::Arc;

use super::journal::{Journal, Position, Settings, JOURNAL};
use super::progress::Progress;
use super::{OnError, Options};
use crate::bpe::cache::Id;
use crate::bpe::encoder::Model;
use crate::corpus::sources::Source;
use crate::corpus::Rejected;
use crate::error::{Error, Result};
use crate::shards::manifest::{write_json, SourceInfo, Splits};
use crate::shards::writer::ShardWriter;

/// The tokens of one batch.
pub struct Encoded<T> {
    pub unit: usize,
    /// Which file the rows are of.
    pub source: usize,
    pub tokens: Vec<T>,
    pub rows: Vec<RowTokens>,
    pub rejected: Vec<Rejected>,
}

/// The tokens up to `end` are of `row`; a complete row ends in its end-of-text token.
pub struct RowTokens {
    pub row: u64,
    pub end: usize,
    pub complete: bool,
}

pub struct Sink<T: Id> {
    directory: PathBuf,
    model: Arc<Model>,
    sources: Vec<Source>,
    on_error: OnError,
    journal: Journal,
    shard: Option<ShardWriter>,
    /// Tokens still to pass over because a complete shard holds them.
    skip_tokens: u64,
    /// Tokens of the val split, those of an unfinished shard included; `None` once the split is closed.
    val_tokens: Option<u64>,
    progress: Arc<Progress>,
    tokens: std::marker::PhantomData<T>,
}

impl<T: Id> Sink<T> {
    pub fn new(
        options: &Options,
        model: Arc<Model>,
        sources: Vec<Source>,
        journal: Journal,
        progress: Arc<Progress>,
    ) -> Self {
        let written = journal.splits.val.tokens;
        let val_open = written < journal.settings.val_tokens && journal.splits.train.shards.is_empty();
        Self {
            directory: options.out.clone(),
            model,
            sources,
            on_error: options.on_error,
            skip_tokens: journal.position.token,
            val_tokens: val_open.then_some(written),
            journal,
            shard: None,
            progress,
            tokens: std::marker::PhantomData,
        }
    }

    fn settings(&self) -> &Settings {
        &self.journal.settings
    }

    /// Writes one batch; batches must come in corpus order.
    pub fn accept(&mut self, batch: &Encoded<T>) -> Result<()> {
        let mut rejected = batch.rejected.iter().peekable();
        let mut start = 0;
        for row in &batch.rows {
            while let Some(bad) = rejected.next_if(|bad| bad.row < row.row) {
                self.reject(batch.source, bad)?;
            }
            if (self.journal.position.unit, self.journal.position.row) != (batch.unit, row.row) {
                self.journal.position = Position { unit: batch.unit, row: row.row, token: 0 };
            }
            self.write(&batch.tokens[start..row.end])?;
            start = row.end;
            if row.complete {
                self.end_document(batch, row.row)?;
            }
        }
        rejected.try_for_each(|bad| self.reject(batch.source, bad))
    }

    fn reject(&mut self, source: usize, bad: &Rejected) -> Result<()> {
        if self.on_error == OnError::Stop {
            let file = self.sources[source].path.display().to_string();
            let row = self.sources[source].row_number(bad.row);
            return Err(Error::Row { file, row, reason: bad.reason.clone() });
        }
        self.journal.sources[source].skipped += 1;
        Progress::add(&self.progress.skipped, 1);
        Ok(())
    }

    fn write(&mut self, mut tokens: &[T]) -> Result<()> {
        let skipped = self.skip_tokens.min(tokens.len() as u64);
        self.skip_tokens -= skipped;
        tokens = &tokens[skipped as usize..];
        while !tokens.is_empty() {
            let room = self.settings().shard_tokens - self.shard.as_ref().map_or(0, ShardWriter::tokens);
            if room == 0 {
                self.finish_shard()?;
                continue;
            }
            let (now, later) = tokens.split_at(tokens.len().min(room as usize));
            self.open_shard()?.push(now)?;
            self.journal.position.token += now.len() as u64;
            if let Some(written) = &mut self.val_tokens {
                *written += now.len() as u64;
            }
            tokens = later;
        }
        Ok(())
    }

    fn open_shard(&mut self) -> Result<&mut ShardWriter> {
        let shard = match self.shard.take() {
            Some(shard) => shard,
            None => {
                let (name, split) = match self.val_tokens {
                    Some(_) => ("val", &self.journal.splits.val),
                    None => ("train", &self.journal.splits.train),
                };
                let name = format!("{name}_{:06}.bin", split.shards.len());
                ShardWriter::create::<T>(&self.directory, name, &self.model.vocab)?
            }
        };
        Ok(self.shard.insert(shard))
    }

    fn end_document(&mut self, batch: &Encoded<T>, row: u64) -> Result<()> {
        self.open_shard()?.end_document();
        self.journal.sources[batch.source].documents += 1;
        Progress::add(&self.progress.documents, 1);
        self.journal.position = Position { unit: batch.unit, row: row + 1, token: 0 };
        if self.val_tokens.is_some_and(|written| written >= self.settings().val_tokens) {
            self.finish_shard()?;
            self.val_tokens = None;
        }
        Ok(())
    }

    fn finish_shard(&mut self) -> Result<()> {
        let Some(shard) = self.shard.take() else { return Ok(()) };
        let info = shard.finish()?;
        let splits = &mut self.journal.splits;
        let split = if self.val_tokens.is_some() { &mut splits.val } else { &mut splits.train };
        split.push(info);
        Progress::add(&self.progress.shards, 1);
        self.write_journal()
    }

    pub fn write_journal(&self) -> Result<()> {
        write_json(&self.directory.join(JOURNAL), &self.journal)
    }

    pub fn set_digest(&mut self, source: usize, sha256: String) {
        self.journal.sources[source].sha256 = sha256;
    }

    /// Closes the last shard; the splits and sources of the whole job.
    pub fn finish(mut self) -> Result<(Splits, Vec<SourceInfo>)> {
        self.finish_shard()?;
        let (asked, train) = (self.settings().val_tokens, &self.journal.splits.train);
        if train.tokens == 0 {
            let val = self.journal.splits.val.tokens;
            return Err(Error::value(format!(
                "the corpus has {val} tokens and --val-tokens {asked} took them all; ask for less"
            )));
        }
        Ok((self.journal.splits, self.journal.sources))
    }
}
