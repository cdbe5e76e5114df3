//! Byte streams out of plain, gzip and zstd files, with the count of compressed bytes read.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::sources::{Codec, Source};
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 256 << 10;

/// Counts what is read through it.
struct Counted {
    file: File,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

pub struct Stream {
    pub reader: Box<dyn BufRead + Send>,
    count: Arc<AtomicU64>,
}

impl Stream {
    pub fn open(source: &Source, codec: Codec) -> Result<Self> {
        let file = File::open(&source.path).map_err(Error::io(&source.path))?;
        let count = Arc::new(AtomicU64::new(0));
        let raw = BufReader::with_capacity(BUFFER_BYTES, Counted { file, count: count.clone() });
        let reader: Box<dyn BufRead + Send> = match codec {
            Codec::None => Box::new(raw),
            Codec::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, flate2::bufread::MultiGzDecoder::new(raw))),
            Codec::Zstd => {
                let decoder = zstd::Decoder::with_buffer(raw).map_err(Error::io(&source.path))?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
            }
        };
        Ok(Self { reader, count })
    }

    /// Bytes of the file read so far.
    pub fn position(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
