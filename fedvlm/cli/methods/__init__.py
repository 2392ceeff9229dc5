"""Methods: their cards and settings, a new one, what it keeps, how fast it is."""
