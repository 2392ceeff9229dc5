"""The server of a run whose clients are at sites: an engine that asks them by frames."""
