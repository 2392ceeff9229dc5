"""``--peft``: words to keys, and what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.config.build import build_config
from fedvlm.config.families import PEFT_WORDS, families_in
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import card, trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.job.flags import OFF, parse, peft_keys
from fedvlm.models.adapt.peft import HEADS, TEXT, VISUAL, PeftSpec
from tests import jobs


@pytest.mark.parametrize(
    ("words", "want"),
    [("prompt", ("prompt", "none", "text")), ("prompt+lora", ("prompt", "lora", "text")),
     ("head", ("none", "none", "linear")), ("Head + Adapter", ("none", "adapter", "linear")),
     ("text_lora+lora", ("lora", "lora", "text")), ("feature", ("none", "feature", "text"))],
)  # fmt: skip
def test_words(words: str, want: tuple[str, ...]) -> None:
    flags = parse(["--peft", words]).flags
    assert tuple(flags.values()) == want and list(flags) == list(OFF)
    cfg, _ = build_config(None, None, flags, [], default_schema())
    spec = PeftSpec.of(cfg)
    assert (spec.text, spec.visual, spec.head) == want


def test_every_word_is_a_choice() -> None:
    choices = {"PEFT.TEXT": TEXT, "PEFT.VISUAL": VISUAL, "PEFT.HEAD": HEADS}
    schema = default_schema()
    for key, value in PEFT_WORDS.values():
        assert value in choices[key]
    for key, known in choices.items():
        assert schema[key].choices == known


@pytest.mark.parametrize(
    ("words", "said"),
    [("promt", "unknown --peft value 'promt'.*prompt"), ("", "unknown --peft value ''"),
     ("prompt+", "unknown --peft value ''"),
     ("lora+adapter", "lora and adapter both set PEFT.VISUAL"),
     ("prompt+text-lora", "both set PEFT.TEXT"), ("prompt+head", "no text side; drop head")],
)  # fmt: skip
def test_contradictions(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        peft_keys(words)
    with pytest.raises(ConfigError, match=said if words else "--peft got an empty word"):
        parse(["--peft", words])


def test_a_run_with_contexts_by_class(tmp_path: Path) -> None:
    """Its name in tables says so; unseen classes have no number, as with a linear head."""
    words = ["--trainer", "PromptFL", "PEFT.CSC", "True", "PEFT.N_CTX", "4"]
    assert jobs.run(tmp_path, *words, "PEFT.CTX_INIT", "a photo of a") == 0
    said = json.loads((jobs.folder(tmp_path) / "results.json").read_text())
    assert said["protocol"]["peft"] == "prompt+csc+'a photo of a'"
    assert "cannot predict unseen classes: no accuracy on new classes" in str(said["results"])
    assert "new" not in said["results"]["last"] and said["results"]["last"]["global"] is not None
    assert jobs.state(tmp_path)["server|w|text.ctx"].dim() == 3


@pytest.mark.parametrize("words", ["lora", "feature", "head", "text-lora+lora"])
def test_a_prompt_method_without_its_prompt_is_refused(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--trainer", "PromptFL", "--peft", words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--peft {words}: PromptFL trains a prompt, which --peft {words} does not" in said
    assert f"use --trainer FedAvg --peft {words}, or keep the prompt" in said
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_prompt_method_with_more_than_its_prompt_is_run(tmp_path: Path) -> None:
    words = ["--trainer", "PromptFL", "--peft", "prompt+feature"]
    assert jobs.run(tmp_path, *words) == 0
    assert {n for n in jobs.state(tmp_path) if n.startswith("server|w|text.")} == {
        "server|w|text.ctx"
    }


def test_each_method_of_a_fixed_part_says_so() -> None:
    """A PeftTrainer whose card names its tensors has ``must_train``, or refuses the rest itself."""
    named = {}
    for stem, path in trainer_files().items():
        cls = load_trainer(stem)
        parts = families_in(card(path))
        if issubclass(cls, PeftTrainer) and parts != ("peft",):
            named[cls.name] = cls.must_train
    assert named == {"PromptFL": "prompt", "CLIP-LoRA": "", "FedDPA": "", "HetLoRA": ""}


@pytest.mark.parametrize("trainer", ["CLIP-LoRA", "FedDPA", "HetLoRA"])
def test_a_lora_method_without_lora_is_refused(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--trainer", trainer, "--peft", "prompt") == 2
    assert "lora" in capsys.readouterr().err
