"""Sums over sites that nobody reads: masks that cancel, and both sides of asking for them."""
