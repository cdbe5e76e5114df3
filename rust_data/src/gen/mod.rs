//! Synthetic sequences: multi-query associative recall and class tokens.
//!
//! Row `i` of a corpus depends on its seed and on `i` alone, never on the rows or threads around it.

mod alias;
pub mod class_tokens;
mod fill;
pub mod mqar;
mod mt19937;
mod random;
mod without_replacement;
pub mod zoology;
