"""A run is compared with baselines, whatever it streams; they are made once, and move no number."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.evaluation import zero_shot
from fedvlm.evaluation.references.suite import NAMES
from fedvlm.job.build import Built, build_run
from fedvlm.job.flags import parse
from fedvlm.job.record import make_panel
from fedvlm.job.resolve import resolve
from fedvlm.job.results import references as module
from fedvlm.job.results.references import reference_rows, take_baselines
from fedvlm.runs.verify.answer import answer_lines
from tests import jobs


@pytest.fixture(scope="module")
def built() -> Built:
    return build_run(resolve(parse(jobs.argv(Path("/nowhere")))).jobs[0].cfg)


def rows(built: Built) -> dict[str, Any]:
    panel = make_panel(built)
    record = zero_shot(built.model, built.test, built.data, panel, built.meter.template)
    return reference_rows(built, panel, record)


def test_a_finished_run_stands_beside_them(quick_run: Path) -> None:
    results = jobs.results(quick_run)
    found, last = results["references"], results["last"]
    assert list(found) == list(NAMES)
    for one in found.values():
        assert [r["client"] for r in one["clients"]] == [r["client"] for r in last["clients"]]
        assert [r["n"] for r in one["clients"]] == [r["n"] for r in last["clients"]]
    zero = results["zero_shot"]["personal"]
    assert found["zero_shot"]["personal"] == zero
    alone = {n: r["personal"] for n, r in found.items() if r["kind"] == "alone"}
    best = max(alone.values())
    assert results["gain"]["points"] == last["personal"] - best
    better = {n for n, r in found.items() if r["kind"] != "bound"
              and r["personal"] > last["personal"]}
    assert {one["reference"] for one in results["below"]} == better
    assert results["hurt"]["of"] == 2
    spent = results["spent"]
    assert (spent["local_steps"], spent["final_epochs"], spent["bytes_up"] > 0) == (4, 0, True)
    assert {"personal_balanced", "personal_q1", "personal_nll", "personal_ece"} <= set(last)
    assert last["personal_before_ft"] == last["personal"]
    labels = [row[""] for row in results["table"]]
    assert "logistic regression" in labels and "personal_before_ft" not in results["table"][-1]


def test_they_are_made_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again from the file; a damaged one is not believed, and other code makes them anew."""
    first = rows(built)
    panel = make_panel(built)
    file = module._path(built, panel, panel.clients)
    text = file.read_text()
    made: list[int] = []
    plain = module.references
    monkeypatch.setattr(module, "references", lambda asked: made.append(1) or plain(asked))
    monkeypatch.setattr(module, "of_class_names", lambda *_: made.append(2))
    assert rows(built) == first and made == []
    for name, said in (("templates", ("another {}",)), ("classnames", built.model.classnames[1:]),
                       ("bf16_text", True)):  # other texts
        with monkeypatch.context() as patch:
            patch.setattr(built.model, name, said)
            with pytest.raises(TypeError):
                reference_rows(built, panel, {"clients": first["zero_shot"]["clients"]})
        assert made.pop() == 2
    content = json.loads(text)
    content["references"]["logreg"]["personal"] = 99.5
    for damage in (json.dumps(content), text[:-20], "[]"):
        file.write_text(damage)
        assert rows(built) == first
        assert file.read_text() == text
    assert len(made) == 3


def test_a_method_on_pixels_has_them_too(built: Built) -> None:
    """From frozen features out of the store, on the plain path and without its zero-shot row."""
    pixels = build_run(resolve(parse([*jobs.argv(Path("/nowhere")), "--plain"])).jobs[0].cfg)
    assert pixels.test.streams == ("pixels",)  # type: ignore[attr-defined]
    found = reference_rows(pixels, make_panel(pixels), None)
    want = rows(built)
    of_text = ("zero_shot", "logreg_names")
    assert list(found) == [n for n in NAMES if not n.startswith(of_text)]
    for name, one in found.items():
        assert one["personal"] == pytest.approx(want[name]["personal"], abs=2.0)


