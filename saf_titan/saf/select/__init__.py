"""Step 2: rank the heads by a score and choose those that become static."""
