//! One error type: what a user can cause, what the system refuses, and a cancelled run.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting or a file that cannot be used; the text names it and the remedy.
    #[error("{0}")]
    Value(String),
    /// One row of an input file that holds no usable text.
    #[error("{place}: {reason} ({}--on-error skip leaves such rows out and counts them)", if *.resume { "--resume " } else { "" })]
    Row {
        place: String,
        reason: String,
        /// Whether the run can be resumed because some of its shards are complete.
        resume: bool,
    },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    pub fn value(text: impl Into<String>) -> Self {
        Self::Value(text.into())
    }

    /// Adapter for `map_err`: attaches the path to an [`io::Error`].
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}
