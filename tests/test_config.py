"""Config: schema, YAML files, merge order, and every mistake at once with file and nearest name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvlm.config.build import build_config, config_lines, flat, unused_keys
from fedvlm.config.keys import default_schema, family_aliases
from fedvlm.config.option import Option, declare
from fedvlm.config.read import config_names, find_config
from fedvlm.core.errors import ConfigError

FEDTV = {"RANK": Option(8, "rank", low=1), "TEMP": Option(0.5, "tau", low=0, low_open=True)}
SCHEMA = declare(default_schema(), "TRAINER.FEDTV", FEDTV)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def build(
    *opts: str, dataset: Path | None = None, trainer: Path | None = None, **flags: Any
) -> Any:
    typed = {key.replace("__", "."): value for key, value in flags.items()}
    return build_config(dataset, trainer, typed, list(opts), SCHEMA)


def mistakes(*opts: str, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(*opts, **more)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_every_default_keeps_its_own_rule():
    for key, option in SCHEMA.items():
        assert option.parse(option.default) == option.default, key


def test_dassl_keys_are_all_there():
    keys = [
        "VERSION", "OUTPUT_DIR", "RESUME", "SEED", "VERBOSE", "INPUT.SIZE", "INPUT.GB_K",
        "DATASET.CIFAR_C_LEVEL", "DATALOADER.TRAIN_U.SAME_AS_X", "MODEL.HEAD.DROPOUT",
        "OPTIM.RMSPROP_ALPHA", "OPTIM.WARMUP_RECOUNT", "TRAIN.PRINT_FREQ",
        "TEST.PER_CLASS_RESULT", "TRAINER.FIXMATCH.WEIGHT_U", "TRAINER.COOP.CSC",
        "TRAINER.MAPLE.PROMPT_DEPTH", "TRAINER.PROMPTSRC.GPA_STD", "DATASET.SUBSAMPLE_CLASSES",
    ]  # fmt: skip
    assert [k for k in keys if k not in SCHEMA] == []
    assert "USE_CUDA" in family_aliases()


def test_coop_trainer_yaml_loads_as_it_is(tmp_path: Path):
    path = write(tmp_path / "vit_b16.yaml", (
        "DATALOADER:\n  TRAIN_X:\n    BATCH_SIZE: 32\n  TEST:\n    BATCH_SIZE: 100\n"
        "  NUM_WORKERS: 8\nINPUT:\n  SIZE: (224, 224)\n  INTERPOLATION: 'bicubic'\n"
        "  PIXEL_MEAN: [0.48145466, 0.4578275, 0.40821073]\n"
        "  TRANSFORMS: ['random_resized_crop', 'random_flip', 'normalize']\n"
        "OPTIM:\n  NAME: 'sgd'\n  LR: 0.002\n  MAX_EPOCH: 200\n  LR_SCHEDULER: 'cosine'\n"
        "  WARMUP_EPOCH: 1\n  WARMUP_TYPE: 'constant'\n  WARMUP_CONS_LR: 1e-5\n"
        "TRAIN:\n  PRINT_FREQ: 5\nMODEL:\n  BACKBONE:\n    NAME: 'ViT-B/16'\n"
    ))  # fmt: skip
    cfg, origins = build(trainer=path)
    assert cfg.OPTIM.WARMUP_CONS_LR == 1e-5 and cfg.INPUT.SIZE == (224, 224)
    assert cfg.FED.LOCAL_EPOCHS == 200
    assert origins["FED.LOCAL_EPOCHS"] == f"{path}, as OPTIM.MAX_EPOCH"
    assert origins["OPTIM.LR"] == str(path) and origins["OPTIM.MOMENTUM"] == "default"
    assert {"INPUT.SIZE", "TRAIN.PRINT_FREQ"} <= set(unused_keys(origins, SCHEMA))
    assert "OPTIM.LR" not in unused_keys(origins, SCHEMA)


def test_precedence_default_dataset_trainer_extra_flag_opts(tmp_path: Path):
    low = write(tmp_path / "d.yaml", "DATASET: {NAME: d}\nFED: {ROUNDS: 2, CLIENTS: 2, FRAC: 1}\n")
    high = write(tmp_path / "t.yaml", "FED: {CLIENTS: 3, FRAC: 0.3, BETA: 0.3}\nSEED: 3\n")
    top = write(tmp_path / "x.yaml", "FED: {FRAC: 0.4, BETA: 0.4}\nSEED: 4\nDATA_SEED: 4\n")
    cfg, origins = build_config(
        low, high, {"FED.BETA": "0.5", "SEED": "5"}, ["SEED", "6"], SCHEMA,
        extra_yamls=[top], flag_names={"FED.BETA": "--beta"},
    )  # fmt: skip
    got = [cfg.FED.LOCAL_EPOCHS, cfg.FED.ROUNDS, cfg.FED.CLIENTS, cfg.FED.FRAC, cfg.FED.BETA]
    assert [*got, cfg.SEED] == [2, 2, 3, 0.4, 0.5, 6]
    assert origins["FED.BETA"] == "flag --beta" and origins["SEED"] == "opts"
    with pytest.raises(AttributeError):
        cfg.SEED = 7


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
    assert key in line and ("wants" in line or "must be" in line) and len(line) < 300


def test_all_mistakes_at_once_with_file_line_and_nearest_name(tmp_path: Path):
    text = "FED:\n  ROUNDS: many\n  CLIENTS: 0\nTRAINER:\n  FEDTV:\n    RNAK: 4\n"
    path = write(tmp_path / "t.yaml", text)
    lines = mistakes("OPTIM.LR", "x", "ROUNDS", "3", trainer=path, FED__FRAC="2")
    assert lines == [
        f"{path}:2: FED.ROUNDS wants a whole number, got 'many' (str)",
        f"{path}:3: FED.CLIENTS must be at least 1, got 0",
        f"{path}:6: unknown key 'TRAINER.FEDTV.RNAK'; did you mean 'TRAINER.FEDTV.RANK'?",
        "flag FED.FRAC: FED.FRAC must be above 0 and at most 1, got 2.0",
        "opts: OPTIM.LR wants a number, got 'x' (str)",
        "opts: unknown key 'ROUNDS'; did you mean 'FED.ROUNDS'?",
    ]


def test_choices_name_the_nearest():
    (line,) = mistakes("FED.PARTITION", "patological")
    assert "iid, disjoint" in line and "did you mean 'pathological'?" in line


def test_family_keys_map_to_ours_and_say_so():
    opts = "DATASET.USERS 4 DATASET.PARTITION homo DATASET.IID False OPTIM.ROUND 3 USE_CUDA False"
    cfg, origins = build(*opts.split(), "DATASET.USEALL", "True", "TEST.FINAL_MODEL", "best_val")
    assert (cfg.FED.CLIENTS, cfg.FED.PARTITION, cfg.FED.ROUNDS) == (4, "iid", 3)
    assert (cfg.DEVICE, cfg.DATASET.NUM_SHOTS, cfg.TEST.SELECT) == ("cpu", -1, "val")
    assert "FED.CLIENTS 4" in "\n".join(config_lines(cfg, origins, SCHEMA))
    assert origins["FED.CLIENTS"] == "opts, as DATASET.USERS"
    assert build("DATASET.IID", "True")[0].FED.PARTITION == "iid"
    assert build("DATASET.IID", "False")[0].FED.PARTITION == "disjoint"


def test_two_spellings_that_disagree_are_refused():
    (line,) = mistakes("DATASET.USERS", "4", "FED.CLIENTS", "5")
    assert "keep one" in line
    assert build("DATASET.USERS", "5", "FED.CLIENTS", "5")[0].FED.CLIENTS == 5


def test_switches_without_equivalent_may_only_be_off():
    build("DATASET.SPLIT_CLIENT", "False")
    (line,) = mistakes("DATASET.SPLIT_CLIENT", "True")
    assert "not supported" in line


@pytest.mark.parametrize("text, part", [
    ("", "empty"), ("# nothing\n", "empty"), ("- a\n- b\n", "a list at the top"),
    ("word", "a single value"), ("FED:\n\tROUNDS: 3\n", "tab"), ("FED: [1, 2\n", "not valid YAML"),
    ("FED:\n  ROUNDS: 3\n  ROUNDS: 4\n", "stands twice"), ("SEED: 1\nSEED: 1\n", "stands twice"),
    ("FED: 3\n", "is a section"), ("SEED: !!python/object/apply:os.getpid []\n", "refused"),
    ("!!python/object/apply:os.system ['true']\n", "refused"),
    ("TAG: [!!python/name:os.system ]\n", "cannot be read"), ("? [1, 2]\n: 3\n", "key must be"),
    ("3: 4\n", "unknown key"), ("SEED: {a: 1}\n", "wants a whole number"),
    (b"\xff\xfeS\x00E\x00", "UTF-8"), (b"SEED: \x00 1", "control"), ("a: &a {<<: *a}\n", "unknown"),
    ("[" * 3000, "nested too deeply"), ("FED: &f {FED: *f}\n", "unknown key"),
    ("a: &a [x]\nSEED: [*a, *a]\n", "wants a whole number"), ("SEED: 2020-13-01\n", "SEED"),
    ("FED: !mine {ROUNDS: 3}\n", "refused"), ("FED: {<<: {ROUNDS: 3}}\n", "not supported"),
])  # fmt: skip
def test_bad_yaml_gets_a_sentence(tmp_path: Path, text: str | bytes, part: str):
    path = write(tmp_path / "t.yaml", text)
    lines = mistakes(trainer=path)
    assert any(part in line for line in lines), lines
    assert all(str(path) in line for line in lines)


def test_byte_order_mark_and_empty_section_are_harmless(tmp_path: Path):
    path = write(tmp_path / "t.yaml", b"\xef\xbb\xbfSEED: 3\nFED:\n")
    assert build(trainer=path)[0].SEED == 3


def test_python_config_is_never_run(tmp_path: Path):
    flag = tmp_path / "ran"
    for name in ("evil.py", "evil.pkl", "evil"):
        path = write(tmp_path / name, f"open({str(flag)!r}, 'w')\ncfg = {{}}\n")
        (line,) = mistakes(trainer=path)
        assert ".yaml or .yml" in line
        if path.suffix:
            with pytest.raises(ConfigError, match="refused unread"):
                find_config(str(path), "trainers")
    assert not flag.exists()


def test_swapped_files_are_named(tmp_path: Path):
    data = write(tmp_path / "d.yaml", "DATASET:\n  NAME: EuroSAT\n")
    method = write(tmp_path / "t.yaml", "TRAINER:\n  FEDTV:\n    RANK: 4\n")
    assert "swapped" in mistakes(dataset=method, trainer=data)[0]
    assert "--trainer-config-file" in mistakes(dataset=method)[0]
    assert "--dataset-config-file" in mistakes(trainer=data)[0]
    assert build(dataset=data, trainer=method)[0].TRAINER.FEDTV.RANK == 4


def test_config_names_ignore_case_dash_underscore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "configs" / "datasets"
    folder.mkdir(parents=True)
    path = write(folder / "oxford_pets.yaml", "DATASET: {NAME: OxfordPets}\n")
    monkeypatch.chdir(tmp_path)
    for given_name in ("configs/datasets/oxfordpets.yaml", "Oxford-Pets", "oxford_pets.yml",
                       "configs/datasets/oxford-pets", str(path), str(folder / "OXFORDPETS.YAML")):
        assert find_config(given_name, "datasets").resolve() == path, given_name
    assert "oxford_pets" in config_names("datasets")
    for bad in ("oxford_pet", "configs/datasets/oxford_pet.yaml", "x\0y"):
        with pytest.raises(ConfigError, match="known datasets: .*oxford_pets") as caught:
            find_config(bad, "datasets")
    with pytest.raises(ConfigError, match="did you mean 'oxford_pets'"):
        find_config("oxford_pet", "datasets")
    assert "\n" not in str(caught.value)


def test_declare_refuses_a_default_outside_its_own_range():
    with pytest.raises(ConfigError, match="TRAINER.X.A: its default must be at least 1"):
        declare(SCHEMA, "TRAINER.X", {"A": Option(0, "a", low=1)})
    assert "TRAINER.FEDTV.RANK" not in declare(SCHEMA, "TRAINER.FEDTV", {"A": Option(0, "a")})


def test_printed_config_hides_unused_defaults_and_gives_origins():
    lines = config_lines(*build("TRAIN.PRINT_FREQ", "3"), SCHEMA)
    text = "\n".join(lines)
    assert "TRAIN.PRINT_FREQ 3" in text and "(opts, not used)" in text and "GN_MEAN" not in text
    assert any(line.startswith("FED.ROUNDS 10 ") and line.endswith("(default)") for line in lines)


_GOOD = "DATASET:\n  NAME: x\nFED:\n  ROUNDS: 3\n  FRAC: 0.5\nOPTIM:\n  LR: 1e-3\n"


@settings(
    max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(at=st.integers(0, len(_GOOD)), cut=st.integers(0, 8), put=st.text(max_size=6))
def test_mutated_yaml_never_ends_in_a_traceback(tmp_path: Path, at: int, cut: int, put: str):
    text = _GOOD[:at] + put + _GOOD[at + cut :]
    path = write(tmp_path / "f.yaml", text.encode("utf-8", "surrogatepass"))
    try:
        cfg, _ = build(dataset=path)
    except ConfigError as error:
        assert all(line.strip() for line in str(error).splitlines())
    else:
        assert cfg.FED.ROUNDS >= 1 and 0 < cfg.FED.FRAC <= 1
