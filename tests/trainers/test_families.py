"""Cards name the tensors that are trained: tables and ``list`` put methods together by them."""

from __future__ import annotations

import re
from pathlib import Path

from fedvlm.config.families import CHOICE, families, families_in, family_heading
from fedvlm.core.errors import fold
from fedvlm.core.rng import stream
from fedvlm.federation.cards import card, trainer_files
from fedvlm.federation.peft_trainer import PeftTrainer
from tests.trainers.small_world import method, model


def test_every_card_names_what_its_method_trains() -> None:
    wrong, groups = {}, {}
    for stem, path in trainer_files().items():
        trainer, said = method(stem), families_in(card(path))
        names = trainer.trainables(model(), stream(1, "init"))
        free = isinstance(trainer, PeftTrainer) and said == (CHOICE,)
        if not free and said != families(names):
            wrong[trainer.name] = said, families(names)
        groups.setdefault(family_heading(said), []).append(trainer.name)
    assert not wrong
    assert len(groups) == 14 and "" not in groups
    assert groups["nothing is trained"] == ["Tip-Adapter", "ZeroShot"]
    assert {"pFedMMA"} == set(groups["adapters inside the towers"])
    assert {"VPT", "FedMVP"} == set(groups["image prompts"])
    assert {"MaPLe", "PromptSRC", "FedMGP"} == set(groups["image prompts and prompt"])
    assert {"AFL", "FedPFT", "TOFA", "Tip-Adapter-F"} == set(groups["linear head"])


def test_the_page_of_methods_has_the_headings_of_list() -> None:
    cards = {fold(stem): card(path) for stem, path in trainer_files().items()}
    page = (Path(__file__).resolve().parents[2] / "docs/methods.md").read_text(encoding="utf-8")
    heading, there = "", list[str]()
    for line in page.partition("| method | what travels")[2].partition("\n\n")[0].split("\n")[2:]:
        first = line.split("|")[1].strip()
        if first.startswith("**"):
            heading = first.strip("*")
            continue
        for name in re.sub(r"\(.*?\)", "", first).split(","):
            assert family_heading(families_in(cards[fold(name.strip())])) == heading, name
            there.append(fold(name.strip()))
    assert sorted(there) == sorted(set(there)) and len(there) == 29
