"""Fields of settings: their ranges, how text becomes their values, and how mistakes are reported. Imports no torch."""
