"""Hostile files: each is refused with one sentence, runs nothing and writes nothing."""
