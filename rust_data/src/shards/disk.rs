//! Files that are written under a temporary name and then renamed.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};

/// Ending of files that are still being written.
pub const TEMPORARY: &str = ".tmp";

/// Returns the name under which a file is written until it is complete. Messages use the name of the file itself.
pub fn temporary_name(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}

/// Renames a file within its directory, and syncs the directory so that the new name survives a power cut.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::rename(from, to).and_then(|()| File::open(directory)?.sync_all()).map_err(Error::io(to))
}
