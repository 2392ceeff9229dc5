"""``scripts/distill_vit.py`` in parts, on the built-in digits, and whole (slow).

The embedded tiny is the teacher; the student of the parts is its image tower with weights drawn
anew, which spares open_clip.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import Datum
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.towers.clip import ImageTower
from fedvlm.models.towers.vision import VisionTower
from tests.jobs import REPOSITORY

SCRIPTS = str(REPOSITORY / "scripts")
sys.path.insert(0, SCRIPTS)

import distill_data as data  # noqa: E402
import distill_report as report  # noqa: E402
import distill_train as train  # noqa: E402
import distill_vit  # noqa: E402

sys.path.remove(SCRIPTS)

HOW = train.Settings(seed=1, steps=5, batch=16, lr=0.1)


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone("tiny", plain=True)


@pytest.fixture(scope="module")
def pool(private_cache: None) -> data.Pool:
    pools = data.read_pools(["digits"], "", images=120, held_out=40, seed=1)
    return data.drop_copies(pools)[0][0]


@pytest.fixture(scope="module")
def images(tiny: Backbone, pool: data.Pool) -> tuple[Tensor, Tensor]:
    """Pixels of the training images and the teacher's features of them."""
    return (data.pixels_of(pool, pool.train, tiny.transform_spec),
            data.tower_features(pool, pool.train, tiny))


@pytest.fixture
def start(
    tiny: Backbone, pool: data.Pool, images: tuple[Tensor, Tensor], tmp_path: Path
) -> Iterator[Any]:
    """A function that starts the same training anew, with its state in a folder of the test."""
    texts = report.class_texts(tiny, pool)

    def begin(**identity: str) -> train.Distillation:
        visual = copy.deepcopy(tiny.model.visual).requires_grad_(True)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for tensor in visual.parameters():
                if tensor.ndim > 1:
                    tensor.normal_(std=0.05, generator=generator)
        return train.Distillation(
            visual, tiny.transform_spec, *images, texts, tiny.logit_scale, HOW, identity,
            tmp_path / "state.pt",
        )

    yield begin


def test_small_sets_are_taken_whole_and_the_rest_is_shared_evenly() -> None:
    assert data.share([10, 100, 20], 60) == 30  # 10 + 20 + 30
    assert data.share([10, 20], 100) == 20
    assert data.share([50, 50], 30) == 15


def test_a_tenth_of_each_class_is_put_aside_where_there_are_no_validation_images() -> None:
    items = [Datum(f"/{i}", i % 3, 0, str(i % 3), str(i)) for i in range(60)]
    rest, aside = data.put_aside(items, 1, "toy")
    assert sorted([*rest, *aside], key=lambda d: int(d.key)) == items
    assert np.bincount([d.label for d in aside]).tolist() == [2, 2, 2]
    assert data.put_aside(items, 1, "toy")[1] == aside != data.put_aside(items, 2, "toy")[1]


def test_an_image_that_is_tested_on_is_never_trained_on(pool: data.Pool) -> None:
    assert {d.key for d in pool.train}.isdisjoint(d.key for d in (*pool.held_out, *pool.test))
    other = replace(pool, word="other", train=[], test=[pool.train[3]])  # the copy of another set
    (clean, _), said = data.drop_copies([pool, other])
    assert clean.train == pool.train[:3] + pool.train[4:]
    assert said["taken_out"] == 1 and said["training"] == len(pool.train)
    with pytest.raises(DataError, match="no training image is left"):
        data.drop_copies([replace(pool, test=pool.train)])


def test_pixels_are_those_of_a_run(tiny: Backbone, pool: data.Pool, images: Any) -> None:
    pixels, goals = images
    own = train.encode(copy.deepcopy(tiny.model.visual), pixels[:8], tiny.transform_spec)
    assert torch.allclose(own, goals[:8], atol=1e-4)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(start: Any) -> None:
    whole = start()
    losses: list[float] = []
    assert whole.run(9.0, 2, losses.append)
    assert losses[-1] < losses[0]
    whole.state.unlink()
    assert not start().run(0.0, 100, losses.append)  # the minutes are used up at once
    later = start()
    assert later.resume() and later.step == 1
    assert later.run(9.0, 100, losses.append)
    for name, tensor in whole.visual.state_dict().items():
        assert torch.equal(tensor, later.visual.state_dict()[name]), name
    with pytest.raises(ConfigError, match="another teacher"):
        start(teacher="another").resume()
    whole.finish()
    own = train.encode(whole.visual, whole.pixels, whole.spec)
    assert float(own.norm(dim=-1).mean()) == pytest.approx(whole.length, rel=1e-4)


