//! Validation of UTF-8.

use std::str::Utf8Error;

/// `std::str::from_utf8`, several times as fast on valid text.
pub fn from_utf8(bytes: &[u8]) -> Result<&str, Utf8Error> {
    // only the standard library says where it goes wrong
    simdutf8::basic::from_utf8(bytes).or_else(|_| std::str::from_utf8(bytes))
}
