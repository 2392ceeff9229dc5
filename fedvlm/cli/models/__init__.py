"""Models: use what a run has trained, without its data."""
