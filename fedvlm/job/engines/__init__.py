"""Who computes the clients of a run (``FED.ENGINE``): a module each, imported when named."""
