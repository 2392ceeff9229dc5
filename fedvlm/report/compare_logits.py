"""McNemar's test over the test images of two runs that kept their logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedvlm.report.compare_read import Side
from fedvlm.report.paired import McNemar, mcnemar

FILE = "logits.safetensors"
_OWN = "personal|"


def logits_tests(a: Side, b: Side) -> tuple[dict[str, McNemar], str]:
    """Return McNemar's test of ``personal`` (all clients pooled) and ``global``, and a note.

    Both runs must have the same partition. The note says why there is no test, or how images
    were counted; it is empty where neither run kept logits.
    """
    there = [(side.path / FILE).exists() for side in (a, b)]
    if not all(there):
        lacking = "A" if there[1] else "B"
        return {}, f"{lacking} kept no logits, so there is no paired test over test images; run " \
                   "it with --keep-logits under another --tag" if any(there) else ""
    try:
        left, right = (_read(side.path / FILE) for side in (a, b))
        names = sorted((k for k in left if k.startswith(_OWN)), key=lambda k: int(k[len(_OWN):]))
        found = {"personal": _test(left, right, names)} if names else {}
        if "global" in left and "global" in right:
            found["global"] = _test(left, right, ["global"])
    except (KeyError, ValueError, TypeError, OSError) as error:
        return {}, f"no paired test over test images: {error}"
    return found, "an image that is in the test splits of several clients counts once for each"


def _read(path: Path) -> Mapping[str, Any]:
    """Return the tensors of a file.

    Raises:
        ValueError: it is damaged, or of a type that NumPy lacks.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def _test(a: Mapping[str, Any], b: Mapping[str, Any], names: list[str]) -> McNemar:
    """Pool the images of ``names``.

    Raises:
        ValueError: a name is missing, or its true labels differ.
    """
    right: tuple[list[Any], list[Any]] = ([], [])
    for name in names:
        key = f"true|{name}"
        for part in (name, key):
            if part not in a or part not in b:
                raise ValueError(f"one of the two {FILE} has no '{part}'")
        truth = a[key]
        if not np.array_equal(truth, b[key]) or len(a[name]) != len(b[name]):
            raise ValueError(f"the kept '{name}' are not of the same test images")
        for found, kept in zip(right, (a, b), strict=True):
            found.append(kept[name].argmax(axis=1) == truth if len(truth) else truth == 0)
    return mcnemar(*(np.concatenate(found).tolist() for found in right))
