//! Ends a run: it leaves a complete corpus, shards that a resumed run goes on from, or nothing.

use std::path::{Path, PathBuf};

use super::journal::{Journal, JOURNAL};
use crate::error::{Error, Result};
use crate::shards::disk::TEMPORARY;
use crate::shards::flat::flatten;
use crate::shards::manifest::{read_json, write_json, Manifest, Splits};
use crate::shards::settings::Form;

/// The output directory, and those of its parent directories that this run made.
pub struct Folder {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Folder {
    /// Makes the directory unless it exists.
    pub fn make(path: &Path) -> Result<Self> {
        let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let made = missing.map(Path::to_owned).collect();
        std::fs::create_dir_all(path).map_err(Error::io(path))?;
        Ok(Self { path: path.to_owned(), made })
    }

    /// Removes those of the directories made by this run that are empty.
    pub fn remove_if_empty(&self) {
        for folder in &self.made {
            if std::fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }

    /// Removes what a resumed run cannot use: unfinished files, and the journal if no shard is complete. Returns
    /// whether the run can be resumed.
    pub fn tidy(&self) -> bool {
        let journal = self.path.join(JOURNAL);
        let complete = read_json::<Journal>(&journal).is_ok_and(|journal| journal.splits != Splits::default());
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.strip_suffix(TEMPORARY).is_some_and(is_ours) {
                // the run has failed already; report its first error, not a file that cannot be removed
                let _ = std::fs::remove_file(&path);
            }
        }
        if !complete {
            let _ = std::fs::remove_file(&journal);
            self.remove_if_empty();
        }
        complete
    }
}

/// Whether a run writes a file of this name under a temporary name first.
fn is_ours(name: &str) -> bool {
    let of_split = ["train", "val"].iter().any(|split| name.starts_with(split)) && name.ends_with(".bin");
    let known = [JOURNAL, Form::Shards.manifest(), Form::Nanogpt.manifest()];
    of_split || name.starts_with("shuffle") || known.contains(&name)
}

/// Writes the manifest of a finished run in the form that was asked for, and removes files that are no longer needed.
pub fn complete(folder: &Path, form: Form, mut manifest: Manifest) -> Result<Manifest> {
    if form == Form::Nanogpt {
        manifest.splits = flatten(folder, &manifest.splits)?;
    }
    write_json(&folder.join(form.manifest()), &manifest)?;
    remove_leftovers(folder, form)?;
    Ok(manifest)
}

/// Removes the journal of a complete corpus. Shards that flat files have replaced are removed before it.
pub fn remove_leftovers(folder: &Path, form: Form) -> Result<()> {
    let path = folder.join(JOURNAL);
    if !path.exists() {
        return Ok(());
    }
    if form == Form::Nanogpt {
        let splits = read_json::<Journal>(&path)?.splits;
        for shard in splits.train.shards.iter().chain(&splits.val.shards) {
            let shard = folder.join(&shard.file);
            if shard.exists() {
                std::fs::remove_file(&shard).map_err(Error::io(&shard))?;
            }
        }
    }
    std::fs::remove_file(&path).map_err(Error::io(&path))
}
