"""The model that a trainer sees: images and prompts to features, features to logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, FedvlmError, did_you_mean
from fedvlm.core.spelling import check_described, fill, is_described
from fedvlm.models.backbone import Backbone, digest_of
from fedvlm.models.towers.blocks import Edits, NoEdits
from fedvlm.models.towers.prompts import PLACEHOLDER, Suffix, encode_texts, fitting_ids
from fedvlm.models.towers.text import TextTower
from fedvlm.models.towers.text_path import ClassPrompts, TextPath
from fedvlm.models.towers.vision import INSIDE, PATCHES, STAGES, VisionTower, pick_stream

if TYPE_CHECKING:
    from fedvlm.models.stages import StagedTower

ANCHORS = ("literal", "template", "raw")
NEUTRAL = "something"  # in the place of a class name: what every label of a set is compared with
Family = tuple[tuple[str, ...], tuple[str, ...]]  # class names, templates
T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class VLModel:
    """A frozen backbone with a class list; holds no trainable tensor.

    Args:
        backbone: the towers.
        classnames: by label.
        templates: texts with ``{}`` for the class name, or sentences by class
            (``core.spelling``), for ``anchor("template")``.
        packed: use the shared-prefix text tower where the backbone allows it.
        image_chunk: most images per pass through the image tower.
        bf16_text: bfloat16 linear layers in the packed text tower.
        sets: images have sets of labels: a label's logit is then its own, less that of
            ``neutral``, so that above 0 means yes.
        client_templates: of the clients that have their own, by number: ``of_clients``.

    Attributes:
        counters: passes through the towers, of training and evaluation.
        constants: passes for what is computed once and kept (anchors, ``once``); a resumed session
            makes them again, so they are in no round's counters.
        notes: remarks for log and results.

    Raises:
        ConfigError: no classes, or a template without ``{}``.
    """

    def __init__(
        self,
        backbone: Backbone,
        classnames: Sequence[str],
        *,
        templates: Sequence[str] = ("a photo of a {}.",),
        packed: bool = True,
        image_chunk: int = 64,
        bf16_text: bool = False,
        sets: bool = False,
        client_templates: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        bad = [t for t in templates if "{}" not in t and not is_described(t)]
        if bad or not templates or not classnames:
            raise ConfigError(
                f"template '{bad[0]}' has no '{{}}' for the class name"
                if bad
                else "a model needs at least one class name and one template"
            )
        self.backbone = backbone
        self.classnames = tuple(classnames)
        self.templates = tuple(templates)
        self.client_templates = {c: tuple(t) for c, t in (client_templates or {}).items()}
        self.packed, self.image_chunk, self.bf16_text = packed, image_chunk, bf16_text
        self.sets = sets
        self.scale = backbone.logit_scale
        self.embed_dim = backbone.embed_dim
        self.dtype, self.device = backbone.feature_dtype, backbone.device
        self.has_text = backbone.has_text
        self.counters: Counter[str] = Counter()
        self.constants: Counter[str] = Counter()
        self.notes: list[str] = list(backbone.notes)
        self._text_path = TextPath(
            backbone, packed=packed, bf16=bf16_text, counters=self.counters, notes=self.notes
        )
        # By n_ctx, whose contexts, what stands behind the names, and words before them.
        self._prompts: dict[tuple[int, bool, Suffix | None, str], ClassPrompts] = {}
        self._anchors: dict[tuple[str, int], Tensor] = {}
        self._vision: VisionTower | None = None
        self._stages: StagedTower | None = None
        self._texts: TextTower | None = None
        self._family: dict[Family, VLModel] = {(self.classnames, self.templates): self}
        self._memo: dict[Hashable, Any] = {}
        self._modules: list[tuple[nn.Module, str]] = []  # and their digests as they came

    @property
    def text_width(self) -> int:
        """Width of a token's embedding, and so of a context vector.

        Raises:
            FedvlmError: there is no text tower; the message says why.
        """
        if not self.has_text:
            raise self.backbone.no_text()
        return self.backbone.text_width

    def image(self, x: Mapping[str, Tensor]) -> Tensor:
        """Image features [K, B, embed_dim], not normalised, without gradient.

        Args:
            x: ``features`` [K, B, embed_dim] (used as they are), ``tokens.<b>`` or ``stage.<s>``
                [K, B, n, width] (they go on from there) or ``pixels`` [K, B, 3, H, W]; the first
                of these that is there.
        """
        if "features" in x:
            return x["features"].to(self.device, self.dtype)
        if any(name.startswith(INSIDE) for name in x):
            with torch.no_grad():
                return self.adapted_image(x, NoEdits())[0]
        pixels = x[pick_stream(x)[0]]
        clients, batch = pixels.shape[:2]
        with torch.no_grad():
            parts = [
                self.backbone.encode_image(part)
                for part in pixels.flatten(0, 1).split(self.image_chunk)
            ]
        self.counters["image_forwards"] += clients * batch
        return torch.cat(parts).view(clients, batch, -1)

    def patches(self, x: Mapping[str, Tensor], edits: Edits | None = None) -> Tensor:
        """Patch features [K, B, M, embed_dim], projected, not normalised.

        Args:
            x: ``patches`` (used as they are), or ``tokens.<b>`` or ``pixels`` as for ``image``.
            edits: what the clients change in the tower, from tokens or pixels on; the gradient
                then reaches them. None: the frozen tower.

        Raises:
            ConfigError: the image tower has no patch features, or ``edits`` and no blocks.
        """
        if edits is not None:
            return self._inside(
                x, edits, lambda rows, start, some: self.vision.patches(rows, start, some)
            )
        if PATCHES in x:
            return x[PATCHES].to(self.device, self.dtype)
        tower, (name, start) = self.vision, pick_stream(x)
        rows = x[name].to(self.device, self.dtype)
        clients, batch = rows.shape[:2]
        with torch.no_grad():
            if start < 0:
                parts = rows.flatten(0, 1).split(self.image_chunk)
                rows = torch.cat([tower.enter(part) for part in parts])
            out = [
                tower.patches(part[None], max(start, 0))[0]
                for part in rows.reshape(-1, *rows.shape[-2:]).split(self.image_chunk)
            ]
        self.counters["image_forwards"] += clients * batch
        return torch.cat(out).unflatten(0, (clients, batch))

    @property
    def vision(self) -> VisionTower:
        """The image tower in pieces, read at the first call.

        Raises:
            ConfigError: the image tower is neither a ViT nor CLIP's ResNet.
        """
        if self._vision is None:
            self._vision = VisionTower(self.backbone)
        return self._vision

    def adapted_image(
        self, x: Mapping[str, Tensor], edits: Edits, taps: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Image features through towers that the clients have adapted.

        Args:
            x: a stream ``tokens.<b>`` or ``stage.<s>`` [K, B, n, width] or ``pixels``
                [K, B, 3, H, W]; the gradient reaches pixels that ask for it.
            edits: what the clients change (``adapters.TreeEdits``, or a ``blocks.Edits``).
            taps: blocks whose outputs are wanted as well; the first n rows are the image's. A
                trunk's stages have none.

        Returns:
            Features [K, B, embed_dim], not normalised, and ``{tap: [K, B, n, width]}``.
        """

        staged = None
        if edits.staged or any(name.startswith(STAGES) for name in x):
            staged = staged_tower(self)
        if staged is not None:
            return self._inside(x, edits, staged.leave, staged), {}

        def leave(rows: Tensor, start: int, some: Edits) -> Tensor:
            z, outputs = self.vision.leave(rows, start, some, taps)
            for tap in taps:
                tapped[tap].append(outputs[tap])
            return z

        tapped: dict[int, list[Tensor]] = {tap: [] for tap in taps}
        z = self._inside(x, edits, leave)
        return z, {tap: torch.cat(parts, 1) for tap, parts in tapped.items()}

    def attention(self, x: Mapping[str, Tensor], edits: Edits) -> Tensor:
        """What the class token looks at in the image tower's last block (``vision.attention``).

        Args:
            x: ``tokens.<b>`` or ``pixels``, as for ``adapted_image``.
            edits: what the clients change in the tower.

        Returns:
            ``[K, B, n]`` of sum 1: the tower's own rows, then those that ``edits`` add.

        Raises:
            ConfigError: the tower has no class token that is read out.
        """
        return self._inside(
            x, edits, lambda rows, start, some: self.vision.attention(rows, start, some)
        )

    def _inside(
        self, x: Mapping[str, Tensor], edits: Edits,
        compute: Callable[[Tensor, int, Edits], Tensor], staged: StagedTower | None = None,
    ) -> Tensor:
        """Return ``compute`` of what enters the tower, its first block and the edits: [K, B, ...].

        Without a graph in pieces of the batch.
        """
        tower, (name, start) = staged or self.vision, pick_stream(x)
        stream = x[name].to(self.device, self.dtype)
        clients, batch = stream.shape[:2]
        # Without a graph nothing needs the whole batch at once.
        size = max(1, batch if torch.is_grad_enabled() else self.image_chunk // clients)
        parts = []
        for at in range(0, batch, size):
            rows = stream[:, at : at + size]
            if start < 0:
                rows = tower.enter(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            some = edits if size >= batch else edits.cut(slice(at, at + size))
            parts.append(compute(rows, max(start, 0), some))
        self.counters["image_forwards"] += clients * batch
        self.counters["image_blocks"] += clients * batch * (len(tower.blocks) - max(start, 0))
        return torch.cat(parts, 1)

    def adapted_text(self, edits: Edits, clients: int, start: int = 0) -> Tensor:
        """Normalised text features [K, C, embed_dim] of the templates through edited towers.

        Args:
            edits: what the clients change in the text tower (``adapters.TreeEdits("text", ...)``).
            clients: K.
            start: the first block that is edited; what lies below runs once per class list.
        """
        if self._texts is None:
            self._texts = TextTower(
                self.backbone, self.classnames, self.templates, self.counters,
                self._text_path.tower(),
            )
        return self._texts.encode(edits, clients, start)

    def text(
        self, ctx: Tensor, classes: Tensor | None = None,
        deep: Mapping[int, Tensor] | None = None, words: str = "",
    ) -> Tensor:
        """Normalised text features [..., C, embed_dim] of contexts [..., n_ctx, text_width].

        Leading axes are free; the gradient reaches ``ctx`` and ``deep`` only.

        Args:
            ctx: the first block's contexts.
            classes: [K, C] bool with ``ctx`` [K, ..., n_ctx, text_width]: the classes that each
                client asks for (``ctx.classes`` of a round). Only those are computed; the others'
                features are zero, and ``logits`` with the same ``classes`` leaves them out. It is
                read on the host: on a GPU the device waits.
            deep: block (from 1) -> contexts that take the first ones' place there, of a shape that
                ``ctx`` has or that expands to it (MaPLe, IVLP).
            words: the context stands for their first n_ctx tokens; the others stay before the class
                name ("a photo of a" with n_ctx 2: "[v1 v2] of a NAME.").

        Raises:
            FedvlmError: ``classes`` or ``deep`` that do not go with ``ctx`` and the model.
        """
        if classes is None:
            return self._text(ctx, 2, deep, words)
        lead, count = ctx.shape[:-2], len(self.classnames)
        if classes.dtype is not torch.bool or not lead or classes.shape != (lead[0], count):
            raise FedvlmError(
                f"classes {tuple(classes.shape)} of {classes.dtype} for contexts "
                f"{tuple(ctx.shape)}: expected bool [clients, classes], here "
                f"{(*lead[:1], count)}"
            )
        flat, later = _flat(ctx, 2), self._deep(ctx, 2, deep)
        each = max(1, len(flat) // max(1, len(classes)))  # prompt sets of a client
        sets = [[c for c, held in enumerate(row) if held]
                for row in classes.tolist() for _ in range(each)]
        prompts = self._prompts_of(flat, False, None, words)
        rows, at, which = prompts.encode_chosen(flat, sets, later)
        out = rows.new_zeros(len(flat), count, rows.shape[-1])
        out = out.index_put((at, which), F.normalize(rows, dim=-1))
        return out.view(*lead, *out.shape[1:])

    def text_by_class(
        self, ctx: Tensor, deep: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """Normalised text features [..., C, embed_dim] of contexts [..., C, n_ctx, text_width].

        As ``text``, with a context of its own for every class, in later blocks too.

        Raises:
            FedvlmError: contexts of another number of classes.
        """
        if ctx.shape[-3] != len(self.classnames):
            raise FedvlmError(
                f"{ctx.shape[-3]} class-specific contexts for {len(self.classnames)} classes: they "
                "can only be used with the class list that they were made for"
            )
        return self._text(ctx, 3, deep)

    def text_around(self, front: Tensor, back: Tensor, words: str) -> Tensor:
        """Normalised text features [..., C, embed_dim] of "front name words back.".

        As ``text``, packed where it is, with a second context behind the class name.

        Args:
            front: contexts before the name, [..., n, text_width].
            back: contexts behind it, [..., m, text_width], with the same leading axes.
            words: between name and ``back``.

        Raises:
            ConfigError: a prompt that does not fit the context length.
            FedvlmError: leading axes that differ.
        """
        if front.shape[:-2] != back.shape[:-2]:
            raise FedvlmError(
                f"contexts {tuple(front.shape)} before the name and {tuple(back.shape)} after it: "
                "all axes except the number of vectors must be equal"
            )
        flat, behind = _flat(front, 2), _flat(back, 2)
        prompts = self._prompts_of(flat, False, Suffix(words, back.shape[-2]))
        out = F.normalize(prompts.encode(flat, suffix=behind), dim=-1)
        return out.view(*front.shape[:-2], *out.shape[1:])

    def _text(
        self, ctx: Tensor, axes: int, deep: Mapping[int, Tensor] | None, words: str = ""
    ) -> Tensor:
        """Text features of contexts that are the last ``axes`` axes."""
        flat, later = _flat(ctx, axes), self._deep(ctx, axes, deep)
        out = self._prompts_of(flat, axes == 3, None, words).encode(flat, later)
        return F.normalize(out, dim=-1).view(*ctx.shape[:-axes], *out.shape[1:])

    def _prompts_of(
        self, flat: Tensor, own: bool, suffix: Suffix | None = None, words: str = ""
    ) -> ClassPrompts:
        key = (flat.shape[-2], own, suffix, words)
        if key not in self._prompts:
            self._prompts[key] = ClassPrompts(self._text_path, self.classnames, *key)
        return self._prompts[key]

    def _deep(
        self, ctx: Tensor, axes: int, deep: Mapping[int, Tensor] | None
    ) -> dict[int, Tensor]:
        """Return the later blocks' contexts as ``_flat`` has the first ones."""
        blocks = len(self.backbone.text_blocks)
        for block, rows in (deep or {}).items():
            fits = all(a in (1, b) for a, b in zip(rows.shape[::-1], ctx.shape[::-1], strict=False))
            if not 1 <= block < blocks or rows.dim() > ctx.dim() or not fits:
                raise FedvlmError(
                    f"deep contexts {tuple(rows.shape)} for block {block}: they replace contexts "
                    f"{tuple(ctx.shape)} in blocks 1 to {blocks - 1}"
                )
        return {b: _flat(rows.expand(ctx.shape), axes) for b, rows in (deep or {}).items()}

    def anchor(self, kind: str, n_ctx: int) -> Tensor:
        """Constant text features [C, embed_dim], normalised, computed once per class list.

        Args:
            kind: ``literal``: of the text "X X ... X name." (``n_ctx`` times X, FedTV's own);
                ``template``: normalised mean over the templates of normalised features; ``raw``:
                of features as they leave the tower.
            n_ctx: used by ``literal`` only.

        Raises:
            ConfigError: unknown kind, or a text that does not fit the context length.
        """
        if kind not in ANCHORS:
            raise ConfigError(
                f"unknown anchor '{kind}'{did_you_mean(kind, ANCHORS)} ({', '.join(ANCHORS)})"
            )
        key = (kind, n_ctx if kind == "literal" else 0)
        if key not in self._anchors:
            literal = " ".join([PLACEHOLDER] * n_ctx + ["{}."])
            texts = (literal,) if kind == "literal" else self.templates
            self._anchors[key] = self._constant(texts, unit=kind != "raw")
        return self._anchors[key]

    def check_texts(self) -> None:
        """Refuse class names that no template of this model leaves room for, before any work.

        Raises:
            ConfigError: a text that does not fit the context length.
        """
        check_described(self.templates, self.classnames, "the file of sentences")
        for template in dict.fromkeys(chain(self.templates, *self.client_templates.values())):
            texts = [text for name in self.classnames if (text := fill(template, name))]
            if texts:
                fitting_ids(self.backbone, texts)

    def _constant(self, templates: Sequence[str], unit: bool = True) -> Tensor:
        check_described(templates, self.classnames, "the file of sentences")
        count = len(self.classnames)
        total = torch.zeros(count, self.embed_dim, dtype=self.dtype, device=self.device)
        for template in templates:
            told = [fill(template, name) for name in self.classnames]
            texts = [text for text in told if text is not None]
            if not texts:
                continue
            rows = encode_texts(self.backbone, texts)
            rows = F.normalize(rows, dim=-1) if unit else rows
            if len(texts) == count:
                total += rows
            else:  # a class with fewer sentences than others
                total[torch.tensor([text is not None for text in told])] += rows
            self.constants["text_tokens"] += len(texts) * self.backbone.context_length
            self.constants["text_passes"] += 1
        return F.normalize(total, dim=-1)

    def logits(self, z: Tensor, t: Tensor, classes: Tensor | None = None) -> Tensor:
        """Logits [K, B, C] = scale * normalise(z [K, B, d]) . t [K, C, d] (``t`` normalised).

        Where ``classes`` [K, C] is False they are -inf: a cross-entropy of labels that are True is
        then one over the client's own classes, with a gradient of zero for the others. With
        ``sets`` the logit of ``neutral`` is taken from each.
        """
        unit = F.normalize(z, dim=-1)
        out = self.scale * unit @ t.transpose(-1, -2)
        if self.sets and self.has_text:
            out = out - self.scale * (unit @ self.neutral).unsqueeze(-1)
        return out if classes is None else out.masked_fill(~classes.unsqueeze(-2), -torch.inf)

    @property
    def neutral(self) -> Tensor:
        """Text feature ``[d]`` of the templates with ``NEUTRAL`` for the name, normalised.

        What an image of anything is like: a label of a set is there where its text is nearer.
        """
        plain = [t for t in self.templates if not is_described(t)] or ["a photo of {}."]
        return self.with_classes((NEUTRAL,), plain).anchor("template", 0)[0]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` gave for ``key`` on this model; it is called the first time only.

        For what a method derives from the frozen model and cannot keep itself. Its passes count as
        constants.
        """
        if key not in self._memo:
            before = self.counters.copy()
            self._memo[key] = make()
            for name in self.counters:
                self.constants[name] += self.counters[name] - before[name]
                self.counters[name] = before[name]
        return cast(T, self._memo[key])

    def freeze(self, module: M) -> M:
        """Take in a method's own module, frozen, in eval mode, in this model's type and place.

        From now on ``verify_frozen`` looks at its parameters and buffers too.
        """
        module.to(self.device, self.dtype).eval().requires_grad_(False)
        self._modules.append((module, digest_of(module, {})))
        return module

    def verify_frozen(self) -> str:
        """Hash the backbone and every module that was taken in once more.

        Returns the backbone's digest if all are as they came, something else if not.
        """
        live = [(digest_of(module, {}), digest) for module, digest in self._modules]
        changes = [now for now, before in live if now != before]
        return "+".join([self.backbone.verify_frozen(), *changes])

    def fresh(self) -> VLModel:
        """Return the same model with counters, notes and memory of its own: for a trial.

        It has everybody's templates, and none of single clients.
        """
        return self._alike(self.classnames, self.templates)

    def _alike(self, names: Sequence[str], templates: Sequence[str]) -> VLModel:
        return VLModel(
            self.backbone, names, templates=templates, packed=self.packed,
            image_chunk=self.image_chunk, bf16_text=self.bf16_text, sets=self.sets,
        )

    def of_clients(self, clients: Sequence[int]) -> VLModel:
        """Return the model with the clients' own templates; this one where they differ in them.

        The engine and the evaluation stack only clients of one group (``template_groups``).
        """
        said = {self.client_templates.get(c, self.templates) for c in clients}
        if len(said) != 1 or said == {self.templates}:
            return self
        other = self.with_classes(self.classnames, said.pop())
        other._prompts = self._prompts  # contexts before names: no template is in them
        return other

    def with_classes(
        self, names: Sequence[str], templates: Sequence[str] | None = None
    ) -> VLModel:
        """Return the model of another class list over the same towers and counters (cached).

        Args:
            templates: of those classes; None keeps this model's.
        """
        key = (tuple(names), tuple(self.templates if templates is None else templates))
        if key not in self._family:
            other = self._alike(*key)
            other.counters, other.constants = self.counters, self.constants
            other.notes, other._family = self.notes, self._family
            other._text_path, other._vision = self._text_path, self._vision
            other._stages = self._stages
            other._modules = self._modules
            self._family[key] = other
        return self._family[key]


def _flat(ctx: Tensor, axes: int) -> Tensor:
    """Return contexts with their leading axes as one."""
    return ctx.reshape(-1, *ctx.shape[-axes:])


def staged_tower(model: VLModel) -> StagedTower | None:
    """Return a model's image tower as stages, read at the first call; None where it has none."""
    from fedvlm.models.stages import StagedTower, has_stages  # start-up: for adapters only

    if not has_stages(model.backbone):
        return None
    if model._stages is None:
        model._stages = StagedTower(model.backbone)
    return model._stages


def tower_of(model: VLModel, stream: str) -> VisionTower | StagedTower:
    """Return what computes a stream inside the image tower: its blocks, or its stages.

    Raises:
        ConfigError: the tower has no such.
    """
    staged = staged_tower(model) if stream.startswith(STAGES) else None
    return model.vision if staged is None else staged


def template_groups(model: VLModel, clients: Sequence[int]) -> list[int]:
    """Return which clients have the same templates: 0 of everybody's, others from 1 on.

    Empty where no client has its own.
    """
    if not getattr(model, "client_templates", None):
        return []
    known = {model.templates: 0}
    for _, said in sorted(model.client_templates.items()):
        known.setdefault(said, len(known))
    return [known[model.client_templates.get(c, model.templates)] for c in clients]
