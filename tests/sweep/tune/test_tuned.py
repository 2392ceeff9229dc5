"""``tuned.json``: whose values an entry takes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.sweep.plan import read_plan
from fedvlm.sweep.tune.tuned import apply_tuned, read_tuned, write_tuned
from tests.sweep.tune.conftest import plan

ROOT = Path(__file__).parents[3]
HEAD = {"PEFT.TEXT": "none", "PEFT.VISUAL": "feature", "PEFT.HEAD": "linear"}
SWEEP = ["--datasets", "digits", "--shots", "2", "--backbone", "tiny", "--num-users", "2"]


def entry(label: str, trainer: str, rate: str, **settings: str) -> dict[str, Any]:
    return {"label": label, "trainer": trainer, "settings": settings,
            "values": {"OPTIM.LR": rate}}


def record(backbone: str = "tiny") -> dict[str, Any]:
    """What a tuning of four entries left, as far as sweeps read it."""
    return {
        "plan": {"common": {"MODEL.BACKBONE.NAME": backbone}, "seeds": [101, 102],
                 "datasets": [{"name": "digits"}], "trainers": [{"name": "FedAvg"}]},
        "entries": [
            entry("FedAvg head", "FedAvg", "0.3", **HEAD),
            entry("FedAvg head (ft)", "FedAvg", "0.4", **HEAD, **{"FED.FINETUNE_EPOCHS": "5"}),
            entry("FedProx", "FedProx", "0.2"),
        ],
    }


def sweep(tmp_path: Path, trainers: str, *more: str) -> Any:
    path = tmp_path / "plan.yaml"
    path.write_text(f"datasets: [digits]\ncommon: {{backbone: tiny}}\ntrainers: {trainers}\n")
    return plan(words=[str(path), *more])


def test_entries_take_the_values_tuned_for_what_they_train(tmp_path: Path) -> None:
    asked = sweep(tmp_path, """
  - FedAvg
  - {name: FedAvg, peft: feature+head, tag: head, TEST.EVAL_EVERY: 5}
  - {name: FedAvg, peft: feature+head, tag: ft, finetune-epochs: 5}
  - {name: fedprox, tag: strong, TRAINER.FEDPROX.MU: 1, OPTIM.LR: 0.9}
""")
    got, notes = apply_tuned(asked, record())
    rates = [e.tuned.get("OPTIM.LR") for e in got.trainers]
    assert rates == [None, "0.3", "0.4", None]
    assert notes == [
        "FedAvg (head) uses the values tuned for FedAvg head",
        "FedAvg (ft) uses the values tuned for FedAvg head (ft)",
        "fedprox (strong) uses the values tuned for FedProx",
        "the plan sets OPTIM.LR, so its tuned values are not used: fedprox (strong)",
        "no tuned values for FedAvg: they use their defaults",
    ]
    bare = record()
    bare["plan"]["common"] |= HEAD | {"PEFT.HEAD": "text"}  # what all were tuned with counts too
    assert [bool(e.tuned) for e in apply_tuned(asked, bare)[0].trainers][:3] == [False, True, True]
    assert got.content()["trainers"][3]["OPTIM.LR"] == "0.9"  # an entry's own settings win


def test_a_sweep_says_whose_values_it_takes_and_runs_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.json"
    write_tuned(path, record())
    words = ["sweep", "--trainers", "FedAvg", "FedProx", *SWEEP, "--peft", "feature+head",
             "--output-dir", str(tmp_path), "--tuned", str(path)]
    assert main([*words, "--seeds", "1", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "note: FedAvg uses the values tuned for FedAvg head" in told.err
    assert main([*words, "--seeds", "1", "102"]) == 2
    assert "chosen on seed 102, which this sweep also uses" in capsys.readouterr().err


def test_an_edited_or_strange_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    write_tuned(path, record())
    assert read_tuned(path)["entries"] == record()["entries"]
    path.write_text(path.read_text().replace('"0.3"', '"0.31"'))
    with pytest.raises(DataError, match="is damaged or was edited"):
        read_tuned(path)
    path.write_text(json.dumps({"format": 1, "entries": []}))
    with pytest.raises(DataError, match="is not a tuned.json of fedvlm tune"):
        read_tuned(path)


def test_on_another_backbone_methods_run_as_they_come(tmp_path: Path) -> None:
    """A folder of weights goes by its name: paths differ between machines."""
    asked = sweep(tmp_path, "[FedProx]")
    got, notes = apply_tuned(asked, record("local-dir:../shared/realfeat"))
    assert got.trainers[0].tuned == {}
    assert notes == ["the values were tuned on local-dir:realfeat; on tiny methods use their "
                     "defaults: FedProx"]
    got, notes = apply_tuned(asked, record("local-dir:../shared/realfeat"), anywhere=True)
    assert got.trainers[0].tuned == {"OPTIM.LR": "0.2"}
    assert notes == ["the values were tuned on local-dir:realfeat; also used on tiny "
                     "(--tuned-anywhere)"]
    moved = sweep(tmp_path, "[FedProx]", "--backbone", "local-dir:/data/realfeat")
    assert apply_tuned(moved, record("local-dir:../shared/realfeat"))[0].trainers[0].tuned


def test_what_is_trained_agrees_both_ways_and_what_a_plan_sets_is_not_tuned(tmp_path: Path) -> None:
    asked = sweep(tmp_path, """
  - FedProx
  - {name: FedProx, tag: ft, finetune-epochs: 5}
  - {name: FedProx, tag: head, peft: feature+head}
  - {name: FedProx, tag: same, PEFT.TEXT: prompt, finetune-epochs: -1}
