"""Who attacks a run, and who must not learn of it, by its config."""
