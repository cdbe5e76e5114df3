"""Selective Attention Freezing, one step a folder: calibrate, select, fit, plan, install. `show` prints the results."""
