"""A training run: the modules that build, start, drive, freeze, stop and resume it."""