def test_a_replay_makes_them_again(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is neither read nor written, however good its digest."""
    panel, files = make_panel(built), list[str]()
    monkeypatch.setattr(module, "_read", lambda _: files.append("read"))
    monkeypatch.setattr(module, "_keep", lambda *_: files.append("kept"))
    again = reference_rows(built, panel, None, afresh=True)
    record = zero_shot(built.model, built.test, built.data, panel, built.meter.template)
    assert "logreg_names" in reference_rows(built, panel, record, afresh=True)
    assert files == []
    assert again == reference_rows(built, panel, None) and files == ["read", "kept"]


def test_they_tell_which_images_are_right(built: Built) -> None:
    """All but chance, the template's too; then nothing of it is left in their lines."""
    panel = make_panel(built)
    record = zero_shot(
        built.model, built.test, built.data, panel, built.meter.template, answers=True)
    found = reference_rows(built, panel, record)
    right = take_baselines(found, record)
    assert {name for name, each in right.items() if each} == {*NAMES} - {"chance"}
    for name, each in right.items():
        for row in found[name]["clients"]:
            assert row.keys() == {"client", "n", "correct", "accuracy", "balanced"}
            bits = each.get(row["client"])
            assert bits is None or (len(bits), bits.sum()) == (row["n"], row["correct"])
    assert not any("right" in key for row in record["clients"] for key in row)


def test_by_class_and_without_references(quick_run: Path, tmp_path: Path) -> None:
    """The same run to the bit: what is asked for beside it is no part of its identity."""
    more = ("TEST.PER_CLASS_RESULT", "True", "TEST.COMPUTE_CMAT", "True", "TEST.REFERENCES",
            "False")
    assert jobs.run(tmp_path, "--opts", *more) == 0
    left, right = jobs.records(tmp_path), jobs.records(quick_run)
    left[-1].pop("confusion")
    assert left == right
    here, there = (json.loads((jobs.folder(p) / "results.json").read_text())
                   for p in (tmp_path, quick_run))
    assert here["identity_digest"] == there["identity_digest"]
    results = here["results"]
    assert not {"references", "below", "gain", "hurt"} & set(results)
    lines = results["per_class"]["personal"]
    clients = results["last"]["clients"]
    for name in ("n", "correct"):
        assert sum(x[name] for x in lines) == sum(c[name] for c in clients)
    assert "confusion" not in results["last"]
    assert sum(n for *_, n in results["confusion"]["global"]) == sum(
        x["n"] for x in results["per_class"]["global"]
    )
    found = torch.load(jobs.folder(tmp_path) / "cmat.pt", weights_only=True)
    assert torch.allclose(found.sum(1), torch.ones(len(lines)).double())
    log = (jobs.folder(tmp_path) / "log.txt").read_text().splitlines()
    at = log.index("=> per-class result")
    first = lines[0]
    assert log[at + 1].split("\t")[:2] == [f"* class: 0 ({first['name']})", f"total: {first['n']}"]
    assert log[-1].startswith("* average: ") and log[at - 1].startswith("* macro_f1: ")


def test_a_finished_run_says_what_it_has_not(
    quick_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*jobs.argv(quick_run), "--opts", "TEST.COMPUTE_CMAT", "True"]) == 0
    told, results = capsys.readouterr().out, jobs.results(quick_run)
    assert "the run did not record TEST.COMPUTE_CMAT" in told
    assert f"({' '.join(results['next']['flags'])}).\n  fedvlm run " in told
    for line in answer_lines(results, "FedTV"):  # what it ended with
        assert line in told and line in (jobs.folder(quick_run) / "log.txt").read_text()


def test_the_next_command_starts_and_is_none_that_has_been_run(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder may hold another run, finished or not."""
    output = shutil.copytree(quick_run, tmp_path / "run")

    def shown() -> str:
        capsys.readouterr()
        assert main(jobs.argv(output)) == 0
        return capsys.readouterr().out

    def proposed(told: str) -> list[str]:
        (line,) = [line for line in told.splitlines() if line.startswith("  fedvlm run ")]
        return shlex.split(line)[2:]

    first = proposed(told := shown())
    (following,) = [line for line in told.splitlines() if line.startswith("Next: ")]
    other = [*first, "--opts", "OPTIM.WEIGHT_DECAY", "0.1", "--rounds", "1"]
    assert main(other) == 0  # of other settings: in its folder the command would be refused
    (done,) = {p.parent for p in output.rglob("results.json")} - {jobs.folder(quick_run)} - {
        output / jobs.folder(quick_run).relative_to(quick_run)}
    words = proposed(told := shown())
    assert words == [*first, "--tag", "next-2"] and following in told
    (done / "results.json").unlink()  # nor need it be finished
    assert proposed(shown()) == words
    assert main(words) == 0
    told = shown()
    assert "which would come next, has been run: " in told and "next-2" in told
    assert following not in told and "  fedvlm run " not in told


def test_so_does_one_that_lost_its_results_and_is_resumed(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = shutil.copytree(quick_run, tmp_path / "run")
    (jobs.folder(output) / "results.json").unlink()
    more = ("TEST.COMPUTE_CMAT", "True", "TEST.PER_CLASS_RESULT", "True")
    assert jobs.run(output, "--opts", *more) == 0
    told = capsys.readouterr().out
    assert "did not record TEST.COMPUTE_CMAT" in told
    assert "did not record TEST.PER_CLASS_RESULT" in told
    assert not {"confusion", "per_class"} & set(jobs.results(output))
    assert not (jobs.folder(output) / "cmat.pt").exists()
