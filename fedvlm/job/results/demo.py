"""What ``fedvlm --demo`` shows: a linear head and FedTV on the same clients, told in ten lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.console.screen import say
from fedvlm.job.flags import peft_keys
from fedvlm.job.request import Request
from fedvlm.job.resolve import Jobs, resolve
from fedvlm.runs.names import read_partition
from fedvlm.runs.verify.answer import (
    ALONE,
    PAYS,
    POOLED,
    TOGETHER,
    baseline_name,
    federation_answer,
    worse_clearly,
    worse_words,
)

HEAD = "FedAvg"  # the head's method; the demo's other one is the default of --trainer
KEPT = {"OUTPUT_DIR"}  # settings that leave it the demo
OWN = "fedvlm run --images FOLDER --trainer FedAvg --peft head"

Results = Mapping[str, Any]


def is_whole_demo(request: Request) -> bool:
    """Tell whether nothing but ``--demo`` was asked for; with a method or a setting it is a run."""
    plain = Request(demo=True, flags=request.flags, flag_names=request.flag_names)
    return request == plain and set(request.flags) <= KEPT


def head_jobs(request: Request) -> Jobs:
    """Return the same demo with a linear head."""
    keys = peft_keys("head")
    names = {**request.flag_names, **dict.fromkeys(keys, "--peft")}
    return resolve(replace(
        request, trainer=HEAD, flags={**request.flags, **keys}, flag_names=names
    ))


def show_summary(head: tuple[Results, Path], method: tuple[Results, Path]) -> None:
    """Print both runs in a few lines.

    Args:
        head, method: content of ``results.json`` and folder of the two runs.
    """
    say("", *summary_lines(head[0]["results"], method[0]["results"], method[0]["protocol"],
                           images_per_client(method[1])))


def images_per_client(folder: Path) -> list[int]:
    """Return the training images of each client of a run, from its ``partition.csv``."""
    counts: Counter[str] = Counter()
    for row in read_partition(folder):
        counts[row["client"]] += int(row["images"]) * (row["part"] == "train")
    return sorted(counts.values())


def summary_lines(
    head: Results, method: Results, protocol: Mapping[str, Any], images: Sequence[int]
) -> list[str]:
    """Return the demo in ten lines: who, a table, what federation gained, what to do next.

    Args:
        head, method: sections ``results`` of the two runs.
        protocol: of the second.
        images: training images of each client, ascending.
    """
    simple, other = federation_answer(head), federation_answer(method)
    name, zero = str(protocol["trainer"]), method["zero_shot"]
    if simple is None or other is None:
        return []
    rows = [
        ("zero-shot CLIP, nothing trained", zero["personal"], zero.get("personal_balanced"),
         zero.get("new")),
        (f"each client alone ({baseline_name(simple[ALONE]['reference'])})",
         *_pair(simple[ALONE]), None),
        (f"together, a linear head ({HEAD})", *_pair(simple[TOGETHER]), None),
        (f"together, prompts and adapters ({name})", *_pair(other[TOGETHER]),
         method["last"].get("new")),
        ("all images in one place (pooled)", *_pair(simple[POOLED] or {}), None),
    ]
    wide = max(len(row[0]) for row in rows)
    return [
        f"{len(images)} clients with {images[0]} to {images[-1]} images each train together; no "
        "image leaves its client.",
        f"{'accuracy (%)':<{wide}}  own images  class-balanced  unseen classes",
        *(f"{words:<{wide}}  {_text(a):>10}  {_text(b):>14}  {_text(c):>14}"
          for words, a, b, c in rows),
        _gain("A linear head", simple, worse_clearly(head)),
        _gain(name, other, worse_clearly(method), _unseen(zero, method["last"])),
        f"Next: your own images, one folder per class: {OWN}",
    ]


def _pair(side: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return side.get("personal"), side.get("balanced")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _gain(
    name: str, answer: Mapping[str, Any], clearly: Sequence[int], more: str = ""
) -> str:
    """Return what a method gains over working alone, and for how many clients it does not."""
    points = answer["points"]
    start = f"{name} gains {points:.1f} points over working alone"
    if answer["verdict"] != PAYS:
        start = f"{name} does not clearly gain over working alone ({points:+.1f} points)"
    return f"{start}; {worse_words(answer, clearly)}{more}."


def _unseen(zero: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Return the gain on classes that no client has; nothing where there is none."""
    before, after = zero.get("new"), last.get("new")
    if before is None or after is None or after <= before:
        return ""
    return f". On classes that no client has it reaches {after:.1f} (zero-shot {before:.1f})"
