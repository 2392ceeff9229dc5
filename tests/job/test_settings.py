"""The settings end to end on the built-in sets: what one run gives, and where it lies.

The sets have a fifth of their images here, which renders and encodes as much faster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fedvlm.cli.main import main
from fedvlm.data.builtin import sets as builtin
from fedvlm.job.results import seed_table
from tests import jobs

SMALL = ("--backbone", "tiny", "--shots", "1", "--rounds", "1", "--local-epochs", "1")
AWAY = ("--dataset", "shapes_domains", "--num-users", "4", "--held-out-domain", "sketch")
AFAR = ("--dataset", "new_nouns", "--num-users", "2", "--targets", "shapes,shapes_domains")
COLUMNS = ("personal", "global", "base_all", "base_other", "new", "hm2", "hm3", "cm")
TWICE = ("--rounds", "2")  # where a round between the first and the last is looked at


@pytest.fixture(scope="module", autouse=True)
def small_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In a cache of their own: other tests must not find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("small")))
        patch.setattr(builtin, "_PER_CLASS", (8, 2, 8))
        patch.setattr(builtin, "_PER_DOMAIN_AND_CLASS", 8)
        yield


def run(output: Path, *words: str) -> int:
    return main([*words[:2], *SMALL, *words[2:], "--output-dir", str(output)])


def written(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((jobs.folder(output) / "results.json").read_text())
    return found


def test_one_base_run_gives_every_column(tmp_path: Path) -> None:
    """And `personal` stands in every round's line: rounds-to-accuracy is read from them."""
    words = ("--dataset", "shapes", "--subsample-classes", "base", "--num-users", "2")
    assert run(tmp_path, *words, "--trainer", "PromptFL", *TWICE) == 0
    assert jobs.folder(tmp_path).relative_to(tmp_path).parts[0] == "base2new"
    results = written(tmp_path)["results"]
    last = results["last"]
    assert all(0 <= last[name] <= 100 for name in COLUMNS)
    p, b, n = last["personal"], last["base_all"], last["new"]
    assert last["hm2"] == pytest.approx(2 * b * n / (b + n))
    assert last["hm3"] == pytest.approx(3 / (1 / p + 1 / b + 1 / n))
    assert last["cm"] == pytest.approx((p + last["hm2"]) / 2)
    for row in ("zero_shot", "untrained"):
        assert set(COLUMNS) <= set(results[row])
    assert all(isinstance(r["personal"], float) for r in jobs.records(tmp_path))
    assert [r["round"] for r in jobs.records(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("trainer", ["FedAvg", "PromptFL", "FedTV"])
def test_leave_one_domain_out(tmp_path: Path, trainer: str) -> None:
    assert run(tmp_path, *AWAY, "--trainer", trainer) == 0
    path = jobs.folder(tmp_path).relative_to(tmp_path)
    assert path.parts[0] == "leave_one_domain_out" and "sketch" in path.parts[5]
    content = written(tmp_path)
    assert content["protocol"]["setting"] == "leave_one_domain_out"
    assert content["protocol"]["held_out"] == "sketch"
    last = content["results"]["last"]
    assert len(last["clients"]) == 4 and all(0 <= row["unseen"] <= 100 for row in last["clients"])
    mean = sum(row["unseen"] for row in last["clients"]) / 4
    assert last["unseen_personal"] == pytest.approx(mean)
    if trainer != "FedTV":  # all tensors are shared: every personal model is the global one
        assert [row["unseen"] for row in last["clients"]] == [last["unseen"]] * 4
    zero = content["results"]["zero_shot"]
    assert zero["unseen"] == zero["unseen_personal"] != zero["global"]
    assert all("unseen" in record for record in jobs.records(tmp_path))
    assert {"global", "unseen", "unseen_personal"} <= set(content["results"]["table"][0])


def test_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The zero-shot number is that of a run on the target itself: its words, its images.

    The run's own prompt is another one, and is not the targets'.
    """
    words = ("--trainer", "PromptFL", "--keep-logits", *TWICE, "--opts", "DATASET.TEMPLATE")
    assert run(tmp_path / "a", *AFAR, *words, "no {} here") == 0
    said = capsys.readouterr().out
    assert "370 more test images" in said and "target.Shapes" in said
    content = written(tmp_path / "a")
    assert jobs.folder(tmp_path / "a").relative_to(tmp_path / "a").parts[0] == "transfer"
    assert content["protocol"]["targets"] == "Shapes, ShapesDomains"
    last, zero = content["results"]["last"], content["results"]["zero_shot"]
    names = ("target.Shapes", "target.ShapesDomains")
    for row in (last, zero, content["results"]["untrained"]):
        assert row["targets"] == pytest.approx(sum(row[name] for name in names) / 2)
    middle = jobs.records(tmp_path / "a")[1]
    assert "targets" not in middle and "personal" in middle
    assert run(tmp_path / "b", "--dataset", "shapes", "--num-users", "2") == 0
    other = written(tmp_path / "b")["results"]["zero_shot"]
    assert zero["target.Shapes"] == other["global"]
    kept = safetensors.torch.load_file(jobs.folder(tmp_path / "a") / "logits.safetensors")
    right = (kept["target.Shapes"].argmax(-1) == kept["true|target.Shapes"]).double().mean()
    assert 100 * float(right) == pytest.approx(last["target.Shapes"])
    assert kept["target.Shapes"].shape == (160, 20)
    lines = "\n".join(seed_table([content, content]))
    assert "target.Shapes" in lines and "targets" in lines


def test_training_does_not_see_the_targets(tmp_path: Path) -> None:
    assert run(tmp_path / "a", *AFAR[:-2], "--trainer", "FedTV") == 0
    assert run(tmp_path / "b", *AFAR, "--trainer", "FedTV") == 0
    a, b = jobs.state(tmp_path / "a"), jobs.state(tmp_path / "b")
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
    plain, more = (jobs.results(tmp_path / name)["last"] for name in "ab")
    assert {k: more[k] for k in ("personal", "global")} == {
        k: plain[k] for k in ("personal", "global")}
    digests = [written(tmp_path / name)["protocol"]["data_digest"] for name in "ab"]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("words", [("FedAvg", "--peft", "head"), ("FedProto",)])
def test_a_method_bound_to_its_classes_says_so(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *AFAR, "--trainer", *words) == 0
    assert "cannot predict unseen classes: TEST.TARGETS does not apply" in capsys.readouterr().out
    content = written(tmp_path)
    assert not [name for name in content["results"]["last"] if name.startswith("target")]
    assert content["results"]["zero_shot"]["targets"] > 0


def test_unknown_names_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *AFAR[:-1], "shape") == 2
    said = capsys.readouterr().err
    assert "TEST.TARGETS" in said and "did you mean 'shapes'" in said and "Traceback" not in said
    assert run(tmp_path, *AWAY[:-1], "scetch") == 2
    assert "did you mean 'sketch'" in capsys.readouterr().err
    assert run(tmp_path, *AFAR[:-1], "new_nouns") == 2
    assert "own set" in capsys.readouterr().err
