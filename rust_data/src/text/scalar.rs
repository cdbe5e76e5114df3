//! The GPT-2 pattern, one character at a time:
//! `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
//!
//! This is the readable form of the splitter. The block splitter is tested against it.

use super::classes::{class_of, Class};

/// Class and length in bytes of the character that starts at `at`.
#[inline]
fn class_at(text: &str, at: usize) -> Option<(Class, usize)> {
    let byte = *text.as_bytes().get(at)?;
    if byte < 0x80 {
        return Some((class_of(u32::from(byte)), 1));
    }
    let c = text[at..].chars().next()?;
    Some((class_of(c as u32), c.len_utf8()))
}

/// Returns the length of the English contraction at the start of `rest`, or 0 if there is none.
#[inline]
pub fn contraction_len(rest: &[u8]) -> usize {
    match rest {
        [b'\'', b's' | b'd' | b'm' | b't', ..] => 2,
        [b'\'', b'l', b'l', ..] | [b'\'', b'v', b'e', ..] | [b'\'', b'r', b'e', ..] => 3,
        _ => 0,
    }
}

/// Returns the end of the pretoken that starts at `start`, which must be the start of a character.
pub fn pretoken_end(text: &str, start: usize) -> usize {
    let contraction = contraction_len(&text.as_bytes()[start..]);
    if contraction > 0 {
        return start + contraction;
    }
    let mut at = start;
    let Some((mut class, mut len)) = class_at(text, at) else {
        return start;
    };
    if text.as_bytes()[at] == b' ' {
        if let Some(next) = class_at(text, at + 1).filter(|next| next.0 != Class::Space) {
            at += 1;
            (class, len) = next;
        }
    }
    let mut last = at;
    at += len;
    while let Some((next, len)) = class_at(text, at) {
        if next != class {
            // a run of white space leaves its last character to the word behind it
            return if class == Class::Space && last > start { last } else { at };
        }
        last = at;
        at += len;
    }
    at
}

/// Appends the start of each pretoken of `text` to `starts`.
pub fn split(text: &str, starts: &mut Vec<usize>) {
    let mut at = 0;
    while at < text.len() {
        starts.push(at);
        at = pretoken_end(text, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let mut at = 0;
        let mut out = Vec::new();
        while at < text.len() {
            let end = pretoken_end(text, at);
            out.push(&text[at..end]);
            at = end;
        }
        out
    }

    #[test]
    fn follows_the_pattern() {
        let cases: [(&str, &[&str]); 9] = [
            ("", &[]),
            ("hello  world", &["hello", " ", " world"]),
            ("it's we'll I'VE", &["it", "'s", " we", "'ll", " I", "'", "VE"]),
            ("a\n\n b", &["a", "\n\n", " b"]),
            ("a\n\nb", &["a", "\n", "\n", "b"]),
            ("end  \n", &["end", "  \n"]),
            ("x1234,.5", &["x", "1234", ",.", "5"]),
            (" '\u{a0}s", &[" '", "\u{a0}", "s"]),
            ("\u{3000}\u{3000}\u{4e2d}\u{6587}", &["\u{3000}", "\u{3000}", "\u{4e2d}\u{6587}"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text:?}");
        }
    }
}
