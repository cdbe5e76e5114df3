//! How a tokenizer cuts text into pretokens.

use fancy_regex::Regex;

use super::scalar::split;
use super::steps::Step;
use crate::error::{Error, Result};

/// Spellings of the GPT-2 pattern: the published one, tiktoken's, and a common one of tokenizer.json files. All three
/// match every text in the same pieces.
const GPT2_SPELLINGS: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

/// Other patterns that separate words: those of cl100k_base, Llama 3, Qwen 2 and o200k_base. At every word border they
/// start a new pretoken, whatever text is around it (see [`Splitter::starts_at_word_borders`]).
const WORD_PATTERNS: [&str; 4] = [
    concat!(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// Patterns of numbers alone: they cut no word in two.
const NUMBER_PATTERNS: [&str; 2] = [r"\p{N}", r"\p{N}{1,3}"];

/// Cuts text into pretokens: by the steps in turn, and each piece that they leave by `words`.
pub struct Splitter {
    steps: Vec<Step>,
    pub words: WordSplit,
}

/// The last stage of a splitter.
pub enum WordSplit {
    /// The GPT-2 pattern, in native code.
    Gpt2,
    /// Another pattern, through the `fancy-regex` crate, as tiktoken runs it: the matches are the pretokens.
    Regex(Pattern),
    /// A piece is a pretoken as it is.
    Whole,
}

impl Splitter {
    /// The GPT-2 pattern.
    pub fn gpt2() -> Self {
        Self { steps: Vec::new(), words: WordSplit::Gpt2 }
    }

    /// A pattern of tiktoken's.
    pub fn new(pattern: &str) -> Result<Self> {
        if GPT2_SPELLINGS.contains(&pattern) {
            return Ok(Self::gpt2());
        }
        let regex = Regex::new(pattern).map_err(|error| Error::value(format!("pattern {pattern:?}: {error}")))?;
        let pattern = Pattern { regex: Box::new(regex), text: pattern.to_owned() };
        Ok(Self { steps: Vec::new(), words: WordSplit::Regex(pattern) })
    }

    /// The pre-tokenizers of a `tokenizer.json`: `steps`, and then the GPT-2 pattern if `gpt2` is true.
    pub fn from_steps(mut steps: Vec<Step>, gpt2: bool) -> Self {
        let is_gpt2 = |step: &Step| step.isolated_pattern().is_some_and(|pattern| GPT2_SPELLINGS.contains(&pattern));
        let mut words = if gpt2 { WordSplit::Gpt2 } else { WordSplit::Whole };
        if !gpt2 && steps.pop_if(|step| is_gpt2(step)).is_some() {
            words = WordSplit::Gpt2;
        }
        Self { steps, words }
    }

    /// "native" for the GPT-2 pattern alone, else "regex".
    pub fn name(&self) -> &'static str {
        match self.words {
            WordSplit::Gpt2 if self.steps.is_empty() => "native",
            _ => "regex",
        }
    }

    /// Whether a pretoken starts at every word border, whatever text is around it: a space between two characters that
    /// are no spaces, a newline behind a letter or number and before no space, a mark between two letters. A document
    /// may be cut there without a change of its ids.
    pub fn starts_at_word_borders(&self) -> bool {
        // a step never joins what another one has separated
        let step_is =
            |step: &Step, patterns: &[&str]| step.isolated_pattern().is_some_and(|own| patterns.contains(&own));
        let separates = |step: &Step| step_is(step, &GPT2_SPELLINGS) || step_is(step, &WORD_PATTERNS);
        let keeps = |step: &Step| step.is_digits() || separates(step) || step_is(step, &NUMBER_PATTERNS);
        self.steps.iter().all(keeps)
            && match &self.words {
                WordSplit::Gpt2 => true,
                WordSplit::Regex(pattern) => WORD_PATTERNS.contains(&pattern.text.as_str()),
                WordSplit::Whole => self.steps.iter().any(separates),
            }
    }

    /// Calls `visit` with each piece that the steps leave of `text`, in order.
    pub fn for_each_piece<'t>(&self, text: &'t str, visit: &mut dyn FnMut(&'t str) -> Result<()>) -> Result<()> {
        walk(&self.steps, text, visit)
    }

    /// Calls `visit` with each pretoken in a piece that the steps have left.
    pub fn for_each_word<'t>(&self, piece: &'t str, mut visit: impl FnMut(&'t [u8])) -> Result<()> {
        match &self.words {
            WordSplit::Gpt2 => {
                let mut starts = Vec::new();
                split(piece, &mut starts);
                starts.push(piece.len());
                starts.windows(2).for_each(|word| visit(&piece.as_bytes()[word[0]..word[1]]));
                Ok(())
            }
            WordSplit::Regex(pattern) => pattern.for_each(piece, visit),
            WordSplit::Whole => {
                visit(piece.as_bytes());
                Ok(())
            }
        }
    }

    /// The steps and the last stage as text, for the digest of a tokenizer.
    pub fn describe(&self) -> String {
        let words = match &self.words {
            WordSplit::Gpt2 => "gpt2".to_owned(),
            WordSplit::Regex(pattern) => format!("matches {:?}", pattern.text),
            WordSplit::Whole => "whole".to_owned(),
        };
        self.steps.iter().map(Step::to_string).chain([words]).collect::<Vec<_>>().join("\n")
    }
}

/// Cuts `text` by the first step and each of its pieces by the other steps.
fn walk<'t>(steps: &[Step], text: &'t str, visit: &mut dyn FnMut(&'t str) -> Result<()>) -> Result<()> {
    match steps.split_first() {
        Some((step, others)) => step.for_each(text, &mut |piece| walk(others, piece, visit)),
        None if text.is_empty() => Ok(()),
        None => visit(text),
    }
}

/// A pattern that the `fancy-regex` crate runs.
pub struct Pattern {
    regex: Box<Regex>,
    text: String,
}

impl Pattern {
    /// Calls `visit` with each match in `text`, in order.
    pub fn for_each<'t>(&self, text: &'t str, mut visit: impl FnMut(&'t [u8])) -> Result<()> {
        for found in self.regex.find_iter(text) {
            let found = found.map_err(|error| Error::value(format!("splitting text: {error}")))?;
            visit(found.as_str().as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(pattern: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        let pattern = Pattern { regex: Box::new(Regex::new(pattern).unwrap()), text: pattern.to_owned() };
        pattern.for_each(text, |word| words.push(std::str::from_utf8(word).unwrap())).unwrap();
        words
    }

    fn native_words(text: &str) -> Vec<&str> {
        let mut starts = Vec::new();
        split(text, &mut starts);
        starts.push(text.len());
        starts.windows(2).map(|w| &text[w[0]..w[1]]).collect()
    }

    #[test]
    fn native_code_agrees_with_every_spelling() {
        let alphabet =
            ["a", "Z", "1", " ", "  ", "\n", "'", "s", "'ll", "\u{a0}", "\u{3000}", "é", "中", "²", "👍", "\u{301}"];
        let mut state = 7u64;
        for round in 0..3000 {
            let text: String = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    alphabet[(state >> 40) as usize % alphabet.len()]
                })
                .collect();
            assert_eq!(native_words(&text), words(GPT2_SPELLINGS[round % 3], &text), "{text:?}");
        }
    }

    #[test]
    fn the_regex_crate_has_the_same_unicode_version() {
        assert_eq!(words(r"\p{L}+", "a\u{1c89}\u{88f}b"), ["a\u{1c89}", "b"]);
    }
}
