//! Writes one shard: the tokens under a temporary name, then the header, then sync and rename.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::disk::{rename, temporary_name};
use super::header::{Header, HEADER_BYTES};
use super::manifest::ShardInfo;
use crate::bpe::id::Id;
use crate::bpe::model::Model;
use crate::bpe::vocab::hex;
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 1 << 20;

pub struct ShardWriter {
    directory: PathBuf,
    name: String,
    file: File,
    buffer: Vec<u8>,
    /// Bytes of the file that have been written.
    written: u64,
    header: Header,
}

impl ShardWriter {
    pub fn create<T: Id>(directory: &Path, name: String, model: &Model) -> Result<Self> {
        let header = Header {
            tokens: 0,
            token_bytes: size_of::<T>() as u32,
            vocab_size: model.vocab.size() as u32,
            eot: model.vocab.eot,
            documents: 0,
            tokenizer_sha256: model.digest(),
        };
        let path = directory.join(temporary_name(&name));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(Error::io(&directory.join(&name)))?;
        // zeros in place of the header, so that an unfinished file is not taken for a shard
        let buffer = vec![0; HEADER_BYTES];
        Ok(Self { directory: directory.to_owned(), name, file, buffer, written: 0, header })
    }

    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    pub fn push<T: Id>(&mut self, tokens: &[T]) -> Result<()> {
        self.header.tokens += tokens.len() as u64;
        T::extend_bytes(tokens, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    pub fn end_document(&mut self) {
        self.header.documents += 1;
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(Error::io(&self.path()))?;
        start_writeback(&self.file, self.written, self.buffer.len());
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Syncs the shard to disk and gives it its own name.
    pub fn finish(mut self) -> Result<ShardInfo> {
        self.flush()?;
        let path = self.path();
        let mut complete = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&self.header.to_bytes())?;
            self.file.seek(SeekFrom::Start(0))?;
            // the digest is computed while the sync waits for the disk
            let disk = self.file.try_clone()?;
            let syncing = std::thread::Builder::new().spawn(move || disk.sync_all());
            let sha256 = sha256_of(&mut self.file);
            match syncing {
                Ok(syncing) => syncing.join().map_err(|_| std::io::Error::other("internal error in a sync"))??,
                Err(_) => self.file.sync_all()?,
            }
            sha256
        };
        let sha256 = complete().map_err(Error::io(&path))?;
        rename(&self.directory.join(temporary_name(&self.name)), &path)?;
        Ok(ShardInfo {
            file: self.name,
            tokens: self.header.tokens,
            documents: u64::from(self.header.documents),
            sha256,
        })
    }
}

/// Asks the system to begin writing a part of a file to the disk, so that the sync at the end is short. Only the speed
/// depends on it.
#[cfg(target_os = "linux")]
fn start_writeback(file: &File, start: u64, len: usize) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open while `file` lives, and the call takes no pointers.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), start as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE);
    }
}

#[cfg(not(target_os = "linux"))]
fn start_writeback(_file: &File, _start: u64, _len: usize) {}

/// Returns the SHA-256 of the rest of `reader`, in hexadecimal.
pub fn sha256_of(reader: &mut impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES / 4];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

pub fn sha256_of_file(path: &Path) -> Result<String> {
    File::open(path).and_then(|mut file| sha256_of(&mut file)).map_err(Error::io(path))
}
