"""``export`` and ``export_all``: folders that other libraries read.

Each is read back before it gets its name: its logits on images of noise are the trainer's own
(``recipe.TOLERANCE``), or it is not there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError

from fedvlm.core import files, pixels
from fedvlm.core.errors import ConfigError, FedvlmError, unknown_word
from fedvlm.core.transform import TextSpec
from fedvlm.export.card import index, readme
from fedvlm.export.formats import onnx_file, openclip, peft_folder, tensors
from fedvlm.export.pruned import without_pruned
from fedvlm.export.recipe import TOLERANCE, Unheld, build_recipe, difference
from fedvlm.export.traced import trace
from fedvlm.export.trained import TrainedModel

FORMATS: Mapping[str, ModuleType] = {
    "safetensors": tensors, "peft": peft_folder, "open_clip": openclip, "onnx": onnx_file,
}
SUMS = "SHA256SUMS"
PIXELS = "pixels.py"  # ``decode``: a file's bytes to the RGB image that training saw
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: where.
        format: of ``FORMATS``.
        difference: largest one of the logits read back to the trainer's own, relative to the
            largest logit where that is above 1.
    """

    folder: Path
    format: str
    difference: float


def check_target(folder: Path, format: str) -> None:
    """Refuse at once, before a model is loaded, what ``export`` would refuse of these two.

    Raises:
        ConfigError: as ``export``.
    """
    _format(format)
    _refuse_taken(folder)


def _refuse_texts(models: Iterable[TrainedModel]) -> None:
    if any(isinstance(one.model.backbone.transform_spec, TextSpec) for one in models):
        raise ConfigError("an export holds a model that reads pixels, and this one reads texts "
                          "(DATASET.FORMAT texts): fedvlm.load(...) in Python has its tensors")


def export(trained: TrainedModel, folder: Path, format: str) -> Exported:
    """Write one model into a new folder and read it back.

    Args:
        trained: the model.
        folder: must not exist, or be empty.
        format: of ``FORMATS``.

    Raises:
        ConfigError: a format or folder that cannot be taken, or a method that the format cannot
            hold: says why, and what can.
        FedvlmError: what was read back predicts otherwise; the folder is not left.
    """
    form = _format(format)
    _refuse_texts([trained])
    with _whole(folder) as place:
        gap = _write(trained, place, place, form)
    return Exported(folder, format, gap)


def export_all(
    models: Mapping[str, TrainedModel], folder: Path, format: str
) -> dict[str, Exported]:
    """Write a folder per model and one index (README.md, index.json); all of it or nothing.

    Args:
        models: name of the sub-folder -> model (``client-3``, ``global``), over one backbone.
        folder: must not exist, or be empty.
        format: of ``FORMATS``.

    Raises:
        ConfigError: as ``export``; names that are no folder names; several backbones.
        FedvlmError: as ``export``.
    """
    form = _format(format)
    _refuse_texts(models.values())
    bad = [n for n in models if not _NAME.fullmatch(n)]
    if bad or not models or len({n.lower() for n in models}) < len(models):
        raise ConfigError(
            f"'{bad[0]}' is not a valid folder name: use letters, digits, dot, dash and underscore"
            if bad else "give at least one model, and names that differ not only in case"
        )
    if len({m.model.backbone.digest for m in models.values()}) > 1:
        raise ConfigError("the models have different backbones: export each set separately")
    out, gaps = {}, {}
    with _whole(folder) as place:
        for name, trained in models.items():
            (place / name).mkdir()
            try:
                gaps[name] = _write(trained, place / name, place, form)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error
            out[name] = Exported(folder / name, format, gaps[name])
        facts = {name: trained.facts for name, trained in models.items()}
        files.write_text(place / "README.md", index(facts, gaps, format))
        files.write_json(place / "index.json", {
            "format": format, "models": [
                {"name": n, "owner": f.owner, "metrics": dict(f.metrics), "difference": gaps[n]}
                for n, f in facts.items()
            ],
        })
    return out


def _format(name: str) -> ModuleType:
    if name not in FORMATS:
        raise ConfigError(unknown_word(name, list(FORMATS), "export format"))
    return FORMATS[name]


def _write(trained: TrainedModel, folder: Path, common: Path, form: ModuleType) -> float:
    """Write and read back one model; return the largest difference of its logits."""
    trained = without_pruned(trained)
    try:
        recipe = build_recipe(trained)
    except Unheld as why:
        if form is not onnx_file:
            raise
        recipe = trace(trained, why)
    with files.explain_errors(folder), _explain_full_disk():
        usage = form.write(recipe, trained, folder, common)
        files.write_text(folder / PIXELS, Path(pixels.__file__).read_text(encoding="utf-8"))
        files.write_text(folder / "README.md", readme(recipe, trained, form.LIBRARY, usage))
        if form is peft_folder:
            predict = peft_folder.read(folder, peft_folder.base_model(trained.model))
        else:
            predict = form.read(folder)
        with torch.no_grad():
            gap = difference(predict(recipe.pixels), recipe.logits)
            one = difference(predict(recipe.pixels[:1]), recipe.logits[:1])  # any number of images
            gap = max(gap, one)
    if not gap <= TOLERANCE:
        raise FedvlmError(
            f"{recipe.card['method']}: the {form.LIBRARY} export gives different logits when it "
            f"is read back (difference {gap:.1e}, allowed {TOLERANCE:.0e}); nothing was kept"
        )
    return gap


@contextmanager
def _explain_full_disk() -> Iterator[None]:
    """Raise the ``OSError`` that safetensors has put into its own kind of error."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def _sums(place: Path) -> str:
    """Return a line for each file, as ``sha256sum`` writes and checks them."""
    lines = []
    for path in sorted(p for p in place.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {path.relative_to(place).as_posix()}\n")
    return "".join(lines)


def _refuse_taken(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' is not empty: export into a new folder")


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a place beside ``folder`` that takes its name at the end, or goes away.

    Raises:
        ConfigError: there is something already.
    """
    _refuse_taken(folder)
    with files.explain_errors(folder), files.temporary_folder(folder) as place:
        yield place
        files.write_text(place / SUMS, _sums(place))
        if folder.exists():
            folder.rmdir()
        os.replace(place, folder)
