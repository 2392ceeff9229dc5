"""No weights file runs code, unpacks to more than its size, or ends in a traceback."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import open_clip
import pytest
import safetensors.torch
import torch

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.models.load import hf_clip
from fedvlm.models.load.openclip import load
from fedvlm.models.load.torchscript import is_torchscript, read_torchscript
from fedvlm.models.load.weights import refuse_odd
from tests import jobs
from tests.attacks.weights import FILES, PWNED, rezip, script
from tests.models.toys import CONFIGS


@pytest.fixture(autouse=True)
def builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    small = CONFIGS["vit"] | {"quick_gelu": True}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-16-quickgelu", small)


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    """Tensors under names with dots, as a model has them."""
    return {"logit_scale": torch.tensor(1.5), "visual.conv1.weight": torch.randn(3, 4, 2, 2),
            "visual.ln.weight": torch.arange(6.0).half()}


def seen(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", FILES)
def test_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: dict[str, torch.Tensor]
) -> None:
    monkeypatch.chdir(tmp_path)
    FILES[name](tmp_path / name, state)
    before = seen(tmp_path)
    with pytest.raises(DataError) as refusal:
        load("ViT-B/16", str(tmp_path / name))
    sentence = str(refusal.value)
    assert name in sentence and "\n" not in sentence and len(sentence) < 600
    assert "\x1b" not in sentence
    assert seen(tmp_path) == before and not (tmp_path / PWNED).exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [("bomb.pt", "packed tensors"), ("script_packed.pt", "packed tensors"),
     ("script_twice.pt", "two members"), ("script_climbs.pt", "a member named"),
     ("tar.pt", "tar archive"), ("script_wide.pt", "nested too deeply"),
     ("script_cycle.pt", "nested too deeply")],
)
def test_a_zip_is_judged_before_it_is_unpacked(
    tmp_path: Path, name: str, why: str, state: dict[str, torch.Tensor]
) -> None:
    FILES[name](tmp_path / name, state)
    with pytest.raises(DataError, match=why):
        load("ViT-B/16", str(tmp_path / name))


@pytest.mark.parametrize("name", ["script_code.pt", "new.pt", "offsets_past_the_end.safetensors"])
def test_a_run_ends_with_exit_code_3_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, state: dict[str, torch.Tensor]
) -> None:
    (tmp_path / "in").mkdir()
    FILES[name](tmp_path / "in" / name, state)
    before = seen(tmp_path)
    words = ("--backbone", "ViT-B/16", "--weights", str(tmp_path / "in" / name))
    assert main(jobs.argv(tmp_path / "out", *words)) == 3
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert len(lines) == 1 and name in lines[0]
    assert seen(tmp_path) == before


def test_a_hostile_bin_of_transformers(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    for name in ("new.pt", "old.pt", "raw.pt", "bomb.pt", "tar.pt", "script_code.pt"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        FILES[name](folder / name, state)
        (folder / name).rename(folder / "pytorch_model.bin")
        (folder / "config.json").write_text('{"model_type": "clip"}')
        with pytest.raises(DataError):
            hf_clip.load(str(folder))
        assert not (folder / PWNED).exists(), name


# ---- what is no attack --------------------------------------------------------------------------
class Traced(torch.nn.Module):
    """What OpenAI's archives have: parameters, buffers, a tensor that is neither, halves, views."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm2d(3)
        self.line.weight = torch.nn.Parameter(torch.randn(6, 4).t()[:, 2:5])
        self.mask, self.name, self.sizes = torch.zeros(3, 3), "RN", [1, 2]
        self.register_buffer("steps", torch.arange(4))
        self.proj = torch.nn.Parameter(torch.randn(2, 2).half())
        self.again = self.norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(self.norm(x).mean((2, 3))) + self.mask.sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["traced", "scripted"])
def test_read_as_torch_does(tmp_path: Path, how: str) -> None:
    model, file = Traced().eval(), tmp_path / "w.pt"
    made = (torch.jit.trace(model, torch.randn(1, 3, 2, 2)) if how == "traced"
            else torch.jit.script(model))
    torch.jit.save(made, str(file))
    theirs, ours = torch.jit.load(str(file)).state_dict(), read_torchscript(file)
    assert is_torchscript(file) and ours.keys() == theirs.keys() and len(ours) > 10
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name


def test_every_byte_of_the_pickle_may_be_wrong(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    """Flipped bits give tensors or the refusal, never anything else."""
    file = tmp_path / "w.pt"
    script(file, {"a.w": torch.randn(2, 3), "a.b": torch.arange(3)})
    whole = file.read_bytes()
    refused = 0
    for at in range(0, 400, 3):
        file.write_bytes(whole)

        def flip(members: dict[str, bytes], at: int = at) -> None:
            raw = bytearray(members["w/data.pkl"])
            raw[at % len(raw)] ^= 1 << at % 8
            members["w/data.pkl"] = bytes(raw)

        rezip(file, flip)
        try:
            assert all(isinstance(v, torch.Tensor) for v in read_torchscript(file).values())
        except DataError:
            refused += 1
    assert refused > 40


VISION = {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16}
TEXT = {"context_length": 8, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1}


@pytest.mark.parametrize(("place", "key", "value", "told"), [
    ("vision_cfg", "timm_model_name", "hf-hub:evil/model", "nothing is downloaded"),
    ("vision_cfg", "timm_model_name", "local-dir:/tmp", "nothing is downloaded"),
    ("vision_cfg", "timm_model_pretrained", True, "asks for a download"),
    ("text_cfg", "hf_model_name", "../evil", "nothing is downloaded"),
    ("text_cfg", "hf_model_name", "evil/model", "cannot load weights"),  # not fetched
    ("text_cfg", "hf_tokenizer_name", "/etc/evil", "nothing is downloaded"),
    ("vision_cfg", "layers", 100_000, "at most 256"),
    ("vision_cfg", "width", 10**8, "at most 16,384"),
    ("vision_cfg", "patch_size", 0, "above 0"),
    ("text_cfg", "vocab_size", 10**9, "at most 4,000,000"),
    ("text_cfg", "layers", float("nan"), "above 0"),
    ("vision_cfg", "width", 16_000, "bytes"),
    ("vision_cfg", "layers", "many", "open_clip"),
    ("vision_cfg", "head_width", 7.5, "open_clip"),
    ("", "embed_dim", [1], "open_clip"),
])
def test_a_folder_asks_for_no_download_and_no_giant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, key: str, value: object, told: str
) -> None:
    """One sentence, before anything is built; no socket is opened."""
    arch: dict = {"embed_dim": 16, "vision_cfg": dict(VISION), "text_cfg": dict(TEXT)}
    (arch[place] if place else arch)[key] = value
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": arch}))
    safetensors.torch.save_file({"w": torch.zeros(4)}, tmp_path / "open_clip_model.safetensors")

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(FedvlmError) as error:
        load(f"local-dir:{tmp_path}")
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_header_of_countless_tensors_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes((20 << 20).to_bytes(8, "little") + b"{" + b" " * (20 << 20))
    with pytest.raises(DataError, match="far more tensors than any model"):
        refuse_odd(file)
