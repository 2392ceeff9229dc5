"""Files of the CoOp family as methods: CoOp is PromptFL, the other shapes train, nothing leaks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.compare import copy_fed
from fedvlm.check.invariants import run as check
from fedvlm.compat.trainer import DasslTrainer
from fedvlm.config.build import config_lines
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation.discovery import framework_of, load_trainer
from fedvlm.federation.rounds import WholeState
from fedvlm.job.build import Built
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.compat.small import COOP, HERE, built, double, losses, needs_coop, same_bits
from tests.jobs import folder, records
from tests.jobs import run as job

CTX = "prompt_learner.ctx"
SHAPES = {  # double -> tensors that it trains
    ("coop", "CoOpDouble"): {CTX},
    ("conditional", "CoCoOpDouble"): {CTX} | {
        f"prompt_learner.meta_net.{layer}.{part}" for layer in ("linear1", "linear2")
        for part in ("weight", "bias")},
    ("teacher", "KgCoOpDouble"): {CTX},
    ("teacher", "ProGradDouble"): {CTX},
    ("deep", "HookDouble"): {CTX, "prompt_learner.text_shift", "prompt_learner.image_shift"},
    ("deep", "MeanTeacherDouble"): {CTX},
    ("deep", "MaPLeDouble"): None,
    ("deep", "PromptSRCDouble"): None,
}  # fmt: skip


Kept = list[dict[str, Any]]
Look = Callable[[str, str], Built]


@pytest.fixture(scope="module")
def look() -> Look:
    """The run of a double, ready to go; for tests that only look at it."""
    return cache(lambda file, name: built(double(file, name)))


@pytest.fixture(scope="module")
def ours() -> Kept:
    """The records of PromptFL's run, once it was made."""
    return []


def promptfl(trainer: str, tmp_path: Path, ours: Kept) -> None:
    """Losses and accuracies of three rounds are PromptFL's."""
    words = ("--rounds", "3", "--shots", "4", "--local-epochs", "2", "--num-users", "3",
             "TEST.REFERENCES", "False")
    if not ours:
        assert job(tmp_path / "ours", "--trainer", "PromptFL", *words) == 0
        ours += records(tmp_path / "ours")
    assert job(tmp_path / "theirs", "--trainer", trainer, *words) == 0
    theirs = records(tmp_path / "theirs")
    assert len(ours) == len(theirs) == 4
    for a, b in zip(ours, theirs, strict=True):
        for name in ("personal", "global", "personal_macro_f1"):
            assert a[name] == pytest.approx(b[name], abs=0.3), name  # one image of 1,000 at a tie
        assert a["train"].keys() == b["train"].keys() and (a["train"] or not a["round"])
        for client, told in a["train"].items():
            assert told["loss"] == pytest.approx(b["train"][client]["loss"], rel=1e-4)
    assert abs(ours[-1]["new"] - theirs[-1]["new"]) < 0.6
    start, end = (ours[i]["global"] for i in (0, -1))
    assert end > start + 3  # it learns: equal numbers of a model that stands still prove nothing
    log = (folder(tmp_path / "theirs") / "log.txt").read_text()
    assert "Finish training\n=> result\n* total" in log


@needs_coop
def test_the_authors_file_gives_promptfl(tmp_path: Path, ours: Kept) -> None:
    promptfl(f"{COOP}:CoOp", tmp_path, ours)


def test_a_file_of_its_shape_gives_promptfl(tmp_path: Path, ours: Kept) -> None:
    promptfl(double("coop", "CoOpDouble"), tmp_path, ours)


@pytest.mark.parametrize("shape", [
    shape if i % 2 == 0 else pytest.param(shape, marks=pytest.mark.slow)
    for i, shape in enumerate(SHAPES)
], ids=lambda s: s[1])
def test_every_shape_trains_what_its_optimiser_holds(shape: tuple[str, str]) -> None:
    run = built(double(*shape), "--rounds", "1", "--local-epochs", "2")
    start = {n: v.clone() for n, v in run.federation.p0.items()}
    assert SHAPES[shape] is None or set(start) == SHAPES[shape]
    result = losses(run)
    end = result["state"].server["w"]
    assert all(torch.isfinite(torch.tensor(row)).all() for row in result["losses"])
    still = [n for n in start if torch.equal(start[n], end[n])]
    assert not still, still
    assert set(run.federation.groups.shared) == set(start)
    assert run.model.verify_frozen() == run.backbone.digest


