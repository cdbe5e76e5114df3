"""Step 5: make the planned heads static in a model or in a checkpoint."""
