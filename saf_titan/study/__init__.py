"""Studies: many runs that differ in one thing each, trained from common checkpoints and compared over seeds."""
