"""The plan that says what a choice between two rules is worth: it resolves and leaves none out."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.cli.run.sweep import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import DataError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.models.vlmodel import VLModel
from fedvlm.sweep.cells import cells_of
from fedvlm.sweep.plan import read_plan
from tests.jobs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from parity.points import PLAN, rows  # noqa: E402

sys.path.pop(0)


def test_every_cell_of_the_plan_resolves(tmp_path: Path) -> None:
    """A key that no method has, or a value that it does not take, is refused here."""
    words = [str(PLAN), "--output-dir", str(tmp_path), "--seeds", "1"]
    cells = cells_of(plan_of(verbs()["sweep"].parser().parse_args(words)))
    assert len(cells) == len(read_plan(PLAN).trainers)
    assert len({cell.digest for cell in cells}) == len(cells)


def test_every_variant_is_in_the_plan() -> None:
    """Of each method with ``VARIANT``, the value that is not the default."""
    found = {(e.name, k, v) for e in read_plan(PLAN).trainers for k, v in e.settings.items()}
    for name in trainer_files():
        cls = load_trainer(name)
        option = cls.options.get("VARIANT")
        if option is not None:
            (other,) = {"published", "fixed"} - {option.default}
            assert (cls.name, f"TRAINER.{cls.name.upper()}.VARIANT", other) in found


def test_a_row_is_the_mean_of_the_pairs() -> None:
    """Seeds that only one side has do not count."""
    numbers = {(e.name, e.settings.get("TAG", "")): {1: 50.0, 2: 60.0, 3: 0.0}
               for e in read_plan(PLAN).trainers}
    numbers["AFL", "variant-published"] = {1: 53.0, 2: 65.0}
    table = rows(numbers)
    assert table[0] == "| AFL | `VARIANT published` | 55.0 | +4.0 ± 12.7 | 2 |"
    assert len(table) == sum("TAG" in e.settings for e in read_plan(PLAN).trainers)
    with pytest.raises(DataError, match="no runs of AFL with and without"):
        rows({})


SEEN_AT: dict[tuple[str, str], dict[str, object]] = {  # where an option acts; else: everywhere
    ("APFL", "ALPHA_MIN"): {"ALPHA_LR": 10.0},  # a share that comes to its bound
    ("FedDecomp", "VARIANT"): {"frac": 0.5},  # clients that do not work in a round
    ("pFedMoAP", "DRAW"): {"EXPERTS": 1},  # fewer than there are others
    ("PromptSRC", "TEACHER"): {"templates": ("a photo of a {}.", "one {}, seen from afar.")},
}


def trained(name: str, changed: dict[str, str], at: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return all tensors of server and clients after three rounds of four unequal clients."""
    own = {k: v for k, v in at.items() if k.isupper()}
    words = {f"TRAINER.{name.upper()}.{k}": str(v) for k, v in own.items()} | changed
    world = Templates([word for pair in words.items() for word in pair])
    world.templates = at.get("templates", ())
    fed = world.federation(load_trainer(name), Setup(chunk=4, packed=True))
    fed.plan = replace(fed.plan, frac=at.get("frac", 1.0))
    whole = fed.read(fed.run())
    states = {"server": whole.server} | {str(k): v for k, v in whole.clients.items()}
    return {f"{who}|{slot}|{n}": v.double() for who, state in states.items()
            for slot, tree in state.items() for n, v in tree.items()}


@cache
def trained_plain(name: str, option: str) -> dict[str, torch.Tensor]:
    """Return the same of a method as it is, where ``option`` acts: several options share it."""
    return trained(name, {}, SEEN_AT.get((name, option), {}))


class Templates(CheckWorld):
    """A world with templates of its own."""

    templates: object = ()

    def model(self, packed: bool = False) -> VLModel:
        """See the world; with the templates."""
        model = super().model(packed)
        return model.with_classes(model.classnames, self.templates) if self.templates else model


@pytest.mark.parametrize(
    ("name", "changed"),
    [pytest.param(e.name, {k: v for k, v in e.settings.items() if k != "TAG"}, id=" ".join(
        [e.name, *(f"{k.rpartition('.')[2]} {v}" for k, v in e.settings.items() if k != "TAG")]
    )) for e in read_plan(PLAN).trainers if "TAG" in e.settings],
)
def test_the_option_changes_what_is_trained(name: str, changed: dict[str, str]) -> None:
    """An option that nothing reads would stand in the table with no change, too."""
    (key,) = changed
    option = key.rpartition(".")[2]
    at = SEEN_AT.get((name, option))
    one = trained_plain(name, option if at else "")
    other = trained(name, changed, at or {})
    assert any(
        one[n].shape != v.shape or not torch.allclose(one[n], v, rtol=1e-6, atol=1e-9)
        for n, v in other.items() if n in one
    )
