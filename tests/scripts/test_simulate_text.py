"""``scripts/simulate_text.py`` in parts and whole, and what runs on such a tower may not do."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.spelling import NOT_RANKED, is_simulated
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.backbones import load_backbone
from tests.jobs import REPOSITORY

SCRIPTS = str(REPOSITORY / "scripts")
sys.path[:0] = [SCRIPTS]

import distill_vit  # noqa: E402
import simulate_text as simulate  # noqa: E402

from evidence.results.take import refuse_simulated  # noqa: E402

sys.path.remove(SCRIPTS)

RUN = ("run", "--dataset", "digits", "--trainer", "FedAvg", "--peft", "feature", "--num-users", "2",
       "--partition", "iid", "--shots", "4", "--rounds", "1", "--local-epochs", "1")


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone("tiny", plain=True)


@pytest.fixture(scope="module")
def made(
    private_cache: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, simulate.Classes]:
    """A teacher's folder, the folder made from it, and the classes that made it."""
    place = tmp_path_factory.mktemp("simulated")
    vision = {"image_size": 16, "patch_size": 8, "width": 32, "layers": 1, "head_width": 16}
    text = {"context_length": 24, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    cfg = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
    teacher, out = place / "teacher", place / "simulated-text"
    distill_vit.export(teacher, distill_vit.new_model(1, cfg).state_dict(), {}, cfg,
                       distill_vit.PREPROCESS)
    words = f"--teacher local-dir:{teacher} --out {out} --goals digits=40 --steps 400 --lr 0.01"
    assert simulate.main(words.split()) == 0
    pool = simulate.read_pool("digits", "")
    return teacher, out, simulate.find_target(
        pool, load_backbone(f"local-dir:{teacher}", plain=True), 40.0, 1)


def test_each_half_of_the_validation_images_has_every_class_and_no_other_image() -> None:
    pool = simulate.read_pool("digits", "")
    halves = [[d.key for d in half] for half in (pool.train, pool.held_out)]
    assert set(halves[0]).isdisjoint(halves[1])
    assert all({d.label for d in half} == set(range(10)) for half in (pool.train, pool.held_out))
    test = {pool.records.content_key(d) for d in pool.test}
    assert not test & {pool.records.content_key(d) for d in (*pool.train, *pool.held_out)}


def test_a_set_without_validation_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvlm.data.datum.DatasetBase.val", [])
    with pytest.raises(ConfigError, match="--goals digits: each class needs two validation images"):
        simulate.read_pool("digits", "")


def test_targets_are_blended_to_the_goal_and_never_beyond_class_means(
    private_cache: None, tiny: Backbone
) -> None:
    """Of a goal of 100 per cent the means are taken as they are."""
    pool = simulate.read_pool("digits", "")
    whole, half = (simulate.find_target(pool, tiny, goal, 1) for goal in (100.0, 30.0))
    assert whole.goal == whole.ceiling == half.ceiling == whole.accuracy(whole.target) > 40
    assert half.goal == 30.0 and abs(half.accuracy(half.target) - 30.0) < 3
    assert torch.allclose(whole.target.norm(dim=-1), torch.ones(10))
    labels = torch.tensor([d.label for d in pool.train])
    own = torch.nn.functional.normalize(
        simulate.tower_features(pool, pool.train, tiny).float(), dim=-1)
    mean = own[labels == 3].mean(0)
    assert torch.allclose(whole.target[3], mean / mean.norm(), atol=1e-6)


def test_the_folder_has_the_teachers_images_and_texts_at_the_goal(made: Any) -> None:
    teacher, out, classes = made
    ours, theirs = (load_backbone(f"local-dir:{f}").model.state_dict() for f in (out, teacher))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs if n.startswith("visual."))
    tower = load_backbone(f"local-dir:{out}")
    assert tower.logit_scale == pytest.approx(100, rel=1e-3)
    assert any(note.startswith("simulated-text: ") for note in tower.notes)
    card = json.loads((out / "card.json").read_text())["figures"]["digits"]
    texts = simulate.class_texts(tower, classes.pool).float()
    assert card["zero_shot"] == classes.accuracy(texts)
    assert abs(card["zero_shot"] - 40) <= simulate.NEAR and card["goal"] == 40.0
    keys = {classes.pool.records.content_key(d)
            for d in (*classes.pool.train, *classes.pool.held_out)}
    assert tower.text_images == keys
    assert "| digits | " in (out / "README.md").read_text()


