"""Step 3: fit a fixed pattern to a head's mean attention, or make a control in its place."""
