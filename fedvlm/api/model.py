"""One trained model, a client's or the global one, and what it says of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.api.frames import frame
from fedvlm.api.images import Images, One, as_list, batches
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.trees import Tree, expand
from fedvlm.export.trained import Facts, TrainedModel
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    import pandas

    from fedvlm.export.write import Exported

BATCH = 64  # images at a time


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of n images, in their order.

    Attributes:
        classnames: by label, C of them.
        logits: ``[n, C]`` float32 on the CPU.
        names: file of each image; empty for what came from memory.
        sets: an image has a set of labels: probabilities are each label's own.
        temperature: that divides the logits; ``thresholds``: of sets (``export.trained.Facts``).
    """

    classnames: tuple[str, ...]
    logits: Tensor
    names: tuple[str, ...]
    sets: bool = False
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Softmax of logits / temperature, of sets of labels the sigmoid, ``[n, C]`` float64."""
        if self.sets:
            return (self.logits.double() / self.temperature).sigmoid().numpy()
        return (self.logits.double() / self.temperature).softmax(-1).numpy()

    @property
    def labels(self) -> np.ndarray:
        """The likeliest label of each image, ``[n]`` int64."""
        return self.logits.argmax(-1).numpy()

    @property
    def found(self) -> np.ndarray:
        """Whether each label reaches its threshold, ``[n, C]`` bool; of sets of labels."""
        return self.probabilities >= np.array(self.thresholds or (0.5,) * len(self.classnames))

    @property
    def classes(self) -> list[str]:
        """The name of the likeliest class of each image; of sets of labels those found, by ``|``.
        """
        if self.sets:
            return ["|".join(n for n, yes in zip(self.classnames, row, strict=True) if yes)
                    for row in self.found]
        return [self.classnames[i] for i in self.labels]

    def top(self, k: int = 5) -> list[list[tuple[str, float]]]:
        """Return the k likeliest (class name, probability) of each image, falling."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        return [
            [(self.classnames[c], float(row[c])) for c in best]
            for row, best in zip(self.probabilities, order, strict=True)
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per image: ``image``, ``class``, ``probability``, and a column per class.

        Raises:
            ConfigError: pandas is not installed.
        """
        head = {
            "image": list(self.names), "class": self.classes,
            "probability": self.probabilities.max(1),
        }
        columns = {name: self.probabilities[:, c] for c, name in enumerate(self.classnames)}
        return frame(head | columns)

    def __len__(self) -> int:
        return len(self.logits)

    def __repr__(self) -> str:
        said = [f"{row[0][0]} ({row[0][1]:.3f})" for row in self.top(1)[:3]]
        more = ", ..." if len(self) > len(said) else ""
        return f"Predictions of {len(self)} image(s): {', '.join(said)}{more}"


@dataclass(frozen=True, eq=False)
class Maps:
    """What a model weighs in n images (``Trainer.maps``).

    Attributes:
        figure: of which figure they are: ``transport``, ``attention``.
        pictures: uint8 ``[n, H, W, 3]``, as the image tower sees them.
        fields: name -> ``[n]``, ``[n, M]`` of patches or ``[n, C, M]``, float32 on the CPU.
        said: what the model says of the images.
    """

    figure: str
    pictures: np.ndarray
    fields: dict[str, Tensor]
    said: Predictions


class Model:
    """A trained model.

    Args:
        trainer: the method; says how tensors predict.
        model: towers and class list.
        params: its tensors, no client axis.
        owner: ``client 3 of 10``, ``global``.
        facts: what a card says of it.
    """

    def __init__(
        self, trainer: Trainer, model: VLModel, params: Tree, owner: str, facts: Facts | None = None
    ) -> None:
        self.trainer, self.model, self.params, self.owner = trainer, model, params, owner
        self.facts = facts or Facts(owner)

    @property
    def classnames(self) -> tuple[str, ...]:
        """Class names by label."""
        return self.model.classnames

    def licensed(self, licence: str) -> Model:
        """Return the same model, whose card says under which licence the base weights are."""
        facts = replace(self.facts, licence=licence)
        return Model(self.trainer, self.model, self.params, self.owner, facts)

    @property
    def trained(self) -> TrainedModel:
        """The model as ``fedvlm.export.write`` takes it."""
        return TrainedModel(self.trainer, self.model, self.params, self.facts)

    def predict(self, images: Images, bad: dict[int, str] | None = None) -> Predictions:
        """Return what the model says of images.

        Args:
            images: PIL images, paths, folders, arrays or tensors, one or a list of them
                (``images.as_list``).
            bad: takes place and reason of each file that cannot be read, which is then left out.

        Raises:
            ConfigError: the model was trained on captions.
            DataError: something that is no image, or with ``bad`` none that is one.
        """
        found, names = as_list(images)
        return self._predictions(({"pixels": x} for x in self._pixels(found, bad)), names, bad)

    def _predictions(
        self, parts: Iterable[Tree], names: Sequence[str], bad: Mapping[int, str] | None = None
    ) -> Predictions:
        if self.facts.captioned:
            raise ConfigError(
                "this model was trained on captions and predicts no class: give the texts to "
                "choose from (fedvlm predict RUN IMAGE --texts FILE, or model.similarities)")
        with torch.no_grad():
            rows = _joined([self._predictor(x)[0].float().cpu() for x in parts], bad)
        return Predictions(self.classnames, rows, _whole(names, bad), self.model.sets,
                           self.facts.temperature, self.facts.thresholds)

    def predict_features(self, features: Tensor) -> Predictions:
        """Return what the model says of images by their features.

        Args:
            features: ``[n, d]`` of the frozen image tower, not normalised; for methods that adapt
                nothing inside it (``trainer.streams(model) == ("features",)``).
        """
        where = self.model
        parts = ({"features": part[None].to(where.device, where.dtype)}
                 for part in features.split(BATCH))
        return self._predictions(parts, ("",) * len(features))

    def features(self, images: Images, bad: dict[int, str] | None = None) -> Tensor:
        """Return image features ``[n, d]`` float32, not normalised, with the model's adaptation.

        Args:
            bad: as ``predict``.

        Raises:
            DataError: something that is no image.
        """
        found, _ = as_list(images)
        with torch.no_grad():
            return _joined([
                self.trainer.image_features(self.model, self._stacked, {"pixels": pixels})[0]
                .float().cpu() for pixels in self._pixels(found, bad)
            ], bad)

    def seen(self, images: Images) -> tuple[Tensor, Predictions]:
        """Return what ``features`` and ``predict`` do, the images being opened once.

        They are also encoded once for methods that adapt nothing inside the image tower.

        Raises:
            ConfigError, DataError: as ``predict``.
        """
        found, names = as_list(images)
        rows: list[Tensor] = []

        def parts() -> Iterator[Tree]:
            for x in self._encoded(found):
                rows.append(self.trainer.image_features(self.model, self._stacked, x)[0])
                yield x

        said = self._predictions(parts(), names)
        return torch.cat(rows).float().cpu(), said

    def maps(self, images: Images) -> Maps:
        """Return what the method weighs in images, patch by patch; they are encoded as in ``seen``.

        Raises:
            ConfigError: it has no maps; names the methods that do.
            DataError: something that is no image.
        """
        trainer = self.trainer
        if not trainer.figure:
            known = [load_trainer(name) for name in sorted(trainer_files())]
            have = ", ".join(f"{one.name} ({one.figure})" for one in known if one.figure)
            raise ConfigError(
                f"{trainer.name} weighs no parts of an image, so there is no map to draw; methods "
                f"with maps: {have}")
        found, names = as_list(images)
        spec = self.model.backbone.transform_spec
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (spec.mean, spec.std))
        weighed, pictures = list[Tree](), list[Tensor]()

        def parts() -> Iterator[Tree]:
            for x in self._encoded(found):
                tree = trainer.maps(self.model, self._stacked, x)
                weighed.append({name: rows[0].float().cpu() for name, rows in tree.items()})
                shown = (x["pixels"][0].float().cpu() * std + mean).mul(255).round().clamp(0, 255)
                pictures.append(shown.to(torch.uint8).permute(0, 2, 3, 1))
                yield x

        said = self._predictions(parts(), names)
        fields = {name: torch.cat([one[name] for one in weighed]) for name in weighed[0]}
        return Maps(trainer.figure, torch.cat(pictures).numpy(), fields, said)

    def similarities(
        self, images: Images, texts: Sequence[str], bad: dict[int, str] | None = None
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Return the cosines of images and texts, ``[n, m]`` float32, and the images' names.

        For a model that was trained on captions; ``bad``: as ``predict``.

        Raises:
            ConfigError: it was not.
            DataError: something that is no image.
        """
        if not self.facts.captioned:
            raise ConfigError("texts are compared by a model that was trained on captions "
                              "(--captions COLUMN); this one predicts its classes")
        from fedvlm.models.features.texts import encode_captions  # start-up: for captions only

        backbone = self.model.backbone
        rows = F.normalize(encode_captions(backbone, texts).float(), dim=-1)
        found = F.normalize(self.features(images, bad), dim=-1)
        return found @ rows.mT, _whole(as_list(images)[1], bad)

    def export(self, folder: str | Path, format: str = "safetensors") -> Exported:
        """Write the model into a new folder that other libraries read (``export.write``).

        Args:
            format: ``safetensors``, ``peft``, ``open_clip`` or ``onnx``.

        Raises:
            ConfigError: a folder that is there, or a method that the format cannot hold.
        """
        from fedvlm.export.write import export  # start-up: open_clip, 3 s

        return export(self.trained, user_path(folder), format)

    def with_classes(
        self, classnames: Sequence[str], templates: Sequence[str] | None = None
    ) -> Model:
        """Return the same model over other classes.

        Raises:
            ConfigError: the method is bound to those that it was trained on.
        """
        if tuple(classnames) == self.classnames:
            return self
        if self.model.backbone.text_images:
            raise ConfigError("the model's text tower is simulated (simulated-text) and knows the "
                              "classes that it was made for only: other classes say nothing")
        if not self.trainer.open_vocabulary:
            raise ConfigError(
                f"{self.trainer.name} can only predict the {len(self.classnames)} classes that "
                "it was trained on (it uses a head or prototypes); for other classes use a "
                "method with prompts"
            )
        other = self.model.with_classes(list(classnames), templates)
        return Model(self.trainer, other, self.params, self.owner, self.facts)

    @cached_property
    def _stacked(self) -> Tree:
        where = self.model
        return expand({n: v.to(where.device) for n, v in self.params.items()}, 1)

    @cached_property
    def _predictor(self) -> Predictor:
        with torch.no_grad():
            return self.trainer.predictor(self.model, self._stacked)

    def _pixels(self, images: Any, bad: dict[int, str] | None = None) -> Any:
        spec = self.model.backbone.transform_spec
        for pixels in batches(images, spec, BATCH, bad):
            yield pixels[None].to(self.model.device, self.model.dtype)

    def _encoded(self, images: Sequence[One]) -> Iterator[Tree]:
        """Yield pixels, and beside them what the method reads of the frozen tower, if only that."""
        stream, *more = self.trainer.streams(self.model)
        encode = {"features": self.model.image, "patches": self.model.patches}.get(stream)
        for pixels in self._pixels(images):
            x = {"pixels": pixels}
            yield x if more or encode is None else x | {stream: encode(x)}

    def __repr__(self) -> str:
        return f"Model of {self.owner}: {self.trainer.name}, {len(self.classnames)} classes"


def _joined(rows: Sequence[Tensor], bad: Mapping[int, str] | None) -> Tensor:
    if bad and not rows:
        raise DataError("\n".join(bad.values()))
    return torch.cat(list(rows))


def _whole(names: Sequence[str], bad: Mapping[int, str] | None) -> tuple[str, ...]:
    return tuple(name for place, name in enumerate(names) if place not in (bad or ()))
