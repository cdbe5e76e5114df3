//! What a job will do: its files, and the units of work of this part.

use super::options::Options;
use crate::bpe::encoder::Model;
use crate::bpe::vocab::hex;
use crate::corpus::find::{find, PassedOver};
use crate::corpus::sources::Source;
use crate::corpus::units::{part_of, units_of, Unit};
use crate::error::Result;
use crate::shards::manifest::SourceInfo;
use crate::shards::settings::{Input, OnError, Settings, TokenizerSettings};
use crate::shards::writer::sha256_of_file;

pub struct Plan {
    pub sources: Vec<Source>,
    pub units: Vec<Unit>,
    /// Index of each file that cannot be read at all, and the reason (only with `OnError::Skip`).
    pub broken: Vec<(usize, String)>,
    /// Names inside folders and globs that were passed over.
    pub passed_over: Vec<PassedOver>,
}

/// Finds the files of `inputs` and this part's units of work.
pub fn plan(inputs: &[std::path::PathBuf], options: &Options) -> Result<Plan> {
    options.check()?;
    let skip = options.on_error == OnError::Skip;
    let found = find(inputs, skip)?;
    let mut sources = found.sources;
    let (mut units, mut broken) = (Vec::new(), Vec::new());
    for (index, source) in sources.iter().enumerate() {
        match units_of(index, source, &options.column) {
            Ok(more) => units.extend(more),
            Err(error) if skip => broken.push((index, error.to_string())),
            Err(error) => return Err(error),
        }
    }
    for (source, reason) in found.unreadable {
        broken.push((sources.len(), reason));
        sources.push(source);
    }
    let (index, count) = options.part;
    Ok(Plan { sources, units: part_of(units, index, count), broken, passed_over: found.passed_over })
}

impl Plan {
    /// The settings in which a resumed run must agree.
    pub fn settings(&self, options: &Options, model: &Model) -> Settings {
        let inputs = self.sources.iter().map(|source| Input { file: source.name.clone(), bytes: source.bytes });
        Settings {
            format: options.format,
            tokenizer: TokenizerSettings {
                sha256: hex(&model.digest()),
                pattern: model.splitter.describe().replace('\n', ", then "),
                vocab_size: model.vocab.size(),
                eot: model.vocab.eot,
                ignore_merges: model.whole_first,
            },
            column: options.column.clone(),
            shard_tokens: options.shard_tokens,
            val_tokens: options.val_tokens,
            seed: options.seed,
            part: options.part,
            on_error: options.on_error,
            max_line_bytes: options.max_line_bytes(),
            units: self.units.len(),
            inputs: inputs.collect(),
        }
    }

    /// The files, as they are recorded before the first read.
    pub fn unread(&self) -> Vec<SourceInfo> {
        let info =
            |source: &Source| SourceInfo { file: source.name.clone(), bytes: source.bytes, ..SourceInfo::default() };
        let mut sources: Vec<SourceInfo> = self.sources.iter().map(info).collect();
        for (index, reason) in &self.broken {
            sources[*index].error = Some(reason.clone());
        }
        sources
    }

    /// The files that this part read from, each with its digest. A file that broke off may have none.
    pub fn digest(&self, sources: Vec<SourceInfo>) -> Result<Vec<SourceInfo>> {
        let mut used = Vec::new();
        for (index, mut info) in sources.into_iter().enumerate() {
            let was_opened = self.units.iter().any(|unit| unit.source == index);
            if info.error.is_none() && !was_opened {
                continue;
            }
            if info.sha256.is_empty() && was_opened {
                match sha256_of_file(&self.sources[index].path) {
                    Ok(sha256) => info.sha256 = sha256,
                    Err(_) if info.error.is_some() => {}
                    Err(error) => return Err(error),
                }
            }
            used.push(info);
        }
        Ok(used)
    }
}
