"""What a config's keys come to: a run's work, and who attacks it or must not learn of it."""
