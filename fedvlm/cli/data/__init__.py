"""Data: what is there, how the rest is got, features ahead of the runs."""