""")
    tuning = record()
    tuning["entries"][2]["values"] |= {"FED.LOCAL_EPOCHS": "4"}
    assert [bool(e.tuned) for e in apply_tuned(asked, tuning)[0].trainers] == [
        True, False, False, True]
    busier = replace(asked, common={**asked.common, "FED.LOCAL_EPOCHS": "2"})
    got, notes = apply_tuned(busier, tuning)
    assert got.trainers[0].tuned == {"OPTIM.LR": "0.2"}
    assert ("the plan sets FED.LOCAL_EPOCHS, so its tuned values are not used: FedProx, "
            "FedProx (same)") in notes


@pytest.mark.parametrize(("common", "label"), [
    ({}, "searched"),
    ({"FED.LOCAL_EPOCHS": "2"}, "held"),
    ({"FED.LOCAL_EPOCHS": "9", "FED.LOCAL_STEPS": "3"}, "steps"),  # epochs do not count
    ({"FED.LOCAL_STEPS": "2"}, "held"),  # none is the same; the first
])
def test_local_work_that_a_plan_sets_is_that_of_the_tuning_whose_values_it_takes(
    tmp_path: Path, common: dict[str, str], label: str
) -> None:
    tuning = record()
    tuning["entries"] = [
        entry("held", "FedProx", "0.2", **{"FED.LOCAL_EPOCHS": "2"}),
        entry("searched", "FedProx", "0.7"),
        entry("steps", "FedProx", "0.1", **{"FED.LOCAL_STEPS": "3"}),
    ]
    tuning["entries"][1]["values"] |= {"FED.LOCAL_EPOCHS": "4"}
    plain = sweep(tmp_path, "[FedProx]")
    got, notes = apply_tuned(replace(plain, common={**plain.common, **common}), tuning)
    assert got.trainers[0].tuned == next(
        e["values"] for e in tuning["entries"] if e["label"] == label)
    assert notes == [f"FedProx uses the values tuned for {label}"]


def test_the_published_plans_take_what_was_tuned_for_their_like() -> None:
    """Each entry that was tuned on its setting's backbone; variants of a method take the method's.

    A context for each class was not tuned.

    A setting without local work of its own takes the values of those that had it searched.
    """
    tuning = read_plan(ROOT / "configs" / "sweeps" / "tune.yaml")
    work = {"FED.LOCAL_EPOCHS", "FED.LOCAL_STEPS"}
    free = {e.label for e in tuning.trainers if not work & set(e.settings)}
    content = {"plan": tuning.content(), "entries": [
        {"label": e.label, "trainer": e.name, "settings": e.settings,
         "values": {"WHO": e.label} | ({"FED.LOCAL_EPOCHS": "4"} if e.label in free else {})}
        for e in tuning.trainers
    ]}
    inside_vit = {e.label for e in tuning.trainers if "distilled/vit" in str(e.settings)}
    elsewhere = {e.label for e in tuning.trainers} - inside_vit - free
    assert inside_vit and elsewhere and free
    for path in sorted((ROOT / "configs" / "results").rglob("*.yaml")):
        plan = read_plan(path)
        chosen = not work & set(plan.common)
        assert chosen == ("local_work" in path.name)
        like = inside_vit if "distilled/vit" in str(plan.common) else free if chosen else elsewhere
        got, _ = apply_tuned(plan, content)
        assert {e.label: e.tuned.get("WHO", "") for e in got.trainers} == {
            e.label: next((name for name in (_working(e.label) if chosen else (e.label, e.name))
                           if name in like and "PEFT.CSC" not in e.settings), "")
            for e in got.trainers
        }, path
        assert not chosen or all(e.tuned["FED.LOCAL_EPOCHS"] == "4" for e in got.trainers)


def _working(label: str) -> tuple[str, ...]:
    """Return what the tuning calls an entry whose local work it searched."""
    return f"{label} (work)", label.replace("(ft)", "(ft, work)")


@pytest.mark.parametrize("key", ["CACHE_DIR", "TRAINER.NAME", "OUTPUT_DIR", "FED.ROUNDS",
                                 "MODEL.INIT_WEIGHTS", "TRAINER.FEDAVG.OTHER"])
def test_values_lie_in_the_space_that_was_searched(tmp_path: Path, key: str) -> None:
    """A tuned file names no folder and no method, and sets nothing that the plan decides."""
    told = record()
    told["entries"][0] |= {"space": ["OPTIM.LR 0.002 to 2 log"]}
    told["entries"][0]["values"][key] = "/tmp/x"
    write_tuned(tmp_path / "tuned.json", told)
    with pytest.raises(DataError, match=f"{key}, which is not in the space"):
        read_tuned(tmp_path / "tuned.json")
