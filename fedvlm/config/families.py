"""What a method trains, by the names of its tensors, or by what its card says of them.

One answer for tables (rows that train the same compete), ``list`` and the speed bench.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NOTHING = "none"
CHOICE = "peft"  # whatever ``--peft`` says
# The first pattern that fits a whole name gives its family; ``--peft`` has the same words.
_FAMILIES: Mapping[str, str] = {
    "text-lora": r"text\.(private\.)?lora\..*",
    "lora": r"image\.(private\.)?lora\..*",
    "norm": r"image\.ln\..*",
    "visual-prompt": r"image\.(prompt|couple|net)\..*",
    "adapter": r"\w+\.(mm_)?adapter\.\d+\..*",
    "feature": r"image\..*",
    "head": r"(head|small|tip)\..*",
    "gate": r"gate\..*",
    "prompt": r"text\..*",
}
ORDER = (
    "prompt", "text-lora", "feature", "head", "gate", "lora", "adapter", "norm", "visual-prompt",
    NOTHING,
)
WORDS: Mapping[str, str] = {
    "prompt": "prompt", "text-lora": "LoRA inside the text tower", "feature": "image feature",
    "head": "linear head", "gate": "gate", "lora": "LoRA inside the image tower",
    "adapter": "adapters inside the towers", "norm": "norms of the image tower",
    "visual-prompt": "image prompts", NOTHING: "nothing is trained",
    CHOICE: "what --peft sets (prompt, text-lora, feature, head, lora, adapter)",
}
# word of ``--peft`` -> the key and the value that it sets
PEFT_WORDS = {
    "prompt": ("PEFT.TEXT", "prompt"),
    "text-lora": ("PEFT.TEXT", "lora"),
    "feature": ("PEFT.VISUAL", "feature"),
    "lora": ("PEFT.VISUAL", "lora"),
    "adapter": ("PEFT.VISUAL", "adapter"),
    "head": ("PEFT.HEAD", "linear"),
}
# Settings that a method is tuned in; the schedule's clock is the protocol's.
OWN = ("OPTIM.", "TRAINER.", "PEFT.", "MODEL.HEAD.", "FED.FINETUNE_", "FED.PERSONAL")
NOT_OWN = ("OPTIM.CLOCK", "FED.FINETUNE_EPOCHS")
_NAME = re.compile(r"\b(?:text|image|both|head|small|gate|tip)\.[\w.*]*[\w*]")
_FIELDS = re.compile(r"^(?:Shared|Personal):.*(?:\n[ \t]+.*)*", re.MULTILINE)
PEFT_KEYS = ("PEFT.TEXT", "PEFT.VISUAL", "PEFT.HEAD")  # that ``--peft`` sets
_ALL_OF_PEFT = re.compile(r"\b(?:of|that)\s+PEFT\b")


def families(names: Iterable[str]) -> tuple[str, ...]:
    """Return what tensors of these names are, in the order of ``ORDER``; (``none``,) without any.

    A tensor that fits no pattern is left out: it has no family that could be asked for.
    """
    there = {
        word for name in names
        for word in [next((w for w, p in _FAMILIES.items() if re.fullmatch(p, name)), "")] if word
    }
    return tuple(word for word in ORDER if word in there) or (NOTHING,)


def families_in(card: str) -> tuple[str, ...]:
    """Return what the method of a card trains, by the names in its fields Shared and Personal.

    (``peft``,) where these are of ``PEFT``; () where the card has no such fields.
    """
    said = "\n".join(_FIELDS.findall(card))
    if not said:
        return ()
    if _ALL_OF_PEFT.search(said):
        return (CHOICE,)
    return families(name.replace("*", "0.x") for name in _NAME.findall(said))


def place(parts: Iterable[str]) -> tuple[int, ...]:
    """Return where families stand in a list: a choice first, nothing and no word at the end."""
    return tuple((CHOICE, *ORDER).index(p) for p in parts) or (len(ORDER) + 1,)


def family_heading(parts: Iterable[str]) -> str:
    """Return families as a heading: ``image feature and prompt``."""
    ordered = sorted(parts, key=lambda p: (p == "gate", WORDS.get(p, p).lower()))
    return " and ".join(WORDS.get(p, p) for p in ordered)


def peft_words(text: str, visual: str, head: str) -> str:
    """Return the words of ``--peft`` for the three keys: ``prompt+lora``; ``none`` for nothing."""
    keys = dict(zip(PEFT_KEYS, (text, visual, head), strict=True))
    words = [word for word, (key, value) in PEFT_WORDS.items() if keys[key] == value]
    return "+".join(words) or "none"


def trained_words(config: Mapping[str, Any]) -> str:
    """Return what ``PEFT`` trains, for results: the words of ``--peft`` and what refines them.

    Args:
        config: flat; a refining key that it lacks is off.
    """
    more = [word for word in ("csc", "ln") if config.get(f"PEFT.{word.upper()}")]
    more += [f"'{words}'"] if (words := config.get("PEFT.CTX_INIT")) else []
    return "+".join([peft_words(*(str(config[key]) for key in PEFT_KEYS)), *more])
