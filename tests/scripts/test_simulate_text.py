"""``scripts/simulate_text.py`` in parts and whole, and what runs on such a tower may not do."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.spelling import NOT_RANKED
from fedvlm.job.images.texts import refuse_made
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.names import texts_made_from
from fedvlm.runs.finished import FinishedRun
from tests.jobs import REPOSITORY

SCRIPTS = str(REPOSITORY / "scripts")
sys.path[:0] = [SCRIPTS]

import distill_vit  # noqa: E402
import simulate_text as simulate  # noqa: E402

from evidence.results import publish  # noqa: E402
from evidence.results import take as taking  # noqa: E402

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
    assert abs(card["zero_shot"] - 40) <= simulate.NEAR and card["goal"] == card["asked"] == 40.0
    keys = {classes.pool.records.content_key(d)
            for d in (*classes.pool.train, *classes.pool.held_out)}
    assert tower.text_images == keys
    assert "| digits | " in (out / "README.md").read_text()


def test_a_tower_that_did_not_learn_its_texts_leaves_nothing(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, _, _ = made
    words = f"--teacher local-dir:{teacher} --goals digits=40 --steps 1 --out".split()
    assert simulate.main([*words, str(tmp_path / "simulated-text")]) == DataError.exit_code
    assert "zero-shot accuracy on digits is" in capsys.readouterr().err
    assert not (tmp_path / "simulated-text").exists()
    for other in ("other", "simulated-textures"):
        assert simulate.main([*words, str(tmp_path / other)]) == ConfigError.exit_code
        assert "call the folder simulated-text, or" in capsys.readouterr().err
    bad = ["--teacher", "tiny", "--out", "simulated-text", "--goals"]
    for goal in ("digits", "digits=x", "digits=0", "digits=101"):
        assert simulate.main([*bad, goal]) == ConfigError.exit_code, goal
    low = [w.replace("digits=40", "digits=1") for w in words]
    assert simulate.main([*low, str(tmp_path / "simulated-text")]) == ConfigError.exit_code
    assert "--goals digits=1 cannot be had: the nearest is " in capsys.readouterr().err


def test_a_folder_cannot_hide_that_its_texts_are_simulated(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by another name, nor as a bare file, nor as a teacher; the place is no matter."""
    teacher, out, _ = made
    shutil.copytree(out, tmp_path / "clip")
    shutil.copytree(out, tmp_path / "simulated-text-2")
    (tmp_path / "simulated-text").symlink_to(tmp_path / "clip")
    for name in ("clip", "simulated-text"):
        with pytest.raises(ConfigError, match="is for a simulated text tower: call the folder"):
            load_backbone(f"local-dir:{tmp_path / name}")
    monkeypatch.chdir(tmp_path / "simulated-text-2")
    for name in (".", f"{tmp_path}/simulated-text-2/.", f"{tmp_path}/simulated-text-2/"):
        assert load_backbone(f"local-dir:{name}").text_images
    with pytest.raises(ConfigError, match="give its folder as local-dir:FOLDER"):
        texts_made_from(out / "open_clip_model.safetensors", None)
    (tmp_path / "clip").rename(tmp_path / "simulated-textures")
    with pytest.raises(ConfigError, match="call the folder simulated-text, or"):
        load_backbone(f"local-dir:{tmp_path / 'simulated-textures'}")
    assert not load_backbone(f"local-dir:{teacher}").text_images
    with pytest.raises(ConfigError, match="simulated text tower: take another"):
        distill_vit.new_student(load_backbone(f"local-dir:{out}", plain=True), {}, 1)
    again = f"--teacher local-dir:{out} --goals digits=40 --out {tmp_path}/simulated-text-3"
    assert simulate.main(again.split()) == ConfigError.exit_code


def test_a_run_says_what_its_texts_are_and_is_in_no_ranking(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = made
    given = [*RUN, "--backbone", f"local-dir:{out}/.", "--output-dir",
             str(tmp_path / "runs" / "toy")]
    assert main(given) == ConfigError.exit_code  # validation images made the texts
    assert "of these images were used to fit the simulated text tower" in capsys.readouterr().err
    spare = ["DATASET.VAL_SHOTS", "0"]
    for more in (["--subsample-classes", "base"], ["--targets", "shapes"]):
        assert main([*given, *more, *spare]) == ConfigError.exit_code
        assert "new classes and other data sets say nothing" in capsys.readouterr().err
    assert main(["advise", *given[1:3], "--backbone", f"local-dir:{out}"]) == ConfigError.exit_code
    capsys.readouterr()
    for seed in ("1", "2", "3"):
        assert main([*given, "--seed", seed, *spare]) == 0
        assert main([*given, "--seed", seed, "--trainer", "LocalOnly", *spare]) == 0
    assert "simulated-text: this text tower was fitted to class means" in capsys.readouterr().out
    assert main(["table", str(tmp_path / "runs"), "--order", "best"]) == 0
    said = capsys.readouterr().out
    assert NOT_RANKED in said and "bold" not in said
    assert said.index("FedAvg") < said.index("LocalOnly")
    assert main(["figures", str(tmp_path / "runs"), "--into", str(tmp_path / "drawn")]) == 0
    told = capsys.readouterr()
    for name in ("forest", "distribution", "pareto"):
        assert f"{name}: {NOT_RANKED}" in told.out + told.err, name
        assert not list((tmp_path / "drawn").glob(f"{name}*"))
    runs = [path.parent for path in tmp_path.rglob("manifest.json")]
    one, two = (next(p for p in runs if name in str(p)) for name in ("FedAvg", "LocalOnly"))
    assert main(["compare", str(one), str(two)]) == 0
    assert capsys.readouterr().out.count(NOT_RANKED) == 2
    assert main(["verify", str(one)]) == 0
    assert main(["evaluate", str(one), "--dataset", "shapes"]) == ConfigError.exit_code
    assert "knows the classes that it was made for only" in capsys.readouterr().err
    asked = Namespace(folder=str(tmp_path / "page"), origin=str(tmp_path / "runs"), keep=False,
                      plans=str(REPOSITORY / "configs/results"), take=[], tuned="")
    with pytest.raises(DataError, match="take it out of the runs to publish"):
        publish.main(asked)
    assert not (tmp_path / "page" / "README.md").exists()


def test_images_that_made_the_texts_are_refused_wherever_they_come_from(made: Any) -> None:
    _, out, classes = made
    tower = load_backbone(f"local-dir:{out}")
    keys = sorted(tower.text_images)
    refuse_made(["other"], tower)
    with pytest.raises(ConfigError, match="2 of these images were used to fit the simulated"):
        refuse_made([*keys[:2], "other"], tower)
    refuse_made(keys, load_backbone("tiny"))


def test_packs_with_simulated_texts_are_not_taken() -> None:
    def run(**more: str) -> FinishedRun:
        return FinishedRun(Path("x"), {"backbone": "clip", **more}, {}, {})

    taking.refuse_simulated([run(), run(texts="")])
    with pytest.raises(DataError, match="take it out of the runs to publish"):
        taking.refuse_simulated([run(), run(texts="simulated-text")])
