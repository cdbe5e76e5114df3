//! Finds the files that the given inputs mean, and their order.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::sources::{format_of, name_of, Format, Source, ENDINGS};
use crate::error::{Error, Result};

pub struct Found {
    pub sources: Vec<Source>,
    /// Files and folders that cannot be read, and why (only where `skip` was asked for).
    pub unreadable: Vec<(Source, String)>,
    pub passed_over: Vec<PassedOver>,
}

/// A name inside a folder or glob that was passed over.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct PassedOver {
    pub path: PathBuf,
    pub reason: &'static str,
}

const HIDDEN: &str = "its name begins with . or _; name it to read it";
const UNKNOWN: &str = "unknown kind of file";
const FOLDER: &str = "a folder; name it, or write ** in the pattern";
const DANGLING: &str = "a link to nothing";

/// Files, folders (searched to the bottom) and globs, in the order given; sorted inside a folder or glob. Names
/// that begin with `.` or `_` are passed over unless they are given, as other readers of such folders do.
///
/// A file or folder that cannot be read is an error, or is listed in `unreadable` if `skip`.
pub fn find(inputs: &[PathBuf], skip: bool) -> Result<Found> {
    let mut search = Search { skip, ..Search::default() };
    for input in inputs {
        search.input(input)?;
    }
    let mut seen = HashSet::new();
    let mut paths = Vec::new();
    for path in std::mem::take(&mut search.paths) {
        match std::fs::canonicalize(&path) {
            Ok(place) if !seen.insert(place.clone()) => {
                return Err(Error::value(format!("{}: given more than once", path.display())));
            }
            Ok(_) => paths.push(path),
            Err(error) => search.cannot_read(&path, error)?,
        }
    }
    search.passed_over.sort();
    search.passed_over.dedup();
    let whole = |path: &PathBuf| std::path::absolute(path).map_err(Error::io(path));
    let shared = shared_directory(&paths.iter().map(whole).collect::<Result<Vec<_>>>()?);
    let mut sources = Vec::new();
    for path in &paths {
        let format = format_of(path)
            .ok_or_else(|| Error::value(format!("{}: unknown kind of file, expected {ENDINGS}", path.display())))?;
        match std::fs::metadata(path) {
            Ok(metadata) => sources.push(Source::new(path, &whole(path)?, &shared, format, &metadata)),
            Err(error) => search.cannot_read(path, error)?,
        }
    }
    let unreadable = search.unreadable.into_iter().map(|(path, reason)| {
        let whole = whole(&path).unwrap_or_else(|_| path.clone());
        let name = name_of(whole.strip_prefix(&shared).unwrap_or(&whole));
        (Source { path, name, format: Format::Unreadable, bytes: 0, modified: 0 }, reason)
    });
    Ok(Found { sources, unreadable: unreadable.collect(), passed_over: search.passed_over })
}

#[derive(Default)]
struct Search {
    skip: bool,
    paths: Vec<PathBuf>,
    unreadable: Vec<(PathBuf, String)>,
    passed_over: Vec<PassedOver>,
}

