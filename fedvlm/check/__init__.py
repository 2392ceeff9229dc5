"""Invariants that every method must keep, and ``python -m fedvlm check`` that tries them."""
