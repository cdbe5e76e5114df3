"""Studies: runs that differ in one thing each are trained from common checkpoints and compared over seeds."""
