"""Data: lists of images read, few shots drawn, clients dealt, pixels loaded.

``federated.build_federation(cfg)`` is the way in; ``datasets`` registers sets of one's own, and
``catalog`` says what is known of the others without loading PyTorch.
"""