def test_a_tower_that_did_not_learn_its_texts_is_refused(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, _, _ = made
    words = f"--teacher local-dir:{teacher} --goals digits=40 --steps 1 --out"
    assert simulate.main([*words.split(), str(tmp_path / "simulated-text")]) == DataError.exit_code
    assert "zero-shot accuracy on digits is" in capsys.readouterr().err
    assert not (tmp_path / "simulated-text" / "README.md").exists()
    assert simulate.main([*words.split(), str(tmp_path / "other")]) == ConfigError.exit_code
    assert "must begin with simulated-text" in capsys.readouterr().err
    bad = ["--teacher", "tiny", "--out", "simulated-text", "--goals"]
    for goal in ("digits", "digits=x", "digits=0", "digits=101"):
        assert simulate.main([*bad, goal]) == ConfigError.exit_code, goal


def test_a_folder_cannot_hide_that_its_texts_are_simulated(made: Any, tmp_path: Path) -> None:
    teacher, out, _ = made
    for source, name, said in ((out, "clip", "has a simulated text tower: call the folder"),
                               (teacher, "simulated-text", "has no simulated text tower")):
        shutil.copytree(source, tmp_path / name)
        with pytest.raises(DataError, match=said):
            load_backbone(f"local-dir:{tmp_path / name}")
    shutil.copytree(out, tmp_path / "simulated-text-2")
    assert load_backbone(f"local-dir:{tmp_path / 'simulated-text-2'}").text_images
    assert is_simulated("ViT-B/16", "local-dir:../simulated-text/") and is_simulated(out)
    assert not is_simulated("local-dir:../realfeat", "", None)
    assert not is_simulated("local-dir:../simulated-text/inner")


def test_a_run_says_what_its_texts_are_and_is_in_no_ranking(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = made
    given = [*RUN, "--backbone", f"local-dir:{out}", "--output-dir", str(tmp_path)]
    assert main(given) == ConfigError.exit_code  # validation images made the texts
    assert "images of this run made the texts" in capsys.readouterr().err
    spare = ["DATASET.VAL_SHOTS", "0"]
    for more in (["--subsample-classes", "base"], ["--targets", "shapes"]):
        assert main([*given, *more, *spare]) == ConfigError.exit_code
        assert "new classes and other data sets say nothing" in capsys.readouterr().err
    assert main(["advise", *given[1:3], "--backbone", f"local-dir:{out}"]) == ConfigError.exit_code
    capsys.readouterr()
    for seed in ("1", "2", "3"):
        assert main([*given, "--seed", seed, *spare]) == 0
        assert main([*given, "--seed", seed, "--trainer", "LocalOnly", *spare]) == 0
    assert "simulated-text: the text tower was made from" in capsys.readouterr().out
    assert main(["table", str(tmp_path)]) == 0
    assert NOT_RANKED in capsys.readouterr().out


def test_published_pages_take_no_run_with_simulated_texts() -> None:
    from fedvlm.runs.finished import FinishedRun

    def run(backbone: str, weights: str = "") -> Any:
        return FinishedRun(Path("x"), {"backbone": backbone, "weights": weights}, {}, {})

    refuse_simulated([run("local-dir:../realfeat"), run("tiny", "embedded")])
    for one in (run("local-dir:a/simulated-text"), run("ViT-B/16", "local-dir:simulated-text-2")):
        with pytest.raises(DataError, match="take it out of the runs to publish"):
            refuse_simulated([run("tiny"), one])
