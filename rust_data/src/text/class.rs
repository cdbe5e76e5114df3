//! The four character classes that the GPT-2 pattern tells apart.

/// `\p{L}`, `\p{N}`, `\s`, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    Other = 0,
    Letter = 1,
    Number = 2,
    Space = 3,
}
