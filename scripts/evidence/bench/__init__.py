"""Benchmarks: the reference recipe and ours side by side, in one process, on the same batches."""
