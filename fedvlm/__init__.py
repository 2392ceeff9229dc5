"""fedvlm: federated parameter-efficient fine-tuning of vision-language models.

The Python API: ``load(RUN)`` gives a finished run's models, ``train(...)`` makes one, ``results``
reads many; ``trainers()`` and ``datasets()`` say what there is. Importing fedvlm is cheap: PyTorch
comes with the first call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedvlm.core.version import __version__

if TYPE_CHECKING:
    from fedvlm.api.frames import results
    from fedvlm.api.model import Model, Predictions
    from fedvlm.api.run import Run, load
    from fedvlm.api.start import datasets, train, trainers

_PUBLIC = {  # name -> its module
    "Model": "fedvlm.api.model", "Predictions": "fedvlm.api.model", "Run": "fedvlm.api.run",
    "datasets": "fedvlm.api.start", "load": "fedvlm.api.run", "results": "fedvlm.api.frames",
    "train": "fedvlm.api.start", "trainers": "fedvlm.api.start",
}
__all__ = [
    "__version__", "Model", "Predictions", "Run", "datasets", "load", "results", "train",
    "trainers",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedvlm' has no attribute '{name}'")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
