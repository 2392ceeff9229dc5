"""Figures of what the models of one run answer to test images: confidence, confusion, a map."""
