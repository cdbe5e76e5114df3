//! nanoGPT's form of a corpus: `train.bin` and `val.bin`, tokens alone, and `meta.json` beside them.
//!
//! There is no `meta.pkl`: nanoGPT's scripts take it as the sign of a character-level vocabulary.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::disk::{rename, temporary_name};
use super::header::HEADER_BYTES;
use super::manifest::{ShardInfo, Split, Splits};
use crate::bpe::vocab::hex;
use crate::error::{Error, Result};

const COPY_BYTES: usize = 1 << 20;

/// Writes one flat file for each split that has tokens. The shards stay; the caller removes them when `meta.json` is on
/// disk.
pub fn flatten(directory: &Path, splits: &Splits) -> Result<Splits> {
    Ok(Splits {
        train: flatten_split(directory, "train", &splits.train)?,
        val: flatten_split(directory, "val", &splits.val)?,
    })
}

fn flatten_split(directory: &Path, name: &str, split: &Split) -> Result<Split> {
    // an empty file cannot be mapped into memory
    if split.tokens == 0 {
        return Ok(Split::default());
    }
    let file = format!("{name}.bin");
    let path = directory.join(&file);
    let temporary = directory.join(temporary_name(&file));
    let sha256 = copy_tokens(directory, split, &temporary).map_err(|(shard, source)| {
        let path = shard.map_or_else(|| path.clone(), |shard| directory.join(shard));
        Error::Io { path, source }
    })?;
    rename(&temporary, &path)?;
    let (tokens, documents) = (split.tokens, split.documents);
    let shards = vec![ShardInfo { file, tokens, documents, sha256 }];
    Ok(Split { tokens, documents, shards, cut_document: split.cut_document })
}

/// Copies the tokens of all shards to `target` and returns its digest. An error has the name of the shard, if a shard
/// could not be read.
fn copy_tokens(
    directory: &Path,
    split: &Split,
    target: &Path,
) -> std::result::Result<String, (Option<String>, std::io::Error)> {
    let mut out = File::create(target).map_err(|error| (None, error))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; COPY_BYTES];
    for shard in &split.shards {
        let named = |error| (Some(shard.file.clone()), error);
        let mut tokens = BufReader::new(File::open(directory.join(&shard.file)).map_err(named)?);
        tokens.seek(SeekFrom::Start(HEADER_BYTES as u64)).map_err(named)?;
        loop {
            let read = tokens.read(&mut buffer).map_err(named)?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            out.write_all(&buffer[..read]).map_err(|error| (None, error))?;
        }
    }
    out.sync_all().map_err(|error| (None, error))?;
    Ok(hex(&hasher.finalize()))
}
