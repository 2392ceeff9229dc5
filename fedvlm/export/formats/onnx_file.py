"""``onnx``: pixels to logits in one file: tower, adaptation and class features."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.export.recipe import ExportRecipe
from fedvlm.export.trained import TrainedModel
from fedvlm.models.towers.layers import split_attention

LIBRARY = "onnx"
FILE = "model.onnx"
OPSET = 18
MOST = 1_900_000_000  # bytes in one file
MOST_IMAGES = 1 << 16  # at once
NEEDS = ("onnx", "onnxscript", "onnxruntime")


def missing_packages() -> tuple[str, ...]:
    """Return the optional packages that are not installed."""
    return tuple(n for n in NEEDS if importlib.util.find_spec(n) is None)


def require() -> None:
    """Refuse without the optional packages.

    Raises:
        ConfigError: says what to install.
    """
    if missing_packages():
        raise ConfigError(
            f"--format onnx needs {', '.join(missing_packages())}: pip install 'fedvlm[onnx]'"
        )


def write(recipe: ExportRecipe, trained: TrainedModel, folder: Path, common: Path) -> str:
    """Write model.onnx (``pixels [n, 3, S, S]`` -> ``logits [n, C]``) and model.json.

    Raises:
        ConfigError: onnx, onnxscript or onnxruntime are not installed.
    """
    require()
    import onnx  # optional: fedvlm[onnx]

    model, said = recipe.module(trained.model), "feature" if trained.facts.captioned else "logits"
    size = sum(v.numel() * v.element_size() for v in model.state_dict().values())
    if size > MOST:
        raise ConfigError(f"the tower has {size / 1e9:.1f} GB, but an ONNX file can hold at most "
                          "2 GB")
    split_attention(model.get_submodule("towers"))  # plain products, not torch's fused attention
    noise = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            torch.no_grad(), warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise),
        ):
            torch.onnx.export(
                model, (recipe.pixels,), str(folder / FILE), input_names=["pixels"],
                output_names=[said], opset_version=OPSET, dynamo=True, external_data=False,
                dynamic_shapes={"pixels": {0: torch.export.Dim("images", max=MOST_IMAGES)}},
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ConfigError(
            f"{recipe.card['method']} cannot be traced as one graph, which ONNX needs: "
            f"{_reason(error)}"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    graph = onnx.load(str(folder / FILE))
    if not graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ConfigError(
            f"{recipe.card['method']} cannot be traced for a variable number of images: its "
            "prediction depends on the batch size"
        )
    keys = [k for k in ("method", "classnames", "transform", "sets") if k in recipe.card]
    onnx.helper.set_model_props(graph, {k: json.dumps(recipe.card[k]) for k in keys})
    onnx.save(graph, str(folder / FILE))
    files.write_json(folder / "model.json", {k: recipe.card[k] for k in keys})
    return (
        "```python\nimport onnxruntime\n\nsession = onnxruntime.InferenceSession('model.onnx')\n"
        f"{said} = session.run(None, {{'pixels': pixels}})[0]  # float32 [n, 3, S, S]\n```\n\n"
        "Class names and transform are in model.json and in the file's metadata."
    )


def _reason(error: BaseException) -> str:
    """Return why a trace failed, on one line: the first cause's own words."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def read(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return ``pixels -> logits`` through onnxruntime on the CPU.

    Raises:
        ConfigError: it is not installed.
    """
    require()
    import onnxruntime  # optional: fedvlm[onnx]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(
        str(folder / FILE), options, providers=["CPUExecutionProvider"]
    )
    return lambda pixels: torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])
