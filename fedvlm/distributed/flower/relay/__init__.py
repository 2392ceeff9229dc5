"""What runs within Flower: the two ends of the relay. No PyTorch, and nothing of a run."""
