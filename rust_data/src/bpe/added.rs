//! Added tokens: texts that get one id before the pre-tokenizer sees the rest, as Hugging Face `tokenizers` does it with
//! special tokens taken as plain text (`encode_special_tokens`).

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Error, Result};
use crate::text::classes::{class_of, Class};

/// An entry of `added_tokens` in a `tokenizer.json`.
#[derive(Clone, Debug)]
pub struct AddedToken {
    pub content: String,
    pub id: u32,
    /// Special tokens are plain text where they occur in a document.
    pub special: bool,
    /// Whether the token takes the white space before it.
    pub lstrip: bool,
    /// Whether the token takes the white space behind it.
    pub rstrip: bool,
    /// Without a normalizer this only says that the token is looked for after those that are not normalized.
    pub normalized: bool,
}

/// The added tokens of a tokenizer of which at least one is not special.
pub struct AddedTokens {
    /// Tokens that are looked for first, and those that are looked for in the text between them.
    stages: [Stage; 2],
}

struct Stage {
    tokens: Vec<AddedToken>,
    /// Finds the tokens by their place in `tokens`.
    search: AhoCorasick,
}

/// A part of a text.
pub enum Part<'t> {
    Token(u32),
    Text(&'t str),
}

impl AddedTokens {
    /// `None` if all tokens are special, so that text never gets their ids.
    pub fn new(tokens: &[AddedToken]) -> Result<Option<Self>> {
        if tokens.iter().all(|token| token.special) {
            return Ok(None);
        }
        let stage = |normalized: bool| {
            // special tokens too: where one matches, no shorter token inside of it does
            let tokens: Vec<_> = tokens.iter().filter(|token| token.normalized == normalized).cloned().collect();
            let contents = tokens.iter().map(|token| &token.content);
            let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
            let search = search.map_err(|error| Error::value(format!("added_tokens: {error}")))?;
            Ok(Stage { tokens, search })
        };
        Ok(Some(Self { stages: [stage(false)?, stage(true)?] }))
    }

    /// Calls `visit` with the tokens in `text` and the text between them, in order.
    pub fn for_each<'t>(&self, text: &'t str, visit: &mut dyn FnMut(Part<'t>) -> Result<()>) -> Result<()> {
        let [first, second] = &self.stages;
        first.for_each(text, &mut |part| match part {
            Part::Text(rest) => second.for_each(rest, visit),
            token => visit(token),
        })
    }

    /// Whether a cut at a word border separates no token: each one is white space of two or more characters, and a word
    /// border has no two of them side by side.
    pub fn keep_word_borders(&self) -> bool {
        let keeps = |token: &AddedToken| match token.special {
            true => !token.content.contains(is_space),
            false => {
                let spaces = token.content.chars().all(is_space) && token.content.chars().count() > 1;
                spaces && !token.lstrip && !token.rstrip
            }
        };
        self.stages.iter().flat_map(|stage| &stage.tokens).all(keeps)
    }

    /// All that matters of the tokens as text, for the digest of a tokenizer.
    pub fn describe(&self) -> String {
        let tokens = self.stages.iter().flat_map(|stage| &stage.tokens);
        tokens.map(|token| format!("{token:?}\n")).collect()
    }
}

impl Stage {
    fn for_each<'t>(&self, text: &'t str, visit: &mut dyn FnMut(Part<'t>) -> Result<()>) -> Result<()> {
        let mut done = 0;
        for found in self.search.find_iter(text) {
            let token = &self.tokens[found.pattern()];
            if token.special {
                continue;
            }
            let (mut start, mut end) = (found.start(), found.end());
            if token.lstrip {
                start = done.max(text[..start].trim_end_matches(is_space).len());
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start_matches(is_space).len();
            }
            if done < start {
                visit(Part::Text(&text[done..start]))?;
            }
            // a token whose white space an earlier one has taken is gone
            if start < end {
                visit(Part::Token(token.id))?;
            }
            done = end;
        }
        if done < text.len() {
            visit(Part::Text(&text[done..]))?;
        }
        Ok(())
    }
}

fn is_space(c: char) -> bool {
    class_of(u32::from(c)) == Class::Space
}
