"""Does freezing pay for this model, on these data, on this machine? Measured on a checkpoint, answered in words."""
