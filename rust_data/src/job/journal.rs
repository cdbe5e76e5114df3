//! `progress.json`: what a resumed run needs of the killed one. It is rewritten whenever a shard is complete.

use serde::{Deserialize, Serialize};

use crate::shards::manifest::{SourceInfo, Splits};
use crate::shards::settings::Settings;

pub const JOURNAL: &str = "progress.json";

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Journal {
    pub settings: Settings,
    /// Place of the first token that is not in a complete shard.
    pub position: Position,
    pub splits: Splits,
    pub sources: Vec<SourceInfo>,
    /// When each source was last modified before the run read it, in nanoseconds since 1970; 0 if unknown.
    pub modified: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Position {
    pub unit: usize,
    /// Row of the unit's file.
    pub row: u64,
    /// Tokens of that row that are already written.
    pub token: u64,
}