def test_names_of_whole_models_are_theirs(look: Look) -> None:
    maple, src = (set(look("deep", n).federation.p0) for n in ("MaPLeDouble", "PromptSRCDouble"))
    assert "MultiModalPromptLearner.prompt_learner.deep.0" in maple
    assert {"VLPromptLearner.image_encoder.VPT",
            "VLPromptLearner.text_encoder.transformer.resblocks.1.VPT_shallow"} <= src
    assert not [n for n in src if "ZS_image" in n]


def test_a_trained_part_of_a_tower_is_the_clients_own() -> None:
    """Its twin in the file, the backbone and the other clients stay; torch's optimiser is ours."""
    run = built(double("deep", "NormDouble"))
    norm = {f"model.text_encoder.ln_final.{part}" for part in ("weight", "bias")}
    assert set(run.federation.p0) == {CTX} | norm
    start = run.federation.p0
    end = losses(run)["state"].server["w"]
    assert all(not torch.equal(start[n], end[n]) for n in start)
    assert run.model.verify_frozen() == run.backbone.digest
    # A group's own rate is its share of the run's.
    session = run.federation.trainer._of(run.model)
    assert [f for o in session.optimisers for f in o.factors if len(o.factors) == 2] == [
        1.0, pytest.approx(0.1)]


def test_gradient_surgery_of_its_own_is_prograds() -> None:
    """Written out between backward and step, or by the base class: the same numbers."""
    words = "LOSS.LAMBDA", "1.0", "--rounds", "1"
    a, b = (losses(built(double("teacher", n), *words))["state"].server["w"][CTX]
            for n in ("ProGradDouble", "SurgeryDouble"))
    plain = losses(built(double("coop", "CoOpDouble"), "--rounds", "1"))["state"].server["w"][CTX]
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert (a - plain).abs().max() > 1e-6  # some step was changed


def test_weights_that_the_file_loads_itself_are_sent() -> None:
    """PromptSRC's last act in a round: the mean over its epochs becomes the model."""
    run = built(double("deep", "PromptSRCDouble"), "--rounds", "1", "--num-users", "1",
                "TRAINER.PROMPTSRC.GPA_STD", "1e6")
    seen = []
    session = run.federation.trainer._of(run.model)
    step = session._step

    def spy(optimiser: object, at: object) -> None:
        step(optimiser, at)
        seen.append({n: p.detach().clone() for n, p in session.params.items()})

    session._step = spy
    sent = losses(run)["state"].server["w"]
    per_epoch = len(seen) // 2
    for name, value in sent.items():  # a flat bell: the plain mean of both epochs' ends
        mean = (seen[per_epoch - 1][name] + seen[-1][name]) / 2
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)


def test_what_a_file_keeps_reaches_no_other_client() -> None:
    run = built(double("deep", "MeanTeacherDouble"))
    session = run.federation.trainer._of(run.model)
    teacher = session.inner.teacher.ctx.clone()
    losses(run)
    assert session.inner.seen == [] and torch.equal(session.inner.teacher.ctx, teacher)


@pytest.mark.slow
def test_a_teacher_that_a_file_keeps_breaks_single_steps_only() -> None:
    verdicts = {v.name: v.state for v in check(double("deep", "MeanTeacherDouble"))}
    # G5 compares with single steps, which know no teacher.
    assert [n for n, s in verdicts.items() if s == "broken"] == ["G5"]


def test_the_contract_holds_for_coops_shape() -> None:
    assert {v.state for v in check(double("coop", "CoOpDouble"))} == {"ok"}


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    spec, saved = double("deep", "PromptSRCDouble"), list[WholeState]()
    run = built(spec)
    run.federation.savers.append(
        lambda state: saved.append(copy_fed(run.federation.read(state))))
    whole = losses(run)
    rest = losses(built(spec), state=next(one for one in saved if one.round == 1))
    assert same_bits(whole["state"].server["w"], rest["state"].server["w"])
    assert len(whole["losses"]) == 2 and whole["losses"][1:] == rest["losses"]


def test_parts_are_personal_by_name() -> None:
    spec = double("conditional", "CoCoOpDouble")
    groups = built(spec, "FED.PERSONAL", r"prompt_learner\.meta_net\..+").federation.groups
    assert groups.shared == (CTX,) and len(groups.personal) == 4
    with pytest.raises(ConfigError, match="matches none of the trained tensors"):
        built(spec, "FED.PERSONAL", "ctx")
    with pytest.raises(ConfigError, match="defines which of its tensors are personal"):
        built("PromptFL", "FED.PERSONAL", "text.ctx")


def test_contexts_by_class_know_no_new_classes(look: Look) -> None:
    run = built(double("coop", "CoOpDouble"), "TRAINER.COOP.CSC", "True")
    assert not run.federation.trainer.open_vocabulary
    assert look("coop", "CoOpDouble").federation.trainer.open_vocabulary


