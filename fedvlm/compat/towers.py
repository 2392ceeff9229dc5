"""OpenAI's CLIP classes over a backbone's own towers: names, shapes and calls as files know them.

Activations inside a transformer are ``[L, n, width]`` and the causal mask is inside, as in OpenAI's
code (open_clip: ``[n, L, width]``, mask as an argument; a text encoder of the one over the other
gives wrong features without an error). Sources: Radford et al. 2021; for prompts inside the towers
Jia et al. 2022 (VPT), Khattak et al. 2023 (MaPLe hands prompts in, PromptSRC's are parameters).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.clip import is_image_tower
from fedvlm.models.vlmodel import VLModel

INIT_STD = 0.02  # of prompts that a tower owns
GIVEN, OWN = ("MaPLe",), ("IVLP", "VPT")  # designs: who brings the prompts of deeper blocks
_copies: WeakKeyDictionary[Backbone, nn.ModuleDict] = WeakKeyDictionary()


class PromptedBlock(nn.Module):
    """A residual block; where it takes prompts, they replace those of the block before.

    Args:
        block: of our towers or open_clip's; its layers are taken over.
        mask: added to the scores, ``[L, L]``; None: none.
        text: prompts stand behind the first token; otherwise at the end.
        given: input and output are ``[x, prompts, number used]``.
        first: takes no prompts.
        n_own: rows of a prompt of its own.
    """

    def __init__(
        self, block: Any, mask: Tensor | None, *, text: bool, given: bool, first: bool, n_own: int
    ) -> None:
        super().__init__()
        self.attn, self.ln_1, self.mlp, self.ln_2 = block.attn, block.ln_1, block.mlp, block.ln_2
        self.ls_1 = getattr(block, "ls_1", nn.Identity())
        self.ls_2 = getattr(block, "ls_2", nn.Identity())
        self.attn_mask = mask
        self.text_layer, self.given, self.first = text, given, first
        if n_own:
            self.VPT_shallow = nn.Parameter(
                nn.init.normal_(torch.empty(n_own, block.ln_1.weight.numel()), std=INIT_STD)
            )

    def attention(self, x: Tensor) -> Tensor:
        """Attend: ``[L, n, width]`` -> ``[L, n, width]``."""
        length, h = len(x), x.transpose(0, 1)
        mask = self.attn_mask
        if mask is not None:
            mask = self.attn_mask = mask.to(x)
            mask = mask[:length, :length]
        return self.attn(h, h, h, need_weights=False, attn_mask=mask)[0].transpose(0, 1)

    def forward(self, x: Any) -> Any:
        """``[L, n, width]`` -> ``[L, n, width]``; with given prompts a list of three."""
        if self.given:
            x, prompts, used = x
            if not self.first and used < len(prompts):
                x, used = self._replace(x, prompts[used]), used + 1
            return [self._residual(x), prompts, used]
        own = getattr(self, "VPT_shallow", None)
        return self._residual(x if own is None else self._replace(x, own))

    def _residual(self, x: Tensor) -> Tensor:
        x = x + self.ls_1(self.attention(self.ln_1(x)))
        return x + self.ls_2(self.mlp(self.ln_2(x)))

    def _replace(self, x: Tensor, prompt: Tensor) -> Tensor:
        rows = prompt.to(x.dtype).unsqueeze(1).expand(-1, x.shape[1], -1)
        if self.text_layer:
            return torch.cat([x[:1], rows, x[1 + len(prompt):]])
        return torch.cat([x[: len(x) - len(prompt)], rows])


class Transformer(nn.Module):
    """Blocks one after the other; ``resblocks`` is a ``Sequential``, as files index and hook it."""

    def __init__(
        self, blocks: Sequence[Any], mask: Tensor | None, *, text: bool, design: str, depth: int,
        n_prompt: int,
    ) -> None:
        super().__init__()
        self.layers = len(blocks)
        self.width = int(blocks[0].ln_1.weight.numel())
        self.resblocks = nn.Sequential(*(
            PromptedBlock(block, mask, text=text, given=design in GIVEN, first=i == 0,
                  n_own=n_prompt if design in OWN and 0 < i < depth else 0)
            for i, block in enumerate(blocks)
        ))

    def forward(self, x: Any) -> Any:
        """``[L, n, width]`` -> ``[L, n, width]``."""
        return self.resblocks(x)


class ImageTower(nn.Module):
    """A ViT with a class token; may carry prompts."""

    def __init__(
        self, visual: Any, size: int, dim: int, *, design: str, depth: int, n_prompt: int
    ) -> None:
        super().__init__()
        self.input_resolution, self.output_dim = size, dim
        self.conv1, self.ln_pre, self.ln_post = visual.conv1, visual.ln_pre, visual.ln_post
        self.class_embedding = visual.class_embedding
        self.positional_embedding = visual.positional_embedding
        self.proj = visual.proj
        self.prompted = design in GIVEN or (design in OWN and depth > 0)
        if design in OWN and depth > 0:
            width = int(visual.ln_post.weight.numel())
            self.VPT = nn.Parameter(nn.init.normal_(torch.empty(n_prompt, width), std=INIT_STD))
        self.transformer = Transformer(
            list(visual.transformer.resblocks), None, text=False, design=design, depth=depth,
            n_prompt=n_prompt,
        )

    def forward(
        self, x: Tensor, shared_ctx: Tensor | None = None, deeper: Sequence[Tensor] = ()
    ) -> Tensor:
        """Image features ``[n, output_dim]`` of pixels ``[n, 3, S, S]``.

        Features ``[n, output_dim]`` pass as they are where no prompt would change them.
        """
        if x.dim() == 2 and not self.prompted:
            return x
        x = self.conv1(x).flatten(2).transpose(1, 2)
        first = self.class_embedding.to(x.dtype).expand(len(x), 1, -1)
        x = torch.cat([first, x], 1) + self.positional_embedding.to(x.dtype)
        prompt = getattr(self, "VPT", shared_ctx)
        if prompt is not None:
            x = torch.cat([x, prompt.to(x.dtype).expand(len(x), -1, -1)], 1)
        x = self.ln_pre(x).transpose(0, 1)
        given = self.transformer.resblocks[0].given
        x = self.transformer([x, deeper, 0])[0] if given else self.transformer(x)
        x = self.ln_post(x.transpose(0, 1)[:, 0])
        return x if self.proj is None else x @ self.proj


class OtherImageTower(nn.Module):
    """Any other image tower (a ResNet, a timm trunk), whole."""

    def __init__(self, visual: Any, size: int, dim: int) -> None:
        super().__init__()
        self.tower = visual
        self.input_resolution, self.output_dim = size, dim

    def forward(self, x: Tensor) -> Tensor:
        """Image features ``[n, output_dim]`` of pixels; features pass as they are."""
        return x if x.dim() == 2 else self.tower(x)


class CLIP(nn.Module):
    """OpenAI's CLIP.

    Args:
        model: whose towers it has.
        share: its tensors are the same objects in every CLIP of this backbone.
        design: MaPLe's ``design_details``; empty: the plain CLIP.

    Raises:
        ConfigError: a backbone or a design that has no such form.
    """

    def __init__(
        self, model: VLModel, share: bool = True, design: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        backbone, design = model.backbone, design or {}
        check_backbone(backbone)
        kind = str(design.get("trainer", ""))
        parts = _parts(backbone, share)
        visual, text = parts["visual"], parts["text"]
        if kind in (*GIVEN, *OWN) and not is_image_tower(visual):
            raise ConfigError(
                f"{kind} puts prompts into the image tower; backbone '{backbone.name}' has no ViT: "
                "use --backbone ViT-B/16"
            )
        size, dim = backbone.image_size, backbone.embed_dim
        if is_image_tower(visual) and visual.attn_pool is None and visual.pool_type == "tok":
            self.visual: nn.Module = ImageTower(
                visual, size, dim, design=kind, depth=int(design.get("vision_depth", 0)),
                n_prompt=int(design.get("vision_ctx", 0)),
            )
        else:
            self.visual = OtherImageTower(visual, size, dim)
        self.transformer = Transformer(
            list(text.transformer.resblocks), parts["mask"].mask, text=True, design=kind,
            depth=int(design.get("language_depth", 0)), n_prompt=int(design.get("language_ctx", 0)),
        )
        self.token_embedding, self.ln_final = text.token_embedding, text.ln_final
        self.positional_embedding = text.positional_embedding
        self.text_projection = text.text_projection
        self.logit_scale = parts["mask"].logit_scale
        self.vocab_size = int(self.token_embedding.weight.shape[0])
        self.context_length = backbone.context_length
        self._dtype = model.dtype

    @property
    def dtype(self) -> torch.dtype:
        """Type of images, prompts and features."""
        return self._dtype

    def encode_image(self, image: Tensor) -> Tensor:
        """Image features ``[n, d]``, not normalised."""
        return self.visual(image.type(self.dtype))

    def encode_text(self, text: Tensor) -> Tensor:
        """Text features ``[n, d]`` of token ids ``[n, L]``, not normalised."""
        x = self.token_embedding(text).type(self.dtype)
        x = (x + self.positional_embedding[: x.shape[1]].type(self.dtype)).permute(1, 0, 2)
        given = self.transformer.resblocks[0].given
        x = self.transformer([x, [], 0])[0] if given else self.transformer(x)
        x = self.ln_final(x.permute(1, 0, 2)).type(self.dtype)
        return x[torch.arange(len(x)), text.argmax(dim=-1)] @ self.text_projection

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Logits per image and per text."""
        z, t = self.encode_image(image), self.encode_text(text)
        z, t = z / z.norm(dim=-1, keepdim=True), t / t.norm(dim=-1, keepdim=True)
        logits = self.logit_scale.exp() * z @ t.t()
        return logits, logits.t()


