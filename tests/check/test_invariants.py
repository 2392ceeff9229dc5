"""The invariants, over every trainer of the repository; and that each of them can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.compare import Broken, same_fed
from fedvlm.check.invariants import INVARIANTS, exemption_mistakes, run
from fedvlm.check.world import BASE, RESNET, CheckWorld
from fedvlm.cli.main import main
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.backbone import digest_of
from fedvlm.models.vlmodel import VLModel

from .broken_trainers import BROKEN, Good
from .short import Worlds

TRAINERS = sorted(trainer_files())
# Tried by QUICK in `make test`, by all in `make test-all`: each of them costs 1 to 4 s.
BASELINES = {
    "afl", "clip_adapter", "clip_lora", "cocoop", "dp_fpl", "fedclip", "feddda", "feddpa",
    "fedmgp", "fedmvp", "fedotp", "fedpgp", "fedpha", "fedtpg", "hetlora", "kgcoop", "maple",
    "pfedmma", "pfedmoap", "prograd", "promptfolio", "promptsrc", "tip_adapter", "tip_adapter_f",
    "tofa", "trip", "vpt",
}
QUICK = {"G1", "G10", "G16"}
EACH = [
    pytest.param(
        trainer, name,
        marks=[pytest.mark.slow] if trainer in BASELINES and name not in QUICK else (),
    )
    for trainer in TRAINERS for name in INVARIANTS
]


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    """One world: it keeps each trainer's trajectory."""
    return CheckWorld()


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    """A world for every method."""
    return Worlds()


@pytest.mark.parametrize(("trainer", "name"), EACH)
def test_invariant(worlds: Worlds, trainer: str, name: str) -> None:
    cls, world = load_trainer(trainer), worlds.of(trainer)
    if name not in cls.exempt:
        INVARIANTS[name](world, cls)
        return
    with pytest.raises(Broken):  # an exemption that is not needed must go
        INVARIANTS[name](world, cls)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_exemptions_have_a_reason(trainer: str) -> None:
    assert exemption_mistakes(load_trainer(trainer)) == {}


def test_variant_fixed_of_fedtv() -> None:
    found = run("fedtv", ["TRAINER.FEDTV.VARIANT", "fixed"])
    assert {o.name: o.detail for o in found if o.state != "ok"} == {}


@pytest.mark.parametrize("trainer", ["FedAvg", "FedRep"])
def test_with_kept_optimisers(trainer: str) -> None:
    found = run(trainer, ["OPTIM.KEEP_STATE", "True"])
    assert {o.name: o.detail for o in found if o.state == "broken"} == {}


@pytest.mark.parametrize("name", list(INVARIANTS))
def test_a_good_trainer_keeps(world: CheckWorld, name: str) -> None:
    INVARIANTS[name](world, Good)


@pytest.mark.parametrize(
    ("trainer", "name", "sentence"), BROKEN, ids=[f"{t.__name__}-{n}" for t, n, _ in BROKEN]
)
def test_a_broken_trainer_is_caught(trainer: type[Trainer], name: str, sentence: str) -> None:
    with pytest.raises(Broken, match=sentence):
        INVARIANTS[name](CheckWorld(), trainer)


def test_a_sentence_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from fedvlm.method import Trainer\n\n\nclass Mine(Trainer):\n"
                    "    def trainables(self, model, generator):\n        return []\n")
    assert main(["check", f"{path}:Mine"]) == 1
    told = capsys.readouterr().out
    assert told.count("Mine.trainables returned a list, not a tree") == 1
    assert told.count(": as G1\n") == len(INVARIANTS) - 1


def test_a_weight_that_is_no_number_goes_with_its_client() -> None:
    class Weighs(Good):
        weighting = "own"

        def client_update(self, ctx, state, received):  # type: ignore[no-untyped-def]
            w = ctx.fit(state["w"] | received, self.loss).params
            size = w["text.ctx"].square().sum((1, 2))
            return state | {"w": w}, ctx.upload(w, weight=torch.exp(-size))

    INVARIANTS["G14"](CheckWorld(), Weighs)


def test_every_invariant_is_shown_to_fail() -> None:
    assert {name for _, name, _ in BROKEN} == set(INVARIANTS)


def test_exemptions(world: CheckWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: INVARIANTS[name] for name in ("G2", "G7", "G10", "G11")}
    monkeypatch.setattr("fedvlm.check.invariants.INVARIANTS", some)

    class Exempt(Good):
        exempt = {"G10": "the rule is the method", "G7": " ", "G99": "what"}

    found = {o.name: o for o in run(Exempt, world=world)}
    assert set(found) == {*some, "G99"}
    assert (found["G10"].state, found["G10"].detail) == ("exempt", "the rule is the method")
    assert (found["G7"].state, found["G7"].detail) == ("broken", "exempt from G7 without a reason")
    assert found["G99"].state == "broken" and "not an invariant" in found["G99"].detail
    assert {o.state for n, o in found.items() if n not in ("G10", "G7", "G99")} == {"ok"}


