//! Decides where a run starts: at the first document, behind what a killed run has written, or not at all.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::journal::{Journal, Position, JOURNAL};
use super::options::Options;
use super::plan::Plan;
use crate::bpe::encoder::Model;
use crate::error::{Error, Result};
use crate::shards::manifest::{read_json, Manifest, SourceInfo, Splits};
use crate::shards::settings::{Form, OnError, Settings};
use crate::shards::writer::sha256_of_file;

/// A lock on a directory. It keeps other runs out until it is dropped or this process ends. On a file system without
/// locks the run goes on without one.
pub fn lock(directory: &Path) -> Result<File> {
    let folder = File::open(directory).map_err(Error::io(directory))?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Error::value(format!("{}: another run is writing here; wait for it or stop it", directory.display())))
        }
        _ => Ok(folder),
    }
}

pub enum Begin {
    Complete(Manifest),
    At(Journal),
}

/// Returns the error that a run with these options would return before its first row. Writes nothing.
pub fn check_out(plan: &Plan, options: &Options, model: &Model) -> Result<()> {
    let out = &options.out;
    if out.exists() {
        let _alone = lock(out)?;
        return begin(plan, options, model).map(|_| ());
    }
    let whole = std::path::absolute(out).map_err(Error::io(out))?;
    match whole.ancestors().find(|folder| folder.exists()) {
        Some(folder) if folder.is_dir() => Ok(()),
        found => {
            let found = found.unwrap_or(&whole).display();
            Err(Error::value(format!("--out {}: {found} is no folder; choose another --out", out.display())))
        }
    }
}

/// Where a run starts: at the first document, behind the journal of a killed run, or not at all.
pub fn begin(plan: &Plan, options: &Options, model: &Model) -> Result<Begin> {
    let out = options.out.display();
    if !options.out.is_dir() {
        return Err(Error::value(format!("--out {out}: is no folder; choose another --out")));
    }
    let now = plan.settings(options, model);
    let exists = |name: &str| Some(options.out.join(name)).filter(|path| path.exists());
    let done = [Form::Nanogpt, Form::Shards].into_iter().find_map(|form| exists(form.manifest()));
    let journal = exists(JOURNAL);
    match (options.resume, done, journal) {
        (false, Some(_), _) => {
            Err(Error::value(format!("{out} holds a complete corpus; delete it or choose another --out")))
        }
        (false, None, Some(_)) => Err(Error::value(format!(
            "{out} holds an unfinished run (--resume goes on with it); delete it or choose another --out"
        ))),
        (true, Some(done), _) => Ok(Begin::Complete(check_complete(plan, options, &done, &now)?)),
        (true, None, Some(path)) => {
            let mut journal: Journal = read_json(&path).map_err(|error| {
                Error::value(format!(
                    "{error}; the journal is damaged or of another version: delete {out} and start anew"
                ))
            })?;
            check_interrupted(plan, options, &journal, &now)?;
            journal.settings.on_error = now.on_error;
            Ok(Begin::At(journal))
        }
        (_, None, None) => {
            refuse_shards(&options.out)?;
            let modified = plan.sources.iter().map(|source| source.modified).collect();
            let (position, splits, sources) = (Position::default(), Splits::default(), plan.unread());
            Ok(Begin::At(Journal { settings: now, position, splits, sources, modified }))
        }
    }
}

/// Returns the manifest of a complete corpus if its settings, inputs and files are those of this run.
fn check_complete(plan: &Plan, options: &Options, path: &Path, now: &Settings) -> Result<Manifest> {
    let done: Manifest = read_json(path)?;
    let Some(before) = &done.settings else {
        return Err(Error::value(format!(
            "{}: complete, but without the settings that --resume compares (it was merged, or written by an earlier \
             version); use it as it is, or choose another --out",
            path.display()
        )));
    };
    refuse_differences(&options.out, "is complete", before, now)?;
    check_shards(&options.out, &done.splits)?;
    let digests = done.sources.iter().filter(|source| !source.sha256.is_empty());
    for SourceInfo { file, sha256, .. } in digests {
        if let Some(source) = plan.sources.iter().find(|source| source.name == *file) {
            check_digest(&source.path, sha256)?;
        }
    }
    Ok(done)
}

/// Checks that an interrupted run goes on with the same settings, inputs and shards. Only `--on-error` may have become
/// `skip`.
fn check_interrupted(plan: &Plan, options: &Options, journal: &Journal, now: &Settings) -> Result<()> {
    let mut before = journal.settings.clone();
    if now.on_error == OnError::Skip {
        before.on_error = OnError::Skip;
    }
    refuse_differences(&options.out, "was begun", &before, now)?;
    check_shards(&options.out, &journal.splits)?;
    // the run has read the files up to the place where it stopped, so they must not have changed since
    let stopped_in = plan.units.get(journal.position.unit).map(|unit| unit.source);
    let read_from = plan.units.iter().take(journal.position.unit + 1).map(|unit| unit.source);
    let mut read_from: Vec<usize> = read_from.collect();
    read_from.dedup();
    for index in read_from {
        let source = &plan.sources[index];
        let before = &journal.sources[index].sha256;
        let same_time = source.modified == journal.modified[index];
        if !before.is_empty() && (stopped_in == Some(index) || !same_time) {
            check_digest(&source.path, before)?;
        } else if !same_time {
            return Err(changed(&source.path));
        }
    }
    Ok(())
}

fn refuse_differences(out: &Path, state: &str, before: &Settings, now: &Settings) -> Result<()> {
    let differences = before.differences(now);
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::value(format!(
        "--resume: {} {state} with other settings: {}; repeat the command with what it was, or choose another --out",
        out.display(),
        differences.join("; ")
    )))
}

/// Refuses a directory that holds shards: a new run neither overwrites them nor adds its own to them.
pub fn refuse_shards(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory).map_err(Error::io(directory))? {
        let path = entry.map_err(Error::io(directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let split = name.strip_prefix("train").or(name.strip_prefix("val"));
        if split.is_some_and(|rest| rest == ".bin" || rest.starts_with('_') && rest.ends_with(".bin")) {
            return Err(Error::value(format!(
                "{} is there already; delete it or choose another --out",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Checks that the files of a corpus are what its manifest or journal says.
fn check_shards(directory: &Path, splits: &Splits) -> Result<()> {
    for shard in splits.val.shards.iter().chain(&splits.train.shards) {
        let path: PathBuf = directory.join(&shard.file);
        if sha256_of_file(&path)? != shard.sha256 {
            return Err(Error::value(format!(
                "{}: changed since it was written; delete {} and start anew",
                path.display(),
                directory.display()
            )));
        }
    }
    Ok(())
}

fn check_digest(path: &Path, before: &str) -> Result<()> {
    if sha256_of_file(path)? == before {
        Ok(())
    } else {
        Err(changed(path))
    }
}

fn changed(path: &Path) -> Error {
    Error::value(format!("{}: changed since it was read; start anew in another --out", path.display()))
}
