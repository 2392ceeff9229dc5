"""A simulation over several workers: each can take any client, all share one set of states."""
