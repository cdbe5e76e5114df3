//! Running a planned job on threads, and writing the manifest.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};

use super::begin::{begin, lock, Begin};
use super::end::{complete, remove_leftovers, Folder};
use super::journal::{Journal, Position};
use super::lanes::{Lanes, Ticket};
use super::options::Options;
use super::plan::Plan;
use super::progress::Progress;
use super::sink::{Encoded, RowTokens, Sink};
use crate::bpe::encoder::{Encoder, Model};
use crate::bpe::id::Id;
use crate::bpe::vocab::hex;
use crate::corpus::{Batch, Fill, Rejected, Rows};
use crate::error::{Error, Result};
use crate::shards::manifest::{Manifest, SourceInfo, Splits, TokenizerInfo};
use crate::shards::settings::{OnError, Settings};
use crate::shards::writer::sha256_of_file;

/// Runs a planned job to its manifest.
pub fn run(plan: Plan, options: &Options, model: &Arc<Model>, progress: &Arc<Progress>) -> Result<Manifest> {
    if model.vocab.size() <= 1 << 16 {
        run_as::<u16>(plan, options, model, progress)
    } else {
        run_as::<u32>(plan, options, model, progress)
    }
}

fn run_as<T: Id>(plan: Plan, options: &Options, model: &Arc<Model>, progress: &Arc<Progress>) -> Result<Manifest> {
    let folder = Folder::make(&options.out)?;
    let _alone = lock(&options.out)?;
    let journal = match begin(&plan, options, model) {
        Ok(Begin::At(journal)) => journal,
        Ok(Begin::Complete(manifest)) => {
            remove_leftovers(&options.out, options.format)?;
            return Ok(manifest);
        }
        Err(error) => {
            folder.remove_if_empty();
            return Err(error);
        }
    };
    write_shards::<T>(&plan, options, model, progress, journal).map_err(|error| {
        let resume = folder.tidy();
        match error {
            Error::Row { place, reason, .. } => Error::Row { place, reason, resume },
            other => other,
        }
    })
}

fn write_shards<T: Id>(
    plan: &Plan,
    options: &Options,
    model: &Arc<Model>,
    progress: &Arc<Progress>,
    journal: Journal,
) -> Result<Manifest> {
    let start = journal.position;
    let settings = journal.settings.clone();
    let total = plan.units[start.unit.min(plan.units.len())..].iter().map(|unit| unit.weight).sum();
    Progress::add(&progress.total, total);
    let mut sink = Sink::<T>::new(options, model, &plan.sources, journal, progress)?;
    sink.checkpoint()?;
    let job = Job {
        lanes: Lanes::new(start.unit, plan.units.len(), options.threads, options.waiting_bytes() as usize),
        sink: Mutex::new(sink),
        plan,
        options,
        model,
        progress,
        start,
    };
    std::thread::scope(|scope| job.start_threads(scope));
    let sink = job.sink.into_inner().unwrap_or_else(PoisonError::into_inner);
    job.lanes.outcome()?;
    let (splits, sources) = sink.finish()?;
    if options.part.1 == 1 && splits.train.tokens + splits.val.tokens == 0 {
        let (rows, files) = (sources.iter().map(|source| source.skipped).sum::<u64>(), plan.broken.len());
        return Err(Error::value(format!("the input holds no text: {rows} rows and {files} files were left out")));
    }
    let manifest = manifest_of::<T>(options, model, settings, splits, plan.digest(sources)?);
    complete(&options.out, options.format, manifest)
}

fn manifest_of<T: Id>(
    options: &Options,
    model: &Model,
    settings: Settings,
    splits: Splits,
    sources: Vec<SourceInfo>,
) -> Manifest {
    Manifest {
        format: options.format.name().to_owned(),
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
        settings: Some(settings),
        created_by: concat!("rust_data ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

/// Run `read`, and turn a panic inside a format library (for example on a corrupted length) into a "broken file" error.
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
    /// Starts the workers and the thread that computes digests. `scope` waits until they end.
    fn start_threads<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let (opened, to_digest) = channel();
        let to_digest = Mutex::new(to_digest);
        let digest = move || {
            self.guarded(&|| self.digest(&to_digest.lock().unwrap_or_else(PoisonError::into_inner)));
        };
        let mut outcome = Builder::new().spawn_scoped(scope, digest).map(drop);
        let mut started = 0;
        while outcome.is_ok() && started < self.options.threads {
            let opened = opened.clone();
            outcome = Builder::new().spawn_scoped(scope, move || self.guarded(&|| self.work(&opened))).map(drop);
            started += 1;
        }
        // the digests end when the last worker has dropped its sender
        drop(opened);
        if let Err(error) = outcome {
            let asked = self.options.threads;
            self.lanes.fail(Error::value(format!(
                "--threads {asked}: thread {started} does not start ({error}); ask for fewer"
            )));
        }
    }

    /// Runs `work`; a panic in it fails the job.
    fn guarded(&self, work: &dyn Fn()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.lanes.fail(Error::value("internal error in a worker thread"));
        }
    }

    /// The work of one thread: reads a batch, encodes it and hands it in, until nothing is left.
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

    /// Computes the digest of each file that has been opened, on a thread of its own: if a worker did it, the other
    /// workers would wait for the first rows of the file.
    fn digest(&self, opened: &Receiver<usize>) {
        for source in opened {
            match sha256_of_file(&self.plan.sources[source].path) {
                Ok(sha256) => self.sink().set_digest(source, sha256),
                // the worker that reads the file records why it is left out
                Err(_) if self.skips() => {}
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
        batch.clear();
        let reader = match ticket.reader.take() {
            Some(reader) => Ok(reader),
            None => self.open(ticket.unit, opened),
        };
        let path = &self.plan.sources[self.plan.units[ticket.unit].source].path;
        let outcome = reader.and_then(|mut reader| {
            let before = reader.progress();
            let filled = contained(path, || reader.fill(batch, ticket.first));
            Progress::add(&self.progress.read, reader.progress() - before);
            Ok((reader, filled?))
        });
        let (reader, fill, broken) = match outcome {
            Ok((reader, fill)) => (Some(reader), fill, None),
            Err(error) if self.skips() => (None, Fill::End, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let last = fill == Fill::End;
        self.lanes.give_back(ticket.unit, reader.filter(|_| !last), fill == Fill::Later);

        let mut encoded = self.encode(ticket.unit, batch, encoder)?;
        encoded.broken = broken;
        let write = |batch: &Encoded<T>| self.sink().accept(batch);
        self.lanes.deliver(ticket, encoded, last, &write);
        Ok(())
    }

    fn skips(&self) -> bool {
        self.options.on_error == OnError::Skip
    }

    fn sink(&self) -> std::sync::MutexGuard<'_, Sink<T>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, index: usize, opened: &Sender<usize>) -> Result<Box<dyn Rows>> {
        let unit = &self.plan.units[index];
        let source = &self.plan.sources[unit.source];
        if unit.first_row == 0 {
            // nothing receives any more only if the job has failed
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
                // a regular expression may give up on a text
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
