"""Clients at other places: what travels between a server and sites, and both sides of it."""
