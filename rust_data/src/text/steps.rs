//! The pre-tokenizers of a `tokenizer.json` that cut text: `Split` and `Digits`, as Hugging Face `tokenizers` runs them.
//!
//! A pre-tokenizer finds matches in a piece of text; the text between two matches is a gap. Its behavior says what
//! becomes of matches and gaps. Regular expressions run in Oniguruma, the engine that `tokenizers` itself uses, so that
//! every pattern means the same here.

use std::fmt;
use std::ops::Range;

use onig::{MatchParam, Regex, Region, SearchOptions};

use super::classes::{class_of, Class};
use crate::error::{Error, Result};

/// Numeric characters that are new in Unicode 17.0. `Digits` follows Rust's `char::is_numeric`, which has them in
/// `tokenizers` 0.23; the patterns of `Split` follow Unicode 16.0.
const NEW_NUMBERS: [Range<u32>; 2] = [0x11DE0..0x11DEA, 0x16FF4..0x16FF7];

/// One pre-tokenizer.
pub struct Step {
    find: Find,
    behavior: Behavior,
    /// Whether matches and gaps change places.
    invert: bool,
}

/// What a step looks for.
enum Find {
    Regex { regex: Box<Regex>, pattern: String },
    Text(String),
    Numeric,
}

/// What becomes of the matches and the gaps; the names are those in a `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Each match and each gap is a piece.
    Isolated,
    /// Each gap is a piece; the matches are dropped.
    Removed,
    /// A match belongs to the gap before it.
    MergedWithPrevious,
    /// A match belongs to the gap behind it.
    MergedWithNext,
    /// Matches without a gap between them are one piece.
    Contiguous,
}

impl Behavior {
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "Isolated" => Self::Isolated,
            "Removed" => Self::Removed,
            "MergedWithPrevious" => Self::MergedWithPrevious,
            "MergedWithNext" => Self::MergedWithNext,
            "Contiguous" => Self::Contiguous,
            _ => return None,
        })
    }
}

/// A match or a gap: its place in the text, and whether it is a match.
type Span = (Range<usize>, bool);

impl Step {
    /// A `Split` by a regular expression.
    pub fn regex(pattern: &str, behavior: Behavior, invert: bool) -> Result<Self> {
        let regex = Regex::new(pattern).map_err(|error| Error::value(format!("pattern {pattern:?}: {error}")))?;
        Ok(Self { find: Find::Regex { regex: Box::new(regex), pattern: pattern.to_owned() }, behavior, invert })
    }

    /// A `Split` by a fixed text.
    pub fn text(text: &str, behavior: Behavior, invert: bool) -> Self {
        Self { find: Find::Text(text.to_owned()), behavior, invert }
    }

    /// `Digits`: each numeric character is a piece, or each run of them.
    pub fn digits(individual: bool) -> Self {
        let behavior = if individual { Behavior::Isolated } else { Behavior::Contiguous };
        Self { find: Find::Numeric, behavior, invert: false }
    }

    pub fn is_digits(&self) -> bool {
        matches!(self.find, Find::Numeric)
    }

    /// The pattern, if each match of it and each gap is a piece.
    pub fn isolated_pattern(&self) -> Option<&str> {
        match &self.find {
            Find::Regex { pattern, .. } if self.behavior == Behavior::Isolated && !self.invert => Some(pattern),
            _ => None,
        }
    }

    /// Calls `visit` with each piece of `text` that is not empty, in order.
    pub fn for_each<'t>(&self, text: &'t str, visit: &mut dyn FnMut(&'t str) -> Result<()>) -> Result<()> {
        let mut visit_span = |span: Range<usize>| if span.is_empty() { Ok(()) } else { visit(&text[span]) };
        match self.behavior {
            Behavior::Isolated => self.for_each_span(text, &mut |(span, _)| visit_span(span)),
            Behavior::Removed => {
                self.for_each_span(text, &mut |(span, matched)| if matched { Ok(()) } else { visit_span(span) })
            }
            _ => {
                let mut spans = Vec::new();
                self.for_each_span(text, &mut |span| {
                    spans.push(span);
                    Ok(())
                })?;
                merged(spans, self.behavior).into_iter().try_for_each(visit_span)
            }
        }
    }

    /// Calls `visit` with matches and gaps in turn; together they are the whole text.
    fn for_each_span(&self, text: &str, visit: &mut dyn FnMut(Span) -> Result<()>) -> Result<()> {
        let mut end = 0;
        self.for_each_match(text, &mut |found| {
            if end < found.start {
                visit((end..found.start, self.invert))?;
            }
            end = found.end;
            visit((found, !self.invert))
        })?;
        if end < text.len() {
            visit((end..text.len(), self.invert))?;
        }
        Ok(())
    }

