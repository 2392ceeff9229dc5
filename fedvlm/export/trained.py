"""What is exported: one trained model, a client's or the global one, and what its card says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlm.core.errors import plural
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel


@dataclass(frozen=True)
class Facts:
    """What the card of a model says beside its tensors; empty: not known, and said so.

    Attributes:
        owner: whose model it is: ``client 3 of 10``, ``global``.
        data: what it was trained on, in words.
        metrics: name -> value in percent, of ``data``'s test split.
        images: in that split; 0: not known.
        licence: of the base weights, as the Hub writes it (``mit``, ``apache-2.0``).
        base: the base model's name on the Hub; empty: by the backbone's name where it is known.
        notes: more sentences.
        temperature: that divides the logits, as the client's validation images fixed it.
        thresholds: likewise, of a model over sets of labels; without any 0.5 for each label.
        captioned: it was trained on captions: it finds texts of images and predicts no classes.
        run: identity digest of the run that it is of.
        untested: why there are no ``metrics``, in a sentence (``untested_model``).
    """

    owner: str = ""
    data: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    licence: str = ""
    base: str = ""
    notes: tuple[str, ...] = ()
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()
    captioned: bool = False
    run: str = ""
    images: int = 0
    untested: str = ""


def untested_model(train: int, test: int) -> str:
    """Return what the card of a client without test images says; empty for others.

    Args:
        train, test: how many images the client has; without any nothing is known of it.
    """
    if test or not train:
        return ""
    return ("This client has no test images: its model was never tested on its images "
            f"({plural(train, 'training image')}).")


@dataclass(frozen=True)
class TrainedModel:
    """A trained model as ``export`` takes it.

    Attributes:
        trainer: the method; says how the tensors predict.
        model: towers and class list.
        params: one client's tensors or the global ones, no client axis: what ``personalize``
            returned for the client, or the server's shared tensors over the initial personal ones.
        facts: for the card.
    """

    trainer: Trainer
    model: VLModel
    params: Tree
    facts: Facts = field(default_factory=Facts)

    @property
    def classnames(self) -> tuple[str, ...]:
        """Class names by label."""
        return self.model.classnames

    def placed(self, model: VLModel) -> Tree:
        """Return the tensors where ``model`` computes, in its type, with an axis of one client."""
        here = {n: v.detach().to(model.device, model.dtype) for n, v in self.params.items()}
        return expand(here, 1)
