"""Comparisons of runs, and what freezing would do to a model."""
