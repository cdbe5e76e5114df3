"""Selective Attention Freezing: a folder for each step (calibrate, select, fit, plan, install), `show` for output."""
