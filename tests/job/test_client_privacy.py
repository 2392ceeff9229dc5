"""``FED.DP`` in the real job: results, files, engines, and what is refused before data are read."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from fedvlm.api.run import load
from fedvlm.cli import main as cli
from fedvlm.config.keys import default_schema
from fedvlm.job.identity import identity_config
from fedvlm.job.resolve import run_config
from fedvlm.report.figures.drawing.levels import levels_of
from fedvlm.report.tables.cells import BELOW
from fedvlm.runs.finished import find_finished
from fedvlm.runs.verify.answer import BASELINES, COMPARED, UNCOVERED
from tests import jobs
from tests.job.engines.test_workers import with_workers
from tests.job.test_image_privacy import KILLED

KEYS = (
    "--num-users", "4", "--trainer", "PromptFL", "TEST.REFERENCES", "False", "FED.FRAC", "0.7",
    "FED.DP.CLIP", "0.1", "FED.DP.NOISE", "1", "FED.DP.DELTA", "1e-5",
)


def test_results_have_epsilon_and_no_number_of_a_single_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "local", tmp_path / "workers"
    assert jobs.run(one, *KEYS) == 0
    spent = jobs.results(one)["privacy"]
    assert spent["unit"] == "client" and spent["epsilon"] <= spent["epsilon_bound"]
    told = json.loads((jobs.folder(one) / "results.json").read_text())
    assert told["protocol"]["privacy"] == spent["words"]
    log = (jobs.folder(one) / "log.txt").read_text()
    assert "with 4 clients, noise that hides one of them drowns their sum" in log
    assert f"privacy: {spent['words']}" in log
    assert "whether one client was used" in log and "protects nobody" not in log  # epsilon 6
    for record in jobs.records(one):
        assert not any(record["train"].values()) and "similarity" not in record
        assert record["update_norm"] == record["update_cosine"] == {}
    released = json.loads((jobs.folder(one) / "released.json").read_text())
    assert released["sent"]["metrics"] == {} and released["privacy"] == spent["words"]
    assert with_workers(two, monkeypatch, *KEYS, "--workers", "2")[0] == 0
    jobs.same(one, two)


@pytest.mark.parametrize(("words", "said"), [
    (("--trainer", "SCAFFOLD"), "FED.DP does not cover SCAFFOLD: its clients send control"),
    (("FED.DP.DELTA", "0"), "FED.DP.DELTA 0: give a delta above 0"),
    (("FED.AGGREGATOR", "median"), "FED.DP with FED.AGGREGATOR median"),
    (("FED.DP.CLIP", "0", "FED.DP.NOISE", "0", "FED.DP.DELTA", "0", "FED.DP.QUANTILE", "0.5"),
     "FED.DP.CLIP 0: differential privacy needs a bound"),  # a bound that follows nothing
])
def test_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: tuple[str, ...], said: str
) -> None:
    assert jobs.run(tmp_path, *KEYS, *words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_bound_that_follows_the_moves_is_kept_with_the_state(tmp_path: Path) -> None:
    one, two = tmp_path / "local", tmp_path / "stopped"
    more = (*KEYS, "FED.DP.QUANTILE", "0.5")
    assert jobs.run(one, *more) == 0
    bounds = [r["aggregation"]["bound"] for r in jobs.records(one) if r["round"]]
    assert bounds[0] == 0.1 and bounds[1] != 0.1
    assert "at first, then by the noised share" in jobs.results(one)["privacy"]["words"]
    assert jobs.spawn(two, *more, before=KILLED).returncode == 9
    assert jobs.run(two, *more) == 0
    jobs.same(one, two)
    assert jobs.run(tmp_path, *more, "FED.DP.UNIT", "image") == 2


def test_weights_that_become_equal_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """FedTV's server weighs by single updates; it gets one noised mean, and the run says so."""
    said = "weights by similarity are all equal then"
    assert jobs.run(tmp_path, *KEYS, "--trainer", "FedTV", "--dry-run") == 0
    assert said in capsys.readouterr().out
    assert jobs.run(tmp_path, *KEYS, "--dry-run") == 0  # PromptFL: a mean anyway
    assert said not in capsys.readouterr().out


