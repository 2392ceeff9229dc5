"""``gpu-hour``: what a GPU computes, how exactly, and how fast."""
