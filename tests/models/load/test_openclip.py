"""Loading: names, activations, files, and honest refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.models.load import names, weights
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.load.openclip import load
from fedvlm.models.vlmodel import VLModel
from tests.attacks.weights import script
from tests.models.openai_layout import from_openai
from tests.models.toys import CONFIGS, NAMES, relative, toy


@pytest.fixture
def builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the two ViT-B-16 builds small, so that loading by name can be tested."""
    for build, quick in (("ViT-B-16", False), ("ViT-B-16-quickgelu", True)):
        small = CONFIGS["vit"] | {"quick_gelu": quick}
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, build, small)


def test_coop_names_are_quickgelu_builds() -> None:
    for name, build in names.COOP_NAMES.items():
        assert names.open_clip_name(name) == build
        assert open_clip.get_model_config(build)["quick_gelu"] is True
    assert names.open_clip_name("ViT-B-16") == "ViT-B-16"


@pytest.mark.parametrize(("name", "near"), [("vit-b16", "ViT-B/16"), ("RN-50", "RN50")])
def test_unknown_backbone_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        load_backbone(name)


def test_unknown_loader_and_dtype() -> None:
    with pytest.raises(ConfigError, match="did you mean 'transformers'"):
        load_backbone("tiny", loader="transformer")
    with pytest.raises(ConfigError, match="float16"):
        load_backbone("tiny", dtype=torch.float16)


@pytest.mark.usefixtures("builtin")
def test_random_weights_only_when_allowed_and_rng_untouched() -> None:
    state = torch.random.get_rng_state()
    first = load_backbone("ViT-B/16", allow_random=True, seed=3)
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.digest == load("ViT-B/16", random=True, seed=3).digest
    assert first.digest != load("ViT-B/16", random=True, seed=4).digest
    assert first.weights == "random"


@pytest.mark.usefixtures("builtin")
def test_offline_tag_names_the_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weights, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_backbone("ViT-B/16")
    message = str(caught.value)
    assert all(part in message for part in ("openai", "--backbone tiny", "--weights FOLDER/"))


@pytest.mark.usefixtures("builtin")
def test_weights_and_activation_must_agree(tmp_path: Path) -> None:
    state = load("ViT-B/16", random=True, plain=True).model.state_dict()
    renamed, tagged, mute = (tmp_path / f"{n}.safetensors" for n in ("my-openai", "a", "b"))
    save_file(state, renamed)
    save_file(state, tagged, metadata={"source": "OpenAI CLIP"})
    save_file(state, mute)
    for file in (renamed, tagged):
        load("ViT-B/16", str(file))
        with pytest.raises(ConfigError, match="Use --backbone ViT-B/16, which"):
            load("ViT-B-16", str(file))
    with pytest.raises(ConfigError, match="QuickGELU"):
        load("ViT-B-16", "openai")
    with pytest.raises(ConfigError, match="it exists for the GELU build: use --backbone ViT-B-16"):
        load("ViT-B/16", "laion2b_s34b_b88k")
    with pytest.raises(ConfigError, match="neither a file nor a tag"):
        load("ViT-B/16", "no-such-file.pt")


@pytest.mark.usefixtures("builtin")
def test_known_openai_digest_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vit.pt"
    torch.save(load("ViT-B/16", random=True, plain=True).model.state_dict(), file)
    load("ViT-B-16", str(file))
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr(names, "OPENAI_SHA256", frozenset({sha}))
    with pytest.raises(ConfigError, match="QuickGELU"):
        load("ViT-B-16", str(file))


