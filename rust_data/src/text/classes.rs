//! The character class of each code point.
//!
//! The table is that of Unicode 16.0, the version that the regex engines of tiktoken and of Hugging Face `tokenizers`
//! have. A newer version moves thousands of code points from `Other` to `Letter`, and that would move the borders of
//! pretokens.

pub use super::class::Class;
use super::ranges::RANGES;

/// The code points from here on are all `Other`.
const LIMIT: usize = RANGES[RANGES.len() - 1].1 as usize + 1;

/// The classes, two bits for each code point.
static TABLE: [u8; LIMIT.div_ceil(4)] = build_table();

#[allow(long_running_const_eval)]
const fn build_table() -> [u8; LIMIT.div_ceil(4)] {
    let mut table = [0u8; LIMIT.div_ceil(4)];
    let mut i = 0;
    while i < RANGES.len() {
        let (first, last, class) = RANGES[i];
        let mut c = first as usize;
        while c <= last as usize {
            table[c / 4] |= (class as u8) << (2 * (c % 4));
            c += 1;
        }
        i += 1;
    }
    table
}

/// Returns the class of code point `c`.
#[inline]
pub fn class_of(c: u32) -> Class {
    let bits = match TABLE.get(c as usize / 4) {
        Some(four) => (four >> (2 * (c % 4))) & 3,
        None => 0,
    };
    match bits {
        1 => Class::Letter,
        2 => Class::Number,
        3 => Class::Space,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_unicode_16() {
        let count = |class| (0..0x110000).filter(|&c| class_of(c) == class).count();
        assert_eq!(count(Class::Letter), 141_028);
        assert_eq!(count(Class::Number), 1_911);
        assert_eq!(count(Class::Space), 25);
    }

    #[test]
    fn version_is_16_and_not_17() {
        assert_eq!(class_of(0x1C89), Class::Letter); // new in 16.0
        assert_eq!(class_of(0x088F), Class::Other); // a letter from 17.0 on
    }
}
