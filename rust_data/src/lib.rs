//! Exact GPT-2 tokenization to shards and synthetic sequence generators.
