//! Reading shards back: header, tokens, digest.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::header::{Header, HEADER_BYTES};
use crate::error::{Error, Result};

pub struct Shard {
    path: PathBuf,
    file: File,
    pub header: Header,
}

impl Shard {
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::io(path))?;
        let size = file.metadata().map_err(Error::io(path))?.len();
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes).map_err(|_| Error::value(format!("{}: shorter than a header", path.display())))?;
        let header = Header::parse(&bytes, size).map_err(|e| Error::value(format!("{}: {e}", path.display())))?;
        Ok(Self { path: path.to_owned(), file, header })
    }

    /// Tokens `start .. start + count`, cut at the end of the shard.
    pub fn tokens(&mut self, start: u64, count: u64) -> Result<Vec<u32>> {
        let width = u64::from(self.header.token_bytes);
        let start = start.min(self.header.tokens);
        let count = count.min(self.header.tokens - start);
        let mut bytes = vec![0; (count * width) as usize];
        let mut read = || {
            self.file.seek(SeekFrom::Start(HEADER_BYTES as u64 + start * width))?;
            self.file.read_exact(&mut bytes)
        };
        read().map_err(Error::io(&self.path))?;
        Ok(match width {
            2 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect(),
            _ => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        })
    }
}
