"""What a build refuses before it encodes an image, and where validation samples come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from tests import jobs

LATE = [
    (["TEST.SELECT", "val", "DATASET.VAL_SHOTS", "0"], "no validation images"),
    (["TRAINER.FEDTV.RANK", "99"], "TRAINER.FEDTV.RANK 99"),
    (["MODEL.BACKBONE.PRETRAINED", "False"], "brings its own"),
]


@pytest.mark.parametrize(("opts", "said"), LATE)
def test_mistakes_are_told_before_images_are_encoded(
    opts: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("encoded images first")

    monkeypatch.setattr("fedvlm.job.build.image_sources", no)
    assert jobs.run(tmp_path, "--opts", *opts) == ConfigError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--plain",)])
def test_validation_samples_come_unaugmented(more: tuple[str, ...], tmp_path: Path) -> None:
    from fedvlm.job.build import build
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = [*jobs.argv(tmp_path, *more), "--opts", "INPUT.VIEWS", "2"]
    built = build(resolve(parse(words)).jobs[0].cfg)
    batch = built.federation.batcher.whole([0], "val")
    assert batch is not None
    (stream, values), = batch.x.items()
    own = torch.from_numpy(built.data.clients[0].val.copy())
    assert torch.equal(values[0], built.test.fetch(own, 0)[stream])
