//! Planning a job, running it on threads, and writing the manifest.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::begin::{begin, lock, Begin};
use super::journal::{Position, JOURNAL};
use super::lanes::{Lanes, Ticket};
use super::progress::Progress;
use super::sink::{Encoded, RowTokens, Sink};
use super::{OnError, Options};
use crate::bpe::encoder::{Encoder, Model};
use crate::bpe::id::Id;
use crate::bpe::vocab::hex;
use crate::corpus::sources::{find, Source};
use crate::corpus::units::{part_of, units_of, Unit};
use crate::corpus::{Batch, Rejected, Rows};
use crate::error::{Error, Result};
use crate::shards::header::MAX_SHARD_TOKENS;
use crate::shards::manifest::{write_json, Manifest, SourceInfo, Splits, TokenizerInfo, FORMAT, MANIFEST};
use crate::shards::writer::sha256_of_file;

/// What a job will do: its files and this part's units.
pub struct Plan {
    pub sources: Vec<Source>,
    pub units: Vec<Unit>,
    /// Files that cannot be read at all and why (`OnError::Skip` only).
    pub broken: Vec<(usize, String)>,
}

impl Plan {
    /// The files that this part read from, each with its digest.
    fn digest(&self, sources: Vec<SourceInfo>) -> Result<Vec<SourceInfo>> {
        let mut used = Vec::new();
        for (index, mut info) in sources.into_iter().enumerate() {
            let was_opened = self.units.iter().any(|unit| unit.source == index);
            if info.error.is_none() && !was_opened {
                continue;
            }
            if info.sha256.is_empty() && was_opened {
                info.sha256 = sha256_of_file(&self.sources[index].path)?;
            }
            used.push(info);
        }
        Ok(used)
    }
}

pub fn plan(inputs: &[String], options: &Options) -> Result<Plan> {
    check(options)?;
    let sources = find(inputs)?;
    let (mut units, mut broken) = (Vec::new(), Vec::new());
    for (index, source) in sources.iter().enumerate() {
        match units_of(index, source, &options.column) {
            Ok(more) => units.extend(more),
            Err(error) if options.on_error == OnError::Skip => broken.push((index, error.to_string())),
            Err(error) => return Err(error),
        }
    }
    let (index, count) = options.part;
    Ok(Plan { sources, units: part_of(units, index, count), broken })
}

fn check(options: &Options) -> Result<()> {
    if !(1..=MAX_SHARD_TOKENS).contains(&options.shard_tokens) {
        let got = options.shard_tokens;
        return Err(Error::value(format!("--shard-tokens {got}: must be in 1 .. {MAX_SHARD_TOKENS}")));
    }
    if options.part.0 >= options.part.1 {
        let (index, count) = options.part;
        return Err(Error::value(format!("--part {index}/{count}: the part must be in 0 .. {count}")));
    }
    if options.threads == 0 {
        return Err(Error::value("--threads 0: must be at least 1"));
    }
    if options.memory < options.least_memory() {
        let (threads, memory, least) = (options.threads, options.memory, options.least_memory());
        return Err(Error::value(format!("--memory {memory}: {threads} threads need at least {least} bytes")));
    }
    Ok(())
}

/// Runs a planned job to its manifest.
pub fn run(plan: Plan, options: &Options, model: &Arc<Model>, progress: &Arc<Progress>) -> Result<Manifest> {
    if model.vocab.size() <= 1 << 16 {
        run_as::<u16>(plan, options, model, progress)
    } else {
        run_as::<u32>(plan, options, model, progress)
    }
}

fn run_as<T: Id>(plan: Plan, options: &Options, model: &Arc<Model>, progress: &Arc<Progress>) -> Result<Manifest> {
    std::fs::create_dir_all(&options.out).map_err(Error::io(&options.out))?;
    let _alone = lock(&options.out)?;
    let journal = match begin(&plan, options, model)? {
        Begin::Complete(manifest) => return Ok(manifest),
        Begin::At(journal) => journal,
    };
    let start = journal.position;
    let total = plan.units[start.unit.min(plan.units.len())..].iter().map(|unit| unit.weight).sum();
    Progress::add(&progress.total, total);
    let mut sink = Sink::<T>::new(options, model, &plan.sources, journal, progress)?;
    sink.checkpoint()?;
    let (opened, to_digest) = channel();
    let job = Job {
        lanes: Lanes::new(start.unit, plan.units.len(), options.threads, options.waiting_bytes() as usize),
        sink: Mutex::new(sink),
        plan: &plan,
        options,
        model,
        progress,
        start,
    };
    let guarded = |work: &dyn Fn()| {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            job.lanes.fail(Error::value("internal error in a worker thread"));
        }
    };
    std::thread::scope(|scope| {
        let guarded = &guarded;
        let job = &job;
        for _ in 0..options.threads {
            let opened = opened.clone();
            scope.spawn(move || guarded(&|| job.work(&opened)));
        }
        // the digests end when the last worker has dropped its sender
        drop(opened);
        let to_digest = Mutex::new(to_digest);
        scope.spawn(move || guarded(&|| job.digest(&to_digest.lock().unwrap_or_else(PoisonError::into_inner))));
    });
    let sink = job.sink.into_inner().unwrap_or_else(PoisonError::into_inner);
    job.lanes.outcome()?;
    let (splits, sources) = sink.finish()?;
    if options.part.1 == 1 && splits.train.tokens + splits.val.tokens == 0 {
        let (rows, files) = (sources.iter().map(|source| source.skipped).sum::<u64>(), plan.broken.len());
        return Err(Error::value(format!("the input holds no text: {rows} rows and {files} files were left out")));
    }
    let manifest = manifest_of::<T>(options, model, splits, plan.digest(sources)?);
    write_json(&options.out.join(MANIFEST), &manifest)?;
    let journal = options.out.join(JOURNAL);
    std::fs::remove_file(&journal).map_err(Error::io(&journal))?;
    Ok(manifest)
}

