"""The one-layer laboratory: attention with a QK and an OV circuit, small enough to be solved on paper and trained in seconds.

`setting` describes a task, `model` and `train` train it, `theory` predicts the result, `experiments` compares the two.
"""
