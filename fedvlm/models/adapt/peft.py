"""The trainable set as the user's choice: ``PEFT.TEXT``, ``PEFT.VISUAL``, ``PEFT.HEAD``.

Every tensor has a role by its name: ``body`` (image side) or ``head`` (text side or classifier),
and a finer one, by which optimisers distinguish tensors (``role_of``). All functions work on trees
with a leading client axis ``[K, ...]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.models.adapt.contexts import random_context, word_context
from fedvlm.models.towers.adapters import LORA as LORA_MARK
from fedvlm.models.towers.adapters import (
    PRIVATE_LORA,
    TreeEdits,
    adapter_tree,
    ln_tree,
    lora_tree,
    parse_targets,
    uniform,
    whole_lora,
)
from fedvlm.models.towers.blocks import BRANCHES, STAGE, Layered
from fedvlm.models.towers.text import text_blocks
from fedvlm.models.vlmodel import VLModel, staged_tower

B = TypeVar("B", bound=Layered)
BODY, HEAD = "body", "head"
TEXT = ("none", "prompt", "lora")
VISUAL = ("none", "feature", "lora", "adapter")
HEADS = ("text", "linear")
IN_TOWER = ("lora", "adapter")
CONTEXT, ADAPTER, LORA, LINEAR, TOWER = "context", "adapter", "lora", "head", "tower"
# The first pattern that fits a whole name gives its fine role; what fits none is the tower's own.
FINE_ROLES = (
    (LORA, r".*\.lora\..*"),
    (CONTEXT, r"(text\.(ctx|sigma|U|S|V|global|u|v|r)|(text|image)\.prompt)(\..*)?"),
    (LINEAR, r"(head|small|gate|tip)\..*"),
    (ADAPTER, r".*adapter\..*|image\.(fusion|private|couple)\..*|(text|image)\.net\..*"),
)


@dataclass(frozen=True)
class PeftSpec:
    """What is trained.

    Attributes:
        text: ``prompt`` (a CoOp context), ``lora`` (inside the text tower) or ``none``.
        visual: ``feature`` (a residual bottleneck on the image feature), ``lora`` or ``adapter``
            (inside the image tower's blocks; ``adapter`` also behind a convolutional trunk's
            stages), or ``none``.
        head: ``text`` (text features classify; unseen classes stay defined) or ``linear``
            (rows of weights, started at the template's text features).
        n_ctx: context tokens.
        ctx_init: words whose token embeddings a context starts as; empty: random numbers.
        csc: a context of its own for every class; unseen classes then have none.
        ln: train the LayerNorms of the image tower's blocks as well.
        width: hidden width of the adapters.
        rank, alpha: of LoRA; its update is scaled by alpha / rank, with ``root`` by alpha /
            sqrt(rank).
        targets: layers that LoRA changes, of ``adapters.WORDS``.
        blocks: how many of a tower's last blocks are changed; 0: all.
        average: how LoRA is averaged (``federation.aggregation.lora.RULES``).
        ranks: of the clients' LoRA, client k has the (k mod n)-th; none: all have ``rank``.
        private_rank: of a second LoRA in the same layers that stays with its client; 0: none.
        ridge: lambda of ``average`` fair.
    """

    text: str = "prompt"
    visual: str = "none"
    head: str = "text"
    n_ctx: int = 16
    width: int = 32
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q", "v")
    blocks: int = 0
    average: str = "factors"
    ctx_init: str = ""
    csc: bool = False
    ln: bool = False
    ranks: tuple[int, ...] = ()
    private_rank: int = 0
    ridge: float = 0.01
    root: bool = False

    @classmethod
    def of(cls, cfg: Any) -> PeftSpec:
        """Read the ``PEFT`` node of a config.

        Raises:
            ConfigError: nothing would be trained, a text side beside a linear head, words or
                contexts by class without a prompt, an unknown target, or a client's rank that is
                no number from 1 to ``PEFT.RANK``.
        """
        node = cfg.PEFT
        spec = cls(
            node.TEXT, node.VISUAL, node.HEAD, int(node.N_CTX), int(node.WIDTH), int(node.RANK),
            float(node.ALPHA), parse_targets(node.TARGETS), int(node.BLOCKS), node.LORA_AVG,
            str(node.CTX_INIT).strip(), bool(node.CSC), bool(node.LN),
            parse_ranks(node.RANKS, int(node.RANK)), int(node.PRIVATE_RANK), float(node.LORA_RIDGE),
        )
        if (spec.text, spec.visual, spec.head, spec.ln) == ("none", "none", "text", False):
            raise ConfigError("PEFT trains nothing: set PEFT.TEXT, PEFT.VISUAL or PEFT.HEAD linear")
        if spec.text != "none" and spec.head == "linear":
            raise ConfigError(
                f"PEFT.HEAD linear has no text side, so PEFT.TEXT {spec.text} would train "
                "nothing: set PEFT.TEXT none (--peft head)"
            )
        if spec.text != "prompt" and (spec.ctx_init or spec.csc):
            key = f"CTX_INIT '{spec.ctx_init}'" if spec.ctx_init else "CSC True"
            raise ConfigError(
                f"PEFT.{key} sets the context of a prompt, but PEFT.TEXT {spec.text} has none: set "
                "PEFT.TEXT prompt, or drop the key"
            )
        return spec

    @property
    def open_vocabulary(self) -> bool:
        """Whether classes without training images have a classifier too."""
        return self.head == "text" and not self.csc

    @property
    def in_tower(self) -> bool:
        """Whether something inside the image tower changes."""
        return self.visual in IN_TOWER or self.ln

    @property
    def has_lora(self) -> bool:
        """Whether LoRA is trained in some tower."""
        return "lora" in (self.text, self.visual)

    def rank_of(self, client: int) -> int:
        """Return the rank of a client's LoRA."""
        return self.ranks[client % len(self.ranks)] if self.ranks else self.rank

    @property
    def scale(self) -> float:
        """LoRA's alpha / rank, or alpha / sqrt(rank) (Kalajdzievski, rsLoRA, 2023)."""
        return self.alpha / (self.rank**0.5 if self.root else self.rank)

    def changed(self, blocks: Sequence[B], tower: str) -> Sequence[B]:
        """Return those of a tower's blocks that are changed: the last ``PEFT.BLOCKS``, all for 0.

        Raises:
            ConfigError: the tower has fewer than ``PEFT.BLOCKS``.
        """
        if self.blocks > len(blocks):
            raise ConfigError(
                f"PEFT.BLOCKS {self.blocks}: the {tower} tower has {len(blocks)} blocks; "
                "0 takes all"
            )
        return blocks[len(blocks) - self.blocks :] if self.blocks else blocks


def parse_ranks(given: Sequence[object], most: int) -> tuple[int, ...]:
    """Return the numbers that ``PEFT.RANKS`` lists.

    Raises:
        ConfigError: a word that is no whole number from 1 to ``most``, ``PEFT.RANK``.
    """
    for word in given:
        if not str(word).isdecimal() or not 1 <= int(str(word)) <= most:
            raise ConfigError(
                f"PEFT.RANKS has '{word}': ranks must be whole numbers from 1 to PEFT.RANK "
                f"({most})"
            )
    return tuple(int(str(word)) for word in given)


def role(name: str) -> str:
    """Return ``body`` for ``image.*`` and ``head`` for ``text.*`` and ``head.*``."""
    return BODY if name.startswith("image.") else HEAD


def role_of(name: str) -> str:
    """Return a tensor's fine role: ``context``, ``adapter``, ``lora``, ``head`` or ``tower``."""
    return next((role for role, pattern in FINE_ROLES if re.fullmatch(pattern, name)), TOWER)


def build_tensors(spec: PeftSpec, model: VLModel, generator: torch.Generator) -> Tree:
    """Return the initial trainable tensors, without client axis.

    ``text.ctx [n_ctx, text_width]`` ~ N(0, 0.02^2) (CoOp), or the token embeddings of words;
    ``[C, n_ctx, text_width]`` with a context of its own for every class;
    ``image.adapter.down [width, d]`` uniform in +-1/sqrt(d) and ``image.adapter.up [d, width]``
    zero, so that the start is the frozen feature; ``head.weight [C, d]`` the template's text
    features, or random directions on a backbone without text tower. Inside the towers:
    ``adapters``.

    Raises:
        ConfigError: the backbone's towers, the rank or the number of words do not allow it.
    """
    tree: Tree = {}
    if not model.has_text and spec.head == "text":
        raise model.backbone.lack or ConfigError(
            f"backbone '{model.backbone.name}' has no text tower for classification: use --peft "
            "head (or head+lora, head+adapter), or a CLIP backbone"
        )
    if spec.text == "prompt":
        classes = (len(model.classnames),) if spec.csc else ()
        # Drawn in any case: what is drawn after it starts as it does without words.
        tree["text.ctx"] = random_context((*classes, spec.n_ctx, model.text_width), generator)
        if spec.ctx_init:
            tree["text.ctx"] = _from_words(spec, model).expand_as(tree["text.ctx"]).clone()
    elif spec.text == "lora":
        tree |= tower_lora(spec, model, "text", generator)
    if spec.visual == "feature":
        d = model.embed_dim
        tree["image.adapter.down"] = uniform((spec.width, d), d, generator)
        tree["image.adapter.up"] = torch.zeros(d, spec.width)
    elif spec.visual == "lora":
        tree |= tower_lora(spec, model, "image", generator)
    elif spec.visual == "adapter":
        blocks, branches = _adapted(model)
        tree |= adapter_tree(
            "image", spec.changed(blocks, "image"), spec.width, generator, branches
        )
    if spec.ln:
        tree |= ln_tree("image", spec.changed(model.vision.blocks, "image"))
    if spec.head == "linear" and model.has_text:
        tree["head.weight"] = model.anchor("template", 0).detach().clone().cpu()
    elif spec.head == "linear":
        rows = torch.randn(len(model.classnames), model.embed_dim, generator=generator)
        tree["head.weight"] = F.normalize(rows, dim=-1)
    return tree


def _from_words(spec: PeftSpec, model: VLModel) -> Tensor:
    words = word_context(model, spec.ctx_init)
    if len(words) != spec.n_ctx:
        raise ConfigError(
            f"PEFT.CTX_INIT '{spec.ctx_init}' has {len(words)} tokens, but PEFT.N_CTX "
            f"is {spec.n_ctx}: set PEFT.N_CTX {len(words)}, or use other words"
        )
    return words


def tower_lora(
    spec: PeftSpec, model: VLModel, tower: str, generator: torch.Generator, rank: int = 0,
    key: str = "PEFT.RANK",
) -> Tree:
    """Return LoRA factors for the layers ``PEFT.TARGETS`` of a tower's changed blocks.

    Args:
        tower: ``image`` or ``text``.
        rank: 0: ``PEFT.RANK``.
        key: what set the rank, for the message.

    Raises:
        ConfigError: a rank above the tower's width, fewer blocks than ``PEFT.BLOCKS``, or a tower
            that LoRA does not fit.
    """
    blocks: Sequence[Layered] = (
        model.vision.blocks if tower == "image" else text_blocks(model.backbone)
    )
    changed, rank = spec.changed(blocks, tower), rank or spec.rank
    least = min(min(block.shape(site)) for block in changed for site in spec.targets)
    if rank > least:
        raise ConfigError(f"{key} {rank} is above {least}, the {tower} tower's width")
    return lora_tree(tower, changed, spec.targets, rank, generator)


def private_lora(spec: PeftSpec, model: VLModel, generator: torch.Generator) -> Tree:
    """Return a second LoRA of rank ``PEFT.PRIVATE_RANK`` in every layer that has one.

    ``<tower>.private.lora.<block>.<site>.{A,B}``; both products are added to the layer, with the
    scale of the first (Nguyen et al., dual adapter, arXiv 2503.07552; FedDPA, NeurIPS 2024).
    """
    out: Tree = {}
    for tower, kind in (("image", spec.visual), ("text", spec.text)):
        if kind == "lora" and spec.private_rank:
            own = tower_lora(
                spec, model, tower, generator, spec.private_rank, "PEFT.PRIVATE_RANK"
            )
            out |= {n.replace(LORA_MARK, PRIVATE_LORA): v for n, v in own.items()}
    return out


def first_changed_block(spec: PeftSpec, model: VLModel) -> int | None:
    """Return the first changed block of the image tower; None where it stays frozen.

    What enters that block is the same for all clients and rounds: the stream ``tokens.<b>``. Of a
    trunk with adapters behind its stages it is the first such stage (``common_stream``).
    """
    if not spec.in_tower:
        return None
    blocks = _adapted(model)[0] if spec.visual == "adapter" else model.vision.blocks
    return spec.changed(blocks, "image")[0].index


def common_stream(spec: PeftSpec, model: VLModel) -> str:
    """Return what all clients and rounds have in common of an image: a feature, or rows inside."""
    block = first_changed_block(spec, model)
    if block is None:
        return "features"
    staged = spec.visual == "adapter" and staged_tower(model) is not None
    return f"{STAGE}.{block}" if staged else f"tokens.{block}"


def _adapted(model: VLModel) -> tuple[Sequence[Layered], Sequence[str]]:
    """Return what adapters stand in, and where: a ViT's blocks, or behind a trunk's stages.

    Raises:
        ConfigError: the image tower has neither.
    """
    staged = staged_tower(model)
    return (model.vision.blocks, BRANCHES) if staged is None else (staged.blocks, (STAGE,))


def text_features(spec: PeftSpec, model: VLModel, p: Tree) -> Tensor:
    """Return the classifier ``[K, C, d]``, normalised."""
    if spec.head == "linear":
        return F.normalize(p["head.weight"], dim=-1)
    if spec.text == "prompt":
        return (model.text_by_class if spec.csc else model.text)(p["text.ctx"])
    k = next(iter(p.values())).shape[0]
    if spec.text == "lora":
        changed = spec.changed(text_blocks(model.backbone), "text")
        edits = TreeEdits("text", whole_lora(p), spec.scale)
        return model.adapted_text(edits, k, changed[0].index)
    anchor = model.anchor("template", 0)
    return anchor.expand(k, *anchor.shape)


def image_features(spec: PeftSpec, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
    """Return image features ``[K, B, d]``, not normalised."""
    z = image_taps(spec, model, p, x)[0] if spec.in_tower else model.image(x)
    if spec.visual == "feature":
        hidden = F.gelu(z @ p["image.adapter.down"].mT)
        z = z + hidden @ p["image.adapter.up"].mT
    return z


def image_taps(
    spec: PeftSpec, model: VLModel, p: Tree, x: Mapping[str, Tensor], taps: Sequence[int] = ()
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return image features ``[K, B, d]`` and the outputs of the blocks ``taps``.

    For ``PEFT.VISUAL`` lora and adapter and ``PEFT.LN``, from tokens or pixels. A tap is ``[K, B,
    n, width]``, its first row the class token's; taps must not lie below a stream ``tokens.<b>``.
    """
    return model.adapted_image(x, TreeEdits("image", whole_lora(p), spec.scale), taps)
