//! Unicode character classes and the split of text into pretokens.

pub mod blocks;
mod class;
pub mod classes;
pub mod pattern;
mod ranges;
pub mod scalar;
pub mod seams;
pub mod steps;
pub mod utf8;
