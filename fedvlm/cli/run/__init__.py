"""Train: one method, or a grid of methods, data sets and seeds."""
