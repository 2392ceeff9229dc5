"""Run: train one method, or a matrix of methods, data sets and seeds."""