@pytest.mark.usefixtures("builtin")
def test_same_weights_from_every_kind_of_file(tmp_path: Path) -> None:
    original = load("ViT-B/16", random=True, plain=True)
    state = original.model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "c.pt")
    script(tmp_path / "script.pt", state)
    folder = tmp_path / "dir"
    folder.mkdir()
    save_file(state, folder / "open_clip_model.safetensors")
    config = {"model_cfg": CONFIGS["vit"], "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    for file in ("w.safetensors", "w.pt", "c.pt", "script.pt"):
        assert load("ViT-B/16", str(tmp_path / file)).digest == original.digest, file
    with pytest.raises(ConfigError, match="QuickGELU"):
        load("ViT-B-16", str(tmp_path / "script.pt"))
    for name, given in (("ViT-B/16", f"local-dir:{folder}"), (f"local-dir:{folder}", "")):
        found = load(name, given)
        assert found.digest == original.digest and found.transform_spec.mean == (0.1, 0.2, 0.3)
    with pytest.raises(ConfigError, match="another architecture"):
        load("ViT-B-16", f"local-dir:{folder}")
    with pytest.raises(ConfigError, match="drop --weights"):
        load(f"local-dir:{folder}", "openai")


@pytest.mark.usefixtures("builtin")
def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "ran"),))

    torch.save({"x": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "short.safetensors").write_bytes(b"123")
    state = load("ViT-B/16", random=True, plain=True).model.state_dict()
    state.pop("text_projection")
    torch.save(state, tmp_path / "part.pt")
    said = {
        "bomb.pt": "contains pickled code, which is refused", "part.pt": "cannot load weights",
        "short.safetensors": "cannot load weights|cannot read",
    }
    for file, sentence in said.items():
        with pytest.raises(DataError, match=sentence):
            load("ViT-B/16", str(tmp_path / file))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(DataError, match="open_clip_config.json"):
        load(f"local-dir:{tmp_path}")


def test_openai_layout() -> None:
    source = toy(plain=True)
    state = source.model.state_dict()
    built = from_openai(
        state, dtype=torch.float64, vision_heads=3, text_heads=4, tokenizer=source.tokenizer
    )
    pixels = torch.randn(2, 3, 32, 32)
    assert relative(built.encode_image(pixels), source.encode_image(pixels)) < 1e-5
    assert relative(VLModel(built, NAMES).anchor("literal", 4).float(),
                    VLModel(source, NAMES).anchor("literal", 4)) < 1e-5
    state.pop("visual.proj")
    with pytest.raises(ConfigError, match="visual.proj"):
        from_openai(state)


def test_the_embedded_backbone() -> None:
    backbone = load_backbone("tiny")
    assert backbone.weights == "embedded" and backbone.causal
    model = VLModel(backbone, NAMES)
    model.text(torch.zeros(1, 4, backbone.text_width))
    assert model.notes == []
    with pytest.raises(ConfigError, match="drop --weights"):
        load_backbone("tiny", "openai")


@pytest.mark.parametrize("reachable", [True, False])
def test_weights_that_are_not_here_say_which_file_and_how_to_bring_it(
    monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    def absent(_: object) -> str:
        raise FileNotFoundError("no such snapshot")

    monkeypatch.setattr("open_clip.pretrained.download_pretrained", absent)
    monkeypatch.setattr(weights, "hub_is_reachable", lambda: reachable)
    build = "ViT-B-16-quickgelu"
    with pytest.raises(DataError) as caught:
        weights.download("openai", build, names.known_tags(build)["openai"])
    said = str(caught.value)
    assert ("no access to the hub" in said) is not reachable and "FileNotFound" not in said
    assert (
        "run: curl -L -o ViT-B-16-openai.safetensors https://huggingface.co/timm/"
        "vit_base_patch16_clip_224.openai/resolve/main/open_clip_model.safetensors (about 0.6 GB)"
    ) in said
    assert "--weights FOLDER/ViT-B-16-openai.safetensors" in said
    assert names.looks_like_openai(Path("ViT-B-16-openai.safetensors"))  # so its build is checked


def test_another_activation_is_told_with_a_name_that_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        names.check_activation("ViT-B-16", False, "openai", True)
    said = str(caught.value)
    assert "Use --backbone ViT-B/16, which is the same network with QuickGELU" in said
    tag = said.split("--weights ")[1]
    assert not names.known_tags("ViT-B-16")[tag].get("quick_gelu", False)
