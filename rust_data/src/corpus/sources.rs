//! Which files the given inputs mean, and in which order.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Parquet,
    JsonLines(Codec),
    Text(Codec),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    None,
    Gzip,
    Zstd,
}

#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    /// The path below the directory that all sources share, as the manifest lists it.
    pub name: String,
    pub format: Format,
    pub bytes: u64,
}

impl Source {
    /// How a person finds a row of this file.
    pub fn place_of(&self, row: u64) -> String {
        let file = self.path.display();
        match self.format {
            Format::JsonLines(_) => format!("{file}: line {}", row + 1),
            Format::Parquet => format!("{file}: row {row}"),
            Format::Text(_) => file.to_string(),
        }
    }
}

const ENDINGS: &str = ".parquet, .jsonl, .txt, the last two also with .gz or .zst";

fn format_of(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (stem, codec) = match name.rsplit_once('.')? {
        (stem, "gz") => (stem, Codec::Gzip),
        (stem, "zst") => (stem, Codec::Zstd),
        _ => (name.as_str(), Codec::None),
    };
    match stem.rsplit_once('.')?.1 {
        "parquet" if codec == Codec::None => Some(Format::Parquet),
        "jsonl" | "ndjson" => Some(Format::JsonLines(codec)),
        "txt" => Some(Format::Text(codec)),
        _ => None,
    }
}

/// Files, folders (searched to the bottom) and globs, in the order given; sorted inside a folder or glob.
pub fn find(inputs: &[String]) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for input in inputs {
        let before = paths.len();
        let path = Path::new(input);
        if path.is_dir() {
            walk(path, &mut paths, &mut Vec::new())?;
        } else if path.is_file() {
            paths.push(path.to_owned());
        } else if input.contains(['*', '?', '[']) {
            let matches = glob::glob(input).map_err(|error| Error::value(format!("{input}: {error}")))?;
            paths.extend(matches.filter_map(|entry| entry.ok()).filter(|path| path.is_file()));
        } else {
            return Err(Error::value(format!("{input}: no such file or folder")));
        }
        if paths.len() == before {
            return Err(Error::value(format!("{input}: holds no input file ({ENDINGS})")));
        }
        paths[before..].sort();
    }
    let mut seen = HashSet::new();
    for path in &paths {
        if !seen.insert(std::fs::canonicalize(path).map_err(Error::io(path))?) {
            return Err(Error::value(format!("{}: given more than once", path.display())));
        }
    }
    let whole = |path: &PathBuf| std::path::absolute(path).map_err(Error::io(path));
    let shared = shared_directory(&paths.iter().map(whole).collect::<Result<Vec<_>>>()?);
    paths.iter().map(|path| describe(path, &whole(path)?, &shared)).collect()
}

fn describe(path: &Path, whole: &Path, shared: &Path) -> Result<Source> {
    let format = format_of(path)
        .ok_or_else(|| Error::value(format!("{}: unknown kind of file, expected {ENDINGS}", path.display())))?;
    let bytes = std::fs::metadata(path).map_err(Error::io(path))?.len();
    let name = whole.strip_prefix(shared).unwrap_or(whole).to_string_lossy().into_owned();
    Ok(Source { path: path.to_owned(), name, format, bytes })
}

/// `above` are the folders that hold this one: a link back to one of them leads nowhere new.
fn walk(folder: &Path, paths: &mut Vec<PathBuf>, above: &mut Vec<PathBuf>) -> Result<()> {
    let place = std::fs::canonicalize(folder).map_err(Error::io(folder))?;
    if above.contains(&place) {
        return Ok(());
    }
    above.push(place);
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.is_dir() {
            walk(&path, paths, above)?;
        } else if format_of(&path).is_some() {
            paths.push(path);
        }
    }
    above.pop();
    Ok(())
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
    fn formats_follow_the_endings() {
        let cases = [
            ("a/b.parquet", Some(Format::Parquet)),
            ("b.JSONL", Some(Format::JsonLines(Codec::None))),
            ("b.v2.jsonl.zst", Some(Format::JsonLines(Codec::Zstd))),
            ("b.txt.gz", Some(Format::Text(Codec::Gzip))),
            ("b.parquet.gz", None),
            ("b.csv", None),
            ("txt", None),
        ];
        for (name, expected) in cases {
            assert_eq!(format_of(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn names_start_below_the_shared_directory() {
        let paths = ["x/y/a.txt", "x/y/z/b.txt", "x/y2/c.txt"].map(PathBuf::from);
        assert_eq!(shared_directory(&paths), Path::new("x"));
        assert_eq!(shared_directory(&paths[..1]), Path::new("x/y"));
        assert_eq!(shared_directory(&["/a/b.txt", "c.txt"].map(PathBuf::from)), Path::new("/"));
    }
}
