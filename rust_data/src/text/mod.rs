//! Unicode character classes and the split of text into pretokens.

pub mod classes;
mod ranges;
pub mod scalar;
