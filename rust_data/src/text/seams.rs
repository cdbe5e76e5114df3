//! Seams: places between two characters that no token lies across.
//!
//! Nothing merges across a seam, so a pretoken that is cut at its seams has the same ids. In most scripts but Latin,
//! GPT-2 has almost no tokens of several characters, so seams cut their words into single characters. There are few
//! different characters, and the caches soon hold them all, whereas new words keep coming.

/// Says where some token joins two multi-byte characters: bit `last % 64` of number `first % 64` is set if a token has
/// the byte `last`, which ends a character, before the byte `first`, which starts the next one.
pub struct Seams([u64; 64]);

impl Seams {
    /// Returns the seams of a vocabulary.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut joined = [0; 64];
        for pair in tokens.into_iter().flat_map(|token| token.windows(2)) {
            if let [last @ 0x80..0xC0, first @ 0xC0..=0xFF] = *pair {
                joined[usize::from(first % 64)] |= 1 << (last % 64);
            }
        }
        Self(joined)
    }

    /// Returns no seams: pretokens stay as the pattern makes them.
    pub fn none() -> Self {
        Self([u64::MAX; 64])
    }

    /// Whether no token has the byte `last`, which ends a character, before the byte `first`, which starts one.
    #[inline(always)]
    pub fn is_between(&self, last: u8, first: u8) -> bool {
        last >= 0x80 && self.0[usize::from(first % 64)] >> (last % 64) & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_close_seams() {
        // the middle one starts and ends inside of characters
        let seams = Seams::new(["\u{435}\u{43d}".as_bytes(), b"\x8b\xe4\xb8", "ab\u{e9}".as_bytes()]);
        let between = |left: &str, right: &str| seams.is_between(left.as_bytes()[left.len() - 1], right.as_bytes()[0]);
        assert!(!between("\u{435}", "\u{43d}"));
        assert!(!between("\u{4e0b}", "\u{4e00}"));
        assert!(between("\u{43d}", "\u{435}"));
        assert!(between("\u{4e00}", "\u{4e0b}"));
        // only between characters of several bytes
        assert!(!between("b", "\u{e9}") && !between("x", "\u{e9}"));
        assert!((0x80..0xC0).all(|last| (0xC0..=0xFF).all(|first| !Seams::none().is_between(last, first))));
    }
}
