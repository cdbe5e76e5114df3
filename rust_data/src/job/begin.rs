//! Where a run starts: from nothing, behind what a killed run has written, or not at all.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::journal::{Journal, Position, Settings, JOURNAL};
use super::run::Plan;
use super::{OnError, Options};
use crate::bpe::encoder::Model;
use crate::bpe::vocab::hex;
use crate::error::{Error, Result};
use crate::shards::manifest::{read_json, Manifest, SourceInfo, Splits, MANIFEST};
use crate::shards::writer::sha256_of_file;

/// Keeps other runs out of a directory until it is dropped, or this process ends in whatever way. Where the
/// file system knows no locks there is none.
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

/// Where to start: from nothing, from the journal of a killed run, or not at all.
pub fn begin(plan: &Plan, options: &Options, model: &Model) -> Result<Begin> {
    let settings = Settings {
        tokenizer_sha256: hex(&model.digest()),
        column: options.column.clone(),
        shard_tokens: options.shard_tokens,
        val_tokens: options.val_tokens,
        seed: options.seed,
        part: options.part,
        skip_errors: options.on_error == OnError::Skip,
        max_line_bytes: options.max_line_bytes(),
        inputs: plan.sources.iter().map(|source| (source.name.clone(), source.bytes)).collect(),
    };
    let (manifest, journal) = (options.out.join(MANIFEST), options.out.join(JOURNAL));
    if !options.resume && (manifest.exists() || journal.exists()) {
        let state =
            if manifest.exists() { "a complete corpus" } else { "an unfinished run (--resume goes on with it)" };
        return Err(Error::value(format!(
            "{} holds {state}; delete it or choose another --out",
            options.out.display()
        )));
    }
    if journal.exists() && !manifest.exists() {
        let journal: Journal = read_json(&journal)?;
        journal.settings.agree(&settings)?;
        check_shards(&options.out, &journal.splits)?;
        check_source(plan, &journal)?;
        return Ok(Begin::At(journal));
    }
    if manifest.exists() {
        let done: Manifest = read_json(&manifest)?;
        let same = (done.shard_tokens, done.seed, &done.tokenizer.sha256)
            == (settings.shard_tokens, settings.seed, &settings.tokenizer_sha256);
        let used = |source: &SourceInfo| (source.file.clone(), source.bytes);
        if !same || !done.sources.iter().map(used).all(|source| settings.inputs.contains(&source)) {
            let out = options.out.display();
            return Err(Error::value(format!(
                "{out} is complete, with other settings or inputs; choose another --out"
            )));
        }
        check_shards(&options.out, &done.splits)?;
        return Ok(Begin::Complete(done));
    }
    refuse_shards(&options.out)?;
    let mut sources: Vec<SourceInfo> = plan
        .sources
        .iter()
        .map(|source| SourceInfo { file: source.name.clone(), bytes: source.bytes, ..SourceInfo::default() })
        .collect();
    for (index, reason) in &plan.broken {
        sources[*index].error = Some(reason.clone());
    }
    Ok(Begin::At(Journal { settings, position: Position::default(), splits: Splits::default(), sources }))
}

/// A new run neither overwrites shards nor mixes its own with them.
fn refuse_shards(directory: &Path) -> Result<()> {
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

/// The shards of a killed run must still be what the journal says.
fn check_shards(directory: &Path, splits: &Splits) -> Result<()> {
    for shard in splits.val.shards.iter().chain(&splits.train.shards) {
        let path = directory.join(&shard.file);
        if sha256_of_file(&path)? != shard.sha256 {
            return Err(Error::value(format!("{}: changed since it was written; start anew", path.display())));
        }
    }
    Ok(())
}

/// The file in which a killed run stopped must still be the one that it read, where its digest was taken.
fn check_source(plan: &Plan, journal: &Journal) -> Result<()> {
    let Some(unit) = plan.units.get(journal.position.unit) else { return Ok(()) };
    let (path, before) = (&plan.sources[unit.source].path, &journal.sources[unit.source].sha256);
    if !before.is_empty() && sha256_of_file(path)? != *before {
        return Err(Error::value(format!("{}: changed since it was read; start anew", path.display())));
    }
    Ok(())
}