def test_weights_by_similarity_are_kept_by_a_second_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """FedTV's from round 2 on, those of a rule by name from round 1; others are refused."""
    more = (*KEYS, "FED.DP.SIMILARITY", "True")
    assert jobs.run(tmp_path, *more, "--trainer", "FedTV", "--rounds", "2") == 0
    said = [r["aggregation"].get("mean_weight") for r in jobs.records(tmp_path) if r["round"]]
    assert said[0] is None and set(said[1]) >= {"text.sigma"}
    assert all(0 < v <= 1 for v in said[1].values())
    assert not any("aggregation_weights" in r.get("aggregation", {})
                   for r in jobs.records(tmp_path))  # equal ones of one mean would mislead
    assert "weights by similarity as two sums" in jobs.results(tmp_path)["privacy"]["words"]
    assert jobs.run(tmp_path, *more, "FED.AGGREGATOR", "similarity", "--dry-run") == 0
    assert "temperature 1, by a second noised sum" in capsys.readouterr().out
    for words, why in (
        ((), "the server of PromptFL with FED.AGGREGATOR auto gives no weights by similarity"),
        (("--trainer", "FedTV", "FED.AGGREGATOR", "mean"), "FED.AGGREGATOR mean gives no weights"),
        (("FED.DP.UNIT", "image"), "FED.DP.SIMILARITY True with FED.DP.UNIT image"),
        (("--trainer", "FedTV", "FED.DP.CLIP", "0"), "FED.DP.CLIP 0: differential privacy needs"),
    ):
        assert jobs.run(tmp_path / "other", *more, *words) == 2
        assert why in capsys.readouterr().err


def test_no_reader_shows_baselines_that_go_around_the_guarantee(
    tmp_path: Path, capsys: pytest.CaptureFixture,
) -> None:
    """Console, log, table, page, figures and model card say the one sentence instead."""
    out = tmp_path / "out"
    labels = {*BASELINES.values()} - {"zero-shot"}
    words = (*KEYS, "TEST.REFERENCES", "True")
    told = []
    for _ in range(2):  # a run, and the same that is finished already
        assert jobs.run(out, *words) == 0
        told.append(capsys.readouterr().out)
    assert set(jobs.results(out)["references"]) >= {"logreg", "afl", "pooled"}  # they are known
    told.append((jobs.folder(out) / "log.txt").read_text())
    assert cli.main(["table", str(out), "--reference"]) == 0
    told.append(capsys.readouterr().out)
    assert BELOW not in told[-1] and "gain (points)" not in told[-1]
    page = tmp_path / "page.html"
    assert cli.main(["report", str(out), "--into", str(page)]) == 0
    told.append(unescape(re.sub("<[^>]*>", " ", page.read_text())))
    told.append("\n".join(load(jobs.folder(out)).global_model.facts.notes))
    for text in told:
        assert UNCOVERED in text
        assert not [label for label in labels
                    if re.search(rf"^ *{re.escape(label)} ", text, re.M)]
    run = find_finished(jobs.folder(out))
    assert [level.name for level in levels_of([run], "personal")] == ["zero-shot"]
    assert not any(run.section(name) for name in COMPARED)


@pytest.mark.parametrize(("words", "why"), [
    (("--trainer", "Ditto", "--peft", "head", "TEST.SELECT", "val"),
     "its personal part is trained without noise"),
    (("--finetune-epochs", "1"), "it is fine-tuned without noise"),
])
def test_a_clients_own_model_is_not_claimed_to_be_covered(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    """In no place that says epsilon; a card of such a model has no epsilon."""
    assert jobs.run(tmp_path, *KEYS, *words) == 0
    folder, spent = jobs.folder(tmp_path), jobs.results(tmp_path)["privacy"]
    limits = f"a client's own model ({why}: it must stay with the client)"
    assert limits in spent["words"] and "whoever gets the shared model;" in spent["words"]
    assert ("TEST.SELECT val chooses a round" in spent["words"]) == ("Ditto" in words)
    assert "validation images" in spent["words"] and spent["own_models"] == why
    told = [json.loads((folder / f"{name}.json").read_text()) for name in ("results", "released")]
    assert told[0]["protocol"]["privacy"] == spent["words"] == told[1]["privacy"]
    log = (folder / "log.txt").read_text()
    assert log.count(limits) >= 2, "at the start and at the end"
    assert "guesses from the shared model whether" in log
    run = load(folder)
    mine, shared = ("\n".join(one.facts.notes) for one in (run.client(0), run.global_model))
    assert limits in mine and "epsilon" not in mine and "not covered by the run's" in mine
    assert spent["words"] in shared


def test_a_saved_config_keeps_its_noise(tmp_path: Path) -> None:
    """It means the Renyi bound, and is the run that it was; new runs have less noise."""
    (tmp_path / "config.yaml").write_text(
        "TRAINER: {NAME: PromptFL}\nFED: {DP: {CLIP: 0.1, EPSILON: 8.0, DELTA: 1.0e-5}}\n")
    old, new = (run_config(tmp_path, keys) for keys in ({}, {"FED.DP.TIGHT": "True"}))
    assert not old.FED.DP.TIGHT and default_schema()["FED.DP.TIGHT"].default
    assert "FED.DP.TIGHT" not in identity_config(old) and identity_config(new)["FED.DP.TIGHT"]


def test_readers_of_runs_take_baselines_from_one_place() -> None:
    """``FinishedRun.section`` keeps out what goes around a guarantee; the raw results do not."""
    for room in ("report", "export", "cli", "sweep"):
        for file in (jobs.REPOSITORY / "fedvlm" / room).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for name in COMPARED[:-2]:
                assert not re.search(rf"results(\.get\(|\[)[\"']{name}", text), (file, name)