def test_a_trainer_that_raises_is_broken_not_a_traceback(world: CheckWorld) -> None:
    class Raises(Good):
        def loss(self, model: object, p: object, b: object) -> torch.Tensor:
            raise TypeError("no\nloss")

    found = {o.name: o for o in run(Raises, world=world)}
    assert "client 0: TypeError: no loss" in found["G1"].detail
    assert found["G10"].state == "ok"


def test_the_world_packs_and_differs(world: CheckWorld) -> None:
    """The packed path is really taken, and the world is no degenerate one."""
    ctx = 0.02 * torch.randn(1, 4, world.backbone.text_width, generator=torch.Generator()).double()
    counts, texts = [], []
    for packed in (False, True):
        model = VLModel(world.backbone, BASE, packed=packed)
        texts.append(model.text(ctx))
        counts.append(model.counters["text_tokens"])
        assert model.notes == []
    assert counts[1] < counts[0]
    assert torch.allclose(texts[0], texts[1], atol=1e-12)
    assert world.backbone.embed_dim != world.backbone.text_width
    assert float(world.features.std(0).min()) > 1e-3


def test_worlds_share_what_is_built_and_nothing_that_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that moves a frozen weight (G9) does so in its own world only."""
    one = CheckWorld(vision=RESNET)
    with torch.no_grad():
        next(iter(one.backbone.model.parameters())).add_(1.0)
    monkeypatch.setattr("fedvlm.check.world.build_model", None)
    other = CheckWorld(["TRAINER.FEDTV.RANK", "2"], RESNET).backbone
    now, moved = (digest_of(b.model, b.arch) for b in (other, one.backbone))
    assert now == other.digest == one.backbone.digest != moved


def test_more_threads_change_nothing_but_rounding(world: CheckWorld) -> None:
    one = world.trajectory(load_trainer("FedTV"))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        more = world.record(load_trainer("FedTV"))
    finally:
        torch.set_num_threads(threads)
    same_fed(more.states[-1], one.states[-1], "more threads", 1e-9)


def test_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verbs()["check"].run(["zeroshot"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(INVARIANTS) + 1
    assert lines[-1] == f"zeroshot: {len(INVARIANTS) - 4} hold, 4 exempt, 0 broken"
    mine = tmp_path / "my.py"
    mine.write_text(MINE)
    assert verbs()["check"].run([f"{mine}:MyMethod"]) == 0  # nothing said: as good as FedAvg
    out = capsys.readouterr().out
    assert "G10  ok" in out and "G7   exempt" in out and "1 exempt, 0 broken" in out
    some = {name: INVARIANTS[name] for name in ("G1", "G7", "G10", "G16")}
    monkeypatch.setattr("fedvlm.check.invariants.INVARIANTS", some)
    assert verbs()["check"].run([f"{mine}:CatchesAll"]) == 1
    out = capsys.readouterr().out
    assert "G10  broken" in out and "G7   exempt" in out and "1 exempt, 1 broken" in out
    with pytest.raises(ConfigError, match="Leaky exempts itself from 'G1': privacy and"):
        (tmp_path / "leaky.py").write_text(LEAKY)
        verbs()["check"].run([f"{tmp_path / 'leaky.py'}:Leaky"])


MINE = '''
import torch
from fedvlm.method import Trainer

class MyMethod(Trainer):
    exempt = {"G7": "for the test"}
    def trainables(self, model, generator):
        return {"text.ctx": torch.randn(4, model.text_width, generator=generator) * 0.02}

class CatchesAll(MyMethod):
    groups = ((r".*", "shared"),)
'''
LEAKY = '''
from fedvlm.method import Trainer

class Leaky(Trainer):
    exempt = {"G1": "it is only a research prototype"}
'''


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "check needs a trainer"),
        (["--all"], "check: unknown flag '--all'"),
        (["fedvt"], "did you mean 'FedTV'"),
        (["./absent.py:Mine"], "no file"),
        (["fedtv", "TRAINER.FEDTV.RNAK", "2"], "did you mean 'TRAINER.FEDTV.RANK'"),
    ],
)
def test_command_mistakes(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        verbs()["check"].run(words)


def test_command_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    assert "check fedtv" in capsys.readouterr().out
