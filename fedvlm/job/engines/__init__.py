"""Engines beside the local one: who computes the clients of a run (``FED.ENGINE``)."""
