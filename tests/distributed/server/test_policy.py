"""What a server takes of an answer: each client's update against what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.distributed.server.policy import HEAVIEST, find_outvoted, read_parts, weigh
from fedvlm.distributed.wire import Frame, unpack
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.aggregation.updates import one_row
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.context import OWN, SAMPLES, UNIFORM, Context
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.engine import Homes
from fedvlm.federation.rounds import Federation
from fedvlm.federation.trainer import Trainer
from tests.distributed.grid import Grid, Tapped

IDS = [2, 3]  # at site1


class Answer:
    """What site1 sends in a round of a method with extras, and what the server knows then."""

    def __init__(self, folder: Path) -> None:
        grid = Grid(CheckWorld(), load_trainer("scaffold"), folder, Setup(rounds=1))
        self.fed, _ = grid.server()
        start = self.fed.start()
        self.downloads = self.fed.downloads(start, 1, range(4))
        self.ctx: Context = self.fed.context(range(4), 1)
        self.forms = self.fed.trainer.extra_forms(self.ctx, self.fed.clients.blank)
        self.fed.run()
        assert isinstance(grid.carrier, Tapped)
        frames = [unpack(data) for data in grid.carrier.frames]
        worked = [f for f in frames if f.op == "worked"]
        self.frame = next(f for f in worked if f.values["parts"][0]["clients"] == IDS)

    def read(
        self, extras: Mapping[str, Tensor] | None = None, known: bool = True
    ) -> tuple[list[Upload], dict[int, str]]:
        """Return parts and refusals of the answer, perhaps with other extras."""
        trees = dict(self.frame.trees)
        if extras is not None:
            trees["extra/0"] = dict(extras)
        frame = Frame("worked", self.frame.values, trees)
        forms = self.forms if known else None
        parts, refused, _ = read_parts(frame, self.ctx, self.downloads, IDS, forms)
        return parts, refused

    @property
    def extras(self) -> Tree:
        return dict(self.frame.trees["extra/0"])


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return Answer(tmp_path_factory.mktemp("answer"))


def test_an_answer_as_the_method_sends_it_is_taken(answer: Answer) -> None:
    for known in (True, False):
        (part,), refused = answer.read(known=known)
        assert part.clients == (2, 3) and not refused
        assert weigh(part, 0.0, answer.ctx) == {}


def test_what_all_clients_received_lies_there_once(answer: Answer) -> None:
    homes: Homes = {}
    (one,), (other,) = (
        read_parts(answer.frame, answer.ctx, answer.downloads, IDS, answer.forms, homes)[0]
        for _ in range(2)
    )
    for name, v in one.received.items():
        assert one_row(v, other.received[name]) and len(v) == len(IDS)
        assert torch.equal(v[1], answer.downloads[3][name])
        assert v.data_ptr() != answer.downloads[3][name].data_ptr()


@pytest.mark.parametrize(("odd", "said"), [
    (torch.zeros(2, 3, dtype=torch.float8_e4m3fn), "is [3] torch.float8_e4m3fn of a client, not ["),
    (torch.zeros(2, 3, dtype=torch.complex64), "torch.complex64"),
    (torch.zeros(2, 7), "is [7] torch.float32"), (torch.ones(2, dtype=torch.bool), "is [] "),
    (torch.zeros(2, 0), "is [0] "), (torch.zeros(3), "has no row for each client"),
    (torch.zeros(()), "has no row for each client"), (None, "is missing"),
])  # fmt: skip
def test_extras_of_another_form_are_refused(
    answer: Answer, odd: Tensor | None, said: str
) -> None:
    name = next(iter(answer.extras))
    extras = {n: v for n, v in answer.extras.items() if n != name}
    parts, refused = answer.read(extras if odd is None else extras | {name: odd})
    assert not parts and set(refused) == set(IDS)
    assert name in refused[2] and said in refused[2]


def test_an_extra_of_a_declared_name_that_the_round_does_not_have_is_refused(
    answer: Answer,
) -> None:
    _, refused = answer.read(answer.extras | {"control.more": torch.zeros(2, 3)})
    assert refused[3] == "an extra 'control.more', which this round does not have"


def test_where_the_form_is_not_known_types_that_no_method_sends_are_refused(
    answer: Answer,
) -> None:
    name = next(iter(answer.extras))
    for kind in (torch.float8_e4m3fn, torch.complex64):
        odd = answer.extras | {name: torch.zeros(2, 3, dtype=kind)}
        assert f"is {kind}, which no method sends" in answer.read(odd, known=False)[1][2]
    (part,), _ = answer.read(answer.extras | {name: torch.zeros(2, 3)}, known=False)
    usual, _ = answer.read(known=False)
    most = [replace(usual[0], clients=(0, 1, 4)), part]
    assert set(find_outvoted(most)) == set(IDS)


def weighed(part: Upload, ctx: Context, weighting: str, weight: float) -> dict[int, str]:
    told = torch.tensor([weight, 1.0], dtype=torch.float64)
    return weigh(replace(part, weight=told), 0.0, replace(ctx, weighting=weighting))


@pytest.mark.parametrize(("weighting", "weight", "said"), [
    (SAMPLES, 1e308, "its weight is 1e+308"), (UNIFORM, 1e308, "its weight is 1e+308"),
    (SAMPLES, 1e9, "its weight is 1e+09, and its site reported 3 training images"),
    (UNIFORM, 1.5, "its weight is 1.5, and all weights are 1"),
    (OWN, 2 * HEAVIEST, "its weight is "),
    (OWN, -1.0, "its weight is -1.0"), (SAMPLES, float("nan"), "its weight is nan"),
])  # fmt: skip
def test_a_weight_is_held_against_what_the_site_told(
    answer: Answer, weighting: str, weight: float, said: str
) -> None:
    (part,), _ = answer.read()
    told = weighed(part, answer.ctx, weighting, weight)
    assert list(told) == [2] and told[2].startswith(said)


def test_a_weight_of_a_part_of_the_images_or_a_measure_is_taken(answer: Answer) -> None:
    (part,), _ = answer.read()
    for weighting, weight in ((SAMPLES, 3.0), (SAMPLES, 2.0), (UNIFORM, 0.0), (OWN, 1e12)):
        assert weighed(part, answer.ctx, weighting, weight) == {}


def test_rows_go_by_the_axis_of_most_clients_and_not_of_the_first(answer: Answer) -> None:
    (part,), _ = answer.read()
    name = next(n for n, v in part.params.items() if v.dim() == 3)

    def along(axis: int, clients: tuple[int, ...]) -> Upload:
        return replace(part, clients=clients, rows={name: Rows(torch.zeros(2, 1).long(), axis)})

    first, second, third = along(-1, (0, 1)), along(-2, (2, 3)), along(-2, (4, 5))
    assert set(find_outvoted([first, second, third])) == {0, 1}


def test_every_method_that_sends_extras_gives_their_form() -> None:
    silent = []
    for name in trainer_files():
        method = load_trainer(name)
        if method.extras_up and method.extra_forms is Trainer.extra_forms:
            silent.append(name)
    assert silent == []


def run_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, aggregate: object
) -> Federation:
    grid = Grid(CheckWorld(), load_trainer("fedavg"), folder, Setup(rounds=1))
    fed, _ = grid.server()
    monkeypatch.setattr(type(fed.trainer), "aggregate", aggregate)
    return fed


def test_a_method_that_fails_on_what_sites_sent_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self, ctx, server, updates):  # type: ignore[no-untyped-def]
        return updates.extras["nothing"]

    with pytest.raises(FedvlmError, match="round 1: FedAvg cannot aggregate the updates of "
                                          "site0") as told:
        run_of(tmp_path, monkeypatch, fails).run()
    assert str(told.value) == (
        "round 1: FedAvg cannot aggregate the updates of site0 (clients 0, 1) and site1 (clients "
        "2, 3): "
        "KeyError: there is no 'nothing'; the state of round 0 is kept (--debug shows the "
        "traceback)"
    )


def test_a_global_model_that_sites_made_not_finite_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blows(self, ctx, server, updates):  # type: ignore[no-untyped-def]
        return {"w": {n: v * torch.inf for n, v in server["w"].items()}}

    with pytest.raises(DivergedError, match=r"round 1: the aggregate of '.*' is not finite "
                                            r"\(updates of "):
        run_of(tmp_path, monkeypatch, blows).run()
