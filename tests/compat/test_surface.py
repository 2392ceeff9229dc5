"""``import dassl`` and ``import clip``: the names, what they do, and that they go away again."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from fedvlm.compat.clip import CLIP, clip_modules
from fedvlm.compat.dassl import install, replace_dassl, uninstall
from fedvlm.compat.engine import TrainerBase
from fedvlm.compat.repository.imports import Imports
from fedvlm.compat.surface import NAMES, loaded_below
from fedvlm.compat.towers import check_backbone
from fedvlm.compat.world import FileEnvironment, active
from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel
from tests.compat.small import built, double

# the names that files of the CoOp family import from Dassl
SCANNED = {
    "config": "get_cfg_default", "engine": "TRAINER_REGISTRY build_trainer TrainerX",
    "engine.trainer": "TrainerX", "data": "DataManager DatasetWrapper",
    "data.datasets": "DATASET_REGISTRY Datum DatasetBase",
    "data.datasets.base_dataset": "Datum DatasetBase", "data.transforms": "build_transform",
    "metrics": "compute_accuracy", "optim": "build_optimizer build_lr_scheduler",
    "utils": "Registry check_isfile read_json write_json mkdir_if_missing listdir_nohidden "
             "read_image set_random_seed setup_logger collect_env_info load_checkpoint "
             "save_checkpoint resume_from_checkpoint load_pretrained_weights count_num_param "
             "tolist_if_not MetricMeter AverageMeter",
}  # fmt: skip


@pytest.fixture
def model() -> VLModel:
    return VLModel(load_backbone("tiny"), ("circle", "red square", "star"))


@pytest.mark.parametrize("root", ["dassl", "Dassl.dassl"])
def test_the_scanned_names_are_there_and_go_away(root: str) -> None:
    assert len({n for names in SCANNED.values() for n in names.split()}) == 31
    with replace_dassl():
        for part, names in SCANNED.items():
            module = importlib.import_module(f"{root}.{part}")
            assert [n for n in names.split() if not hasattr(module, n)] == []
        assert importlib.import_module("clip.clip").tokenize
    assert {p for p in SCANNED if p not in NAMES} == set()
    with pytest.raises(ImportError):
        importlib.import_module("dassl.engine")


@pytest.mark.parametrize("roots", [(), ("os",), {"fedvlm", "torch"}, frozenset({"clip"})])
def test_what_is_loaded_below_a_name(
    roots: tuple[str, ...] | set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plain comparison; a name that only begins like one is another's."""
    for name in ("clip", "clip.model", "clipper", "clipper.clip", "torchless"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    want = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in roots}
    assert loaded_below(roots) == want and len(want) > 1 or not roots


def test_what_was_imported_before_comes_back() -> None:
    real = ModuleType("dassl")
    sys.modules["dassl"] = real
    try:
        with replace_dassl():
            assert sys.modules["dassl"] is not real
        assert sys.modules["dassl"] is real
        with pytest.raises(FedvlmError, match="already imported"):
            install()
    finally:
        del sys.modules["dassl"]
    install()
    try:
        assert importlib.import_module("dassl.utils").tolist_if_not(3) == [3]
    finally:
        uninstall()
    assert "dassl.utils" not in sys.modules


def test_files_and_meters(tmp_path: Path) -> None:
    with replace_dassl():
        utils = importlib.import_module("dassl.utils")
        metrics = importlib.import_module("dassl.metrics")
    (tmp_path / ".hidden").touch()
    utils.write_json({"a": [1]}, str(tmp_path / "x" / "y.json"))
    assert utils.read_json(str(tmp_path / "x" / "y.json")) == {"a": [1]}
    assert utils.listdir_nohidden(str(tmp_path)) == ["x"]
    with pytest.warns(UserWarning, match="No file found"):
        assert not utils.check_isfile(str(tmp_path / "z"))
    meter = utils.MetricMeter()
    meter.update({"loss": 1.0})
    meter.update({"loss": torch.tensor(3.0)})
    assert meter.meters["loss"].avg == 2 and "loss 3.0000 (2.0000)" in str(meter)
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    top1, top2 = metrics.compute_accuracy(logits, torch.tensor([0, 1]), topk=(1, 2))
    assert (top1.item(), top2.item(), tuple(top1.shape)) == (50.0, 100.0, (1,))


def test_checkpoints_hold_tensors_only(tmp_path: Path) -> None:
    with replace_dassl():
        utils = importlib.import_module("dassl.utils")
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    utils.save_checkpoint({"state_dict": a.state_dict(), "epoch": 3}, str(tmp_path))
    assert utils.resume_from_checkpoint(str(tmp_path), b) == 3
    assert torch.equal(a.weight, b.weight)
    torch.save({"state_dict": {}, "scheduler": Path()}, tmp_path / "live.pt")
    with pytest.raises(DataError, match="not a plain checkpoint"):
        utils.load_checkpoint(str(tmp_path / "live.pt"))


