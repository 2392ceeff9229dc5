"""The command lines of the federated forks, and authors' YAML files, on fedvlm's own methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import method_of_rule, parse
from fedvlm.job.resolve import Jobs, resolve

COMMON = ("--demo --seed 1 --num_users 4 --frac 0.5 --lr 0.001 --gamma 1 --round 3 --beta 0.3 "
          "--partition noniid-labeldir100 --n_ctx 4 --num_prompt 2 --iid False --useall True "
          "--num_domain 4 --avg_prompt 1 --thresh 0.001 --ctx_init False --subsample base "
          "--test_batch_size 100 --transforms random_flip normalize --head mlp")


def jobs(words: str) -> Jobs:
    """What a command line asks for."""
    return resolve(parse(words.split()))


def test_the_script_of_fedotp_is_fedotp() -> None:
    got = jobs(f"{COMMON} --model FedOTP --trainer GLP_OT --OT COT --top_percent 0.7 --eps 0.2 "
               "--max_iter 50 --imbalance_train False --split_client False")
    cfg = got.jobs[0].cfg
    assert cfg.TRAINER.NAME == "FedOTP" and cfg.FED.ROUNDS == 3 and cfg.FED.CLIENTS == 4
    own = cfg.TRAINER.FEDOTP
    assert (own.N_CTX, own.EPS, own.GAMMA, own.ITERS) == (4, 0.2, 0.7, 50)
    notes = "\n".join(got.notes)
    for flag in ("--OT", "--thresh", "--avg_prompt", "--num_prompt", "--ctx_init", "--num_domain"):
        assert f"{flag} has no effect" in notes
    with pytest.raises(ConfigError, match="FED.PARTITION dirichlet gives unequal shares"):
        jobs("--demo --model FedOTP --imbalance_train True")


def test_the_scripts_of_fedpgp_and_fedtv() -> None:
    words = f"{COMMON} --mu 0.5 --temp 0.5 --bottleneck 8 --local_epoch 2 --feature False"
    pgp = jobs(f"{words} --model FedPGP --trainer FedPGP --logits2 False").jobs[0].cfg
    assert pgp.TRAINER.NAME == "FedPGP" and pgp.TRAINER.FEDPGP.NUM_PROMPT == 2
    tv = jobs(f"{words} --model FedTV --trainer FedTV --alpha 0.8 --eps 0.1 --max_iter 100 "
              "--top_percent 1")
    assert tv.jobs[0].cfg.TRAINER.NAME == "FedTV" and tv.jobs[0].cfg.TRAINER.FEDTV.RANK == 8
    assert "--alpha has no effect" in "\n".join(tv.notes)


@pytest.mark.parametrize(("words", "said"), [
    ("--trainer FedOTP --OT Sinkhorn", "FedOTP here has --OT COT only"),
    ("--trainer FedOTP --num_prompt 4", "FedOTP here has --num_prompt 2 only"),
    ("--trainer GLP_OT --avg_prompt 2", "FedOTP here has --avg_prompt 1 only"),
    ("--trainer FedTV --ctx_init True", "FedTV here has --ctx_init False only"),
    ("--model fedavg --trainer GLP_OT", "use --model FedOTP, or --trainer PromptFL for FedAvg"),
    ("--model fedavg --trainer FedPGP", "use --model FedPGP, or --trainer PromptFL for FedAvg"),
    ("--model local --trainer ./x.py:X", "--trainer LocalOnly --peft prompt"),
])
def test_what_a_method_here_does_not_have_is_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        jobs(f"--demo {words}")


def test_authors_names_of_methods_and_flags_without_use() -> None:
    glp = jobs("--demo --trainer GLP_OT --mu 0.5 --ctx_init False")
    assert glp.jobs[0].cfg.TRAINER.NAME == "FedOTP"
    said = "\n".join(glp.notes)
    assert "GLP_OT runs as FedOTP" in said and "--mu has no effect" in said
    clip = jobs("--demo --model fedavg --trainer CLIP")
    assert clip.jobs[0].cfg.TRAINER.NAME == "ZeroShot" and "CLIP runs as" in clip.notes[0]
    words = ("--demo", "--model", "fedavg", "--ctx_init")
    cfg = resolve(parse([*words, "a photo of a"])).jobs[0].cfg
    assert cfg.TRAINER.NAME == "PromptFL" and cfg.PEFT.CTX_INIT == "a photo of a"
    assert not resolve(parse([*words, "False"])).jobs[0].cfg.PEFT.CTX_INIT


def test_fedavg_of_a_forks_file_shares_everything() -> None:
    file = Path(__file__).parents[1] / "compat" / "fork" / "trainers" / "pair.py"
    cfg = jobs(f"--demo --model fedavg --trainer {file}:PairDouble").jobs[0].cfg
    assert cfg.FED.PERSONAL == "none"
    cfg = jobs(f"--demo --model fedotp --trainer {file}:PairDouble").jobs[0].cfg
    assert not cfg.FED.PERSONAL


def test_fedavg_over_a_prompt_is_promptfl() -> None:
    got = jobs("--demo --model fedavg --trainer PromptFL --num_users 3 --round 2 --n_ctx 6")
    assert got.jobs[0].cfg.TRAINER.NAME == "PromptFL" and got.jobs[0].cfg.PEFT.N_CTX == 6
    assert method_of_rule("fedavg", "") == "PromptFL"
    assert method_of_rule("FedOTP", "./x.py:GLP_OT") == "./x.py:GLP_OT"
    with pytest.raises(ConfigError, match="--trainer FedProx --peft prompt"):
        method_of_rule("fedprox", "PromptFL")
    with pytest.raises(ConfigError, match=r"choose the method with --trainer NAME; did you mean"):
        method_of_rule("fedavgg", "PromptFL")
    for word, name in (("ViT-B/16", "ViT-B/16"), ("vit_b16", "ViT-B/16"), ("tiny", "tiny")):
        with pytest.raises(ConfigError, match=f"backbone is chosen with --backbone {name}$"):
            method_of_rule(word, "PromptFL")


@pytest.mark.parametrize(("trainer", "keys", "want"), [
    ("CoCoOp", {"N_CTX": 4, "CTX_INIT": "a photo of a", "PREC": "fp16"}, {"N_CTX": 4}),
    ("MaPLe", {"N_CTX": 2, "PREC": "fp16", "PROMPT_DEPTH": 5}, {"N_CTX": 2, "DEPTH": 5}),
    ("PromptSRC", {"N_CTX_TEXT": 3, "N_CTX_VISION": 3, "PROMPT_DEPTH_TEXT": 4,
                   "PROMPT_DEPTH_VISION": 4, "PREC": "amp"}, {"N_CTX": 3, "DEPTH": 4}),
    ("VPT", {"N_CTX_VISION": 8, "PROMPT_DEPTH_VISION": 3, "CTX_INIT": "a photo of a",
             "PREC": "fp16"}, {"TOKENS": 8, "DEPTH": 3}),
])
def test_authors_yaml_files_set_the_native_methods(
    tmp_path: Path, trainer: str, keys: dict[str, object], want: dict[str, int]
) -> None:
    file = tmp_path / "authors.yaml"
    file.write_text(f"TRAINER:\n  {trainer.upper()}:\n" + "".join(
        f"    {k}: {v!r}\n" for k, v in keys.items()))
    cfg = jobs(f"--demo --trainer {trainer} --config-file {file}").jobs[0].cfg
    own = cfg.TRAINER[trainer.upper()]
    assert {k: own[k] for k in want} == want and cfg.MODEL.PREC == "fp32"


@pytest.mark.parametrize(("trainer", "key", "near"), [
    ("CoCoOp", "N_CTXX", "TRAINER.COCOOP.N_CTX"), ("MaPLe", "DEPHT", "TRAINER.MAPLE.DEPTH"),
    ("VPT", "N_CTX_VISON", "TRAINER.VPT.N_CTX_VISION"),
])
def test_other_keys_are_refused_with_the_nearest(
    tmp_path: Path, trainer: str, key: str, near: str
) -> None:
    file = tmp_path / "authors.yaml"
    file.write_text(f"TRAINER:\n  {trainer.upper()}:\n    {key}: 4\n")
    with pytest.raises(ConfigError, match=rf"authors.yaml:3: unknown key .*did you mean '{near}'"):
        jobs(f"--demo --trainer {trainer} --config-file {file}")


def test_prompts_of_two_sizes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "authors.yaml"
    file.write_text("TRAINER:\n  PROMPTSRC:\n    N_CTX_TEXT: 3\n    N_CTX_VISION: 4\n")
    with pytest.raises(ConfigError, match=r"sets TRAINER.PROMPTSRC.N_CTX to 4.*keep one"):
        jobs(f"--demo --trainer PromptSRC --config-file {file}")
    with pytest.raises(ConfigError, match="is a key of the authors' PromptSRC"):
        jobs(f"--demo --trainer MaPLe --config-file {file}")
