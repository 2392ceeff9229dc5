"""Data: check, add and download data sets; encode features before training."""
