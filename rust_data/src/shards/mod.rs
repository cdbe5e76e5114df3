//! Token shards on disk: the header, the writer of one shard, the manifest of a corpus.

pub mod disk;
pub mod flat;
pub mod header;
pub mod manifest;
pub mod reader;
pub mod settings;
pub mod writer;
