//! Which splitter carries out a tokenizer's pattern.

use fancy_regex::Regex;

use super::scalar::pretoken_end;
use crate::error::{Error, Result};

/// Spellings of the GPT-2 pattern: the published one, tiktoken's, and that of tokenizer.json files.
const GPT2_SPELLINGS: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

pub enum Splitter {
    /// The GPT-2 pattern in native code.
    Gpt2,
    /// Any other pattern, through the `fancy-regex` crate, as tiktoken does it.
    Regex(Box<Regex>),
}

impl Splitter {
    pub fn new(pattern: &str) -> Result<Self> {
        if GPT2_SPELLINGS.contains(&pattern) {
            return Ok(Self::Gpt2);
        }
        let regex = Regex::new(pattern).map_err(|error| Error::value(format!("pattern {pattern:?}: {error}")))?;
        Ok(Self::Regex(Box::new(regex)))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Gpt2 => "native",
            Self::Regex(_) => "regex",
        }
    }

    /// Calls `visit` with each pretoken of `text` in turn.
    pub fn for_each<'t>(&self, text: &'t str, mut visit: impl FnMut(&'t [u8])) -> Result<()> {
        match self {
            Self::Gpt2 => {
                let mut start = 0;
                while start < text.len() {
                    let end = pretoken_end(text, start);
                    visit(&text.as_bytes()[start..end]);
                    start = end;
                }
            }
            Self::Regex(regex) => {
                for found in regex.find_iter(text) {
                    let found = found.map_err(|error| Error::value(format!("splitting text: {error}")))?;
                    visit(found.as_str().as_bytes());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(splitter: &Splitter, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        splitter.for_each(text, |word| words.push(std::str::from_utf8(word).unwrap())).unwrap();
        words
    }

    #[test]
    fn native_and_regex_agree() {
        let regex = Splitter::Regex(Box::new(Regex::new(GPT2_SPELLINGS[1]).unwrap()));
        let alphabet =
            ["a", "Z", "1", " ", "  ", "\n", "'", "s", "'ll", "\u{a0}", "\u{3000}", "é", "中", "²", "👍", "\u{301}"];
        let mut state = 7u64;
        for _ in 0..3000 {
            let text: String = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    alphabet[(state >> 40) as usize % alphabet.len()]
                })
                .collect();
            assert_eq!(words(&Splitter::Gpt2, &text), words(&regex, &text), "{text:?}");
        }
    }

    #[test]
    fn the_regex_crate_has_the_same_unicode_version() {
        let letters = Splitter::new(r"\p{L}+").unwrap();
        assert_eq!(words(&letters, "a\u{1c89}\u{88f}b"), ["a\u{1c89}", "b"]);
    }
}