def check_backbone(backbone: Backbone) -> None:
    """Refuse backbones that OpenAI's classes cannot show (``ConfigError``)."""
    why = ""
    if not backbone.has_text:
        why = "has no text tower"
    elif backbone.pool != "argmax" or not isinstance(backbone.text_tower.text_projection, Tensor):
        why = "has a text tower that is not CLIP's (it does not use the end-of-text token)"
    elif backbone.dtype is torch.bfloat16:
        why = "is in MODEL.PREC bf16; such files run in fp32 or fp64"
    if why:
        raise ConfigError(f"a file written for clip needs a CLIP backbone, but '{backbone.name}' "
                          f"{why}")


class _Loose(nn.Module):
    """The causal mask, and the logit scale."""

    def __init__(self, mask: Tensor | None, scale: float, like: Tensor) -> None:
        super().__init__()
        self.mask = None if mask is None else mask.detach().clone()
        self.logit_scale = nn.Parameter(like.new_tensor(math.log(scale)), requires_grad=False)


def _parts(backbone: Backbone, share: bool) -> Any:
    """Return copies of a backbone's towers: the modules anew, the tensors shared if asked."""
    if backbone not in _copies:
        text = backbone.text_tower
        keep = nn.Module()
        keep.transformer, keep.ln_final = text.transformer, text.ln_final
        keep.token_embedding = text.token_embedding
        keep.positional_embedding, keep.text_projection = (
            text.positional_embedding, text.text_projection)
        visual = backbone.model.visual
        _copies[backbone] = copy.deepcopy(nn.ModuleDict({
            "visual": visual, "text": keep,
            "mask": _Loose(text.attn_mask, backbone.logit_scale, text.positional_embedding),
        }))
    source = _copies[backbone].requires_grad_(False)
    memo = {id(p): p for p in source.parameters()} if share else {}
    return copy.deepcopy(source, memo)


def tower_tensors(backbone: Backbone) -> set[int]:
    """Return the ids of the tensors that all CLIPs of a backbone share."""
    return {id(p) for p in _copies[backbone].parameters()} if backbone in _copies else set()
