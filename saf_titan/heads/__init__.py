"""Names, counts and groups of attention heads. Imports no torch, so that checks and help stay fast."""
