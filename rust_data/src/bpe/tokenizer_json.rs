//! `tokenizer.json` files of Hugging Face tokenizers: the byte-level BPE ones.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::encoder::Model;
use super::merge::Merges;
use super::vocab::{printable_alphabet, Vocab};
use crate::error::{Error, Result};
use crate::text::pattern::{Splitter, GPT2_PATTERN};

/// Ids are below this, so that a table of them can be made.
const MAX_ID: u64 = 1 << 24;
/// Names of the token that ends a document, by which it is found among the added tokens.
const END_OF_TEXT: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "</s>"];

/// Loads a byte-level BPE tokenizer; anything that would change ids in another way is refused.
pub fn load(path: &Path) -> Result<Model> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let root: Value =
        serde_json::from_str(&text).map_err(|error| Error::value(format!("{}: {error}", path.display())))?;
    let name = path.parent().and_then(Path::file_name).unwrap_or(path.as_os_str()).to_string_lossy();
    parse(&root, &name).map_err(|error| Error::value(format!("{}: {error}", path.display())))
}

fn parse(root: &Value, name: &str) -> Result<Model> {
    let model = &root["model"];
    if !model["type"].is_null() && model["type"] != "BPE" {
        return Err(unsupported("model type", &model["type"]));
    }
    for field in ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"] {
        if !model[field].is_null() && model[field] != "" && model[field] != 0.0 {
            return Err(unsupported(field, &model[field]));
        }
    }
    if !root["normalizer"].is_null() {
        return Err(unsupported("normalizer", &root["normalizer"]["type"]));
    }
    let splitter = Splitter::new(&pattern_of(&root["pre_tokenizer"])?)?;
    let (eot, added) = added_tokens(root)?;
    let tokens = tokens_of(&model["vocab"], &added)?;
    let vocab = Vocab::new(name, tokens, eot).checked()?;
    let merges = merges_of(&model["merges"], &vocab)?;
    Model::with_merges(vocab, merges, splitter, model["ignore_merges"] == true)
}

fn unsupported(what: &str, value: &Value) -> Error {
    Error::value(format!("{what} {value} is not supported, only byte-level BPE without a normalizer is"))
}

/// The pattern of a `ByteLevel` pre-tokenizer, alone or behind one `Split`.
fn pattern_of(pre: &Value) -> Result<String> {
    let steps = match pre["pretokenizers"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(pre),
    };
    let (split, bytes) = match steps {
        [bytes] => (None, bytes),
        [split, bytes] => (Some(split), bytes),
        _ => return Err(unsupported("pre_tokenizer", &pre["type"])),
    };
    if bytes["type"] != "ByteLevel" || bytes["add_prefix_space"] == true {
        return Err(unsupported("pre_tokenizer", bytes));
    }
    // a missing use_regex means true
    match (split, bytes["use_regex"] != false) {
        (None, true) => Ok(GPT2_PATTERN.to_owned()),
        (Some(split), false)
            if split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] != true =>
        {
            let pattern = split["pattern"]["Regex"].as_str();
            pattern.map(str::to_owned).ok_or_else(|| unsupported("split pattern", &split["pattern"]))
        }
        _ => Err(unsupported("pre_tokenizer", pre)),
    }
}

/// The end-of-text id, and all added tokens by name.
fn added_tokens(root: &Value) -> Result<(u32, HashMap<&str, u32>)> {
    let added: HashMap<&str, u32> = root["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|token| Some((token["content"].as_str()?, &token["id"])))
        .map(|(spelling, id)| Ok((spelling, id_of(spelling, id)?)))
        .collect::<Result<_>>()?;
    let eot = END_OF_TEXT.iter().find_map(|name| added.get(name)).copied();
    let eot =
        eot.ok_or_else(|| Error::value(format!("none of the added tokens is one of {}", END_OF_TEXT.join(", "))))?;
    Ok((eot, added))
}

fn tokens_of(vocab: &Value, added: &HashMap<&str, u32>) -> Result<Vec<Box<[u8]>>> {
    let vocab = vocab.as_object().ok_or_else(|| Error::value("model.vocab is missing"))?;
    let mut tokens = vec![Box::default(); vocab.len()];
    for (spelling, id) in vocab.iter().filter(|(spelling, _)| !added.contains_key(spelling.as_str())) {
        let id = id_of(spelling, id)? as usize;
        if tokens.len() <= id {
            tokens.resize(id + 1, Box::default());
        }
        tokens[id] = bytes_of(spelling)?;
    }
    Ok(tokens)
}

fn id_of(spelling: &str, id: &Value) -> Result<u32> {
    let number = id.as_u64().filter(|&number| number < MAX_ID);
    number
        .map(|number| number as u32)
        .ok_or_else(|| Error::value(format!("bad id {id} of {spelling:?}: must be below {MAX_ID}")))
}

fn bytes_of(spelling: &str) -> Result<Box<[u8]>> {
    thread_local!(static ALPHABET: HashMap<char, u8> = printable_alphabet());
    ALPHABET
        .with(|alphabet| spelling.chars().map(|c| alphabet.get(&c).copied()).collect::<Option<Vec<u8>>>())
        .map(Vec::into_boxed_slice)
        .ok_or_else(|| Error::value(format!("token {spelling:?} is not spelled in the byte-level alphabet")))
}

/// The merges in order: `"a b"` strings or `["a", "b"]` pairs.
fn merges_of(merges: &Value, vocab: &Vocab) -> Result<Merges> {
    let by_bytes = vocab.by_bytes();
    let merges = merges.as_array().ok_or_else(|| Error::value("model.merges is missing"))?;
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let halves = match (merge.as_str().and_then(|text| text.split_once(' ')), merge.as_array().map(Vec::as_slice)) {
            (Some(halves), _) => Some(halves),
            (None, Some([left, right])) => left.as_str().zip(right.as_str()),
            _ => None,
        };
        let (left, right) = halves.ok_or_else(|| Error::value(format!("merge {rank}: {merge} is not a pair")))?;
        let (left, right) = (bytes_of(left)?, bytes_of(right)?);
        let id = |bytes: &[u8]| by_bytes.get(bytes).copied();
        let pair = id(&left).zip(id(&right)).zip(id(&[left, right].concat()));
        let ((left, right), token) =
            pair.ok_or_else(|| Error::value(format!("merge {rank}: {merge} is not of tokens")))?;
        pairs.push((left, right, token));
    }
    if pairs.windows(2).any(|pair| pair[0].2 >= pair[1].2) {
        return Err(Error::value("the merges are not in the order of the ids they make, which is not supported"));
    }
    Ok(Merges::from_pairs(vocab, &pairs))
}
