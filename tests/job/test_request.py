"""The command of the next step, pasted: what the run was asked for, with other flags."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from yacs.config import CfgNode

from fedvlm.config.build import flat
from fedvlm.config.families import NOT_OWN, OWN
from fedvlm.job.flags import parse
from fedvlm.job.request import Request, next_command
from fedvlm.job.resolve import Jobs, resolve

HEAD, AFL = "--trainer FedAvg --peft head", "--trainer AFL --rounds 1"
SHARES = "--trainer AFL --rounds 2 --tag shares TRAINER.AFL.SHARES True"
LONGER, SLOWER = "--rounds 20 --tag rounds-20", "--lr 0.002 --tag lr-0.002"
DATA = "--dataset shapes --backbone tiny"


REFUSED = ("FED.FINETUNE_EPOCHS", "FED.AGGREGATOR")  # by ZeroShot, by AFL


def plan_of(line: str) -> Jobs:
    return resolve(parse(shlex.split(line)))


def after(line: str, flags: str) -> tuple[Jobs, str]:
    plan = plan_of(line)
    job = plan.jobs[0]
    return plan, next_command(plan.request, flags.split(), job.cfg, job.origins)


def shared(cfg: CfgNode) -> dict[str, object]:
    """Return the settings that no method owns."""
    closed = cfg.TRAINER.NAME == "ZeroShot"
    return {k: v for k, v in flat(cfg).items()
            if k not in ("TAG", "FED.ROUNDS", *(REFUSED if closed else ()))
            and (not k.startswith(OWN) or k in NOT_OWN)}


@pytest.mark.parametrize(("line", "flags", "words"), [
    ("--demo --trainer FedTV TRAINER.FEDTV.ORTHO norm FED.LOCAL_EPOCHS 2", HEAD,
     "--demo --trainer FedAvg --peft head --opts FED.LOCAL_EPOCHS 2"),
    (f"{DATA} --peft prompt+lora --lr 0.01 --num_users 3 --tag lora", AFL,
     "--dataset shapes --trainer AFL --num-users 3 --backbone tiny --rounds 1"),
    (f"{DATA} --trainer CoOp --n-ctx 4 TRAINER.COOP.CSC True OPTIM.ROUND 7 OPTIM.MAX_EPOCH 3", HEAD,
     "--dataset shapes --trainer FedAvg --backbone tiny --peft head "
     "--opts OPTIM.ROUND 7 OPTIM.MAX_EPOCH 3"),
    (f"{DATA} --trainer FedOTP --eps 0.2 --model fedotp --tag a --iid False --fast", HEAD,
     "--dataset shapes --trainer FedAvg --backbone tiny --iid=False --fast --peft head"),
    (f"{DATA} --trainer FedPer --seeds 1 2 --metric auroc top5 --tag all", "--trainer ZeroShot",
     "--dataset shapes --trainer ZeroShot --seeds 1 2 --backbone tiny --metric auroc,top5 "
     "--tag all"),
    ("--demo --trainer FedAvg --peft head --lr 0.3 --tag big", "--trainer Ditto --peft head",
     "--demo --trainer Ditto --peft head --lr 0.3"),
    ("--demo --trainer FedAvg --peft head OPTIM.LR 0.01", "--trainer Ditto --peft head --lr 0.05",
     "--demo --trainer Ditto --peft head --lr 0.05"),
    ("--demo --trainer Ditto --peft feature --lr 0.02 --resume out --draft OPTIM.LR 0.3", SLOWER,
     "--demo --trainer Ditto --peft feature --draft --lr 0.002 --tag lr-0.002"),
    ("--demo --trainer PromptFL --n-ctx 4 OPTIM.ROUND 7 --peft prompt", LONGER,
     "--demo --trainer PromptFL --peft prompt --n-ctx 4 --rounds 20 --tag rounds-20"),
    ("--demo --finetune-epochs 2 FED.AGGREGATOR median FED.FRAC 0.5", HEAD, "--demo --trainer "
     "FedAvg --peft head --finetune-epochs 2 --opts FED.AGGREGATOR median FED.FRAC 0.5"),
    ("--demo --trainer AFL TRAINER.AFL.GAMMA 2.0 FED.FRAC 0.5", SHARES,
     "--demo --trainer AFL --rounds 2 --tag shares --opts FED.FRAC 0.5 TRAINER.AFL.SHARES True"),
    ("--demo --finetune-epochs 2 FED.AGGREGATOR median FED.FRAC 0.5", "--trainer ZeroShot",
     "--demo --trainer ZeroShot --opts FED.FRAC 0.5"),
])  # fmt: skip
def test_it_can_be_pasted(line: str, flags: str, words: str) -> None:
    before, command = after(line, flags)
    assert sorted(shlex.split(command)) == sorted(["fedvlm", "run", *words.split()])
    pasted = plan_of(command.removeprefix("fedvlm run "))
    for old, new in zip(before.jobs, pasted.jobs, strict=True):
        said = dict(zip(flags.split()[::2], flags.split()[1::2], strict=True))
        assert said.get("--trainer", old.cfg.TRAINER.NAME) == new.cfg.TRAINER.NAME
        if "--trainer" in said:
            assert (shared(old.cfg) | {"DRAFT": False}).items() >= shared(new.cfg).items()
        else:
            kept = {k: v for k, v in flat(old.cfg).items() if k not in ("OPTIM.LR", "FED.ROUNDS")}
            assert flat(new.cfg).items() >= (kept | {"TAG": said["--tag"], "RESUME": ""}).items()


def test_the_methods_file_leaves_what_it_says_of_the_protocol(tmp_path: Path) -> None:
    file = tmp_path / "my file.yaml"
    file.write_text("OPTIM: {LR: 0.1}\nFED: {FRAC: 0.5, ROUNDS: 3}\n"
                    "TRAINER: {FEDTV: {ORTHO: norm}}\n")
    line = f"{DATA} --trainer FedTV --rounds 4 --config-file {shlex.quote(str(file))}"
    assert after(line, HEAD)[1] == (
        "fedvlm run --dataset shapes --trainer FedAvg --peft head --backbone tiny --rounds 4 "
        "--opts FED.FRAC 0.5")
    _, longer = after(line, LONGER)
    assert f"--trainer-config-file '{file}'" in longer and "--opts" not in longer


def test_images_in_memory_have_no_command() -> None:
    job = plan_of("--demo").jobs[0]
    assert next_command(Request(trainer="FedTV"), HEAD.split(), job.cfg, job.origins) == ""
