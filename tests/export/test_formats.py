"""Each format is read back by the library that it is for, from images on disk."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import expand
from fedvlm.data.datum import Datum
from fedvlm.data.images import ImageLoader
from fedvlm.export.formats import onnx_file, openclip, peft_folder
from fedvlm.export.recipe import difference
from fedvlm.export.trained import TrainedModel
from fedvlm.export.write import export
from fedvlm.models.load.backbones import load_backbone
from tests.export.models import trained
from tests.models.adapted import save_hf_clip
from tests.models.toys import toy

ONNX = pytest.mark.skipif(bool(onnx_file.missing_packages()), reason="pip install 'fedvlm[onnx]'")
LORA = ("--peft", "prompt+lora", "PEFT.TARGETS", "q,k,v,o,mlp")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo that has to be resized and cut."""
    path = tmp_path_factory.mktemp("image") / "photo.png"
    values = np.random.default_rng(2).integers(0, 256, (53, 71, 3), dtype=np.uint8)
    Image.fromarray(values).resize((142, 106)).save(path)
    return path


def own(whole: TrainedModel, image: Path) -> tuple[Tensor, Tensor]:
    """The image as fedvlm's own data layer reads it, and the trainer's own logits."""
    loader = ImageLoader([Datum(str(image), 0)], whole.model.backbone.transform_spec)
    pixels = loader.batch([0])
    p = {n: v.to(whole.model.dtype) for n, v in whole.params.items()}
    with torch.no_grad():
        predict = whole.trainer.predictor(whole.model, expand(p, 1))
        logits = predict({"pixels": pixels[None].to(whole.model.dtype)})[0].float()
    return pixels, logits


