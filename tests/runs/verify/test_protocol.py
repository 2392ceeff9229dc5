"""Every key of the protocol is compared with something, and a page says with what."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedvlm.runs.verify.check import inspect
from fedvlm.runs.verify.numbers import protocol_problems
from tests import jobs
from tests.attacks.forge import copy, edit

PAGE = Path(__file__).parents[3] / "docs" / "seals.md"
REPLAYED = {"extra_data", "weights"}  # of the embedded backbone, whose digest stands for them
OTHER = {"partition": "iid-K9-f1", "setting": "transfer", "target": "labels", "proxy": "a folder",
         "targets": "Digits", "held_out": "sketch", "cohort": 3}


def table() -> dict[str, str]:
    """Return key -> what it is compared with, by the page."""
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", PAGE.read_text().partition("key of `protocol`")[2]
                      .partition("\n\n")[0], re.MULTILINE)
    return {key: how for keys, how in rows for key in re.findall(r"`(\w+)`", keys)}


def test_the_page_has_every_key(quick_run: Path) -> None:
    told = json.loads((jobs.folder(quick_run) / "results.json").read_text())["protocol"]
    assert table().keys() == told.keys()
    assert {k for k, how in table().items() if "replay alone" in how} == REPLAYED


@pytest.mark.parametrize("key", sorted(table().keys() - REPLAYED))
def test_an_edited_key_is_named(quick_run: Path, tmp_path: Path, key: str) -> None:
    folder = copy(jobs.folder(quick_run), tmp_path / "run")

    def change(record: dict) -> None:
        old = record["protocol"][key]
        record["protocol"][key] = OTHER.get(key, old + 1 if isinstance(old, int) else f"{old}x")

    edit(folder / "results.json", change)
    verdict = inspect(folder)
    assert f"results.json: protocol.{key} is " in " ".join(verdict.damage)


def test_a_method_with_peft_says_what_it_trains() -> None:
    config = {"DATASET.SUBSAMPLE_CLASSES": "all", "PEFT.TEXT": "prompt", "PEFT.VISUAL": "lora",
              "PEFT.HEAD": "text", "PEFT.LN": True}
    assert list(protocol_problems({"peft": "prompt+lora+ln"}, {"config": config})) == []
    (clause,) = protocol_problems({"peft": "prompt+lora"}, {"config": config})
    assert clause == "protocol.peft is 'prompt+lora', the manifest says 'prompt+lora+ln'"


@pytest.mark.parametrize(("backbone", "weights", "told"), [
    ("ViT-B/16", "laion400m_e32", "laion400m_e32"), ("local-dir:clip", "", "local-dir:clip"),
])
def test_named_weights_are_compared(backbone: str, weights: str, told: str) -> None:
    config = {"DATASET.SUBSAMPLE_CLASSES": "all", "MODEL.BACKBONE.NAME": backbone,
              "MODEL.INIT_WEIGHTS": weights}
    assert list(protocol_problems({"weights": told}, {"config": config})) == []
    assert len(list(protocol_problems({"weights": "openai"}, {"config": config}))) == 1
