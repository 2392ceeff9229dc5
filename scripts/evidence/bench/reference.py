"""The cost of the published FedTV recipe, written anew from its description.

Per training step: one image-tower forward on the batch's pixels, three
full-length text passes (personal prompt and shared prompt with gradient, the constant anchor
without), the loss of ``trainers/fedtv.py``, one backward, one step of ``torch.optim.SGD``.
Evaluation encodes the text again for every test batch. The towers are CLIP's: sequence first,
``nn.MultiheadAttention`` without weights, an additive causal mask, pre-norm blocks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import TreeView
from fedvlm.models.backbone import Backbone

LITERAL = "X"


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return x * torch.sigmoid(1.702 * x)


class ReferenceBlock(nn.Module):
    """A pre-norm transformer block on ``[L, n, width]``."""

    def __init__(self, width: int, heads: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads)
        parts = [
            ("c_fc", nn.Linear(width, 4 * width)), ("gelu", activation()),
            ("c_proj", nn.Linear(4 * width, width)),
        ]
        self.mlp = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend and transform."""
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Blocks one after the other."""

    def __init__(self, width: int, heads: int, layers: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(
            ReferenceBlock(width, heads, activation) for _ in range(layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[n, L, width]`` in and out; sequence first inside."""
        x = x.permute(1, 0, 2)
        for block in self.resblocks:
            x = block(x, mask)
        return x.permute(1, 0, 2)


class ImageTower(nn.Module):
    """CLIP's ViT: class token, learned positions, read out at the class token."""

    def __init__(self, tensors: TreeView, heads: int, activation: type[nn.Module]) -> None:
        super().__init__()
        width, _, patch, _ = tensors["conv1.weight"].shape
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(tensors["class_embedding"])
        self.positional_embedding = nn.Parameter(tensors["positional_embedding"])
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, heads, depth(tensors), activation)
        self.proj = nn.Parameter(tensors["proj"])

    def forward(self, pixels: Tensor) -> Tensor:
        """``[B, 3, H, W]`` -> ``[B, embed]``."""
        x = self.conv1(pixels).flatten(2).permute(0, 2, 1)
        start = self.class_embedding.expand(len(x), 1, -1)
        x = self.ln_pre(torch.cat([start, x], 1) + self.positional_embedding)
        return self.ln_post(self.transformer(x)[:, 0]) @ self.proj


