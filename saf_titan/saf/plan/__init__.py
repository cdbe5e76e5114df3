"""Step 4: decide which heads become static with which pattern, and keep the decision as a file."""
