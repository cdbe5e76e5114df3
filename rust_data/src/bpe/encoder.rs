//! Turns text into ids: cuts it into words, looks each word up, and merges those that are not in the caches.

use std::sync::Arc;

use super::added::Part;
use super::id::Id;
pub use super::model::Model;
use super::words::{Lookup, Lookups, WordBatch, Words, BATCH};
use crate::error::Result;
use crate::simd::{Kernel, Level, Simd, BLOCK};
use crate::text::blocks::Blocks;
use crate::text::pattern::WordSplit;

/// One thread's encoder.
pub struct Encoder<T: Id> {
    model: Arc<Model>,
    sections: Sections<T>,
}

/// Encodes sections of text: text without added tokens.
struct Sections<T: Id> {
    words: Words<T>,
    scratch: Box<Scratch>,
    level: Level,
}

/// Memory for a batch of words.
struct Scratch {
    /// Places between the words of a batch and of the block that ends it, and the end of the text.
    borders: [usize; BATCH + 2 * BLOCK],
    lookups: Lookups,
}

impl<T: Id> Encoder<T> {
    pub fn new(model: Arc<Model>) -> Self {
        let scratch = Box::new(Scratch { borders: [0; BATCH + 2 * BLOCK], lookups: [Lookup::NONE; _] });
        let sections = Sections { words: Words::new(&model), scratch, level: model.level };
        Self { model, sections }
    }

    /// Appends the ids of `text`; special tokens in it are plain text. On an error some ids may have been appended.
    pub fn encode(&mut self, text: &str, out: &mut Vec<T>) -> Result<()> {
        let Self { model, sections } = self;
        match &model.added {
            None => sections.encode(model, text, out),
            Some(added) => added.for_each(text, &mut |part| match part {
                Part::Text(section) => sections.encode(model, section, out),
                Part::Token(id) => {
                    out.push(T::from_u32(id));
                    Ok(())
                }
            }),
        }
    }
}

impl<T: Id> Sections<T> {
    fn encode(&mut self, model: &Model, text: &str, out: &mut Vec<T>) -> Result<()> {
        let Self { words, scratch, level } = self;
        model.splitter.for_each_piece(text, &mut |text| {
            match &model.splitter.words {
                WordSplit::Gpt2 => level.run(EncodeText { model, words, scratch, text, out }),
                WordSplit::Regex(pattern) => pattern.for_each(text, |word| words.encode(*level, model, word, out))?,
                WordSplit::Whole => words.encode(*level, model, text.as_bytes(), out),
            }
            Ok(())
        })
    }
}

struct EncodeText<'a, T: Id> {
    model: &'a Model,
    words: &'a mut Words<T>,
    scratch: &'a mut Scratch,
    text: &'a str,
    out: &'a mut Vec<T>,
}

impl<T: Id> Kernel for EncodeText<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { model, words, scratch, text, out } = self;
        let Scratch { borders, lookups } = scratch;
        let mut blocks = Blocks::new(text, &model.seams);
        let mut count = 0;
        while !blocks.is_done() {
            while count < BATCH && !blocks.is_done() {
                if let Some(place) = borders[count..].first_chunk_mut() {
                    count += blocks.next(simd, place);
                }
            }
            if blocks.is_done() {
                borders[count] = text.len();
                let batch = WordBatch { text: text.as_bytes(), borders: &borders[..=count], lookups };
                words.encode_all(simd, batch, model, out);
            } else {
                // the end of the last word is not known yet, so it goes into the next batch
                let batch = WordBatch { text: text.as_bytes(), borders: &borders[..count], lookups };
                words.encode_all(simd, batch, model, out);
                borders[0] = borders[count - 1];
                count = 1;
            }
        }
    }
}
