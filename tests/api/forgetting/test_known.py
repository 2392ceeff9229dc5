"""Who still knows what is forgotten: exports, packs, packs of runs, choices, caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.api.forget import plan_forgetting
from fedvlm.api.forgetting import known as room
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.runs.cells import pack_runs
from tests import jobs
from tests.data.miniatures.own import write_tree

RUN = ("--trainer", "FedAvg", "--rounds", "1", "TEST.REFERENCES", "False")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, *RUN, "--num-users", "3") == 0
    return jobs.folder(output)


def told(run: Path, *look: Path) -> dict[str, str]:
    return {str(p): what for p, what in plan_forgetting(
        run, client="1", look=[str(p) for p in look]).known}


def test_exports_of_the_run_are_listed_where_they_are_looked_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this run alone, in the working folder and in others that are named; not of another run."""
    near, far = tmp_path / "here" / "model", tmp_path / "there" / "models"
    near.parent.mkdir()
    for place, client in ((near, "1"), (far, "all")):
        assert main(["export", str(run), "--client", client, "--to", str(place),
                     "--format", "safetensors"]) == 0
    assert jobs.run(tmp_path / "other", *RUN, "--num-users", "2") == 0
    assert main(["export", str(jobs.folder(tmp_path / "other")), "--to",
                 str(near.parent / "other"), "--format", "safetensors"]) == 0
    what = "a model that was exported from the run"
    assert what not in told(run).values()
    found = told(run, far)
    assert [p for p, w in found.items() if w == what] == [
        str(far / name) for name in ("client-0", "client-1", "client-2", "global")]
    monkeypatch.chdir(near.parent)
    assert [p for p, w in told(run).items() if w == what] == [str(near)]


def test_packs_with_the_images_are_listed(run: Path, tmp_path: Path) -> None:
    """By the names in them; one of another set is not."""
    photos, packs = write_tree(tmp_path / "photos", [""], ["cat", "dog"], 6), tmp_path / "packs"
    packs.mkdir()
    for words in (["--dataset", "shapes"], ["--images", str(photos)]):
        assert main(["features", *words, "--backbone", "tiny", "--pack", str(packs)]) == 0
    made = sorted(p.name.lower() for p in (tmp_path / "packs").iterdir())
    assert made == ["photos.pack.safetensors", "shapes.pack.safetensors"]
    found = [Path(p).name.lower() for p, w in told(run, tmp_path).items() if "feature pack" in w]
    assert found == ["shapes.pack.safetensors"]
    (tmp_path / "packs" / "cut.pack.safetensors").write_bytes(b"12345678")
    assert told(run, tmp_path)[str(tmp_path / "packs" / "cut.pack.safetensors")].endswith(
        "cannot be read: look at it yourself")


def test_packs_of_runs_and_tuned_values_are_listed(run: Path, tmp_path: Path) -> None:
    tail = "/".join(run.parts[-3:])
    pack_runs([(tail, run)], tmp_path / "mine.cells.xz")
    pack_runs([("other/run", run)], tmp_path / "other.cells.xz")
    (tmp_path / "tuned.json").write_text("{}")
    found = told(run, tmp_path)
    assert "clients' results" in found[str(tmp_path / "mine.cells.xz")]
    assert str(tmp_path / "other.cells.xz") not in found
    assert "choices may rest" in found[str(tmp_path / "tuned.json")]


def test_the_working_folder_is_looked_at_so_deep_only(tmp_path: Path) -> None:
    deep = tmp_path
    for level in range(room.DEPTH + 2):
        (deep / "a.txt").write_text(str(level))
        deep = deep / "below"
        deep.mkdir()
    levels = [len(file.relative_to(tmp_path).parts) for file, _ in room._files(
        [(tmp_path, room.DEPTH), (tmp_path, 0)])]
    assert levels == list(range(1, room.DEPTH + 2)), "each once, to a depth"


def test_a_folder_that_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--look .*nowhere: there is no such folder"):
        plan_forgetting(run, client="1", look=[str(tmp_path / "nowhere")])
    assert main(["forget", str(run), "--client", "1", "--dry-run", "--look", str(tmp_path)]) == 0
