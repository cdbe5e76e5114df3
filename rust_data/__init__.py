"""Token shards and synthetic sequence corpora, generated in Rust."""
