//! Splitter and merges against naive forms, on random text: short here, longer with `PROPTEST_CASES`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use fancy_regex::Regex;
use proptest::prelude::*;
use rust_data::bpe::encoder::Encoder;
use rust_data::bpe::model::Model;
use rust_data::bpe::vocab::Vocab;
use rust_data::simd::Level;

static VOCAB: LazyLock<Vocab> = LazyLock::new(|| Vocab::gpt2().expect("bundled"));
static IDS: LazyLock<HashMap<&[u8], u32>> = LazyLock::new(|| VOCAB.by_bytes());
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+").expect("a valid pattern")
});

/// The definition: words by the regular expression, then the lowest merge again and again.
fn naive(text: &str) -> Vec<u16> {
    let words = PATTERN.find_iter(text).map(|word| word.expect("within the engine's limits").as_str());
    words.flat_map(|word| merge(word.as_bytes())).collect()
}

fn merge(word: &[u8]) -> Vec<u16> {
    let mut borders: Vec<usize> = (0..=word.len()).collect();
    loop {
        let joins = borders.windows(3).enumerate();
        let lowest = joins.filter_map(|(at, w)| Some((*IDS.get(&word[w[0]..w[2]])?, at))).min();
        let Some((_, at)) = lowest else { break };
        borders.remove(at + 1);
    }
    borders.windows(2).map(|w| IDS[&word[w[0]..w[1]]] as u16).collect()
}

/// Pieces that meet every rule of the pattern, and lengths around the borders of blocks and tables.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[ a-z]{1,20}",
        2 => "[ '\u{2019}]?(s|d|m|t|ll|ve|re|S|'|''s)",
        2 => "[ \t\r\n\u{a0}\u{2003}\u{3000}\u{85}]{1,4}",
        2 => "[0-9\u{b2}\u{bd}\u{663}]{1,18}",
        2 => "[!-/:-@\u{0}-\u{1f}\u{301}\u{20ac}]{1,18}",
        2 => "\\PC{1,40}",
        1 => "[\u{430}-\u{44f}]{1,40}",
        1 => "[\u{4e00}-\u{4fff}\u{3042}-\u{3090}]{1,30}",
        1 => "(ab|x|e){30,90}",
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ids_follow_the_definition_on_every_instruction_set(texts in prop::collection::vec(text(), 1..4)) {
        let expected: Vec<Vec<u16>> = texts.iter().map(|text| naive(text)).collect();
        for level in Level::all() {
            let found = ENCODERS.with_borrow_mut(|encoders| {
                let encoder = encoders.entry(level.name()).or_insert_with(|| new_encoder(level));
                // twice: words merged, then words known
                texts.iter().chain(&texts).map(|text| encode(encoder, text)).collect::<Vec<_>>()
            });
            prop_assert_eq!(&found[..texts.len()], &expected, "{}", level.name());
            prop_assert_eq!(&found[texts.len()..], &expected, "{}, second time", level.name());
        }
    }
}

thread_local! {
    /// One for each instruction set: making one takes longer than a case.
    static ENCODERS: std::cell::RefCell<HashMap<&'static str, Encoder<u16>>> = Default::default();
}

fn new_encoder(level: Level) -> Encoder<u16> {
    let mut model = Model::gpt2().expect("bundled");
    model.level = level;
    Encoder::new(Arc::new(model))
}

fn encode(encoder: &mut Encoder<u16>, text: &str) -> Vec<u16> {
    let mut ids = Vec::new();
    encoder.encode(text, &mut ids).expect("the native splitter cannot fail");
    ids
}
