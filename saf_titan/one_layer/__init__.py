"""Experiments on one attention layer, which trains in seconds and has a theory that predicts the result.

`setting` describes a task, `model` and `train` train the layer on it, `theory` predicts the result, and `experiments`
compares the two.
"""
