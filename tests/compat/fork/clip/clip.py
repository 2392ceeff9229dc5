import torch

from .model import build_model
from .simple_tokenizer import SimpleTokenizer as _Tokenizer

__all__ = ["build_model", "load", "tokenize"]
_MODELS = {"ViT-B/16": "https://example.org/ViT-B-16.pt"}
_tokenizer = _Tokenizer()


def _download(url, root="~/.cache/clip"):
    raise OSError(f"no network: {url}")


def tokenize(texts, context_length=77):
    return torch.zeros(len(texts), context_length)


def load(name):
    state = torch.load(_download(_MODELS[name]), map_location="cpu")
    return build_model(state), None
