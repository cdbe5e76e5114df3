//! Tokens as byte strings, in rank order, and where they come from.

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// OpenAI's published GPT-2 merges.
const GPT2_MERGES: &str = include_str!("../../assets/gpt2/vocab.bpe");
/// Digest of the same vocabulary in tiktoken's form, the one tiktoken itself checks.
const GPT2_SHA256: &str = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930";

/// The tokens of an encoding. A token's id is its merge rank.
pub struct Vocab {
    pub name: String,
    /// Bytes of each token by id; empty for ids that are not assigned.
    pub tokens: Vec<Box<[u8]>>,
    /// Id of the end-of-text token that closes each document.
    pub eot: u32,
    /// SHA-256 of the vocabulary in tiktoken's form (`base64 rank` lines).
    pub sha256: [u8; 32],
}

impl Vocab {
    pub fn gpt2() -> Result<Self> {
        let byte_of = printable_alphabet();
        let mut order: Vec<(char, u8)> = byte_of.iter().map(|(&c, &b)| (c, b)).collect();
        // the printable bytes come first, then the others in the order of their stand-ins
        order.sort_by_key(|&(c, b)| (c as u32 >= 256, if c as u32 >= 256 { c as u32 } else { u32::from(b) }));
        let mut tokens: Vec<Box<[u8]>> = order.iter().map(|&(_, b)| Box::from([b])).collect();
        for line in GPT2_MERGES.lines().skip(1).filter(|line| !line.is_empty()) {
            let joined = line.chars().filter(|&c| c != ' ').map(|c| byte_of.get(&c).copied());
            let token: Option<Box<[u8]>> = joined.collect();
            tokens.push(token.ok_or_else(|| Error::value(format!("vocab.bpe: bad merge {line:?}")))?);
        }
        let vocab = Self::new("gpt2", tokens, 50_256);
        debug_assert_eq!(hex(&vocab.sha256), GPT2_SHA256);
        Ok(vocab)
    }

    /// Reads tiktoken's form: one `base64 rank` line a token.
    pub fn from_tiktoken_file(path: &Path, name: &str, eot: u32) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let parsed = line
                .split_once(' ')
                .and_then(|(token, rank)| Some((base64_decode(token)?, rank.trim().parse::<usize>().ok()?)));
            let (token, rank) = parsed.filter(|(_, rank)| *rank < 1 << 24).ok_or_else(|| {
                Error::value(format!("{}: line {}: expected `base64 rank`", path.display(), number + 1))
            })?;
            if tokens.len() <= rank {
                tokens.resize(rank + 1, Box::default());
            }
            tokens[rank] = token.into_boxed_slice();
        }
        Self::new(name, tokens, eot).checked()
    }

    pub fn new(name: &str, tokens: Vec<Box<[u8]>>, eot: u32) -> Self {
        let mut hasher = Sha256::new();
        for (id, token) in tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            hasher.update(format!("{} {id}\n", base64_encode(token)));
        }
        Self { name: name.to_owned(), tokens, eot, sha256: hasher.finalize().into() }
    }

    /// Refuses a vocabulary that cannot spell every text or whose end-of-text id is taken.
    pub fn checked(self) -> Result<Self> {
        let single: usize = self.tokens.iter().filter(|token| token.len() == 1).count();
        if single != 256 {
            return Err(Error::value(format!("tokenizer {}: {single} of the 256 single bytes are tokens", self.name)));
        }
        if self.tokens.get(self.eot as usize).is_some_and(|token| !token.is_empty()) {
            return Err(Error::value(format!(
                "tokenizer {}: end-of-text id {} is an ordinary token",
                self.name, self.eot
            )));
        }
        Ok(self)
    }

    /// Number of ids, the end-of-text token included.
    pub fn size(&self) -> usize {
        self.tokens.len().max(self.eot as usize + 1)
    }

    pub fn by_bytes(&self) -> HashMap<&[u8], u32> {
        let assigned = self.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
        assigned.map(|(id, token)| (&**token, id as u32)).collect()
    }

    /// Bytes of `ids`; end-of-text is spelled `<|endoftext|>`.
    pub fn decode(&self, ids: impl IntoIterator<Item = u32>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (position, id) in ids.into_iter().enumerate() {
            match self.tokens.get(id as usize) {
                _ if id == self.eot => out.extend_from_slice(b"<|endoftext|>"),
                Some(token) if !token.is_empty() => out.extend_from_slice(token),
                _ => return Err(Error::value(format!("id {id} at position {position} is not in {}", self.name))),
            }
        }
        Ok(out)
    }
}

/// GPT-2's printable stand-in for each byte, as its merge file spells it.
pub fn printable_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut stand_ins = (256u32..).filter_map(char::from_u32);
    let mut alphabet = HashMap::new();
    for byte in 0..=255u8 {
        let c = if printable(byte) { Some(char::from(byte)) } else { stand_ins.next() };
        alphabet.extend(c.map(|c| (c, byte)));
    }
    alphabet
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64_encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let sextet = BASE64[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(sextet) } else { '=' });
        }
    }
    out
}

fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut word, mut bits) = (Vec::new(), 0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        word = word << 6 | BASE64.iter().position(|&b| b == byte)? as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_is_the_vocabulary_tiktoken_checks() {
        let vocab = Vocab::gpt2().unwrap();
        assert_eq!(vocab.size(), 50_257);
        assert_eq!(hex(&vocab.sha256), GPT2_SHA256);
        assert_eq!(&*vocab.tokens[31373], b"hello");
    }

    #[test]
    fn base64_round_trip() {
        for text in [&b""[..], b"a", b"ab", b"abc", b"\xff\x00\xfe\x01"] {
            assert_eq!(base64_decode(&base64_encode(text)).unwrap(), text);
        }
        assert_eq!(base64_encode(b"ab"), "YWI=");
        assert!(base64_decode("a*b").is_none());
    }
}
