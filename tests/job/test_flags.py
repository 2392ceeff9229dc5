"""The words of the main job: spellings, switches, pairs, and every mistake at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedvlm.config.aliases import refused_keys
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.core.errors import ConfigError, fold
from fedvlm.job.flags import FLAGS, REFUSED, by_name, parse
from tests.job.house import FakeTrainer, words


def test_dash_underscore_case_and_equals_are_one():
    for line in ("--num-users 3", "--num_users 3", "--Num-Users=3", "--numusers=3"):
        assert parse(line.split()).flags == {"FED.CLIENTS": "3"}
    for line in ("--shots 4", "--num-shots 4", "--num_shots=4", "--numshots 4"):
        assert parse(line.split()).flags == {"DATASET.NUM_SHOTS": "4"}
    for line in ("--rounds 4 ", "--round=4"):
        assert parse(line.split()).flags == {"FED.ROUNDS": "4"}
    assert parse(["--local_epoch", "1"]).flags == parse(["--local-epochs", "1"]).flags
    assert parse(["--train_batch_size", "1"]).flags == parse(["--batch-size", "1"]).flags
    assert parse(["--config-file", "x.yaml"]).trainer_config_file == "x.yaml"


def test_no_two_flags_share_a_spelling_and_every_key_exists():
    spellings = [fold(n) for f in FLAGS for n in f.names] + [fold(n) for n in REFUSED]
    assert len(spellings) == len(set(spellings))
    known = {*declare(default_schema(), "TRAINER.FEDTV", FakeTrainer.options)}
    loose = {f.key for f in FLAGS if f.key and not f.key.startswith("TRAINER.*.")} - known
    refused = {"DATASET.IMBALANCE_TRAIN", "DATASET.SPLIT_CLIENT"}  # taken where they are False
    assert loose == {"DATASET.IID", "DATASET.USEALL"} | refused <= {*refused_keys(), *loose}
    assert set(by_name()) <= set(spellings)


def test_the_flags_of_the_issue_are_all_there():
    wanted = words(
        "root dataset-config-file trainer trainer-config-file config-file backbone weights",
        "num-users shots num-shots rounds round local-epochs frac partition beta seed data-seed",
        "subsample",
        "subsample-classes output-dir resume device lr batch-size train-batch-size eval-every tag",
        "keep-logits dataset seeds dry-run print-config demo plain views variant opts help",
    )
    assert [w for w in wanted if fold("--" + w) not in by_name()] == []


def test_the_value_of_an_unknown_flag_is_no_second_mistake():
    with pytest.raises(ConfigError) as caught:
        parse(words("--demo -shots 4 --rounds 2"))
    assert str(caught.value) == "unknown flag '-shots'; did you mean '--shots'?"
    with pytest.raises(ConfigError, match="^flag -algo is called --trainer .* --trainer FedPer$"):
        parse(words("-algo FedPer"))  # PFLlib's


def test_unknown_flags_are_all_named_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        parse(words("--num-usres 3 --plain -q --zzz 1 2 --rounds --frac 0.5 --logdir"))
    assert str(caught.value).splitlines() == [
        "unknown flag '--num-usres'; did you mean '--num-users'?",
        "unknown flag '-q' (--help lists all)",
        "unknown flag '--zzz' (--help lists all)",
        "--rounds needs a value (communication rounds; auto: until validation is flat)",
        "flag --logdir does not exist here; use --output-dir DIR",
    ]


@pytest.mark.parametrize(("typed", "says"), [
    ("--gpu 0", "flag --gpu does not exist here; use --device cuda:0"),
    ("--gpus=1", "flag --gpus does not exist here; use --device cuda:1"),
    ("--epochs 3", "flag --epochs is one of two things here: --rounds 3 for communication rounds, "
                   "or --local-epochs 3 for the epochs of a client in a round"),
    ("--learning_rate 0.5", "flag --learning_rate is called --lr here: --lr 0.5"),
    ("--algo FedAvg", "flag --algo is called --trainer here: --trainer FedAvg"),
    ("--non_iid", "flag --non_iid does not exist here; use --partition dirichlet"),
    ("--bf16", "use --opts MODEL.PREC bf16"),
    ("--seed 1 2", "for several seeds use --seeds, such as --seeds 1 2"),
])
def test_what_people_type_is_answered_with_the_command(typed, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse(words(typed))


def test_seeds_may_be_a_range():
    assert parse(words("--seeds 1-3 7,9")).seeds == [1, 2, 3, 7, 9]
    with pytest.raises(ConfigError, match="--seeds expects whole numbers, got .3-1."):
        parse(words("--seeds 3-1"))


def test_switches_are_booleans():
    assert parse(["--iid", "False"]).flags == {"DATASET.IID": "False"}
    assert parse(["--iid"]).flags == {"DATASET.IID": "True"}
    assert parse(["--demo", "false"]).demo is False and parse(["--demo"]).demo is True
    assert parse(["--keep_logits", "--plain", "OPTIM.LR", "1"]).opts == ["OPTIM.LR", "1"]
    with pytest.raises(ConfigError, match="is a switch"):
        parse(["--demo=perhaps"])


def test_opts_with_and_without_the_flag_and_negative_numbers():
    args = parse(words("--opts OPTIM.LR 0.1 --shots -1 DATASET.NUM_SHOTS -1 SEED 2"))
    assert args.flags == {"DATASET.NUM_SHOTS": "-1"}
    assert args.opts == ["OPTIM.LR", "0.1", "DATASET.NUM_SHOTS", "-1", "SEED", "2"]
    with pytest.raises(ConfigError, match="'SEED' has no value"):
        parse(["--rounds", "3", "SEED"])
    for more in (["0.01"], ["0.01", "0.1"], ["SEED", "1", "0.01"]):
        with pytest.raises(ConfigError, match="'0.01' stands where a key .* fedvlm sweep runs"):
            parse(["--lr", "0.001", *more])
    assert parse(["TAG", "", "DATASET.GROUPS", ""]).opts == ["TAG", "", "DATASET.GROUPS", ""]
    for line in ("OPTIM.LR=0.1", "SEED 1 --opts OPTIM.LR=0.1 FED.ROUNDS=2"):
        with pytest.raises(ConfigError, match="'OPTIM.LR=0.1': .* two words here: OPTIM.LR 0.1"):
            parse(line.split())


@pytest.mark.parametrize("words", [["--model-dir", "x"], ["--load-epoch", "3"]])
def test_a_model_that_nothing_evaluates_is_refused(words: list[str]) -> None:
    assert parse(["--eval-only", *words]).eval_only
    with pytest.raises(ConfigError, match=f"{words[0]} says what --eval-only evaluates"):
        parse(words)


_WORDS = st.sampled_from(["--rounds", "--opts", "--demo", "--seeds", "-1", "SEED", "=", "--", "-h"])


@settings(max_examples=200, deadline=None)
@example(["~0"])  # a home that there is not
@given(st.lists(_WORDS | st.text(max_size=6), max_size=6))
def test_any_words_are_parsed_or_refused_in_sentences(typed: list[str]):
    try:
        args = parse(typed)
    except ConfigError as error:
        assert str(error).strip()
    else:
        assert len(args.opts) % 2 == 0
