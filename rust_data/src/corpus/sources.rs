//! An input file: its names and its format.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Parquet,
    JsonLines(Codec),
    Text(Codec),
    /// A file or folder that could not be opened. It has no rows.
    Unreadable,
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
    /// When the file was last modified, in nanoseconds since 1970; 0 if unknown.
    pub modified: u64,
}

impl Source {
    /// `whole` is the absolute path, `shared` the directory that all sources share.
    pub fn new(path: &Path, whole: &Path, shared: &Path, format: Format, metadata: &Metadata) -> Self {
        let since_1970 = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            path: path.to_owned(),
            name: name_of(whole.strip_prefix(shared).unwrap_or(whole)),
            format,
            bytes: metadata.len(),
            modified: since_1970.map_or(0, |time| time.as_nanos() as u64),
        }
    }

    /// Names a row of this file as a user finds it: by line or row number.
    pub fn place_of(&self, row: u64) -> String {
        let file = self.path.display();
        match self.format {
            Format::JsonLines(_) => format!("{file}: line {}", row + 1),
            Format::Parquet => format!("{file}: row {row}"),
            Format::Text(_) | Format::Unreadable => file.to_string(),
        }
    }
}

pub const ENDINGS: &str = ".parquet, .jsonl, .txt, the last two also with .gz or .zst";

/// Returns the format that the ending of a file's name stands for.
pub fn format_of(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
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

/// Returns a path as text. Bytes that are not UTF-8 are written like `\xff`.
pub fn name_of(path: &Path) -> String {
    let mut name = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        name.push_str(chunk.valid());
        for byte in chunk.invalid() {
            name.push_str(&format!("\\x{byte:02x}"));
        }
    }
    name
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
}
