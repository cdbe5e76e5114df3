"""Fields of settings: their ranges, the conversion of text to their values, and error messages. Imports no torch."""
