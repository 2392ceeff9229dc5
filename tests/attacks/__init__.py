"""Hostile files: each is refused with one message, runs nothing and writes nothing."""
