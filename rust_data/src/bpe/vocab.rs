//! Vocabularies: tokens as byte strings in the order of their ranks, and the files that they are read from.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::id::Pair;
use crate::error::{Error, Result};

/// OpenAI's published GPT-2 merges.
const GPT2_MERGES: &str = include_str!("../../assets/gpt2/vocab.bpe");

/// The tokens of an encoding. A token's id is its merge rank.
pub struct Vocab {
    pub name: String,
    /// Bytes of each token by id; empty for ids that are not assigned.
    pub tokens: Vec<Box<[u8]>>,
    /// Id of the end-of-text token that closes each document.
    pub eot: u32,
    /// Texts of the ids that are not ordinary tokens: the end-of-text token and the added tokens.
    pub added: BTreeMap<u32, Box<str>>,
    /// SHA-256 of the tokens in tiktoken's form (`base64 rank` lines).
    pub sha256: [u8; 32],
}

impl Vocab {
    pub fn gpt2() -> Result<Self> {
        Ok(Self::gpt2_with_merges()?.0)
    }

    /// Returns GPT-2's vocabulary and its merges, as OpenAI published them.
    pub fn gpt2_with_merges() -> Result<(Self, Vec<Pair>)> {
        let byte_of = printable_alphabet();
        // ids 0 .. 255 are the bytes in the order of their characters: the printable bytes first, then the others
        let mut alphabet: Vec<(char, u8)> = byte_of.iter().map(|(&c, &byte)| (c, byte)).collect();
        alphabet.sort_unstable();
        let mut tokens: Vec<Box<[u8]>> = alphabet.iter().map(|&(_, byte)| Box::from([byte])).collect();
        let mut id_of: HashMap<Box<[u8]>, u32> = (0..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect();
        let mut pairs = Vec::new();
        for line in GPT2_MERGES.lines().skip(1).filter(|line| !line.is_empty()) {
            let bad = || Error::value(format!("vocab.bpe: bad merge {line:?}"));
            let (left, right) = line.split_once(' ').ok_or_else(bad)?;
            let spell = |half: &str| half.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>();
            let (left, right) = spell(left).zip(spell(right)).ok_or_else(bad)?;
            let ids = id_of.get(&left[..]).copied().zip(id_of.get(&right[..]).copied());
            let (left_id, right_id) = ids.ok_or_else(bad)?;
            let (token, id) = ([left, right].concat().into_boxed_slice(), tokens.len() as u32);
            pairs.push((left_id, right_id, id));
            id_of.insert(token.clone(), id);
            tokens.push(token);
        }
        Ok((Self::new("gpt2", tokens, 50_256), pairs))
    }

    /// Reads a file in tiktoken's form: a line `base64 rank` for each token.
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
        let mut lines = String::with_capacity(24 * tokens.len());
        for (id, token) in tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            base64_encode(token, &mut lines);
            lines.push_str(&format!(" {id}\n"));
        }
        let sha256 = Sha256::digest(lines.as_bytes()).into();
        let added = BTreeMap::from([(eot, Box::from("<|endoftext|>"))]);
        Self { name: name.to_owned(), tokens, eot, added, sha256 }
    }

    /// Refuses a vocabulary in which not all 256 bytes are tokens, or whose end-of-text id is an ordinary token.
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

    /// Returns the id of each single byte.
    pub fn byte_ids(&self) -> [u32; 256] {
        let mut ids = [u32::MAX; 256];
        for (id, token) in self.tokens.iter().enumerate() {
            if let [byte] = **token {
                ids[usize::from(byte)] = id as u32;
            }
        }
        ids
    }

    /// Returns the pair that makes each token of several bytes. It is found by merging the token's bytes by the tokens
    /// of lower rank. A token for which this does not leave two parts has no pair: merges never make it.
    pub fn pairs(&self) -> Vec<Pair> {
        let id_of = self.by_bytes();
        let mut pairs = Vec::new();
        for (&token, &id) in id_of.iter().filter(|(token, _)| token.len() > 1) {
            if let [left, right] = parts_below(token, id, &id_of)[..] {
                pairs.push((id_of[left], id_of[right], id));
            }
        }
        pairs.sort_unstable_by_key(|&(_, _, id)| id);
        pairs
    }

    /// Number of ids: the highest one, added tokens included, plus one.
    pub fn size(&self) -> usize {
        let highest = self.added.keys().last().copied().unwrap_or(0).max(self.eot);
        self.tokens.len().max(highest as usize + 1)
    }

    pub fn by_bytes(&self) -> HashMap<&[u8], u32> {
        let assigned = self.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
        assigned.map(|(id, token)| (&**token, id as u32)).collect()
    }

    /// Bytes of the text that `ids` stand for. An id that is not in the vocabulary is an error that names it.
    pub fn decode(&self, ids: impl IntoIterator<Item = u32>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (position, id) in ids.into_iter().enumerate() {
            match (self.added.get(&id), self.tokens.get(id as usize)) {
                (Some(text), _) => out.extend_from_slice(text.as_bytes()),
                (None, Some(token)) if !token.is_empty() => out.extend_from_slice(token),
                _ => return Err(Error::value(format!("id {id} at position {position} is not in {}", self.name))),
            }
        }
        Ok(out)
    }
}

/// Merges the bytes of `token`, using only tokens of lower rank than `id`, and returns the parts.
fn parts_below<'t>(token: &'t [u8], id: u32, id_of: &HashMap<&[u8], u32>) -> Vec<&'t [u8]> {
    let mut borders: Vec<usize> = (0..=token.len()).collect();
    loop {
        let joins = borders.windows(3).enumerate();
        let lowest = joins.filter_map(|(at, w)| Some((*id_of.get(&token[w[0]..w[2]])?, at))).min();
        match lowest {
            Some((rank, at)) if rank < id => borders.remove(at + 1),
            _ => return borders.windows(2).map(|w| &token[w[0]..w[1]]).collect(),
        };
    }
}

/// Returns the printable character that stands for each byte in GPT-2's files and in every `tokenizer.json`.
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

fn base64_encode(bytes: &[u8], out: &mut String) {
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let sextet = BASE64[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(sextet) } else { '=' });
        }
    }
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

    /// Digest of the same vocabulary in tiktoken's form, the one tiktoken itself checks.
    const GPT2_SHA256: &str = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930";

    #[test]
    fn gpt2_is_the_vocabulary_tiktoken_checks() {
        let vocab = Vocab::gpt2().unwrap();
        assert_eq!(vocab.size(), 50_257);
        assert_eq!(hex(&vocab.sha256), GPT2_SHA256);
        assert_eq!(&*vocab.tokens[31373], b"hello");
    }

    #[test]
    fn merges_are_found_again() {
        let (vocab, pairs) = Vocab::gpt2_with_merges().unwrap();
        assert_eq!(vocab.pairs(), pairs);
    }

    #[test]
    fn base64_round_trip() {
        for text in [&b""[..], b"a", b"ab", b"abc", b"\xff\x00\xfe\x01"] {
            let mut encoded = String::new();
            base64_encode(text, &mut encoded);
            assert_eq!(base64_decode(&encoded).unwrap(), text);
        }
        assert_eq!(base64_decode("YWI=").unwrap(), b"ab");
        assert!(base64_decode("a*b").is_none());
    }
}