def test_a_file_of_a_data_set_runs_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    with replace_dassl():
        data = importlib.import_module("dassl.data")
        sets = importlib.import_module("dassl.data.datasets")
        cfg = importlib.import_module("dassl.config").get_cfg_default()
    items = [sets.Datum(str(tmp_path / f"{i}.png"), i % 2, 0, "ab"[i % 2]) for i in range(3)]

    class Mine(sets.DatasetBase):
        def __init__(self, cfg: object) -> None:
            super().__init__(train_x=items, test=items[:1])

    monkeypatch.setattr(sets.DATASET_REGISTRY, "_table", {})
    sets.DATASET_REGISTRY.register(Mine)
    cfg.DATASET.NAME, cfg.DATALOADER.TRAIN_X.BATCH_SIZE = "Mine", 2
    cfg.INPUT.SIZE, cfg.INPUT.TRANSFORMS = (4, 4), ("random_flip", "normalize")
    manager = data.DataManager(cfg)
    assert manager.dataset.classnames == ["a", "b"] and len(manager.train_loader_x) == 1
    batch = next(iter(manager.test_loader))
    assert batch["img"].shape == (1, 3, 4, 4) and batch["label"].tolist() == [0]
    with pytest.raises(FedvlmError, match="does not exist"):
        sets.Datum(str(tmp_path / "none.png"))


def test_the_facade_is_the_backbone(model: VLModel) -> None:
    run = built(double("coop", "CoOpDouble"))
    world = FileEnvironment(model, run.cfg, Imports(clip_modules()))
    pixels = torch.randn(2, 3, model.backbone.image_size, model.backbone.image_size)
    with active(world):
        clip = importlib.import_module("clip")
        package = importlib.import_module("clip.clip")
        one, _ = clip.load("tiny")
        ids = clip.tokenize(["a photo of a star.", "a circle"])
        assert package.available_models() == ["tiny"]
        with pytest.raises(ConfigError, match="the run's backbone is tiny"):
            package._MODELS["RN50"]
        with pytest.raises(FedvlmError, match="too long"):
            clip.tokenize("star " * 99)
        assert clip.tokenize("star " * 99, truncate=True).shape == ids[:1].shape
        with torch.no_grad():
            images, texts = one.encode_image(pixels), one.encode_text(ids)
            prompted = CLIP(model, design={
                "trainer": "IVLP", "vision_depth": 2, "language_depth": 0, "vision_ctx": 2,
                "language_ctx": 0})
            shifted = prompted.visual(pixels)
        assert one.half().dtype is model.dtype and one.cuda().logit_scale.device == model.device
    plain = model.backbone
    emb = plain.embed_tokens(ids)
    torch.testing.assert_close(images, plain.encode_image(pixels), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        texts, plain.encode_embeddings(emb, plain.eot(ids)), rtol=1e-5, atol=1e-5)
    assert one.logit_scale.exp().item() == pytest.approx(model.scale, rel=1e-6)
    assert (shifted - images).abs().max() > 1e-3
    assert one.visual.input_resolution == plain.image_size
    assert one.visual.output_dim == model.embed_dim


def test_what_is_no_clip_is_refused(model: VLModel) -> None:
    low = load_backbone("tiny", dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="MODEL.PREC bf16"):
        check_backbone(low)
    check_backbone(model.backbone)


def test_a_script_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    out = tmp_path / "out.json"
    script.write_text("import sys\nfrom dassl.utils import write_json\n"
                      "write_json(sys.argv[1:], sys.argv[1])\n")
    monkeypatch.setattr(sys, "argv", ["fedvlm.compat", str(script), str(out), "--x"])
    runpy.run_module("fedvlm.compat", run_name="__main__")
    assert json.loads(out.read_text()) == [str(out), "--x"]


def test_a_step_in_a_subspace_keeps_what_its_rows_span() -> None:
    """Of the gradient (3, 4, 12) over two models the rows (1, 0, 0) and (0, .6, .8) keep a part."""
    trainer = TrainerBase()
    trainer.U = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
    one, two = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    before = [m.weight.detach().clone() for m in (one, two)]
    for name, model in (("one", one), ("two", two)):
        trainer.register_model(name, model, torch.optim.SGD(model.parameters(), 1.0))
    loss = 3 * one.weight.sum() + (two.weight * torch.tensor([4.0, 12.0])).sum()
    trainer.model_subspace_backward_and_update(loss)
    moved = [b - m.weight.detach() for b, m in zip(before, (one, two), strict=True)]
    torch.testing.assert_close(moved[0], torch.tensor([[3.0]]))
    torch.testing.assert_close(moved[1], torch.tensor([[7.2, 9.6]]))  # 12 (.6, .8)
