"""From a recipe to the published pages: run, pack, check, replay, take.

Random weights under ViT-B/16's architecture with narrow layers (a whole one takes minutes).
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import open_clip
import pytest
from safetensors.torch import save_file

from evidence.commands import main as evidence
from fedvlm.cli.main import main
from fedvlm.models.load.openclip import load
from tests.models.toys import CONFIGS, TEXT
from tests.sweep import in_process as workers

RECIPE = """
paper: A paper, 2026
said: table 9
plan:
  common: {backbone: ViT-B/16, num-users: 2, rounds: 2, local-epochs: 1, shots: 1}
  datasets: [shapes]
  trainers: [ZeroShot, PromptFL]
  seeds: [1]
published:
  - {where: table 9, dataset: shapes, cells: {PromptFL: 60.0}}
"""
NARROW = CONFIGS["vit"] | {"quick_gelu": True, "text_cfg": TEXT | {
    "context_length": 77, "vocab_size": 49408}}


@pytest.mark.usefixtures("few_images")
def test_from_a_recipe_to_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedvlm.sweep.run.Processes", workers.processes)
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-16-quickgelu", NARROW)
    weights, recipe, out = tmp_path / "openai.safetensors", tmp_path / "mine.yaml", tmp_path / "out"
    save_file(load("ViT-B/16", random=True, plain=True).model.state_dict(), weights)
    recipe.write_text(RECIPE)
    words = ["reproduce", str(recipe), "--output-dir", str(out), "--root", str(tmp_path),
             "--weights", str(weights)]
    assert main([*words, "--budget", "1e-9"]) == 2
    assert "nothing was run: the budget of 1e-09 hours" in capsys.readouterr().err
    assert main(words) == 0
    pack = out / "mine" / "sealed" / "mine.cells.xz"
    assert f"sealed runs: {pack}" in capsys.readouterr().out
    assert main(words) == 0  # again: what is packed hides no run
    assert "| PromptFL |" in (out / "mine/acceptance.md").read_text()

    pages = tmp_path / "pages"
    take = ["publish", str(pages), "--take", str(pack), "--sample", "1", "--weights", str(weights),
            "--plans", str(tmp_path)]
    assert evidence(take) == 0, capsys.readouterr().err
    assert "1 equal in replay" in capsys.readouterr().out
    page = (pages / "reproduced.md").read_text()
    assert "| mine | Shapes | PromptFL \\[prompt\\] | 1 |" in page
    assert (pages / "reproduced/mine.cells.xz").read_bytes() == pack.read_bytes()

    runs = [json.loads(line) for line in lzma.decompress(pack.read_bytes()).splitlines()]
    record = json.loads(runs[0]["results.json"])
    record["results"]["last"]["personal"] = 99.0
    runs[0]["results.json"] = json.dumps(record)
    forged = tmp_path / "forged.cells.xz"
    forged.write_bytes(lzma.compress("".join(json.dumps(r) + "\n" for r in runs).encode()))
    assert evidence([w if w != str(pack) else str(forged) for w in take]) == 3
    assert "not taken" in capsys.readouterr().err
    assert not (pages / "reproduced/forged.cells.xz").exists()
