"""What a run did, as numbers and pictures."""
