//! The GPT-2 pattern on 64 bytes at a time. Masks say which bytes are of which character class; shifts of the masks
//! give the bits where pretokens start.
//!
//! A pretoken starts at the first character of a run of one class, or at the space before it. A run of white space
//! leaves its last character to the word behind it, so a pretoken starts there too. Contractions move starts by a few
//! bytes and are handled one by one.

use super::classes::{class_of, Class};
use super::scalar::contraction_len;
use super::seams::Seams;
use crate::simd::{prefetch, Simd, BLOCK};

/// Distance in bytes of the prefetch. The CPU itself fetches only to the end of a page of 4 KiB. The memory behind a
/// text usually holds the next text.
const AHEAD: usize = 4096;

pub struct Blocks<'t> {
    text: &'t str,
    seams: &'t Seams,
    /// Where the next block begins.
    at: usize,
    carry: Carry,
}

/// What the blocks before this one leave for it.
#[derive(Default)]
struct Carry {
    /// The class of the last byte: bit 0 of one of these is set.
    letter: u64,
    number: u64,
    other: u64,
    white: u64,
    space: u64,
    /// A character that began in the block before: the number of its bytes in this block, and its class.
    rest: Option<(u32, Class)>,
    /// Starts in this block that a contraction in the block before adds or removes.
    set: u64,
    clear: u64,
}

/// The bytes of a block by class.
#[derive(Default)]
struct Kinds {
    letters: u64,
    numbers: u64,
    white: u64,
    /// Bytes of multi-byte white space: the first, and the others.
    wide_first: u64,
    wide_rest: u64,
    /// Starts of multi-byte characters that have a seam before them.
    seams: u64,
}

impl Kinds {
    fn add(&mut self, class: Class, bytes: u64) {
        match class {
            Class::Letter => self.letters |= bytes,
            Class::Number => self.numbers |= bytes,
            Class::Space => self.white |= bytes,
            Class::Other => {}
        }
    }
}

impl<'t> Blocks<'t> {
    pub fn new(text: &'t str, seams: &'t Seams) -> Self {
        Self { text, seams, at: 0, carry: Carry::default() }
    }