impl Search {
    fn input(&mut self, input: &Path) -> Result<()> {
        let before = (self.paths.len(), self.unreadable.len());
        let is_pattern = has_wildcard(input.as_os_str());
        match std::fs::metadata(input) {
            Ok(metadata) if metadata.is_dir() => self.walk(input, &mut Vec::new())?,
            Ok(metadata) if metadata.is_file() => self.paths.push(input.to_owned()),
            Ok(_) => return Err(Error::value(format!("{}: neither a file nor a folder", input.display()))),
            Err(error) if error.kind() == ErrorKind::NotFound && is_pattern => {
                let components: Vec<Component> = input.components().collect();
                self.expand(PathBuf::new(), &components)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::value(format!("{}: no such file or folder", input.display())));
            }
            Err(error) => self.cannot_read(input, error)?,
        }
        if (self.paths.len(), self.unreadable.len()) == before {
            let display = input.display();
            let hidden = self.passed_over.iter().filter(|passed| passed.reason == HIDDEN).count();
            let note = match hidden {
                0 => String::new(),
                _ => format!("; passed over {hidden} names that begin with . or _: name them to read them"),
            };
            return Err(Error::value(format!("{display}: holds no input file ({ENDINGS}){note}")));
        }
        self.paths[before.0..].sort();
        Ok(())
    }

    fn cannot_read(&mut self, path: &Path, error: std::io::Error) -> Result<()> {
        if !self.skip {
            return Err(Error::io(path)(error));
        }
        self.unreadable.push((path.to_owned(), error.to_string()));
        Ok(())
    }

    fn pass_over(&mut self, path: &Path, reason: &'static str) {
        self.passed_over.push(PassedOver { path: path.to_owned(), reason });
    }

    /// Returns the paths and kinds of the entries of a folder, sorted. Entries whose kind cannot be read are left out
    /// and reported.
    fn entries(&mut self, folder: &Path) -> Result<Vec<(PathBuf, Kind)>> {
        let read = || std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>();
        let entries = match read() {
            Ok(entries) => entries,
            Err(error) => {
                self.cannot_read(folder, error)?;
                Vec::new()
            }
        };
        let mut found = Vec::new();
        for entry in entries {
            // an empty path stands for the current folder in a relative pattern
            let path = folder.join(entry.file_name());
            let mut kind = entry.file_type();
            if kind.as_ref().is_ok_and(std::fs::FileType::is_symlink) {
                kind = std::fs::metadata(&path).map(|metadata| metadata.file_type());
            }
            match kind {
                Ok(kind) if kind.is_dir() => found.push((path, Kind::Folder)),
                Ok(kind) if kind.is_file() => found.push((path, Kind::File)),
                Ok(_) => self.pass_over(&path, UNKNOWN),
                Err(error) if error.kind() == ErrorKind::NotFound && format_of(&path).is_none() => {
                    self.pass_over(&path, DANGLING);
                }
                Err(error) => self.cannot_read(&path, error)?,
            }
        }
        found.sort();
        Ok(found)
    }

    /// Adds the inputs in and below a folder. `above` are the folders that contain this one; a link back to one of them
    /// is not followed, because it would never end.
    fn walk(&mut self, folder: &Path, above: &mut Vec<PathBuf>) -> Result<()> {
        let place = match std::fs::canonicalize(folder) {
            Ok(place) => place,
            Err(error) => return self.cannot_read(folder, error),
        };
        if above.contains(&place) {
            return Ok(());
        }
        above.push(place);
        for (path, kind) in self.entries(folder)? {
            match (is_hidden(&path), kind, format_of(&path)) {
                (true, Kind::Folder, _) | (true, Kind::File, Some(_)) => self.pass_over(&path, HIDDEN),
                (true, Kind::File, None) => {}
                (false, Kind::Folder, _) => self.walk(&path, above)?,
                (false, Kind::File, Some(_)) => self.paths.push(path),
                (false, Kind::File, None) => self.pass_over(&path, UNKNOWN),
            }
        }
        above.pop();
        Ok(())
    }

    /// Adds the files in `folder` that match the rest of a pattern. The `glob` crate matches the names but does not
    /// walk the folders, because its walk silently drops names that are not UTF-8 and folders that cannot be read.
    fn expand(&mut self, folder: PathBuf, pattern: &[Component]) -> Result<()> {
        let Some((first, rest)) = pattern.split_first() else {
            match std::fs::metadata(&folder) {
                Ok(metadata) if metadata.is_file() => self.paths.push(folder),
                Ok(_) => self.pass_over(&folder, FOLDER),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => self.cannot_read(&folder, error)?,
            }
            return Ok(());
        };
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        if first.as_os_str() == "**" {
            if rest.is_empty() {
                return self.walk(here, &mut Vec::new());
            }
            return self.expand_below(folder, rest, &mut Vec::new());
        }
        if !has_wildcard(first.as_os_str()) {
            return self.expand(folder.join(first), rest);
        }
        let text = first.as_os_str().to_string_lossy();
        let names = glob::Pattern::new(&text).map_err(|error| Error::value(format!("{text}: {error}")))?;
        for (path, kind) in self.entries(here)? {
            let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !names.matches(&name) || (kind == Kind::File && !rest.is_empty()) {
                continue;
            }
            if is_hidden(&path) && !text.starts_with(&name[..1]) {
                self.pass_over(&path, HIDDEN);
            } else if rest.is_empty() && kind == Kind::File {
                self.paths.push(path);
            } else {
                self.expand(path, rest)?;
            }
        }
        Ok(())
    }

    /// `expand` in a folder and in all below it, for `**`.
    fn expand_below(&mut self, folder: PathBuf, rest: &[Component], above: &mut Vec<PathBuf>) -> Result<()> {
        let here = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.clone() };
        let place = match std::fs::canonicalize(&here) {
            Ok(place) => place,
            Err(error) => return self.cannot_read(&here, error),
        };
        if above.contains(&place) {
            return Ok(());
        }
        above.push(place);
        self.expand(folder.clone(), rest)?;
        // `expand` has reported the folders that cannot be read
        let known = self.unreadable.len();
        let entries = self.entries(&here)?;
        self.unreadable.truncate(known);
        for (path, _) in entries.into_iter().filter(|&(_, kind)| kind == Kind::Folder) {
            let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
            if is_hidden(&path) {
                self.pass_over(&path, HIDDEN);
            } else {
                self.expand_below(path, rest, above)?;
            }
        }
        above.pop();
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    File,
    Folder,
}

fn has_wildcard(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

fn is_hidden(path: &Path) -> bool {
    let first = path.file_name().and_then(|name| name.as_encoded_bytes().first());
    matches!(first, Some(b'.' | b'_'))
}

fn shared_directory(paths: &[PathBuf]) -> PathBuf {
    let mut shared = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("")).to_owned();
    while !paths.iter().all(|path| path.starts_with(&shared)) && shared.pop() {}
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_start_below_the_shared_directory() {
        let paths = ["x/y/a.txt", "x/y/z/b.txt", "x/y2/c.txt"].map(PathBuf::from);
        assert_eq!(shared_directory(&paths), Path::new("x"));
        assert_eq!(shared_directory(&paths[..1]), Path::new("x/y"));
        assert_eq!(shared_directory(&["/a/b.txt", "c.txt"].map(PathBuf::from)), Path::new("/"));
    }
}
