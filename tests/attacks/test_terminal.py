"""No verb writes a hostile name to the terminal or into a table as it is."""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.core.spelling import visible_text
from fedvlm.data.get.unpack import unpack_archive
from fedvlm.data.partition.index_file import canonical_hash
from fedvlm.runs.verify.cover import cover
from tests import jobs
from tests.attacks.forge import edit

ESC, TURN = "\x1b[2J", "\u202e"
HOSTILE = f"=cmd|'/C calc'!A0{ESC}{TURN}x"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose classes, tag and notes somebody renamed and sealed again."""
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, "--trainer", "FedAvg", "--peft", "prompt") == 0
    folder = jobs.folder(output)
    path = folder / "partition.json"
    told = json.loads(path.read_text())
    old = told["classnames"][0]
    told["classnames"][0] = HOSTILE
    told["sha256"] = canonical_hash({k: v for k, v in told.items() if k != "sha256"})
    path.write_text(json.dumps(told))
    rows = list(csv.reader(io.StringIO((folder / "partition.csv").read_text())))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [[f"'{HOSTILE}" if cell == old else cell for cell in row] for row in rows])
    (folder / "partition.csv").write_text(text.getvalue(), newline="")

    config = folder / "config.yaml"
    tag = f"TAG: {json.dumps(HOSTILE)}"
    config.write_text(re.sub(r"(?m)^TAG: .*", lambda _: tag, config.read_text()))

    def change(record: dict) -> None:
        record["protocol"]["tag"] = HOSTILE
        record["run_info"]["notes"] = [HOSTILE]
        record["covers"] = cover(folder)

    edit(folder / "results.json", change)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in (f"=1+1\n{ESC}.png", f"{TURN}gpj.png", "@x\x9b31m.png"):
        Image.new("RGB", (8, 8), "red").save(folder / name)
    return folder


@pytest.mark.parametrize("words", [
    ["predict", "RUN", "IMAGES"], ["predict", "RUN", "IMAGES", "--top", "2"],
    ["predict", "RUN", "IMAGES", "--csv"], ["predict", "RUN", "IMAGES", "--json"],
    ["predict", "RUN", "IMAGES/none" + ESC], ["verify", "RUN"], ["table", "RUN"], ["show", "RUN"],
    ["compare", "RUN", "RUN"], ["verify", "RUN", "--replay", "1"],
    ["evaluate", "RUN", "--images", "IMAGES"], [f"{ESC}verb"], ["run", f"--{ESC}"],
], ids=lambda words: " ".join(words).replace(ESC, "ESC"))
def test_no_verb_writes_a_raw_escape(
    run: Path, images: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([w.replace("RUN", str(run)).replace("IMAGES", str(images)) for w in words])
    told = "".join(capsys.readouterr())
    assert told and not {"\x1b", "\x9b", TURN, "\r"} & set(told)
    if "--csv" in words:
        cells = [cell for row in csv.reader(io.StringIO(told)) for cell in row]
        assert any(cell.startswith("'=") for cell in cells)
        assert not any(cell.startswith(("=", "@", "+")) for cell in cells)
    if words[0] == "predict" and "--json" not in words:
        assert "\\x1b" in told


PLAN = r"""name: "a\x1b[2J"
output_dir: "OUT\x1b"
common: {backbone: tiny, rounds: 1, shots: 2, num-users: 2, tag: "t\x1b[2J\u202e"}
datasets: [{name: WHICH, label: "=d\x1b[2J"}]
trainers: [{name: FedAvg, label: "m\x1b[2J\u202e"}, "no\x1b[2J"]
"""


@pytest.mark.parametrize("words", [
    ["sweep", "PLAN", "--list"], ["sweep", "PLAN", "--dry-run"], ["tune", "PLAN", "--dry-run"],
    ["tune", "--report", "PLAN"], ["sweep", "PLAN", "--only", ESC],
], ids=lambda words: " ".join(words).replace(ESC, "ESC"))
@pytest.mark.parametrize("which", ["digits", r'"x\x1b[2J"'], ids=["known", "unknown"])
def test_no_label_of_a_plan_writes_a_raw_escape(
    tmp_path: Path, words: list[str], which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.replace("OUT", str(tmp_path / "o")).replace("WHICH", which))
    main([w.replace("PLAN", str(plan)) for w in words])
    told = "".join(capsys.readouterr())
    assert told and not {"\x1b", "\x9b", TURN, "\r"} & set(told)


@pytest.mark.parametrize("words", [
    ["report", "RUN", "--into", "TO/page.html"], ["figures", "RUN", "--into", "TO"],
    ["export", "RUN", "--to", "TO/model"],
], ids=lambda words: words[0])
def test_what_a_verb_writes_has_no_raw_escape(
    run: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither on the screen nor in pages, tables, cards and sources of figures."""
    main([w.replace("RUN", str(run)).replace("TO", str(tmp_path)) for w in words])
    told = "".join(capsys.readouterr())
    assert told and not {"\x1b", "\x9b", TURN, "\r"} & set(told)
    for path in tmp_path.rglob("*"):
        if path.suffix in (".html", ".csv", ".md", ".tex", ".svg", ".txt", ".json", ".py"):
            text = path.read_text(encoding="utf-8")
            assert not {"\x1b", "\x9b"} & set(text), path
            if path.suffix == ".csv":
                cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
                assert not any(cell.startswith("=") for cell in cells), path


def test_letters_of_every_script_stay() -> None:
    assert visible_text("Grüße 日本語 العربية 👍") == "Grüße 日本語 العربية 👍"
    assert visible_text("a\x1b\u202eb") == "a\\x1b\\u202eb"
    assert visible_text("a\nb", "\n") == "a\nb"


@pytest.mark.parametrize("name", [f"a/{ESC}.png", "a\nb.png", f"{TURN}x.png", ".git/hooks/x",
                                  "a/.GIT/config"])
def test_members_of_archives_with_such_names_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DataError, match="nothing of it was kept") as told:
        unpack_archive(tmp_path / "a.tar", tmp_path / "to")
    assert not {"\x1b", "\n", TURN} & set(str(told.value))
    assert not (tmp_path / "to").exists() or not any((tmp_path / "to").rglob("*"))
