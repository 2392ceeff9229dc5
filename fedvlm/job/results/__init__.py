"""What a run is worth: its numbers at the end, and those it is set beside."""

from fedvlm.job.results.end import Results, outliers, results_of, seed_table, summary
from fedvlm.job.results.references import reference_rows

__all__ = ["Results", "outliers", "reference_rows", "results_of", "seed_table", "summary"]
