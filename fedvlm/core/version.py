"""The version of fedvlm, where every room may read it; ``fedvlm.__version__`` for everybody."""

__version__ = "0.2.0"
