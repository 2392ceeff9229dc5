"""What a classic method asks of its model: tensors by role, the representation, the stages.

Here they are CLIP's: the image side is the body, the text side or the classifier the head. Over
another network they are that network's (``toolbox.networks``), so that a method which asks for
nothing else runs over both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.trainer import Trainer, cross_entropy
from fedvlm.models.adapt import peft
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    from fedvlm.models.adapt.channels import Held

NORM = ".ln."
PATTERNS = {peft.BODY: r"image\..*", peft.HEAD: r"(text|head)\..*"}


class RoleTrainer(Trainer):
    """Body, head, representation and stages of what ``spec`` trains in CLIP.

    Attributes:
        spec: what is trained.
        classic: the method asks for its tensors by role and for nothing of CLIP: it runs over any
            network, too.
        network: it does so here.
        cosine: the head reads the direction of the representation, not its length.
    """

    spec: peft.PeftSpec
    classic: ClassVar[bool] = False
    network: ClassVar[bool] = False
    cosine: ClassVar[bool] = True

    def is_norm(self, name: str) -> bool:
        """Return whether a trained tensor belongs to a normalisation layer."""
        return NORM in name

    def pattern(self, role: str) -> str:
        """Return a pattern of the names of a role, for ``extras_up`` and ``extras_down``."""
        return PATTERNS[role]

    def width(self, model: VLModel) -> int:
        """Return the width of the representation."""
        return model.embed_dim

    def hidden_channels(self, model: VLModel) -> Mapping[str, Held]:
        """Return (site, place) of tensors whose channels can be removed; CLIP's go by name."""
        return {}

    def representation(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return what the head reads, ``[K, B, d]``."""
        return self.image_features(model, params, x)

    def supervised(self, model: VLModel, params: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy ``[K]``, and the representation that it was computed from."""
        z = self.representation(model, params, batch.x)
        return cross_entropy(model.logits(z, self.text_features(model, params)), batch), z

    def stage_indices(self, model: VLModel) -> list[int]:
        """Return the stages of the body that are trained: CLIP's changed blocks."""
        return [b.index for b in self.spec.changed(model.vision.blocks, "image")]

    def stage_widths(self, model: VLModel, at: Sequence[int]) -> list[int]:
        """Return the widths of the outputs of the stages ``at``."""
        return [model.vision.width] * len(at)

    def stage_outputs(
        self, model: VLModel, params: Tree, x: Mapping[str, Tensor], at: Sequence[int],
        first: bool = False,
    ) -> list[Tensor]:
        """Return the mean over places of what each stage of ``at`` gives, ``[K, B, width]``.

        Args:
            first: the class token instead of the mean over patches.
        """
        taps = peft.image_taps(self.spec, model, params, x, sorted(set(at)))[1]
        return self._pooled(model, taps, at, first)

    def supervised_stages(
        self, model: VLModel, params: Tree, batch: Batch, at: Sequence[int], first: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the cross-entropy ``[K]``, and ``stage_outputs`` of the same pass."""
        z, taps = peft.image_taps(self.spec, model, params, batch.x, sorted(set(at)))
        stages = self._pooled(model, taps, at, first)
        return cross_entropy(model.logits(z, self.text_features(model, params)), batch), stages

    def _pooled(
        self, model: VLModel, taps: Mapping[int, Tensor], at: Sequence[int], first: bool
    ) -> list[Tensor]:
        self.require(
            model.vision.class_token or not first,
            f"{self.name}: {model.backbone.name} has no class token; pool over all patches "
            "(patch_mean)",
        )
        patches = slice(model.vision.prefix, model.vision.tokens)
        pooled = {b: h[:, :, 0] if first else h[:, :, patches].mean(2) for b, h in taps.items()}
        return [pooled[b] for b in at]
