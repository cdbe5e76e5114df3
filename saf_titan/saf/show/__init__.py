"""Show calibrations and plans to a person: as text and as a picture."""
