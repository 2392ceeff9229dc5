"""A run folder of somebody else's is data: no verb runs the code that it names, unless asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import fedvlm
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import code_digest
from fedvlm.runs.verify.cover import cover
from tests import jobs
from tests.attacks.forge import copy, edit

EVIL = '''"""Evil: writes a file when it is imported."""
from pathlib import Path
from fedvlm.federation.trainer import Trainer

Path(__file__).with_name("RAN").write_text("x")


class Evil(Trainer):
    name = "FedAvg"
'''
OWN = '''"""Own: FedAvg under another name."""
from fedvlm.method import PeftTrainer


class Own(PeftTrainer):
    name = "Own"
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, "--trainer", "FedAvg", "--peft", "prompt") == 0
    return jobs.folder(output)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("images")
    for name in ("one", "two"):
        (top / name).mkdir()
        for at in range(4):
            Image.new("RGB", (32, 32), ("red", "green", "blue", "gray")[at]).save(
                top / name / f"{at}.png")
    return top / "one" / "0.png"


def name_code(folder: Path, spec: str) -> None:
    """Let a run folder's config name a file, and seal the folder again."""
    config = folder / "config.yaml"
    lines = config.read_text().splitlines()
    at = lines.index("TRAINER:")
    (name,) = [i for i in range(at, len(lines)) if lines[i].startswith("  NAME:")][:1]
    lines[name] = f"  NAME: {spec}"
    config.write_text("\n".join(lines) + "\n")
    edit(folder / "results.json", lambda r: r.update(covers=cover(folder)))


READERS: dict[str, Callable[[str, str, str], list[str]]] = {
    "verify": lambda run, image, to: ["verify", run],
    "replay": lambda run, image, to: ["verify", "--replay", "1", run],
    "table": lambda run, image, to: ["table", run],
    "report": lambda run, image, to: ["report", run],
    "show": lambda run, image, to: ["show", run],
    "compare": lambda run, image, to: ["compare", run, run],
    "predict": lambda run, image, to: ["predict", run, image],
    "export": lambda run, image, to: ["export", run, "--to", to, "--format", "safetensors"],
    "evaluate": lambda run, image, to: ["evaluate", run, "--images", str(Path(image).parents[1])],
    "adapt": lambda run, image, to: ["adapt", run, "--images", str(Path(image).parents[1]),
                                     "--to", to],
    "config file": lambda run, image, to: ["run", "--demo", "--dry-run", "--config-file",
                                           f"{run}/config.yaml"],
}
ASKS = ("replay", "predict", "export", "evaluate", "adapt", "config file")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("form", ["{}/evil.py", "{}/evil.py:Evil", "{}/evil.py+FedAS"])
def test_no_reader_runs_the_code_that_a_folder_names(
    run: Path, image: Path, tmp_path: Path, reader: str, form: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copy(run, tmp_path / "run")
    (folder / "evil.py").write_text(EVIL)
    name_code(folder, form.format(folder))
    code = main(READERS[reader](str(folder), str(image), str(tmp_path / "to")))
    told = "".join(capsys.readouterr())
    assert not (folder / "RAN").exists() and "Traceback" not in told
    if reader in ASKS:
        assert code in (2, 3) and "which is a program: it was not run" in told
        assert str(folder / "evil.py") in told and f"--trainer {folder}/evil.py" in told


def test_what_a_refusal_names_lets_one_go_on(tmp_path: Path, image: Path) -> None:
    """By the file where it is now, if it is the run's; or by the digest."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert jobs.run(tmp_path / "out", "--trainer", f"{file}:Own") == 0
    folder = jobs.folder(tmp_path / "out")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "private.json").unlink()  # as on another machine
    words = ["predict", str(folder), str(image)]
    assert main(words) == 2  # no such file here
    moved = elsewhere / "own.py"
    shutil.copy(file, moved)
    assert main([*words, "--trainer", str(moved)]) == 0
    assert main(["verify", "--replay", "1", str(folder), "--trainer", str(moved)]) == 0
    moved.write_text(OWN + "# another file\n")
    with pytest.raises(ConfigError, match="was made with a file of the digest"):
        fedvlm.load(folder, trainer=str(moved)).clients  # noqa: B018
    digest = code_digest([moved])
    run = fedvlm.load(folder, trainer=str(moved), trust_code=digest)
    assert run.clients == 2


def test_the_digest_of_the_file_that_a_folder_names_is_enough(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path / "run")
    (folder / "own.py").write_text(OWN)
    name_code(folder, f"{folder}/own.py:Own")
    with pytest.raises(ConfigError, match="is not its digest"):
        fedvlm.load(folder, trust_code="0" * 64).clients  # noqa: B018
    with pytest.raises(ConfigError) as told:
        fedvlm.load(folder).clients  # noqa: B018
    digest = code_digest([folder / "own.py"])
    assert f"--trust-code {digest}" in str(told.value)
    assert fedvlm.load(folder, trust_code=digest).clients == 2


def test_private_json_moves_no_setting_but_to_its_place(run: Path, tmp_path: Path) -> None:
    """It may say where what the config names lies here; nothing vouches for it."""
    folder = copy(run, tmp_path / "run")
    (folder / "evil.py").write_text(EVIL)
    (folder / "private.json").write_text(json.dumps({"sessions": [], "config": {
        "TRAINER.NAME": f"{folder}/evil.py", "CACHE_DIR": str(tmp_path / "cache"),
        "OPTIM.LR": 7.0,
    }}))
    cfg = fedvlm.load(folder).config
    assert cfg.TRAINER.NAME == "FedAvg" and cfg.OPTIM.LR != 7.0 and cfg.CACHE_DIR == ""
    assert not (folder / "RAN").exists() and not (tmp_path / "cache").exists()
