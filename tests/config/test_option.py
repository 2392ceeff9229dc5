"""One option: what it takes, and the message for what it does not."""

from __future__ import annotations

import pytest

from fedvlm.config.build import flat
from fedvlm.config.option import Option, declare
from fedvlm.core.errors import ConfigError
from tests.config.layers import SCHEMA, build, mistakes


def test_every_default_keeps_its_own_rule():
    for key, option in SCHEMA.items():
        assert option.parse(option.default) == option.default, key


@pytest.mark.parametrize("key, text, value", [
    ("OPTIM.LR", "1e-5", 1e-5), ("OPTIM.LR", "1", 1.0), ("OPTIM.STEPSIZE", "[5, 10]", (5, 10)),
    ("INPUT.SIZE", "(32, 32)", (32, 32)), ("INPUT.PIXEL_MEAN", "(0, 1, 0.5)", [0.0, 1.0, 0.5]),
    ("FED.LEGACY", "False", False), ("FED.LEGACY", "true", True), ("DATASET.NUM_SHOTS", "-1", -1),
    ("TAG", "7", "7"), ("TAG", "('a')", "('a')"),
    ("OUTPUT_DIR", "$(rm -r x) ../~", "$(rm -r x) ../~"),
    ("FED.PARTITION", "pathological", "disjoint"), ("FED.PARTITION", "dir", "dirichlet"),
    ("FED.PARTITION", "noniid-labeldir", "dirichlet"),
    ("FED.PARTITION", "noniid-labeldir100", "superclass_dirichlet"),
    ("FED.PARTITION", "noniid-labeluni", "n_classes"), ("FED.PARTITION", "domains", "domain"),
    ("FED.PARTITION", "HOMO", "iid"), ("DEVICE", "cuda:1", "cuda:1"),
])  # fmt: skip
def test_opts_are_decoded_as_yacs_does(key: str, text: str, value: object):
    got = flat(build(key, text)[0])[key]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("key, text", [
    ("FED.ROUNDS", "0"), ("FED.CLIENTS", "0"), ("DATASET.NUM_SHOTS", "0"), ("FED.FRAC", "0"),
    ("DATASET.NUM_SHOTS", "-2"), ("FED.FRAC", "1.5"), ("OPTIM.LR", "0"), ("OPTIM.LR", "-1"),
    ("OPTIM.LR", "nan"), ("OPTIM.LR", "1e999"), ("FED.BETA", "0"), ("TRAINER.FEDTV.TEMP", "0"),
    ("TRAINER.FEDTV.RANK", "0"), ("FED.ROUNDS", "2.0"), ("FED.ROUNDS", "many"), ("SEED", "-1"),
    ("FED.ROUNDS", "True"), ("FED.LEGACY", "1"), ("FED.LEGACY", "__import__('os').getpid()"),
    ("OPTIM.STEPSIZE", "5"), ("OPTIM.STEPSIZE", "(1.5,)"), ("OPTIM.LR", "1" * 400),
    ("FED.PARTITION", "noniid-labeldir7"), ("DEVICE", "cuda:x"), ("FED.LOCAL_EPOCHS", ""),
    ("OPTIM.MOMENTUM", "1"), ("INPUT.RRCROP_SCALE", "(0, 1)"), ("INPUT.RRCROP_SCALE", "(1,)"),
     ("FED.ROUNDS", "(" * 500),
])  # fmt: skip
def test_wrong_type_and_out_of_range_are_refused(key: str, text: str):
    (line,) = mistakes(key, text)
    assert key in line and ("expects" in line or "must be" in line) and len(line) < 300


def test_a_list_of_names_has_no_gaps():
    assert flat(build("PEFT.RANKS", "2, 4,")[0])["PEFT.RANKS"] == ("2", "4")
    (line,) = mistakes("PEFT.RANKS", "2,,4")
    assert "PEFT.RANKS" in line and "has a comma too many: '2,,4'" in line


def test_choices_name_the_nearest():
    (line,) = mistakes("FED.PARTITION", "patological")
    assert "iid, disjoint" in line and "did you mean 'pathological'?" in line


@pytest.mark.parametrize("word", [
    "noniid", "non-iid", "non_iid", "Non-IID", "niid", "label-skew", "hetero"])
def test_clients_that_differ_are_not_led_to_iid(word: str) -> None:
    (line,) = mistakes("FED.PARTITION", word)
    assert f"got '{word}'; use dirichlet --beta 0.3 (" in line and line.endswith("or disjoint")


def test_declare_refuses_a_default_outside_its_own_range():
    with pytest.raises(ConfigError, match="TRAINER.X.A: its default must be at least 1"):
        declare(SCHEMA, "TRAINER.X", {"A": Option(0, "a", low=1)})
    assert "TRAINER.FEDTV.RANK" not in declare(SCHEMA, "TRAINER.FEDTV", {"A": Option(0, "a")})


def test_yamls_bare_yes_and_no_are_words_where_they_have_aliases():
    switch = Option("auto", "x", choices=("auto", "yes", "no"),
                    aliases={"True": "yes", "False": "no"})
    assert [switch.parse(raw) for raw in (True, False, "yes", "true", "auto")] == [
        "yes", "no", "yes", "yes", "auto"]
    with pytest.raises(ValueError, match="expects text"):
        Option("auto", "x", choices=("auto", "yes")).parse(True)


def test_a_word_stands_for_a_number():
    option = Option(1, "rounds", low=0, words={"auto": 0})
    assert [option.parse(raw) for raw in ("auto", "Auto", 0, "0", "7", 7)] == [0, 0, 0, 0, 7, 7]
    for raw in ("never", -1, 1.5):
        with pytest.raises(ValueError):
            option.parse(raw)


def test_a_word_that_needs_something_else_is_told_so() -> None:
    option = Option("client", "", choices=("client", "group"), hints={"patient": "group and --g"})
    with pytest.raises(ValueError, match="got 'Patient'; use group and --g$"):
        option.parse("Patient")
    with pytest.raises(ValueError, match="did you mean 'client'"):
        option.parse("clint")
