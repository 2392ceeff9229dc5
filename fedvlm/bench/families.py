"""What a set of tensors trains, by their names: the words of ``bench methods --family``.

Imports no PyTorch: the command's flags need the words only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NOTHING = "none"
# The first pattern that fits a whole name gives its family; ``--peft`` has the same words.
_FAMILIES: Mapping[str, str] = {
    "text-lora": r"text\.(private\.)?lora\..*",
    "lora": r"image\.(private\.)?lora\..*",
    "norm": r"image\.ln\..*",
    "visual-prompt": r"image\.(prompt|couple|net)\..*",
    "adapter": r"\w+\.(mm_)?adapter\.\d+\..*",
    "feature": r"image\..*",
    "head": r"(head|small|gate|tip)\..*",
    "prompt": r"text\..*",
}
ORDER = (
    "prompt", "text-lora", "feature", "head", "lora", "adapter", "norm", "visual-prompt", NOTHING,
)


def families(names: Iterable[str]) -> tuple[str, ...]:
    """Return what tensors of these names are, in the order of ``ORDER``; (``none``,) without any.

    A tensor that fits no pattern is left out: it has no family that could be asked for.
    """
    there = {
        word for name in names
        for word in [next((w for w, p in _FAMILIES.items() if re.fullmatch(p, name)), "")] if word
    }
    return tuple(word for word in ORDER if word in there) or (NOTHING,)
