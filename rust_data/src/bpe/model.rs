//! A tokenizer's model: everything that decides which ids a text gets.

use std::mem::discriminant;
use std::sync::{Arc, Mutex, Weak};

use sha2::{Digest, Sha256};

use super::added::AddedTokens;
use super::merge::Merges;
use super::vocab::{hex, Vocab};
use crate::error::Result;
use crate::simd::Level;
use crate::text::pattern::Splitter;
use crate::text::seams::Seams;

/// [`Model::digest_of_parts`] of GPT-2 as OpenAI published it.
const GPT2_PARTS: &str = "f896f3e9f912388a34fdc5f8358a4756a7de56f04b6790b7815a0b669b8bfbb6";

/// Vocabulary, merges, splitter and added tokens; all threads share one.
pub struct Model {
    pub vocab: Vocab,
    pub splitter: Splitter,
    /// Added tokens that are looked for in text, if there are any.
    pub(super) added: Option<AddedTokens>,
    pub(super) merges: Merges,
    pub(super) seams: Seams,
    /// Whether a pretoken that is a token gets that token's id without any merge.
    pub whole_first: bool,
    digest: [u8; 32],
    /// The instruction set that encoders use.
    pub level: Level,
}

impl Model {
    pub fn gpt2() -> Result<Self> {
        let (vocab, pairs) = Vocab::gpt2_with_merges()?;
        let merges = Merges::from_pairs(&vocab, &pairs);
        Self::with_merges(vocab, merges, Splitter::gpt2(), true, None)
    }

    /// GPT-2's model, which takes 50 ms to make: one for the whole process, as long as any of its users is left.
    pub fn shared_gpt2() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Model>> = Mutex::new(Weak::new());
        let level = Level::choose()?;
        // never wait for the lock: in a process that was forked while another thread held it, nobody gives it back
        let shared = SHARED.try_lock().ok().and_then(|shared| shared.upgrade());
        if let Some(model) = shared.filter(|model| discriminant(&model.level) == discriminant(&level)) {
            return Ok(model);
        }
        let model = Arc::new(Self::gpt2()?);
        if let Ok(mut shared) = SHARED.try_lock() {
            *shared = Arc::downgrade(&model);
        }
        Ok(model)
    }

    /// The rules of tiktoken: any two tokens whose join is a token may merge.
    pub fn new(vocab: Vocab, splitter: Splitter) -> Result<Self> {
        let merges = Merges::new(&vocab);
        Self::with_merges(vocab, merges, splitter, true, None)
    }

    /// Only the listed merges. `whole_first` says whether a pretoken that is a token gets that token's id without any
    /// merge (`ignore_merges` in a `tokenizer.json`).
    pub fn with_merges(
        vocab: Vocab,
        merges: Merges,
        splitter: Splitter,
        whole_first: bool,
        added: Option<AddedTokens>,
    ) -> Result<Self> {
        let seams = Seams::new(vocab.tokens.iter().map(|token| &**token));
        let level = Level::choose()?;
        let mut model = Self { vocab, splitter, added, merges, seams, whole_first, digest: [0; 32], level };
        let parts = model.digest_of_parts();
        model.digest = if hex(&parts) == GPT2_PARTS { model.vocab.sha256 } else { parts };
        Ok(model)
    }

    /// SHA-256 of everything that changes the ids of a text or the form of the shards: ranks, merges, splitter, added
    /// tokens, end-of-text id and number of ids. GPT-2 itself is known by the digest of its published ranks.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether a document may be cut at word borders, as [`Splitter::starts_at_word_borders`] defines them, and its
    /// parts be encoded one by one.
    pub fn starts_at_word_borders(&self) -> bool {
        self.splitter.starts_at_word_borders() && self.added.as_ref().is_none_or(AddedTokens::keep_word_borders)
    }

    /// The tokens that a pretoken of the same bytes gets whatever the merges say.
    pub(super) fn whole_tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let tokens = self.vocab.tokens.iter().enumerate();
        tokens.filter(|(_, token)| self.whole_first && !token.is_empty()).map(|(id, token)| (id as u32, &**token))
    }

    fn digest_of_parts(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        let mut add = |name: &str, part: &[u8]| {
            // with its length, so that no two lists of parts look the same
            hasher.update(format!("{name} {}\n", part.len()));
            hasher.update(part);
        };
        add("ranks", &self.vocab.sha256);
        let pairs = self.merges.pairs();
        let numbers = pairs.iter().flat_map(|&(left, right, token)| [left, right, token]);
        add("merges", &numbers.flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        add("splitter", self.splitter.describe().as_bytes());
        // where the merges make every token from its bytes, looking for whole tokens first changes nothing
        add("whole first", &[u8::from(self.whole_tokens().any(|(id, token)| self.merges.merge(token) != [id]))]);
        add("added", self.added.as_ref().map_or_else(String::new, AddedTokens::describe).as_bytes());
        add("end of text", &self.vocab.eot.to_le_bytes());
        add("size", &(self.vocab.size() as u64).to_le_bytes());
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_keeps_the_digest_of_its_ranks() {
        let model = Model::gpt2().unwrap();
        assert_eq!(hex(&model.digest_of_parts()), GPT2_PARTS);
        assert_eq!(model.digest(), model.vocab.sha256);
        // by the rules of tiktoken it is the same tokenizer
        let by_ranks = Model::new(Vocab::gpt2().unwrap(), Splitter::gpt2()).unwrap();
        assert_eq!(by_ranks.digest(), model.digest());
    }

    #[test]
    fn gpt2_is_shared_while_it_is_used() {
        let model = Model::shared_gpt2().unwrap();
        let again = Model::shared_gpt2().unwrap();
        assert_eq!(again.digest(), model.digest());
        // the tests of other modules do not share it, so nothing else holds the lock
        assert!(Arc::ptr_eq(&model, &again));
        let weak = Arc::downgrade(&model);
        drop((model, again));
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn every_part_is_in_the_digest() {
        let model = |change: &dyn Fn(&mut Vocab), pattern: &str, whole_first: bool| {
            let (mut vocab, mut pairs) = Vocab::gpt2_with_merges().unwrap();
            change(&mut vocab);
            vocab.added.clear();
            if !whole_first {
                pairs.truncate(49_999);
            }
            let merges = Merges::from_pairs(&vocab, &pairs);
            Model::with_merges(vocab, merges, Splitter::new(pattern).unwrap(), whole_first, None).unwrap().digest()
        };
        let pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
        let digests = [
            model(&|_| (), pattern, true),
            model(&|vocab| vocab.eot += 1, pattern, true),
            model(&|vocab| vocab.tokens.resize(70_000, Box::default()), pattern, true),
            model(&|_| (), "\\p{L}+|\\P{L}+", true),
            model(&|_| (), pattern, false),
        ];
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }
}
