"""Clients that do not answer: who is away, drops out or is late, and how many have to be there."""
