"""HTML pages of a run and of many runs: one self-contained file each."""

PAGE = "report.html"  # in the folder of the run, or of the runs
