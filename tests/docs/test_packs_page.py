"""``docs/packs.md`` says of every method whether it runs from a feature pack."""

from __future__ import annotations

import re
from collections import defaultdict

from fedvlm.check.world import CheckWorld
from fedvlm.federation.discovery import load_trainer
from tests.docs.pages import DOCS
from tests.jobs import REPOSITORY


def said() -> dict[str, set[str]]:
    """The methods by row of the table."""
    text = (DOCS / "packs.md").read_text(encoding="utf-8")
    table = text.partition("| from a pack | methods |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (?P<how>\w.*?) \| (?P<methods>.*?) \|$", table, re.MULTILINE)
    return {how: set(methods.split(", ")) for how, methods in rows}


def test_the_table_of_methods_is_that_of_their_streams() -> None:
    world, there = CheckWorld(), defaultdict[str, set[str]](set)
    model = world.model()
    run, inside, patches = said()
    for path in sorted((REPOSITORY / "trainers").glob("*.py")):
        trainer = load_trainer(path.stem)
        cfg = world.config(trainer)
        cfg.defrost()
        cfg.DATASET.SERVER_HOLDOUT = 0  # as a run that says nothing
        cfg.freeze()
        streams = set(trainer(cfg).streams(model))
        how = run if streams == {"features"} else patches if "patches" in streams else inside
        there[how].add(trainer.name)
    assert there == said()
