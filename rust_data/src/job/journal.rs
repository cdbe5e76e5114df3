//! `progress.json`: what a killed run needs to go on. Rewritten whenever a shard is complete.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::shards::manifest::{SourceInfo, Splits};

pub const JOURNAL: &str = "progress.json";

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Journal {
    pub settings: Settings,
    /// The first token that is in no complete shard.
    pub position: Position,
    pub splits: Splits,
    pub sources: Vec<SourceInfo>,
}

/// What decides the bytes of the output; a resumed run must agree in all of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Settings {
    pub tokenizer_sha256: String,
    pub column: String,
    pub shard_tokens: u64,
    pub val_tokens: u64,
    pub part: (u64, u64),
    pub skip_errors: bool,
    pub inputs: Vec<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Position {
    pub unit: usize,
    /// Row of the unit's file.
    pub row: u64,
    /// Tokens of that row that are already written.
    pub token: u64,
}

impl Settings {
    /// Names the first setting in which a resumed run differs.
    pub fn agree(&self, now: &Self) -> Result<()> {
        let differs = |name: &str, before: &dyn std::fmt::Debug, now: &dyn std::fmt::Debug| {
            Err(Error::value(format!("--resume: {name} was {before:?} and is now {now:?}; use the same or another --out")))
        };
        if self.tokenizer_sha256 != now.tokenizer_sha256 {
            return differs("the tokenizer's digest", &self.tokenizer_sha256, &now.tokenizer_sha256);
        }
        if self.column != now.column {
            return differs("--column", &self.column, &now.column);
        }
        if self.shard_tokens != now.shard_tokens {
            return differs("--shard-tokens", &self.shard_tokens, &now.shard_tokens);
        }
        if self.val_tokens != now.val_tokens {
            return differs("--val-tokens", &self.val_tokens, &now.val_tokens);
        }
        if self.part != now.part {
            return differs("--part", &self.part, &now.part);
        }
        if self.skip_errors != now.skip_errors {
            return differs("--on-error skip", &self.skip_errors, &now.skip_errors);
        }
        if self.inputs.len() != now.inputs.len() {
            return differs("the number of input files", &self.inputs.len(), &now.inputs.len());
        }
        match self.inputs.iter().zip(&now.inputs).find(|(before, now)| before != now) {
            Some((before, now)) => differs("an input file (name, bytes)", before, now),
            None => Ok(()),
        }
    }
}
