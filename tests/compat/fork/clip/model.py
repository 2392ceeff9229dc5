"""A CLIP whose image tower returns every token: what forks change in OpenAI's file."""

from collections import OrderedDict

import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width, heads, mask=None):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(OrderedDict([
            ("c_fc", nn.Linear(width, 4 * width)), ("gelu", QuickGELU()),
            ("c_proj", nn.Linear(4 * width, width))]))
        self.attn_mask = mask

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=self.attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class Blocks(nn.Module):
    def __init__(self, width, layers, heads, mask=None):
        super().__init__()
        self.resblocks = nn.Sequential(*[Block(width, heads, mask) for _ in range(layers)])

    def forward(self, x):
        return self.resblocks(x)


class Vision(nn.Module):
    def __init__(self, size, patch, width, layers, dim):
        super().__init__()
        self.input_resolution, self.output_dim = size, dim
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros((size // patch) ** 2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Blocks(width, layers, width // 64)
        self.proj = nn.Parameter(torch.zeros(width, dim))

    def forward(self, x):
        x = self.conv1(x).flatten(2).permute(0, 2, 1)
        first = self.class_embedding.expand(len(x), 1, -1)
        x = self.ln_pre(torch.cat([first, x], 1) + self.positional_embedding)
        x = self.transformer(x.permute(1, 0, 2))
        return self.ln_post(x) @ self.proj  # [tokens, n, dim]


class CLIP(nn.Module):
    def __init__(self, vision, length, vocabulary, width, layers):
        super().__init__()
        self.visual = vision
        mask = torch.full((length, length), float("-inf")).triu_(1)
        self.transformer = Blocks(width, layers, width // 64, mask)
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.zeros(length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.zeros(width, vision.output_dim))
        self.logit_scale = nn.Parameter(torch.zeros(()))

    @property
    def dtype(self):
        return self.visual.conv1.weight.dtype

    def encode_text(self, ids):
        x = (self.token_embedding(ids) + self.positional_embedding).permute(1, 0, 2)
        x = self.ln_final(self.transformer(x).permute(1, 0, 2))
        return x[torch.arange(len(x)), ids.argmax(-1)] @ self.text_projection


def layers_of(state, start):
    return len({n.split(".")[2 + start.count(".")] for n in state
                if n.startswith(f"{start}transformer.resblocks.")})


def build_model(state_dict):
    conv, positions = state_dict["visual.conv1.weight"], state_dict["visual.positional_embedding"]
    grid = round((len(positions) - 1) ** 0.5)
    vision = Vision(grid * conv.shape[-1], conv.shape[-1], conv.shape[0],
                    layers_of(state_dict, "visual."), state_dict["text_projection"].shape[1])
    words = state_dict["token_embedding.weight"]
    model = CLIP(vision, len(state_dict["positional_embedding"]), *words.shape,
                 layers_of(state_dict, ""))
    model.load_state_dict(state_dict)
    return model.half().eval()
