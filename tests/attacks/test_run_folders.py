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
from fedvlm.core.errors import ConfigError, DataError
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


@pytest.mark.parametrize(("reader", "form"), [
    *((reader, "{}/evil.py") for reader in READERS),
    *(("predict", f"{{}}/evil.py{end}") for end in (":Evil", "+FedAS", ":N+{}/a.py")),
])
def test_no_reader_runs_the_code_that_a_folder_names(
    run: Path, image: Path, tmp_path: Path, reader: str, form: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copy(run, tmp_path / "run")
    (folder / "evil.py").write_text(EVIL)
    (folder / "a.py").write_text(EVIL)
    name_code(folder, form.format(folder, folder))
    code = main(READERS[reader](str(folder), str(image), str(tmp_path / "to")))
    told = "".join(capsys.readouterr())
    assert not (folder / "RAN").exists() and "Traceback" not in told
    if reader in ASKS:
        assert code in (2, 3) and "which is a program: it was not run" in told
        assert f"--trainer {folder}/evil.py" in told


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


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(bytes(data))


def unlink(path: Path) -> None:
    path.unlink()


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "server": ("state/round_0002.safetensors", flip_bit),
    "rows": ("state/clients/r000002.safetensors", flip_bit),
    "rows' record": ("state/clients/r000002.json", flip_bit),
    "state gone": ("state/round_0002.json", unlink),
    "start": ("models/start.safetensors", flip_bit),
    "personal": ("models/personal000000.safetensors", flip_bit),
    "metrics": ("metrics.jsonl", flip_bit),
    "partition": ("partition.csv", flip_bit),
}
USES = ("export", "evaluate", "adapt")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with clients' rows, and models that are fine-tuned at the end."""
    output = tmp_path_factory.mktemp("tuned")
    assert jobs.run(output, "--trainer", "FedPer", "--finetune-epochs", "1") == 0
    return jobs.folder(output)


@pytest.mark.parametrize(("use", "what"), [
    *(("predict", what) for what in DAMAGE),
    *((use, what) for use in USES for what in ("server", "start")),
])
def test_a_damaged_run_hands_out_no_model(
    tuned: Path, image: Path, tmp_path: Path, use: str, what: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a word an older round, or another start, stood for what was damaged."""
    folder = copy(tuned, tmp_path / "run")
    name, damage = DAMAGE[what]
    damage(folder / name)
    words = READERS[use](str(folder), str(image), str(tmp_path / "to"))
    if what == "personal":
        words += ["--client", "0"]
    capsys.readouterr()
    assert main(words) == 3
    told = "".join(capsys.readouterr())
    assert Path(name).name in told and ("damaged" in told or "missing" in told)
    assert not (tmp_path / "to").exists()


def test_an_earlier_round_is_another_model_and_is_asked_for(
    run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(run, tmp_path / "run")
    flip_bit(folder / "state" / "round_0002.safetensors")
    assert main(["predict", str(folder), str(image)]) == 3
    assert "--round 1" in capsys.readouterr().err
    assert main(["predict", str(folder), str(image), "--round", "1"]) == 0
    assert "round 1 of 2, as asked for" in capsys.readouterr().err
    words = ["export", str(folder), "--to", str(tmp_path / "to"), "--format", "safetensors"]
    assert main([*words, "--round", "1"]) == 0
    assert "round 1 of 2" in (tmp_path / "to" / "README.md").read_text()
    capsys.readouterr()
    assert main(["predict", str(folder), str(image), "--round", "2"]) == 3
    assert main(["predict", str(folder), str(image), "--round", "7"]) == 2
    assert "it has those of 1, 2" in capsys.readouterr().err


def test_tuned_models_of_earlier_rounds_are_not_made_up(tuned: Path) -> None:
    with pytest.raises(ConfigError, match="those of earlier rounds are not kept"):
        fedvlm.load(tuned, round=1).client(0)
    assert fedvlm.load(tuned, round=1).global_model.facts.metrics == {}


def test_a_personal_model_of_another_run_is_refused(tuned: Path, tmp_path: Path) -> None:
    """Its own checksums fit; the results do not name it."""
    folder = copy(tuned, tmp_path / "run")
    for end in ("json", "safetensors"):
        kept = folder / f"models/personal000000.{end}"
        shutil.copy(kept, kept.with_stem("personal000009"))
    with pytest.raises(DataError, match="is not a file of this run"):
        fedvlm.load(folder).client(0)
