"""Selective Attention Freezing: calibrate, select, fit, plan."""
