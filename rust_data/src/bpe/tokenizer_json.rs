//! `tokenizer.json` files of Hugging Face `tokenizers`: those of byte-level BPE tokenizers.
//!
//! A tokenizer that loads gives the ids of `tokenizers` on every text, with special tokens taken as plain text and
//! without the post-processor. Whatever would give other ids is refused with the name of the part.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};

use super::added::{AddedToken, AddedTokens};
use super::merge::Merges;
use super::model::Model;
use super::vocab::{printable_alphabet, Vocab};
use crate::error::{Error, Result};
use crate::text::pattern::Splitter;
use crate::text::steps::{Behavior, Step};

/// Ids must be below this number, so that a table of them fits into memory.
const MAX_ID: u64 = 1 << 24;
/// Names of the token that ends a document. The first one that is among the added tokens is taken.
const END_OF_TEXT: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "</s>"];

/// Loads a byte-level BPE tokenizer. Errors name the file and the part that is not supported.
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
    // unk_token, fuse_unk and byte_fallback never matter: every byte is a token
    for field in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        if !model[field].is_null() && model[field] != "" && model[field] != 0.0 {
            return Err(unsupported(field, &model[field]));
        }
    }
    if !root["normalizer"].is_null() {
        return Err(unsupported("normalizer", &root["normalizer"]["type"]));
    }
    for field in ["truncation", "padding"] {
        if !root[field].is_null() {
            return Err(Error::value(format!("{field} is not supported: set it to null, documents stay as they are")));
        }
    }
    let splitter = splitter_of(&root["pre_tokenizer"])?;
    let spelled = model["vocab"].as_object().ok_or_else(|| Error::value("model.vocab is missing"))?;
    let added = added_tokens(&root["added_tokens"], spelled)?;
    let eot = END_OF_TEXT.iter().find_map(|name| added.iter().find(|token| token.content == *name));
    let eot = eot.ok_or_else(|| {
        Error::value(format!("added_tokens: none is the end-of-text token, {}", END_OF_TEXT.join(" or ")))
    })?;
    if !eot.special {
        let name = &eot.content;
        return Err(Error::value(format!(
            "added token {name:?} ends documents, but text may encode to it: set its \"special\" to true"
        )));
    }
    let merges = merges_of(&model["merges"])?;
    let ignore_merges = model["ignore_merges"] == true;
    let hidden = hidden_tokens(&added, &merges);
    if ignore_merges {
        check_whole_tokens(&hidden, spelled, &splitter)?;
    }
    let mut vocab = Vocab::new(name, tokens_of(spelled, &added, &hidden)?, eot.id).checked()?;
    vocab.added = added.iter().map(|token| (token.id, token.content.as_str().into())).collect();
    let merges = pairs_of(&merges, &vocab)?;
    Model::with_merges(vocab, merges, splitter, ignore_merges, AddedTokens::new(&added)?)
}

fn unsupported(what: &str, value: &Value) -> Error {
    Error::value(format!("{what} {value} is not supported: only byte-level BPE without a normalizer is"))
}

/// The splitter of a `ByteLevel` pre-tokenizer, alone or behind any number of `Split` and `Digits`.
fn splitter_of(pre: &Value) -> Result<Splitter> {
    let mut all = Vec::new();
    flatten(pre, &mut all);
    let Some((bytes, others)) = all.split_last() else { return Err(unsupported("pre_tokenizer", pre)) };
    if bytes["type"] != "ByteLevel" || bytes["add_prefix_space"] == true {
        return Err(unsupported("pre_tokenizer", bytes));
    }
    let steps = others.iter().map(|step| step_of(step)).collect::<Result<_>>()?;
    // a missing use_regex means true
    Ok(Splitter::from_steps(steps, bytes["use_regex"] != false))
}

/// Appends the pre-tokenizers that `pre` consists of.
fn flatten<'a>(pre: &'a Value, all: &mut Vec<&'a Value>) {
    match pre["pretokenizers"].as_array() {
        Some(parts) if pre["type"] == "Sequence" => parts.iter().for_each(|part| flatten(part, all)),
        _ => all.push(pre),
    }
}

fn step_of(step: &Value) -> Result<Step> {
    if step["type"] == "Digits" {
        return Ok(Step::digits(step["individual_digits"] == true));
    }
    let behavior = step["behavior"].as_str().and_then(Behavior::by_name);
    let invert = step["invert"] == true;
    match (behavior, step["pattern"]["Regex"].as_str(), step["pattern"]["String"].as_str()) {
        (Some(behavior), Some(regex), None) if step["type"] == "Split" => Step::regex(regex, behavior, invert),
        (Some(behavior), None, Some(text)) if step["type"] == "Split" => Ok(Step::text(text, behavior, invert)),
        _ => Err(unsupported("pre_tokenizer", step)),
    }
}

