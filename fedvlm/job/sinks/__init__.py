"""Sinks: other programs that get every round's numbers; a module each, imported when named."""
