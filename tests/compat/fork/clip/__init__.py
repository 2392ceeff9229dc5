from .clip import build_model, load, tokenize  # noqa: F401
