"""Where a run without something may go on from, and who still knows what is forgotten."""
