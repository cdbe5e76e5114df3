"""The one-layer laboratory: one attention layer, solved on paper and trained in seconds.

`setting` describes a task, `model` and `train` train it, `theory` predicts the result, `experiments` compares the two.
"""
