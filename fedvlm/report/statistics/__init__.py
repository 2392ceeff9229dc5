"""Statistics of comparisons: pure functions over numbers, each with its source; no run, no file.

The data set is the unit of an experiment and seeds are within it (Demsar, Statistical Comparisons
of Classifiers over Multiple Data Sets, JMLR 2006).
"""
