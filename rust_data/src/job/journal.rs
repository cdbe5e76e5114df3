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
    pub seed: u64,
    pub part: (u64, u64),
    pub skip_errors: bool,
    /// Follows from the memory; decides which lines are left out. (0 in a journal of before.)
    #[serde(default)]
    pub max_line_bytes: u64,
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
        let differing = self.fields().into_iter().zip(now.fields()).find(|(before, now)| before != now);
        match differing {
            Some(((name, before), (_, now))) => Err(Error::value(format!(
                "--resume: {name} was {before} and is now {now}; use the same or another --out"
            ))),
            None => Ok(()),
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("the tokenizer's digest", self.tokenizer_sha256.clone()),
            ("--column", self.column.clone()),
            ("--shard-tokens", self.shard_tokens.to_string()),
            ("--val-tokens", self.val_tokens.to_string()),
            ("--seed", self.seed.to_string()),
            ("--part", format!("{}/{}", self.part.0, self.part.1)),
            ("--on-error", if self.skip_errors { "skip" } else { "stop" }.to_owned()),
            ("the longest line that --memory allows", self.max_line_bytes.to_string()),
            ("the number of input files", self.inputs.len().to_string()),
        ];
        let files = self.inputs.iter().map(|(name, bytes)| ("an input file", format!("{name} of {bytes} bytes")));
        fields.extend(files);
        fields
    }
}
