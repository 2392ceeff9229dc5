"""The whole job on a pretend CUDA device: what a real one would refuse, wait for or not repeat."""
