//! The settings that decide the bytes of a corpus, as its journal and its manifest record them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The settings that `--resume` compares. The number of threads is not among them, because it never changes the output.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Settings {
    pub format: Form,
    pub tokenizer: TokenizerSettings,
    pub column: String,
    pub shard_tokens: u64,
    pub val_tokens: u64,
    pub seed: u64,
    pub part: (u64, u64),
    pub on_error: OnError,
    /// Longest accepted line, which follows from `--memory`.
    pub max_line_bytes: u64,
    /// Number of row groups and files that this part reads.
    pub units: usize,
    /// All input files in their order, those that only other parts read included.
    pub inputs: Vec<Input>,
}

/// The settings that decide the ids of a text.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TokenizerSettings {
    pub sha256: String,
    pub pattern: String,
    pub vocab_size: usize,
    pub eot: u32,
    pub ignore_merges: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub struct Input {
    pub file: String,
    pub bytes: u64,
}

/// The form of the corpus on disk.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Shards with headers, and `manifest.json`.
    #[default]
    Shards,
    /// One file of bare tokens for each split, and `meta.json`.
    Nanogpt,
}

/// What to do at a row without usable text, and at a file that cannot be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    Stop,
    Skip,
}

/// Number of differing inputs that a message lists.
const LISTED_INPUTS: usize = 5;

impl Settings {
    /// Returns one sentence for each difference: the value in `self`, and the value in `now`. Empty without a
    /// difference.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let pairs = self.fields().into_iter().zip(now.fields());
        let mut found: Vec<String> = pairs
            .filter(|((_, was), (_, is))| was != is)
            .map(|((name, was), (_, is))| format!("{name} was {was}, is {is}"))
            .collect();
        let inputs = self.input_differences(now);
        found.extend(inputs.iter().take(LISTED_INPUTS).cloned());
        if inputs.len() > LISTED_INPUTS {
            found.push(format!("and {} more differences of the inputs", inputs.len() - LISTED_INPUTS));
        }
        if found.is_empty() && self.units != now.units {
            found.push(format!("the number of row groups and files to read was {}, is {}", self.units, now.units));
        }
        found
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let tokenizer = &self.tokenizer;
        vec![
            ("--format", as_text(&self.format)),
            ("the tokenizer's digest", tokenizer.sha256.clone()),
            ("the tokenizer's pattern", tokenizer.pattern.clone()),
            ("the tokenizer's vocabulary size", tokenizer.vocab_size.to_string()),
            ("the tokenizer's end-of-text id", tokenizer.eot.to_string()),
            ("the tokenizer's ignore_merges", tokenizer.ignore_merges.to_string()),
            ("--column", self.column.clone()),
            ("--shard-tokens", self.shard_tokens.to_string()),
            ("--val-tokens", self.val_tokens.to_string()),
            ("--seed", self.seed.to_string()),
            ("--part", format!("{}/{}", self.part.0, self.part.1)),
            ("--on-error", as_text(&self.on_error)),
            ("the longest line in bytes (a twelfth of --memory)", self.max_line_bytes.to_string()),
        ]
    }

    fn input_differences(&self, now: &Self) -> Vec<String> {
        let by_name = |inputs: &[Input]| -> HashMap<String, u64> {
            inputs.iter().map(|input| (input.file.clone(), input.bytes)).collect()
        };
        let (before, after) = (by_name(&self.inputs), by_name(&now.inputs));
        let mut found = Vec::new();
        for input in &self.inputs {
            match after.get(&input.file) {
                None => found.push(format!("input {} is missing", input.file)),
                Some(&bytes) if bytes != input.bytes => {
                    found.push(format!("input {} had {} bytes, has {bytes}", input.file, input.bytes));
                }
                Some(_) => {}
            }
        }
        let added = now.inputs.iter().filter(|input| !before.contains_key(&input.file));
        found.extend(added.map(|input| format!("input {} is new", input.file)));
        if found.is_empty() && self.inputs != now.inputs {
            found.push("the order of the inputs was another".to_owned());
        }
        found
    }
}

/// Returns the word that the command line uses for `value`.
fn as_text(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(files: &[(&str, u64)]) -> Settings {
        Settings {
            format: Form::Shards,
            tokenizer: TokenizerSettings {
                sha256: "00".to_owned(),
                pattern: "p".to_owned(),
                vocab_size: 300,
                eot: 299,
                ignore_merges: true,
            },
            column: "text".to_owned(),
            shard_tokens: 10,
            val_tokens: 0,
            seed: 0,
            part: (0, 1),
            on_error: OnError::Stop,
            max_line_bytes: 80,
            units: files.len(),
            inputs: files.iter().map(|&(file, bytes)| Input { file: file.to_owned(), bytes }).collect(),
        }
    }

    #[test]
    fn every_difference_is_named() {
        let before = settings(&[("a", 1), ("b", 2), ("c", 3)]);
        assert!(before.differences(&before).is_empty());
        let mut now = settings(&[("b", 5), ("c", 3), ("d", 4)]);
        now.on_error = OnError::Skip;
        now.format = Form::Nanogpt;
        now.tokenizer.pattern = "q".to_owned();
        assert_eq!(
            before.differences(&now),
            [
                "--format was shards, is nanogpt",
                "the tokenizer's pattern was p, is q",
                "--on-error was stop, is skip",
                "input a is missing",
                "input b had 2 bytes, has 5",
                "input d is new",
            ]
        );
        let turned = settings(&[("b", 2), ("a", 1), ("c", 3)]);
        assert_eq!(before.differences(&turned), ["the order of the inputs was another"]);
        let regrouped = Settings { units: 9, ..before.clone() };
        assert_eq!(before.differences(&regrouped), ["the number of row groups and files to read was 3, is 9"]);
    }

    #[test]
    fn long_lists_of_inputs_are_cut() {
        let names: Vec<String> = (0..9).map(|i| i.to_string()).collect();
        let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let found = settings(&[]).differences(&settings(&files));
        assert_eq!(found.len(), LISTED_INPUTS + 1);
        assert_eq!(found[LISTED_INPUTS], "and 4 more differences of the inputs");
    }
}
