"""A training run: what builds, starts, drives, freezes, stops and resumes it."""
