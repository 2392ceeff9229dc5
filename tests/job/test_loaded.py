"""What a run loads: no engine, loader, reader or package that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import jobs

MOST = 219  # modules of fedvlm that ``run --demo`` may load
NEVER = (
    "fedvlm.distributed", "fedvlm.compat", "fedvlm.job.sites", "fedvlm.job.dry", "fedvlm.data.own",
    "fedvlm.data.memory", "fedvlm.data.packs", "fedvlm.data.untrusted", "fedvlm.data.get",
    "fedvlm.data.doctor", "fedvlm.data.fewshot_file", "fedvlm.data.columns.captions",
    "fedvlm.data.columns.topics", "fedvlm.federation.toolbox.retrieval", "fedvlm.job.images.texts",
    "fedvlm.evaluation.caption_rows", "fedvlm.models.features.texts",
    "fedvlm.report.statistics", "fedvlm.report.tables", "fedvlm.report.pages",
    "fedvlm.report.collect", "fedvlm.runs.finished", "fedvlm.models.towers.trunk",
    "fedvlm.job.results.images", "fedvlm.core.rows.away", "fedvlm.api", "fedvlm.sweep",
    "fedvlm.export", "fedvlm.check",
    *(f"fedvlm.job.engines.{name}" for name in ("flower", "sites", "states", "workers")),
    *(f"fedvlm.models.load.{name}" for name in (
        "hf_clip", "hf_text", "openclip", "torchscript", "torchvision", "vit",
    )),
    "fedvlm.models.encoders",
    *(f"fedvlm.job.sinks.{name}" for name in ("tensorboard", "wandb")),
)
PACKAGES = (
    "transformers", "peft", "open_clip", "torchvision", "timm", "huggingface_hub", "sklearn",
    "scipy", "pandas", "jinja2", "flwr", "grpc", "cryptography", "optuna", "submitit",
)
PROBE = """
import json, sys
from fedvlm.cli.main import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump(sorted(sys.modules), file)
sys.exit(code)
"""


def loaded(folder: Path, *words: str) -> set[str]:
    """The modules of a process that ran a command."""
    file = folder / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(file), *words, "--output-dir", str(folder / "output")],
        cwd=jobs.REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(file.read_text()))


def below(modules: set[str], names: tuple[str, ...]) -> list[str]:
    """Those of ``modules`` that are one of ``names`` or below one."""
    return sorted(m for m in modules for n in names if m == n or m.startswith(f"{n}."))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What ``fedvlm run --demo`` loads."""
    return loaded(tmp_path_factory.mktemp("demo"), "run", "--demo", "--rounds", "1")


def test_a_local_run_loads_what_it_uses(demo: set[str]) -> None:
    ours = sorted(m for m in demo if m.split(".")[0] == "fedvlm")
    rooms = Counter(".".join(m.split(".")[:2]) for m in ours)
    print(f"{len(ours)} modules: {', '.join(f'{r} {n}' for r, n in rooms.most_common())}")
    assert below(demo, NEVER) == []
    assert below(demo, PACKAGES) == []
    readers = [m for m in ours if m.startswith("fedvlm.data.formats.")]
    assert readers == ["fedvlm.data.formats.coop"]
    assert "fedvlm.job.engines.local" in demo and "fedvlm.models.load.tiny" in demo
    assert 150 < len(ours) <= MOST, rooms


def test_what_a_run_names_is_loaded_and_nothing_beside_it(
    tmp_path: Path, demo: set[str]
) -> None:
    """A file for Dassl brings compat; without baselines nothing computes them."""
    file = jobs.REPOSITORY / "tests" / "compat" / "doubles_coop.py"
    more = loaded(
        tmp_path, "run", "--demo", "--rounds", "1", "--num-users", "2", "--shots", "2",
        "--local-epochs", "1", "--trainer", f"{file}:CoOpDouble", "TEST.REFERENCES", "False",
    )
    new = {m for m in more - demo if m.startswith("fedvlm.")}
    assert "fedvlm.compat.files" in new
    assert {m.split(".")[1] for m in new} <= {"compat", "federation", "models", "job"}, new
    assert "fedvlm.job.results.references" in demo - more
    assert below(demo - more, ("fedvlm.evaluation.references",))
