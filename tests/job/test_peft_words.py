"""``--peft``: words to keys, and what contradicts itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import OFF, WORDS, expand, parse
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
    for key, value in WORDS.values():
        assert value in choices[key]
    for key, known in choices.items():
        assert schema[key].choices == known


@pytest.mark.parametrize(
    ("words", "said"),
    [("promt", "no 'promt'.*prompt"), ("", "no ''"), ("prompt+", "no ''"),
     ("lora+adapter", "lora and adapter both set PEFT.VISUAL"),
     ("prompt+text-lora", "both set PEFT.TEXT"), ("prompt+head", "no text side; drop head")],
)  # fmt: skip
def test_contradictions(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        expand(words)
    with pytest.raises(ConfigError, match=said):
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