fn manifest_of<T: Id>(options: &Options, model: &Model, splits: Splits, sources: Vec<SourceInfo>) -> Manifest {
    Manifest {
        format: FORMAT.to_owned(),
        version: 1,
        complete: true,
        tokenizer: TokenizerInfo {
            name: model.vocab.name.clone(),
            sha256: hex(&model.digest()),
            vocab_size: model.vocab.size(),
            eot: model.vocab.eot,
        },
        dtype: format!("uint{}", 8 * size_of::<T>()),
        seed: options.seed,
        shard_tokens: options.shard_tokens,
        part: options.part,
        splits,
        sources,
        created_by: concat!("rust_data ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

/// Reads, and takes a panic of a format's library, as over damaged lengths, for what it is: a broken file.
fn contained<R>(path: &Path, read: impl FnOnce() -> Result<R>) -> Result<R> {
    let broken = || Error::value(format!("{}: broken file, reading it stopped at an impossible value", path.display()));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(broken()))
}

struct Job<'a, T: Id> {
    lanes: Lanes<T>,
    sink: Mutex<Sink<T>>,
    plan: &'a Plan,
    options: &'a Options,
    model: &'a Arc<Model>,
    progress: &'a Arc<Progress>,
    start: Position,
}

impl<T: Id> Job<'_, T> {
    /// One thread: read a batch, encode it, hand it in, until nothing is left.
    fn work(&self, opened: &Sender<usize>) {
        let mut encoder = Encoder::new(self.model.clone());
        let mut batch = Batch { whole_documents: !self.model.starts_at_word_borders(), ..Batch::default() };
        while let Some(mut ticket) = self.lanes.take() {
            if self.progress.is_cancelled() {
                return self.lanes.fail(Error::Cancelled);
            }
            if let Err(error) = self.read_and_encode(&mut ticket, &mut batch, &mut encoder, opened) {
                return self.lanes.fail(error);
            }
        }
    }

    /// Takes the digest of each file that has been opened, beside the workers: one of them would keep the
    /// others waiting for the first rows.
    fn digest(&self, opened: &Receiver<usize>) {
        for source in opened {
            match sha256_of_file(&self.plan.sources[source].path) {
                Ok(sha256) => self.sink().set_digest(source, sha256),
                Err(error) => return self.lanes.fail(error),
            }
        }
    }

    fn read_and_encode(
        &self,
        ticket: &mut Ticket,
        batch: &mut Batch,
        encoder: &mut Encoder<T>,
        opened: &Sender<usize>,
    ) -> Result<()> {
        let mut reader = match ticket.reader.take() {
            Some(reader) => reader,
            None => self.open(ticket.unit, opened)?,
        };
        batch.clear();
        let before = reader.progress();
        let path = &self.plan.sources[self.plan.units[ticket.unit].source].path;
        let (more, broken) = match contained(path, || reader.fill(batch)) {
            Ok(more) => (more, None),
            Err(error) if self.options.on_error == OnError::Skip => (false, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        Progress::add(&self.progress.read, reader.progress() - before);
        self.lanes.give_back(ticket.unit, more.then_some(reader));

        let mut encoded = self.encode(ticket.unit, batch, encoder)?;
        encoded.broken = broken;
        let write = |batch: &Encoded<T>| self.sink().accept(batch);
        self.lanes.deliver(ticket, encoded, !more, &write);
        Ok(())
    }

    fn sink(&self) -> std::sync::MutexGuard<'_, Sink<T>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, index: usize, opened: &Sender<usize>) -> Result<Box<dyn Rows>> {
        let unit = &self.plan.units[index];
        let source = &self.plan.sources[unit.source];
        if unit.first_row == 0 {
            // where nobody listens any more, the job has failed
            let _ = opened.send(unit.source);
        }
        let skip = if index == self.start.unit { self.start.row.saturating_sub(unit.first_row) } else { 0 };
        contained(&source.path, || unit.open(source, &self.options.column, self.options.max_line_bytes(), skip))
    }

    fn encode(&self, unit: usize, batch: &mut Batch, encoder: &mut Encoder<T>) -> Result<Encoded<T>> {
        let eot = T::from_u32(self.model.vocab.eot);
        let mut tokens = self.lanes.buffer();
        let mut rows = Vec::with_capacity(batch.rows.len());
        let mut start = 0;
        for row in &batch.rows {
            let before = tokens.len();
            let outcome = encoder.encode(&batch.text[start..row.end], &mut tokens);
            start = row.end;
            if let Err(error) = outcome {
                // a pattern that gives up on a text, as regular expressions may
                tokens.truncate(before);
                batch.rejected.push(Rejected { row: row.row, reason: error.to_string() });
                continue;
            }
            if row.complete {
                tokens.push(eot);
            }
            rows.push(RowTokens { row: row.row, end: tokens.len(), complete: row.complete });
        }
        batch.rejected.sort_by_key(|bad| bad.row);
        Progress::add(&self.progress.text_bytes, batch.text.len() as u64);
        Progress::add(&self.progress.tokens, tokens.len() as u64);
        let source = self.plan.units[unit].source;
        Ok(Encoded { unit, source, tokens, rows, rejected: std::mem::take(&mut batch.rejected), broken: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_over_a_file_is_a_broken_file() {
        let error = contained(Path::new("a.parquet"), || -> Result<()> { panic!("negative length") }).unwrap_err();
        assert!(error.to_string().starts_with("a.parquet: broken file"));
    }
}