    pub fn is_done(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Writes the places in the next block where pretokens, or their parts between seams, start. Returns their number.
    #[inline(always)]
    pub fn next<S: Simd>(&mut self, simd: S, starts: &mut [usize; BLOCK]) -> usize {
        let base = self.at;
        let bits = self.next_bits(simd);
        simd.places(bits, base, starts);
        bits.count_ones() as usize
    }

    #[inline(always)]
    fn next_bits<S: Simd>(&mut self, simd: S) -> u64 {
        let bytes = self.text.as_bytes();
        let base = self.at;
        let left = bytes.len() - base;
        self.at += BLOCK;
        prefetch(bytes.as_ptr().wrapping_add(base + AHEAD));
        match bytes[base..].first_chunk() {
            Some(block) => self.bits_of(simd, base, block, !0, left),
            None => {
                let mut padded = [0; BLOCK];
                padded[..left].copy_from_slice(&bytes[base..]);
                self.bits_of(simd, base, &padded, (1 << left) - 1, left)
            }
        }
    }

    #[inline(always)]
    fn bits_of<S: Simd>(&mut self, simd: S, base: usize, block: &[u8; BLOCK], valid: u64, left: usize) -> u64 {
        let masks = simd.masks(block);
        let mut kinds =
            Kinds { letters: masks.letters, numbers: masks.numbers, white: masks.white, ..Kinds::default() };
        if masks.high != 0 {
            self.add_wide(base, masks.high, &mut kinds);
        }
        let Kinds { letters, numbers, white, .. } = kinds;
        let others = !(letters | numbers | white) & valid;
        let carry = &self.carry;
        let begins = |kind: u64, last: u64| kind & !(kind << 1 | last);
        let words = begins(letters, carry.letter) | begins(numbers, carry.number) | begins(others, carry.other);
        let mut starts = words & !(masks.spaces << 1 | carry.space);
        // white space at the end of the text stays whole, as if more white space followed
        let white_next = if left > BLOCK {
            white >> 1 | u64::from(self.is_white_at(base + BLOCK)) << 63
        } else {
            white >> 1 | 1 << (left - 1)
        };
        starts |= begins(white, carry.white) | white & !white_next;
        if kinds.wide_first | kinds.wide_rest != 0 {
            starts = self.wide_white_starts(base, &kinds, starts);
        }
        starts = starts & !carry.clear | carry.set;
        (self.carry.set, self.carry.clear) = (0, 0);
        let contractions = masks.apostrophes & starts;
        if contractions != 0 {
            starts = self.cut_contractions(base, contractions, masks.apostrophes, starts);
        }
        self.carry.letter = letters >> 63;
        self.carry.number = numbers >> 63;
        self.carry.other = others >> 63;
        self.carry.white = white >> 63;
        self.carry.space = masks.spaces >> 63;
        (starts | kinds.seams) & valid
    }

    /// Class and length of the character at `at`, which must be a character border.
    #[inline]
    fn wide_char(&self, at: usize) -> (Class, u32) {
        let bytes = &self.text.as_bytes()[at..];
        let tail = |i: usize| u32::from(bytes.get(i).copied().unwrap_or(0)) & 0x3F;
        let first = u32::from(bytes[0]);
        let (c, len) = match first {
            0..0x80 => (first, 1),
            0x80..0xE0 => ((first & 0x1F) << 6 | tail(1), 2),
            0xE0..0xF0 => ((first & 0x0F) << 12 | tail(1) << 6 | tail(2), 3),
            _ => ((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4),
        };
        (class_of(c), len)
    }

    /// Whether there is a seam between the multi-byte character at `at` and the character before it.
    #[inline]
    fn is_seam(&self, at: usize) -> bool {
        let bytes = self.text.as_bytes();
        at > 0 && self.seams.is_between(bytes[at - 1], bytes[at])
    }

    /// Adds the bytes of multi-byte characters to `kinds`.
    fn add_wide(&mut self, base: usize, mut high: u64, kinds: &mut Kinds) {
        if let Some((len, class)) = self.carry.rest.take() {
            let bytes = (1 << len) - 1;
            kinds.add(class, bytes);
            if class == Class::Space {
                kinds.wide_rest |= bytes;
            }
            high &= !bytes;
        }
        while high != 0 {
            let place = high.trailing_zeros();
            let (class, len) = self.wide_char(base + place as usize);
            let bytes = ((1 << len) - 1) << place;
            kinds.add(class, bytes);
            kinds.seams |= u64::from(self.is_seam(base + place as usize)) << place;
            if class == Class::Space {
                kinds.wide_first |= 1 << place;
                kinds.wide_rest |= bytes & !(1 << place);
            }
            high &= !bytes;
            if place + len > BLOCK as u32 {
                self.carry.rest = Some((place + len - BLOCK as u32, class));
            }
        }
    }

    /// Whether the character that contains the byte at `at`, the start of the next block, is white space.
    #[inline]
    fn is_white_at(&self, at: usize) -> bool {
        match self.carry.rest {
            Some((_, class)) => class == Class::Space,
            None => match self.text.as_bytes()[at] {
                byte @ 0..0x80 => matches!(byte, b' ' | 9..=13),
                _ => self.wide_char(at).0 == Class::Space,
            },
        }
    }

    /// Corrects `starts` for multi-byte white space. Only the first byte of such a character can be a start, and it is
    /// one if the character is the last before something else.
    fn wide_white_starts(&self, base: usize, kinds: &Kinds, mut starts: u64) -> u64 {
        starts &= !kinds.wide_rest;
        let mut wide = kinds.wide_first;
        while wide != 0 {
            let place = wide.trailing_zeros();
            wide &= wide - 1;
            let next = base + place as usize + self.wide_char(base + place as usize).1 as usize;
            if next < self.text.len() && self.wide_char(next).0 != Class::Space {
                starts |= 1 << place;
            }
        }
        starts
    }

    /// Corrects `starts` where an apostrophe begins a contraction. A contraction ends inside its run of letters.
    fn cut_contractions(&mut self, base: usize, mut open: u64, apostrophes: u64, mut starts: u64) -> u64 {
        let bytes = self.text.as_bytes();
        while open != 0 {
            let place = open.trailing_zeros() as usize;
            open &= open - 1;
            let len = contraction_len(&bytes[base + place..]);
            if len == 0 {
                continue;
            }
            let (first, end) = (place + 1, place + len);
            let clear = 1u128 << first;
            let set = if base + end < bytes.len() { 1u128 << end } else { 0 };
            starts = starts & !(clear as u64) | set as u64;
            self.carry.clear |= (clear >> BLOCK) as u64;
            self.carry.set |= (set >> BLOCK) as u64;
            // an apostrophe behind the contraction now starts a pretoken, and may be a contraction as well
            open |= apostrophes & set as u64;
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::super::scalar;
    use super::*;
    use crate::simd::{Kernel, Level};

    struct Starts<'t>(&'t str, &'t Seams);

    impl Kernel for Starts<'_> {
        type Output = Vec<usize>;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Vec<usize> {
            let mut all = Vec::new();
            let mut blocks = Blocks::new(self.0, self.1);
            let mut found = [0; BLOCK];
            while !blocks.is_done() {
                let count = blocks.next(simd, &mut found);
                all.extend_from_slice(&found[..count]);
            }
            all
        }
    }

    fn assert_same(text: &str) {
        let mut expected = Vec::new();
        scalar::split(text, &mut expected);
        let some_joined = Seams::new(["中é".as_bytes(), "é\u{3000}ßé".as_bytes()]);
        let mut with_seams = expected.clone();
        let borders = text.as_bytes().windows(2).enumerate();
        with_seams
            .extend(borders.filter(|(_, w)| w[1] >= 0xC0 && some_joined.is_between(w[0], w[1])).map(|(i, _)| i + 1));
        with_seams.sort_unstable();
        with_seams.dedup();
        for level in Level::all() {
            assert_eq!(level.run(Starts(text, &Seams::none())), expected, "{}: {text:?}", level.name());
            assert_eq!(level.run(Starts(text, &some_joined)), with_seams, "{}, seams: {text:?}", level.name());
        }
    }

    #[test]
    fn agrees_with_the_scalar_form_on_random_text() {
        let alphabet = [
            "a", "b", "s", "t", "ll", "ve", "re", "d", "m", " ", " ", "  ", "\n", "\t", "\r\n", "'", "'", "'s", "'ll",
            "1", "23", ".", "-", "!", "\u{a0}", "\u{2003}", "\u{3000}", "\u{85}", "é", "ß", "中", "\u{301}", "²", "½",
            "😀", "\u{0}",
        ];
        let mut state = 1u64;
        for round in 0..30_000 {
            let text: String = (0..round % 130)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    alphabet[(state >> 33) as usize % alphabet.len()]
                })
                .collect();
            assert_same(&text);
        }
    }

    #[test]
    fn every_short_text_at_a_block_border() {
        // all strings of 4 from a small alphabet, so placed that they straddle byte 64
        let alphabet = ["x", " ", "'", "s", "l", "\n", "7", "\u{3000}", "é", "."];
        for code in 0..10_000usize {
            let digits = [code / 1000, code / 100 % 10, code / 10 % 10, code % 10];
            let middle: String = digits.iter().map(|&digit| alphabet[digit]).collect();
            for lead in [61, 62, 63] {
                let mut text = "y".repeat(lead);
                text.push_str(&middle);
                assert_same(&text);
                text.push('z');
                assert_same(&text);
            }
        }
    }
}
