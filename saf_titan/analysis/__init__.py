"""Metrics of attention as pure functions. Inputs are never modified."""
