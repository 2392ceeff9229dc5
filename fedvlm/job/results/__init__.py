"""What a run is worth: its numbers at the end, and those it is compared with."""

from fedvlm.job.results.end import Results, outliers, results_of, seed_table, summary

__all__ = ["Results", "outliers", "results_of", "seed_table", "summary"]
