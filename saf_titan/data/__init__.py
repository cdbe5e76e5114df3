"""Token files as training data, and the look at them before a run starts."""