/// The added tokens, in the order of the file.
fn added_tokens(tokens: &Value, spelled: &Map<String, Value>) -> Result<Vec<AddedToken>> {
    let mut added: Vec<AddedToken> = Vec::new();
    for token in tokens.as_array().into_iter().flatten() {
        let content = token["content"].as_str().filter(|content| !content.is_empty());
        let content = content.ok_or_else(|| Error::value(format!("added token {token} has no content")))?;
        if added.iter().any(|other| other.content == content) {
            return Err(Error::value(format!("added token {content:?} is there twice")));
        }
        let id = id_of(content, &token["id"])?;
        // `tokenizers` gives ids itself, whatever the file says
        let next = added.iter().map(|token| token.id + 1).max().unwrap_or(0).max(spelled.len() as u32);
        let given = spelled.get(content).map_or(Ok(next), |id| id_of(content, id))?;
        if id != given {
            return Err(Error::value(format!("added token {content:?} has id {id}, tokenizers gives it {given}")));
        }
        let flag = |name: &str| token[name] == true;
        let special = flag("special");
        if flag("single_word") && !special {
            return Err(unsupported(&format!("added token {content:?} with single_word"), &token["single_word"]));
        }
        let (lstrip, rstrip, normalized) = (flag("lstrip"), flag("rstrip"), flag("normalized"));
        added.push(AddedToken { content: content.to_owned(), id, special, lstrip, rstrip, normalized });
    }
    Ok(added)
}

/// Contents of special tokens that no merge makes: from bytes there is no way to them.
fn hidden_tokens<'a>(added: &'a [AddedToken], merges: &[[&str; 2]]) -> HashSet<&'a str> {
    let made: HashSet<String> = merges.iter().map(|halves| halves.concat()).collect();
    let special = added.iter().filter(|token| token.special).map(|token| token.content.as_str());
    special.filter(|content| content.chars().count() > 1 && !made.contains(*content)).collect()
}

/// With `ignore_merges` a pretoken that is spelled like a special token of the vocabulary would get its id.
fn check_whole_tokens(hidden: &HashSet<&str>, spelled: &Map<String, Value>, splitter: &Splitter) -> Result<()> {
    for content in hidden.iter().filter(|content| spelled.contains_key(**content) && bytes_of(content).is_ok()) {
        let mut pieces = 0;
        splitter.for_each_piece(content, &mut |piece| splitter.for_each_word(piece, |_| pieces += 1))?;
        if pieces == 1 || !splitter.starts_at_word_borders() {
            return Err(Error::value(format!(
                "ignore_merges is not supported where the special token {content:?} is in model.vocab: \
                 text may encode to it"
            )));
        }
    }
    Ok(())
}

/// Bytes of the ordinary tokens by id.
fn tokens_of(spelled: &Map<String, Value>, added: &[AddedToken], hidden: &HashSet<&str>) -> Result<Vec<Box<[u8]>>> {
    let mut tokens: Vec<Box<[u8]>> = vec![Box::default(); spelled.len()];
    let mut assigned = HashSet::new();
    let added: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    for (spelling, id) in spelled {
        let number = id_of(spelling, id)? as usize;
        if !assigned.insert(number) {
            return Err(Error::value(format!("model.vocab: two tokens have id {number}, one is {spelling:?}")));
        }
        let is_added = added.contains(spelling.as_str());
        let bytes = match bytes_of(spelling) {
            _ if hidden.contains(spelling.as_str()) => continue,
            // text gets this id as an added token only
            Err(_) if is_added => continue,
            bytes => bytes?,
        };
        if tokens.len() <= number {
            tokens.resize(number + 1, Box::default());
        }
        tokens[number] = bytes;
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

/// The spellings that merge, in order: in the file `"a b"` strings or `["a", "b"]` pairs.
fn merges_of(merges: &Value) -> Result<Vec<[&str; 2]>> {
    let merges = merges.as_array().ok_or_else(|| Error::value("model.merges is missing"))?;
    let mut all = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let halves = match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
            (Some(text), _) => text.split_once(' '),
            (None, Some([left, right])) => left.as_str().zip(right.as_str()),
            _ => None,
        };
        let (left, right) = halves.ok_or_else(|| Error::value(format!("merge {rank}: {merge} is not a pair")))?;
        all.push([left, right]);
    }
    Ok(all)
}

/// The merges by ids.
fn pairs_of(merges: &[[&str; 2]], vocab: &Vocab) -> Result<Merges> {
    let by_bytes = vocab.by_bytes();
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, &[left, right]) in merges.iter().enumerate() {
        let id = |bytes: &[u8]| by_bytes.get(bytes).copied();
        let (first, second) = (bytes_of(left)?, bytes_of(right)?);
        let pair = id(&first).zip(id(&second)).zip(id(&[first, second].concat()));
        let ((first, second), token) =
            pair.ok_or_else(|| Error::value(format!("merge {rank}, {left:?} and {right:?}: not all are tokens")))?;
        pairs.push((first, second, token));
    }
    if pairs.windows(2).any(|pair| pair[0].2 >= pair[1].2) {
        return Err(Error::value("the merges are not in the order of the ids they make, which is not supported"));
    }
    Ok(Merges::from_pairs(vocab, &pairs))
}
