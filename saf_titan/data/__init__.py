"""Token shards as training data."""
