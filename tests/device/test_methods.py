"""Every method's whole job on a pretend CUDA device: devices, waits and kernels, by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.cli.main import main
from tests import jobs
from tests.data.columns.publishers import picture
from tests.device.card import pretend_card
from tests.device.methods import ALONE, READS, check_bounds, on_card, trainer_names
from tests.models.trunks import small

SOME = ("FedTV", "pFedMoAP", "SCAFFOLD")  # of every `make test`


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("method", SOME)
def test_some_methods(tmp_path: Path, method: str) -> None:
    """The first with the baselines."""
    check_bounds(method, on_card(tmp_path, method, *(ALONE if method != SOME[0] else ())))


def test_a_run_on_sets_of_labels(tmp_path: Path) -> None:
    """With its baselines, whose labels begin on the host."""
    lines = ["file,a,b"]
    for i in range(40):
        picture(tmp_path / "set" / f"{i}.png", i)
        lines.append(f"{i}.png,{i % 2},{i % 4 // 2}")
    (tmp_path / "set" / "t.csv").write_text("\n".join(lines) + "\n")
    words = ("--images", f"{tmp_path}/set/t.csv", "--labels", "a,b", "--trainer", "FedAvg",
             "--peft", "head", "--backbone", "tiny", "--rounds", "1", "--device", "cuda")
    with pretend_card() as tally:
        assert main([*words, "--output-dir", str(tmp_path / "out")]) == 0
    assert not tally.mixed, f"CUDA would stop here: {dict(tally.mixed)}"


@pytest.mark.slow
def test_adapters_behind_the_stages_of_a_trunk(tmp_path: Path) -> None:
    check_bounds("FedPer", on_card(
        tmp_path, "FedPer", "--peft", "head+adapter", "--backbone", f"timm:{small('swin')}",
        "MODEL.BACKBONE.PRETRAINED", "False",
    ))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", trainer_names())
def test_all_methods(tmp_path: Path, method: str, precision: str) -> None:
    check_bounds(method, on_card(tmp_path, method, "MODEL.PREC", precision))


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ("--plain",), ("--class-weights", "balanced"),
    ("FED.DP.CLIP", "1.0", "FED.DP.NOISE", "1.0", "FED.DP.UNIT", "image", "FED.DP.DELTA", "1e-5"),
])
def test_batches_of_other_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    """``--plain`` computes clients one by one, and asks of each whether its loss is finite."""
    plain = "--plain" in words
    tally = on_card(tmp_path, "FedAvg", *words)
    check_bounds("FedAvg", tally, "federation/local/guard.py" if plain else "", pixels=plain)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pFedMoAP", "FedMGP", "APFL"])
def test_states_on_disk(tmp_path: Path, method: str) -> None:
    """Each client's tensors are copied to the host to be written."""
    check_bounds(method, on_card(tmp_path, method, "FED.STORE", "disk"), "fedvlm/runs/tensors.py")


@pytest.mark.usefixtures("few")
def test_the_numbers_are_those_of_the_cpu(tmp_path: Path) -> None:
    on_card(tmp_path / "card", "FedAvg", *ALONE)
    words = ("--num-users", "3", "--batch-size", "2", "--eval-every", "2", "--device", "cpu")
    assert jobs.run(tmp_path / "cpu", "--trainer", "FedAvg", *words, *ALONE) == 0
    ours, theirs = jobs.state(tmp_path / "card"), jobs.state(tmp_path / "cpu")
    assert ours.keys() == theirs.keys()
    for name, v in theirs.items():
        torch.testing.assert_close(ours[name], v, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedAvg", "FedTV"])
def test_kernels_outside_the_steps_grow_little_with_clients(tmp_path: Path, method: str) -> None:
    spent = []
    for clients in (4, 10):
        tally = on_card(tmp_path / str(clients), method, "--num-users", str(clients))
        assert tally.rounds == 2 and tally.clients == 2 * clients
        spent.append(tally.kernels["work"] + tally.kernels["round"])
    assert spent[1] - spent[0] <= 4 * 2 * (10 - 4)


def test_every_exception_is_a_method() -> None:
    assert READS.keys() <= set(trainer_names())
