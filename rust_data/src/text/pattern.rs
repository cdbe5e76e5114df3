//! Which splitter carries out a tokenizer's pattern.

use fancy_regex::Regex;

use crate::error::{Error, Result};

/// The GPT-2 pattern as tokenizer.json files mean it.
pub const GPT2_PATTERN: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Spellings of the GPT-2 pattern: the published one, tiktoken's, and that of tokenizer.json files.
const GPT2_SPELLINGS: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    GPT2_PATTERN,
];

pub enum Splitter {
    /// The GPT-2 pattern in native code.
    Gpt2,
    /// Any other pattern, through the `fancy-regex` crate, as tiktoken does it.
    Regex(Pattern),
}

impl Splitter {
    pub fn new(pattern: &str) -> Result<Self> {
        if GPT2_SPELLINGS.contains(&pattern) {
            return Ok(Self::Gpt2);
        }
        let regex = Regex::new(pattern).map_err(|error| Error::value(format!("pattern {pattern:?}: {error}")))?;
        Ok(Self::Regex(Pattern(Box::new(regex))))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Gpt2 => "native",
            Self::Regex(_) => "regex",
        }
    }

    /// The pattern itself; all spellings of the GPT-2 pattern are one.
    pub fn pattern(&self) -> &str {
        match self {
            Self::Gpt2 => GPT2_PATTERN,
            Self::Regex(pattern) => pattern.0.as_str(),
        }
    }
}

/// A pattern that the crate's regular expressions carry out.
pub struct Pattern(Box<Regex>);

impl Pattern {
    /// Calls `visit` with each pretoken of `text` in turn.
    pub fn for_each<'t>(&self, text: &'t str, mut visit: impl FnMut(&'t [u8])) -> Result<()> {
        for found in self.0.find_iter(text) {
            let found = found.map_err(|error| Error::value(format!("splitting text: {error}")))?;
            visit(found.as_str().as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::scalar::split;
    use super::*;

    fn words<'t>(pattern: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        let pattern = Pattern(Box::new(Regex::new(pattern).unwrap()));
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