def test_threads_share_a_batch_without_changing_the_gradient(start: Any) -> None:
    one, two = start(), start()
    two.threads = 2
    x = train.normalised(one.pixels[:7], one.spec)
    rows = train.chosen_rows(7, 16, 0.5, torch.Generator().manual_seed(1))
    assert rows.shape == (7, 9) and all(len(set(row.tolist())) == 9 for row in rows)
    losses = [run.descend(x, rows, run.goals[:7]) for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for a, b in zip(one.visual.parameters(), two.visual.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_a_warm_start_takes_blocks_and_spreads_positions(tiny: Backbone) -> None:
    other = tiny.model.visual
    visual = ImageTower(64, image_size=48, patch_size=8, width=128, layers=2, head_width=32)
    train.warm_start(visual, other)
    assert torch.equal(visual.class_embedding, other.class_embedding)
    assert torch.equal(
        visual.transformer.resblocks[1].mlp.c_fc.weight,
        other.transformer.resblocks[1].mlp.c_fc.weight,
    )
    own, theirs = visual.positional_embedding, other.positional_embedding
    assert own.shape == (37, 128) and torch.equal(own[0], theirs[0])
    corners = torch.stack([own[1], own[36]]), torch.stack([theirs[1], theirs[16]])
    assert float(torch.cosine_similarity(*corners).detach().min()) > 0.9
    wide = ImageTower(64, image_size=48, patch_size=8, width=64, layers=2, head_width=32)
    with pytest.raises(ConfigError, match="--width 128"):
        train.warm_start(wide, other)


def test_every_epoch_has_every_image_once(start: Any) -> None:
    run = start()
    rows = torch.cat([run.batch(step) for step in range(15)])  # 240 of 120 images
    for epoch in rows.split(120):
        assert epoch.sort().values.tolist() == list(range(120))


def test_crops_keep_the_range_and_differ(images: Any, tiny: Backbone) -> None:
    x = data.normalised(images[0][:8], tiny.transform_spec)
    one, two = (train.crops(x, torch.Generator().manual_seed(s)) for s in (1, 2))
    assert one.shape == x.shape and not torch.equal(one, two)
    assert one.min() > x.min() - 1e-4 and one.max() < x.max() + 1e-4  # no black edges


def test_a_perfect_student_is_measured_as_one(
    tiny: Backbone, pool: data.Pool, images: Any
) -> None:
    held_out = data.tower_features(pool, pool.held_out, tiny)
    pair = (images[1], held_out)
    noise = tuple(torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) for t in pair)
    texts = report.class_texts(tiny, pool)
    row = report.measure(pool, texts, {"teacher": pair, "student": pair, "untrained": noise})
    assert row["cosine"] == row["cosine_train"] == 1.0
    assert row["zero_student"] == row["zero_teacher"] > 25
    assert row["probe_student"] == row["probe_teacher"] > 60 > row["probe_untrained"]
    assert set(report.COLUMNS) < set(row)


def test_a_teacher_with_a_tokenizer_of_its_own_is_refused(tiny: Backbone) -> None:
    with pytest.raises(ConfigError, match="local-dir"):
        distill_vit.new_student(tiny, {}, 1)


@pytest.mark.slow
def test_the_folder_is_a_backbone_with_the_teachers_text_tower(
    private_cache: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vision = {"image_size": 16, "patch_size": 8, "width": 32, "layers": 1, "head_width": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1}
    cfg = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
    folder, out = tmp_path / "teacher", tmp_path / "vit"
    weights = distill_vit.new_model(1, cfg).state_dict()
    distill_vit.export(folder, weights, {}, cfg, distill_vit.PREPROCESS)
    words = (
        f"--teacher local-dir:{folder} --out {out} --sets digits --images 200 --held-out 50 "
        "--steps 20 --batch 16 --size 16 --patch 4 --width 32 --layers 2 --head 16"
    ).split()
    assert distill_vit.main([*words, "--minutes", "0"]) == 0
    assert "goes on from here" in capsys.readouterr().out and not out.exists()
    assert distill_vit.main(words) == 0
    said = capsys.readouterr().out
    assert "goes on from step 1" in said and "| digits | 200 | 50 |" in said
    student, teacher = (load_backbone(f"local-dir:{f}") for f in (out, folder))
    ours, theirs = student.model.state_dict(), teacher.model.state_dict()
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs if not n.startswith("visual."))
    assert len(VisionTower(student).blocks) == 2
    card = json.loads((out / "card.json").read_text())
    assert card["check"]["taken_out"] == 0 and card["figures"]["digits"]["held_out"] == 50
    assert distill_vit.main([*words, "--lr", "0.5"]) == ConfigError.exit_code