def test_features_are_cached_only_where_the_tower_is_left_alone(look: Look) -> None:
    streams = {
        n: look(f, n).federation.trainer.streams(None)
        for f, n in (("coop", "CoOpDouble"), ("teacher", "ProGradDouble"), ("deep", "HookDouble"),
                     ("deep", "MaPLeDouble"))
    }
    assert streams == {"CoOpDouble": ("features",), "ProGradDouble": ("features",),
                       "HookDouble": ("pixels",), "MaPLeDouble": ("pixels",)}


def test_modules_are_there_only_while_a_file_runs() -> None:
    run = built(double("coop", "CoOpDouble"), "--rounds", "1")
    losses(run)
    assert not [n for n in sys.modules if n.partition(".")[0] in ("dassl", "Dassl", "clip")]
    assert isinstance(run.federation.trainer, DasslTrainer)
    assert torch.ones(1).half().dtype is torch.float16  # the world is as it was
    assert torch.ones(1).to(torch.bfloat16).dtype is torch.bfloat16


def test_a_file_is_known_by_its_imports(tmp_path: Path) -> None:
    assert framework_of(HERE / "doubles_coop.py") == "dassl"
    assert framework_of(HERE / "small.py") == ""
    ours = tmp_path / "mine.py"
    ours.write_text("from fedvlm.method import Trainer\nclass Mine(Trainer):\n"
                    "    name = 'Mine'\n")
    assert load_trainer(f"{ours}:Mine").name == "Mine"


@pytest.mark.parametrize(("change", "sentence"), [
    ("    def run_epoch(self):\n        pass\n", "defines its own run_epoch"),
    ("    def forward_backward(self, batch):\n        return {'loss': 0.0}\n",
     "does not step its optimiser"),
    ("    def build_model(self):\n        self.dm.dataset.train_x\n",
     "images belong to clients"),
    ("    def build_model(self):\n        self.cfg.NOVEL.DEPTH\n",
     "which have no default in fedvlm"),
    ("    def build_model(self):\n        raise KeyError('EuroSAT')\n",
     "there is no 'EuroSAT'"),
    ("    def build_model(self):\n        super().build_model()\n"
     "        self.model.requires_grad_(False)\n", "no parameter that requires a gradient"),
    ("    def forward_backward(self, batch):\n"
     "        self.model.text_encoder.ln_final.weight.data.zero_()\n"
     "        self.model.text_encoder.ln_final.weight.detach().add_(1)\n"
     "        return super().forward_backward(batch)\n", "of the frozen towers"),
])
def test_what_cannot_be_carried_is_refused(tmp_path: Path, change: str, sentence: str) -> None:
    shutil.copy(HERE / "doubles_coop.py", tmp_path / "doubles_coop.py")
    file = tmp_path / "bad.py"
    file.write_text(f"from dassl.engine import TRAINER_REGISTRY\nfrom .doubles_coop import Base\n"
                    f"class Bad(Base):\n{change}")
    with pytest.raises(FedvlmError, match=sentence):
        losses(built(f"{file}:Bad", "--rounds", "1"))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lost.py"
    file.write_text("from dassl.engine import TrainerX\nfrom .imagenet_templates import T\n")
    with pytest.raises(ConfigError, match="put the needed file next to it"):
        load_trainer(f"{file}:Lost")
    with pytest.raises(ConfigError, match="did you mean 'CoOpDouble'"):
        load_trainer(double("coop", "CoOpDoubel"))


@needs_coop
def test_the_authors_options_are_the_runs() -> None:
    run = built(f"{COOP}:CoOp", "TRAINER.COOP.N_CTX", "4", "TRAINER.COOP.CTX_INIT",
                "a_photo_of_a", "TRAINER.COOP.PREC", "amp", "TRAINER.COOP.CLASS_TOKEN_POSITION",
                "middle")
    assert list(run.federation.p0[CTX].shape) == [4, run.model.text_width]
    assert losses(run, until=1)["losses"]


def test_a_precision_that_the_run_does_not_have_is_not_logged_as_its_own() -> None:
    words = ["--demo", "--trainer", double("coop", "CoOpDouble")]
    jobs, told = resolve(parse(words)), resolve(parse([*words, "TRAINER.COOP.PREC", "amp"]))
    lines = config_lines(jobs.jobs[0].cfg, jobs.jobs[0].origins, jobs.schema)
    assert any("TRAINER.COOP.N_CTX" in line for line in lines) and "PREC" in jobs.jobs[0].cfg.MODEL
    assert not [line for line in lines if "COOP.PREC" in line]
    assert "accepted, but without effect: TRAINER.COOP.PREC" in told.notes
