"""``safetensors``: tensors, card and run.py, which predicts with torch and open_clip alone."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.core.plugins import TextLoader
from fedvlm.export.recipe import ExportRecipe
from fedvlm.export.towers import plain_clip
from fedvlm.export.trained import TrainedModel

LIBRARY = "safetensors"
TOWER = "tower.safetensors"


def write(recipe: ExportRecipe, trained: TrainedModel, folder: Path, common: Path) -> str:
    """Write model.json, model.safetensors and run.py; return how to use them.

    Args:
        recipe: how it predicts.
        trained: whose towers they are.
        folder: of the model.
        common: where a tower that open_clip cannot fetch by name is written, once.

    Raises:
        ConfigError: towers that open_clip's CLIP cannot rebuild.
    """
    tower = dict(recipe.card["tower"])
    if not tower:
        plain_clip(trained.model)  # says why not
    if "file" in tower:
        path = common / TOWER
        if not path.exists():
            visual = plain_clip(trained.model).get_submodule("visual").state_dict()
            save_file({n: v.contiguous().clone() for n, v in visual.items()}, str(path))
        tower["file"] = Path(os.path.relpath(path, folder)).as_posix()
    files.write_json(folder / "model.json", recipe.card | {"tower": tower})
    save_file(recipe.tensors, str(folder / "model.safetensors"))
    source = recipe.source
    if source.count("\n") > 60:
        raise ConfigError(f"run.py would take {source.count(chr(10))} lines: use --format onnx")
    files.write_text(folder / "run.py", source)
    said = "feature" if trained.facts.captioned else "class and logits"
    return (
        f"`python run.py IMAGE ...` prints a JSON line per image: {said}. It needs "
        "`torch`, `safetensors`, `pillow`, `numpy` and `open_clip_torch`, not fedvlm.\n\n"
        "```python\nfrom pathlib import Path\nimport run\n\nmodel = run.load(Path('.'))\n"
        f"{said.split()[-1]} = model(pixels)  # [n, 3, S, S], see `transform` in model.json\n```"
    )


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return ``pixels -> logits`` as run.py of ``folder`` computes them."""
    loader = TextLoader("fedvlm_exported_run", str(folder / "run.py"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None  # noqa: S101 (None is of loaders that find nothing)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    model: Callable[[Tensor], Tensor] = module.load(folder)
    return model
