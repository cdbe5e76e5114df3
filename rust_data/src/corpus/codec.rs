//! Byte streams of plain, gzip and zstd files. They count the bytes that are read from the file, before decompression.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use flate2::bufread::GzDecoder;

use super::sources::{Codec, Source};
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 256 << 10;

/// Counts the bytes that are read through it.
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

/// Reads the members of a gzip file one after the other. Zeros behind a member are padding, as for the `gzip` tool.
struct Members<R> {
    /// `None` between two members, and at the end.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    fn new(raw: R) -> Self {
        Self { member: Some(GzDecoder::new(raw)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.member = self.member.take().map(GzDecoder::into_inner).map_or(Ok(None), next_member)?;
        }
        Ok(0)
    }
}

/// Returns the member behind the padding, if there is one.
fn next_member<R: BufRead>(mut raw: R) -> std::io::Result<Option<GzDecoder<R>>> {
    loop {
        let bytes = raw.fill_buf()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let padded_only = zeros == bytes.len();
        raw.consume(zeros);
        if !padded_only {
            return Ok(Some(GzDecoder::new(raw)));
        }
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
            Codec::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, Members::new(raw))),
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
