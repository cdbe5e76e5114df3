"""Text from a checkpoint: a cache made for static heads, sampling, and the command line."""