class ReferenceClip(nn.Module):
    """Both towers, all frozen, on the tensors of an open_clip ViT CLIP (shared, not copied)."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        tensors = {k: v.detach() for k, v in backbone.model.state_dict().items()}
        self._refuse(backbone, tensors)
        activation = QuickGELU if backbone.arch.get("quick_gelu") else nn.GELU
        head = "visual."
        vision = {k.removeprefix(head): v for k, v in tensors.items() if k.startswith(head)}
        blocks = (backbone.model.visual.transformer.resblocks, backbone.model.transformer.resblocks)
        vision_heads, text_heads = (b[0].attn.num_heads for b in blocks)
        width = tensors["ln_final.weight"].shape[0]
        with torch.device("meta"):
            self.visual = ImageTower(vision, vision_heads, activation)
            self.transformer = Transformer(width, text_heads, depth(tensors), activation)
            self.ln_final = nn.LayerNorm(width)
        self.token_embedding = nn.Parameter(tensors["token_embedding.weight"])
        self.positional_embedding = nn.Parameter(tensors["positional_embedding"])
        self.text_projection = nn.Parameter(tensors["text_projection"])
        self.logit_scale = nn.Parameter(tensors["logit_scale"])
        renamed = {k.replace("token_embedding.weight", "token_embedding"): v
                   for k, v in tensors.items()}
        self.load_state_dict({k: renamed[k] for k in self.state_dict()}, assign=True)
        length = backbone.context_length
        hidden = torch.full((length, length), float("-inf"), dtype=self.ln_final.weight.dtype)
        self.mask = hidden.triu(1)
        self.eval().requires_grad_(False)

    @staticmethod
    def _refuse(backbone: Backbone, tensors: TreeView) -> None:
        vit = "visual.conv1.weight" in tensors and "text_projection" in tensors
        if not vit or not backbone.causal or "visual.ln_pre.weight" not in tensors:
            raise ConfigError(
                f"bench: the reference recipe knows ViT CLIPs with a causal text tower only, not "
                f"'{backbone.name}'; use --backbone ViT-B/16 or ViT-B/32"
            )

    def text(self, embedded: Tensor, eot: Tensor) -> Tensor:
        """Encode ``embedded [C, L, width]``, every position of it: ``[C, embed]``."""
        x = self.ln_final(self.transformer(embedded + self.positional_embedding, self.mask))
        return x[torch.arange(len(x)), eot] @ self.text_projection


def depth(tensors: TreeView) -> int:
    """Return the number of blocks below ``transformer.resblocks``."""
    head = "transformer.resblocks."
    return 1 + max(int(k[len(head):].split(".")[0]) for k in tensors if k.startswith(head))


class ReferenceFedTV(nn.Module):
    """FedTV's trained tensors around the towers, with the published recipe's work per step.

    Args:
        clip: frozen towers.
        ids: tokens of "X X ... X name." per class, ``[C, L]``.
        start: our names -> initial tensors, no client axis, one prompt set.
        temperature, ortho_weight: of the loss.
    """

    def __init__(
        self, clip: ReferenceClip, ids: Tensor, start: TreeView, temperature: float = 0.5,
        ortho_weight: float = 0.1,
    ) -> None:
        super().__init__()
        self.clip, self.temperature, self.ortho_weight = clip, temperature, ortho_weight
        self.p = nn.ParameterDict(
            {n.replace(".", "/"): nn.Parameter(v.clone()) for n, v in start.items()}
        )
        n_ctx = start["text.sigma"].shape[1]
        self.eot = ids.argmax(-1)
        self.literal = clip.token_embedding[ids].detach()
        self.prefix, self.suffix = self.literal[:, :1], self.literal[:, 1 + n_ctx :]
        self.image_cpu = 0.0

    def values(self) -> dict[str, Tensor]:
        """Return the trained tensors under our names."""
        return {n.replace("/", "."): v.detach() for n, v in self.p.items()}

    def set_values(self, tree: TreeView) -> None:
        """Overwrite trained tensors."""
        with torch.no_grad():
            for name, value in tree.items():
                self.p[name.replace(".", "/")].copy_(value)

    def optimizer(self, lr: float, momentum: float, decay: float) -> torch.optim.Optimizer:
        """Return the recipe's optimiser over all trained tensors."""
        return torch.optim.SGD(self.p.values(), lr=lr, momentum=momentum, weight_decay=decay)

    def _own_prompt(self) -> Tensor:
        p = self.p
        return p["text/sigma"][0] + p["text/U"][0] @ torch.diag(p["text/S"][0]) @ p["text/V"][0]

    def _classifier(self, ctx: Tensor) -> Tensor:
        wide = ctx.expand(len(self.prefix), -1, -1)
        out = self.clip.text(torch.cat([self.prefix, wide, self.suffix], 1), self.eot)
        return F.normalize(out, dim=-1)

    def _gate(self, name: str, x: Tensor) -> Tensor:
        first, second = (self.p[f"image/{name}/fc{i}/weight"] for i in (1, 2))
        return torch.softmax(F.linear(F.relu(F.linear(x, first)), second), -1) * x

    def _vision(self, pixels: Tensor) -> Tensor:
        began = time.process_time()
        with torch.no_grad():
            x = self.clip.visual(pixels)
        self.image_cpu = time.process_time() - began
        views = (x, self._gate("shared_adapter", x), self._gate("personal_adapter", x))
        p, fusion = self.p, "image/fusion"
        query = F.linear(x, p[f"{fusion}/query/weight"], p[f"{fusion}/query/bias"])
        keys = [F.linear(v, p[f"{fusion}/key/weight"], p[f"{fusion}/key/bias"]) for v in views]
        weights = torch.softmax(torch.stack([(query * k).sum(-1) for k in keys], -1), -1)
        mixed = sum(weights[:, j : j + 1] * v for j, v in enumerate(views))
        return F.normalize(torch.as_tensor(mixed), dim=-1)

    def loss(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss of a batch."""
        image = self._vision(pixels)
        own = self._classifier(self._own_prompt())
        with torch.no_grad():
            anchor = F.normalize(self.clip.text(self.literal, self.eot), dim=-1)
        general = self._classifier(self.p["text/sigma"][0])
        logits = self.clip.logit_scale.exp() * image @ own.t()
        pair = torch.stack([(anchor * general).sum(-1), (anchor * own).sum(-1)], 1)
        zeros = torch.zeros(len(pair), dtype=torch.long)
        contrast = F.cross_entropy(pair / self.temperature, zeros)
        u, v = self.p["text/U"][0], self.p["text/V"][0]
        eye = torch.eye(u.shape[1], dtype=u.dtype)
        ortho = torch.linalg.norm(u.t() @ u - eye) + torch.linalg.norm(v @ v.t() - eye)
        return F.cross_entropy(logits, labels) + self.ortho_weight * ortho + contrast

    def train_step(
        self, pixels: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer
    ) -> float:
        """Do one training step and return its loss."""
        loss = self.loss(pixels, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def evaluate(self, batches: Sequence[Tensor]) -> Tensor:
        """Return logits ``[n, C]`` of test batches, with both towers run for each of them."""
        parts: list[Any] = []
        with torch.no_grad():
            for pixels in batches:
                image = self._vision(pixels)
                text = self._classifier(self._own_prompt())
                parts.append(self.clip.logit_scale.exp() * image @ text.t())
        return torch.cat(parts)


def literal_ids(backbone: Backbone, names: Sequence[str], n_ctx: int) -> Tensor:
    """Return the tokens of "X X ... X name." for each class, ``[C, L]``."""
    head = " ".join([LITERAL] * n_ctx)
    return backbone.tokenize([f"{head} {name}." for name in names])
