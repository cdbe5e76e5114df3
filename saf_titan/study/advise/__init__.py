"""Measures on a checkpoint whether freezing pays for a model, on its data and on this machine, and gives advice."""
