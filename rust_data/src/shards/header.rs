//! The 1024-byte header of a shard: 256 little-endian 32-bit words.
//!
//! | word | content |
//! | --- | --- |
//! | 0, 1, 2 | magic, version, number of tokens, as the readers of llm.c expect them |
//! | 3 | bytes a token: 2 or 4 |
//! | 4, 5 | vocabulary size, id of the end-of-text token |
//! | 6 | documents that end in the shard |
//! | 8, 9 | number of tokens as u64 |
//! | 16..24 | SHA-256 of the tokenizer |

use crate::error::{Error, Result};

pub const HEADER_BYTES: usize = 1024;
/// A shard's token count must fit the i32 of word 2.
pub const MAX_SHARD_TOKENS: u64 = i32::MAX as u64;

/// Magic and version that llm.c gives to GPT-2 (2-byte) and Llama 3 (4-byte) shards.
fn magic_and_version(token_bytes: u32) -> (u32, u32) {
    if token_bytes == 2 {
        (20_240_520, 1)
    } else {
        (20_240_801, 7)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub tokens: u64,
    pub token_bytes: u32,
    pub vocab_size: u32,
    pub eot: u32,
    pub documents: u32,
    pub tokenizer_sha256: [u8; 32],
}

impl Header {
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let (magic, version) = magic_and_version(self.token_bytes);
        let low = self.tokens as u32;
        let words = [magic, version, low, self.token_bytes, self.vocab_size, self.eot, self.documents, 0, low];
        let mut bytes = [0; HEADER_BYTES];
        for (word, place) in words.iter().zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[64..96].copy_from_slice(&self.tokenizer_sha256);
        bytes
    }

    /// Reads a header, and checks that it fits the size of its file.
    pub fn parse(bytes: &[u8; HEADER_BYTES], file_bytes: u64) -> Result<Self> {
        let word = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        let token_bytes = match (word(0), word(1)) {
            pair if pair == magic_and_version(2) => 2,
            pair if pair == magic_and_version(4) => 4,
            (magic, version) => {
                return Err(Error::value(format!("magic {magic}, version {version}: not a token shard")));
            }
        };
        // other writers of this format leave all words behind the third one zero
        if word(3) != token_bytes && word(3) != 0 {
            return Err(Error::value(format!(
                "magic says {token_bytes} bytes a token, header word 3 says {}",
                word(3)
            )));
        }
        let tokens = u64::from(word(2));
        let long_count = u64::from(word(8)) | u64::from(word(9)) << 32;
        if word(3) != 0 && long_count != tokens {
            return Err(Error::value(format!("header counts disagree: {tokens} and {long_count} tokens")));
        }
        let expected = HEADER_BYTES as u64 + tokens * u64::from(token_bytes);
        if file_bytes != expected {
            return Err(Error::value(format!(
                "header says {tokens} tokens of {token_bytes} bytes ({expected} bytes in all), the file has {file_bytes}"
            )));
        }
        let mut tokenizer_sha256 = [0; 32];
        tokenizer_sha256.copy_from_slice(&bytes[64..96]);
        Ok(Self { tokens, token_bytes, vocab_size: word(4), eot: word(5), documents: word(6), tokenizer_sha256 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { tokens: 5, token_bytes: 2, vocab_size: 50_257, eot: 50_256, documents: 1, tokenizer_sha256: [7; 32] }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Header::parse(&header().to_bytes(), 1034).unwrap(), header());
    }

    #[test]
    fn words_are_where_the_readers_look() {
        let bytes = header().to_bytes();
        let words: Vec<u32> = bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words[..10], [20_240_520, 1, 5, 2, 50_257, 50_256, 1, 0, 5, 0]);
        assert_eq!(words[16..24], [0x0707_0707; 8]);
        assert_eq!(words[24..], [0; 232]);
    }

    #[test]
    fn tampering_is_seen() {
        let good = header().to_bytes();
        assert!(Header::parse(&good, 1036).unwrap_err().to_string().contains("1034 bytes"));
        for (byte, value) in [(0, 0), (8, 6), (12, 4), (36, 1)] {
            let mut bad = good;
            bad[byte] = value;
            assert!(Header::parse(&bad, 1034).is_err(), "byte {byte}");
        }
    }
}
