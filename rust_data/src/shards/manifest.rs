//! `manifest.json`: what a directory of shards holds. It is written last, so its presence means "complete".
//! A corpus in nanoGPT's form has the same under the name `meta.json`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::disk::{rename, temporary_name};
use super::settings::{Form, Settings};
use crate::error::{Error, Result};

impl Form {
    /// Name of the file. Its presence means that the corpus is complete.
    pub fn manifest(self) -> &'static str {
        match self {
            Self::Shards => "manifest.json",
            Self::Nanogpt => "meta.json",
        }
    }

    /// Value of `Manifest::format`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shards => "rust_data.tokens",
            Self::Nanogpt => "nanogpt",
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Manifest {
    pub format: String,
    pub version: u32,
    pub complete: bool,
    pub tokenizer: TokenizerInfo,
    pub dtype: String,
    pub seed: u64,
    pub shard_tokens: u64,
    /// This is part `part.0` of `part.1`; of 1 if the corpus is whole.
    #[serde(default = "whole")]
    pub part: (u64, u64),
    pub splits: Splits,
    pub sources: Vec<SourceInfo>,
    /// `None` if parts were merged, and in corpora of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    pub created_by: String,
}

fn whole() -> (u64, u64) {
    (0, 1)
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TokenizerInfo {
    pub name: String,
    pub sha256: String,
    pub vocab_size: usize,
    pub eot: u32,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Splits {
    pub train: Split,
    pub val: Split,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Split {
    pub tokens: u64,
    /// Documents that end in this split.
    pub documents: u64,
    pub shards: Vec<ShardInfo>,
    /// Whether the split ends inside a document. Only val can; the rest of the document is the beginning of train.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_document: bool,
}

impl Split {
    pub fn push(&mut self, shard: ShardInfo) {
        self.tokens += shard.tokens;
        self.documents += shard.documents;
        self.shards.push(shard);
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ShardInfo {
    pub file: String,
    pub tokens: u64,
    /// Documents that end in this shard.
    pub documents: u64,
    /// SHA-256 of the whole file, header included.
    pub sha256: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SourceInfo {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    pub documents: u64,
    /// Rows left out because they hold no usable text.
    pub skipped: u64,
    /// Why the whole file was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Writes a JSON file completely or not at all, also if the power is cut.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::value(format!("{}: {e}", path.display())))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(temporary_name(&name));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    };
    write().map_err(Error::io(path))?;
    rename(&temporary, path)
}

pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    serde_json::from_str(&text).map_err(|error| Error::value(format!("{}: {error}", path.display())))
}
