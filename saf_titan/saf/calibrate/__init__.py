"""Step 1: measure every head's attention on held-out sequences."""