@pytest.mark.parametrize("how", [
    ("fedtv",), *(pytest.param(how, marks=pytest.mark.slow) for how in (
        ("fedavg", *LORA), ("thorki",), ("fedavg", "--peft", "prompt+adapter"), ("fedproto",)
    )),
], ids=" ".join)
def test_run_py_predicts_an_image_without_fedvlm(
    how: tuple[str, ...], tmp_path: Path, image: Path
) -> None:
    whole = trained(how[0], how[1:])
    export(whole, tmp_path / "out", "safetensors")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    guard = tmp_path / "guard" / "fedvlm"
    guard.mkdir(parents=True)
    (guard / "__init__.py").write_text("raise ImportError('run.py must not need fedvlm')\n")
    done = subprocess.run(
        [sys.executable, tmp_path / "out" / "run.py", image], capture_output=True, text=True,
        env=env | {"PYTHONPATH": str(guard.parent), "OMP_NUM_THREADS": "1"}, cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    _, wanted = own(whole, image)
    assert difference(torch.tensor([line["logits"]]), wanted) <= 1e-5
    assert line["class"] == whole.classnames[int(wanted.argmax())]
    assert len((tmp_path / "out" / "run.py").read_text().splitlines()) <= 60


def test_run_py_reads_files_of_all_modes_as_fedvlm_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """16-bit X-rays above all: Pillow's own conversion shows them as white, whoever is on them."""
    values = np.random.default_rng(4).integers(0, 1 << 16, (40, 52), dtype=np.uint16)
    grey = (values >> 8).astype(np.uint8)
    noise = np.random.default_rng(5).integers(0, 256, (40, 52, 4), dtype=np.uint8)
    palette = Image.fromarray(noise[..., :3]).quantize(9)
    files = {
        "bits16.png": Image.fromarray(values), "bits12.png": Image.fromarray(values >> 4),
        "bits16.tif": Image.fromarray(values), "bits32.tif": Image.fromarray(
            values.astype(np.int32)),
        "unit.tif": Image.fromarray(values.astype(np.float32) / 65535),
        "float.tif": Image.fromarray(grey.astype(np.float32)),
        "cmyk.tif": Image.fromarray(noise, "CMYK"), "alpha.png": Image.fromarray(noise),
        "grey.png": Image.fromarray(grey), "one.png": Image.fromarray(grey).convert("1"),
    }
    for name, image in files.items():
        image.save(tmp_path / name)
    palette.save(tmp_path / "palette.png", transparency=bytes(range(9)))
    paths = [tmp_path / name for name in (*files, "palette.png")]
    whole = trained("fedavg", ("--peft", "prompt"))
    export(whole, tmp_path / "out", "safetensors")
    capsys.readouterr()
    with monkeypatch.context() as started:  # as Python starts it, in this process
        started.syspath_prepend(str(tmp_path / "out"))
        started.setattr(sys, "argv", ["run.py", *map(str, paths)])
        started.setitem(sys.modules, "pixels", None)
        started.delitem(sys.modules, "pixels")  # and not there afterwards
        runpy.run_path(str(tmp_path / "out" / "run.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    wanted = torch.cat([own(whole, path)[1] for path in paths])
    logits = torch.tensor([json.loads(line)["logits"] for line in lines])
    for path, a, b in zip(paths, logits, wanted, strict=True):
        assert difference(a, b) <= 1e-5, path.name
    white = tmp_path / "white.png"
    Image.new("RGB", (52, 40), "white").save(white)
    assert (wanted - own(whole, white)[1]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("words", [LORA, ("--peft", "text-lora"),
                                   ("--peft", "text-lora+lora", "PEFT.RANK", "4")], ids=" ".join)
def test_peft_loads_the_adapter_on_transformers_clip(
    words: tuple[str, ...], tmp_path: Path, image: Path
) -> None:
    from peft import PeftModel
    from transformers import CLIPModel

    whole = trained("fedavg", words)
    export(whole, tmp_path / "out", "peft")
    pixels, wanted = own(whole, image)
    with torch.no_grad():
        assert difference(peft_folder.read(tmp_path / "out")(pixels), wanted) <= 1e-5
        plain = CLIPModel.from_pretrained(tmp_path / "out" / "base")
        model = PeftModel.from_pretrained(plain, str(tmp_path / "out")).eval()
        if "text-lora" in words[1]:  # the text tower's adapter gives the class features, too
            texts = [t.replace("{}", n) for t in whole.model.templates for n in whole.classnames]
            ids = whole.model.backbone.tokenize(texts)
            z = torch.nn.functional.normalize(model.get_text_features(ids).pooler_output, dim=-1)
            assert len(whole.model.templates) == 1
            p = expand(whole.params, 1)
            assert difference(z, whole.trainer.text_features(whole.model, p)[0]) <= 1e-5


@pytest.mark.parametrize("words", [LORA, ("--peft", "prompt"), ("--peft", "head"),
                                   ("--peft", "prompt+lora", "PEFT.LN", "True"),
                                   (*LORA[:2], "PEFT.LORA_AVG", "stack", "PEFT.PRIVATE_RANK", "2")],
                         ids=" ".join)
def test_open_clip_loads_merged_weights(
    words: tuple[str, ...], tmp_path: Path, image: Path
) -> None:
    whole = trained("fedavg", words)
    export(whole, tmp_path / "out", "open_clip")
    pixels, wanted = own(whole, image)
    with torch.no_grad():
        assert difference(openclip.read(tmp_path / "out")(pixels), wanted) <= 1e-5


@pytest.mark.parametrize("form", ["open_clip", "peft"])
def test_the_card_s_code_runs_and_gives_the_logits(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is printed, on a 16-bit image, which Pillow's own conversion shows as white."""
    values = np.random.default_rng(4).integers(0, 1 << 16, (40, 52), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "image.png")
    whole = trained("fedavg", LORA)
    export(whole, tmp_path / "out", form)
    shutil.copy(tmp_path / "image.png", tmp_path / "out" / "image.jpg")  # its bytes are read
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.S)
    seen: dict[str, Any] = {}
    with monkeypatch.context() as there, torch.no_grad():
        there.chdir(tmp_path / "out")
        there.syspath_prepend(str(tmp_path / "out"))
        there.setitem(sys.modules, "pixels", None)
        there.delitem(sys.modules, "pixels")  # and not there afterwards
        exec(compile(code, "card", "exec"), seen)
    wanted = own(whole, tmp_path / "image.png")[1]
    assert difference(seen["logits"], wanted) <= 1e-5
    assert list(seen["card"]["classnames"]) == list(whole.classnames)


def test_run_py_prints_names_as_they_are_written(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export(trained("fedavg", ("--peft", "prompt")), tmp_path / "out", "safetensors")
    card = tmp_path / "out" / "model.json"
    told = json.loads(card.read_text(encoding="utf-8"))
    told["classnames"] = ["Drüsengewebe"] * len(told["classnames"])
    card.write_text(json.dumps(told), encoding="utf-8")
    capsys.readouterr()
    with monkeypatch.context() as started:
        started.syspath_prepend(str(tmp_path / "out"))
        started.setattr(sys, "argv", ["run.py", str(image)])
        started.setitem(sys.modules, "pixels", None)
        started.delitem(sys.modules, "pixels")
        runpy.run_path(str(tmp_path / "out" / "run.py"), run_name="__main__")
    assert '"class": "Drüsengewebe"' in capsys.readouterr().out


def test_peft_refuses_layer_norms(tmp_path: Path) -> None:
    whole = trained("fedavg", ("--peft", "prompt+lora", "PEFT.LN", "True"))
    with pytest.raises(ConfigError, match="PEFT.LN changed the tower's LayerNorms"):
        export(whole, tmp_path / "out", "peft")


@ONNX
@pytest.mark.parametrize("how", [
    ("fedtv",), pytest.param(("fedavg", *LORA), marks=pytest.mark.slow),
], ids=" ".join)
def test_onnxruntime_predicts_any_number_of_images(
    how: tuple[str, ...], tmp_path: Path, image: Path
) -> None:
    import onnx

    whole = trained(how[0], how[1:])
    export(whole, tmp_path / "out", "onnx")
    pixels, wanted = own(whole, image)
    predict = onnx_file.read(tmp_path / "out")
    assert difference(predict(pixels), wanted) <= 1e-5
    three = predict(pixels.repeat(3, 1, 1, 1))
    assert three.shape == (3, 4) and difference(three[2:], wanted) <= 1e-5
    graph = onnx.load(str(tmp_path / "out" / "model.onnx"))
    props = {p.key: json.loads(p.value) for p in graph.metadata_props}
    assert props["classnames"] == list(whole.classnames)


def test_onnx_without_its_packages_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "NEEDS", ("onnx_that_is_not_there",))
    with pytest.raises(ConfigError, match=r"pip install 'fedvlm\[onnx\]'"):
        export(trained("zeroshot"), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["vit", "gelu", "custom", "siglip", "resnet"])
def test_other_towers(kind: str, tmp_path: Path) -> None:
    """QuickGELU that was folded, scaled branches, a text tower apart, no causal mask, a ResNet."""
    words = ("--peft", "prompt" if kind == "resnet" else "prompt+lora", "PEFT.N_CTX", "4",
             "PEFT.TARGETS", "q,k,v,o,mlp")
    whole = trained("fedavg", words, backbone=toy(kind))
    for form in ("safetensors", "open_clip"):
        assert export(whole, tmp_path / form, form).difference <= 1e-5
    if kind == "vit":
        assert export(whole, tmp_path / "peft", "peft").difference <= 1e-5
    else:
        reason = "the model has no LoRA" if kind == "resnet" else "cannot run this backbone"
        with pytest.raises(ConfigError, match=reason):
            export(whole, tmp_path / "peft", "peft")


def test_a_backbone_of_transformers_goes_out_as_peft(tmp_path: Path) -> None:
    save_hf_clip(tmp_path / "clip")
    backbone = load_backbone(str(tmp_path / "clip"), loader="transformers")
    words = ("--peft", "prompt+lora", "PEFT.N_CTX", "2", "PEFT.TARGETS", "q,v,mlp")
    whole = trained("fedavg", words, backbone=backbone)
    assert export(whole, tmp_path / "out", "peft").difference <= 1e-5
    assert peft_folder.read(tmp_path / "out")(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