    fn for_each_match(&self, text: &str, visit: &mut dyn FnMut(Range<usize>) -> Result<()>) -> Result<()> {
        match &self.find {
            Find::Regex { regex, .. } => for_each_match(regex, text, visit),
            Find::Text(wanted) => {
                text.match_indices(wanted.as_str()).try_for_each(|(at, found)| visit(at..at + found.len()))
            }
            Find::Numeric => {
                let mut numeric = text.char_indices().filter(|&(_, c)| is_numeric(c));
                numeric.try_for_each(|(at, c)| visit(at..at + c.len_utf8()))
            }
        }
    }
}

/// The step as text, for the digest of a tokenizer: equal texts mean equal pieces.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.find {
            Find::Regex { pattern, .. } => write!(f, "regex {pattern:?}")?,
            Find::Text(text) => write!(f, "text {text:?}")?,
            Find::Numeric => write!(f, "numeric")?,
        }
        write!(f, " {:?} invert {}", self.behavior, self.invert)
    }
}

fn is_numeric(c: char) -> bool {
    let c = u32::from(c);
    class_of(c) == Class::Number || NEW_NUMBERS.iter().any(|range| range.contains(&c))
}

/// Calls `visit` with each match of `regex`. An empty match directly behind another match does not count.
fn for_each_match(regex: &Regex, text: &str, visit: &mut dyn FnMut(Range<usize>) -> Result<()>) -> Result<()> {
    let mut region = Region::new();
    let (mut from, mut last_end) = (0, None);
    while from <= text.len() {
        region.clear();
        let options = SearchOptions::SEARCH_OPTION_NONE;
        let found = regex.search_with_param(text, from, text.len(), options, Some(&mut region), MatchParam::default());
        let found = found.map_err(|error| Error::value(format!("splitting text by the pattern: {error}")))?;
        let Some((start, end)) = found.and_then(|_| region.pos(0)) else { break };
        if start == end && last_end == Some(end) {
            from += text[from..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        (from, last_end) = (end, Some(end));
        visit(start..end)?;
    }
    Ok(())
}

/// The pieces that `spans` make where some of them are joined.
fn merged(mut spans: Vec<Span>, behavior: Behavior) -> Vec<Range<usize>> {
    let backwards = behavior == Behavior::MergedWithNext;
    if backwards {
        spans.reverse();
    }
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut last_matched = false;
    for (span, matched) in spans {
        let joins = match behavior {
            Behavior::Contiguous => matched == last_matched,
            _ => matched && !last_matched,
        };
        match pieces.last_mut().filter(|_| joins) {
            Some(piece) if backwards => piece.start = span.start,
            Some(piece) => piece.end = span.end,
            None => pieces.push(span),
        }
        last_matched = matched;
    }
    if backwards {
        pieces.reverse();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(step: &Step, text: &'t str) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        step.for_each(text, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })
        .unwrap();
        pieces
    }

    #[test]
    fn behaviors_keep_or_drop_matches_and_gaps() {
        // the example in the documentation of `tokenizers`
        let text = "the-final--countdown";
        for (behavior, expected) in [
            (Behavior::Removed, vec!["the", "final", "countdown"]),
            (Behavior::Isolated, vec!["the", "-", "final", "-", "-", "countdown"]),
            (Behavior::MergedWithPrevious, vec!["the-", "final-", "-", "countdown"]),
            (Behavior::MergedWithNext, vec!["the", "-final", "-", "-countdown"]),
            (Behavior::Contiguous, vec!["the", "-", "final", "--", "countdown"]),
        ] {
            assert_eq!(pieces(&Step::text("-", behavior, false), text), expected, "{behavior:?}");
            assert_eq!(pieces(&Step::regex("-", behavior, false).unwrap(), text), expected, "{behavior:?}");
            let inverted = Step::regex("[^-]+", behavior, true).unwrap();
            if behavior == Behavior::Removed {
                assert_eq!(pieces(&inverted, text), expected);
            }
        }
    }

    #[test]
    fn digits_are_numeric_characters() {
        assert_eq!(pieces(&Step::digits(true), "a12\u{b2}b"), ["a", "1", "2", "\u{b2}", "b"]);
        assert_eq!(pieces(&Step::digits(false), "a12\u{b2}b"), ["a", "12\u{b2}", "b"]);
    }

    #[test]
    fn empty_matches_separate_characters() {
        assert_eq!(pieces(&Step::regex("", Behavior::Isolated, false).unwrap(), "aé中"), ["a", "é", "中"]);
        assert_eq!(pieces(&Step::text("", Behavior::Isolated, false), "aé中"), ["a", "é", "中"]);
        assert_eq!(pieces(&Step::regex("x*", Behavior::Isolated, false).unwrap(), "axxb"), ["a", "xx", "b"]);
    }
}
