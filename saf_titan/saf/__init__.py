"""Selective Attention Freezing, one step a file: calibrate, select, fit, plan."""
