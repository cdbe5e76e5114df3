//! The end of the pipeline: writes batches, in the order of the corpus, to shards, and keeps the journal.

use std::sync::Arc;

use super::journal::{Journal, Position, JOURNAL};
use super::options::Options;
use super::progress::Progress;
use super::shuffle::Shuffle;
use super::splits::{check_train, SplitWriter};
use crate::bpe::encoder::Model;
use crate::bpe::id::Id;
use crate::corpus::sources::Source;
use crate::corpus::Rejected;
use crate::error::{Error, Result};
use crate::shards::manifest::{write_json, SourceInfo, Splits};
use crate::shards::settings::OnError;

/// The tokens of one batch.
pub struct Encoded<T> {
    pub unit: usize,
    /// Index of the file that the rows belong to.
    pub source: usize,
    pub tokens: Vec<T>,
    pub rows: Vec<RowTokens>,
    pub rejected: Vec<Rejected>,
    /// Why reading the file stopped early.
    pub broken: Option<String>,
}

/// The end of a row's tokens in the batch. A complete row ends with its end-of-text token.
pub struct RowTokens {
    pub row: u64,
    pub end: usize,
    pub complete: bool,
}

pub struct Sink<T: Id> {
    journal: Journal,
    journal_path: std::path::PathBuf,
    sources: Vec<Source>,
    on_error: OnError,
    eot: T,
    writer: SplitWriter<T>,
    /// Holds the documents until the end if they are to be permuted.
    shuffle: Option<Shuffle<T>>,
    /// Number of tokens to pass over, because a complete shard holds them already.
    skip_tokens: u64,
    /// Whether the last row written is still incomplete.
    open_row: bool,
    progress: Arc<Progress>,
}

impl<T: Id> Sink<T> {
    pub fn new(
        options: &Options,
        model: &Arc<Model>,
        sources: &[Source],
        journal: Journal,
        progress: &Arc<Progress>,
    ) -> Result<Self> {
        let splits = journal.splits.clone();
        let (shard_tokens, val_tokens) = (options.shard_tokens, options.val_tokens);
        let shuffle = match options.seed {
            0 => None,
            seed => Some(Shuffle::new(&options.out, seed, Progress::get(&progress.total), options.bucket_bytes())?),
        };
        Ok(Self {
            journal_path: options.out.join(JOURNAL),
            sources: sources.to_vec(),
            on_error: options.on_error,
            eot: T::from_u32(model.vocab.eot),
            writer: SplitWriter::new(options.out.clone(), model.clone(), shard_tokens, val_tokens)
                .behind(splits, journal.position.token),
            shuffle,
            skip_tokens: journal.position.token,
            open_row: false,
            progress: progress.clone(),
            journal,
        })
    }

    /// Writes one batch; batches must come in corpus order.
    pub fn accept(&mut self, batch: &Encoded<T>) -> Result<()> {
        let mut rejected = batch.rejected.iter().peekable();
        let mut start = 0;
        for row in &batch.rows {
            while let Some(bad) = rejected.next_if(|bad| bad.row < row.row) {
                self.reject(batch, bad)?;
            }
            self.seek(batch.unit, row.row);
            self.write(&batch.tokens[start..row.end])?;
            start = row.end;
            self.open_row = !row.complete;
            if row.complete {
                self.end_document(batch.source)?;
            }
        }
        rejected.try_for_each(|bad| self.reject(batch, bad))?;
        match &batch.broken {
            Some(reason) => self.give_up(batch.source, reason),
            None => Ok(()),
        }
    }

    fn seek(&mut self, unit: usize, row: u64) {
        let position = &mut self.journal.position;
        if (position.unit, position.row) != (unit, row) {
            *position = Position { unit, row, token: 0 };
        }
    }

    fn write(&mut self, tokens: &[T]) -> Result<()> {
        let skipped = self.skip_tokens.min(tokens.len() as u64);
        self.skip_tokens -= skipped;
        let mut tokens = &tokens[skipped as usize..];
        if let Some(shuffle) = &mut self.shuffle {
            shuffle.write(tokens);
            return Ok(());
        }
        while !tokens.is_empty() {
            match self.writer.write(tokens)? {
                0 => {
                    self.writer.finish_shard()?;
                    self.checkpoint()?;
                }
                written => {
                    self.journal.position.token += written as u64;
                    tokens = &tokens[written..];
                }
            }
        }
        Ok(())
    }

    fn end_document(&mut self, source: usize) -> Result<()> {
        self.open_row = false;
        self.journal.sources[source].documents += 1;
        Progress::add(&self.progress.documents, 1);
        let position = &mut self.journal.position;
        let row = position.row;
        *position = Position { unit: position.unit, row: row + 1, token: 0 };
        match &mut self.shuffle {
            Some(shuffle) => shuffle.end_document(source, row),
            None if self.writer.end_document()? => self.checkpoint(),
            None => Ok(()),
        }
    }

    /// Counts a row without usable text, or stops the job with the reason, as `on_error` says.
    fn reject(&mut self, batch: &Encoded<T>, bad: &Rejected) -> Result<()> {
        let source = batch.source;
        if self.on_error == OnError::Stop {
            let place = self.sources[source].place_of(bad.row);
            return Err(Error::Row { place, reason: bad.reason.clone(), resume: false });
        }
        self.journal.sources[source].skipped += 1;
        Progress::add(&self.progress.skipped, 1);
        self.close_row(source)?;
        // a resumed run must not count the row again
        self.journal.position = Position { unit: batch.unit, row: bad.row + 1, token: 0 };
        Ok(())
    }

    fn give_up(&mut self, source: usize, reason: &str) -> Result<()> {
        self.journal.sources[source].error = Some(reason.to_owned());
        self.close_row(source)
    }

    /// Ends a row that turned out bad after a part of it was written: that part is a document of its own.
    fn close_row(&mut self, source: usize) -> Result<()> {
        if self.open_row {
            self.write(&[self.eot])?;
            self.end_document(source)?;
        }
        Ok(())
    }

    /// Writes the shards so far to the journal, so that a resumed run goes on behind them.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.journal.splits = self.writer.splits().clone();
        let shards = self.journal.splits.train.shards.len() + self.journal.splits.val.shards.len();
        Progress::set(&self.progress.shards, shards as u64);
        write_json(&self.journal_path, &self.journal)
    }

    pub fn set_digest(&mut self, source: usize, sha256: String) {
        self.journal.sources[source].sha256 = sha256;
    }

    /// Closes the last shard and returns the splits and sources of the whole job. A corpus without a sequence to train
    /// on is removed and is an error.
    pub fn finish(mut self) -> Result<(Splits, Vec<SourceInfo>)> {
        if let Some(shuffle) = self.shuffle.take() {
            shuffle.drain(&mut self.writer)?;
        }
        self.writer.finish_shard()?;
        self.checkpoint()?;
        if let Err(error) = check_train(self.journal.settings.val_tokens, &self.journal.splits) {
            std::fs::remove_file(&self.journal_path).map_err(Error::io(&self.journal_path))?;
            self.writer.remove_shards()?;
            return Err(error);
        }
        Ok((self.journal.splits, self.journal.sources))
    }
}
