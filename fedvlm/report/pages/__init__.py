"""HTML pages of a run and of many runs: one self-contained file each."""
