"""Classic methods over any network: who has what, what the head reads, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedvlm.check.compare import Broken
from fedvlm.check.invariants import INVARIANTS
from fedvlm.check.world import BASE, CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import PERSONAL, SHARED
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.toolbox.networks import over, over_places
from fedvlm.job.flags import parse
from fedvlm.job.identity import config_keys
from fedvlm.job.resolve import resolve
from fedvlm.models.vlmodel import VLModel
from tests.federation.toolbox.nets import (
    HEAD,
    METHODS,
    NORM,
    Net,
    TwoStages,
    method,
    two_rounds,
    world,
)

WHOLE = tuple(n for n, _ in TwoStages(len(BASE)).named_parameters())
BODY = tuple(n for n in WHOLE if n not in HEAD)
SHARES = {  # what travels, where it is not everything
    "FedPer": BODY, "FedRep": BODY, "FedBABU": BODY, "FedAS": BODY, "LG-FedAvg": HEAD,
    "FedProto": (), "LocalOnly": (), "FedBN": tuple(n for n in WHOLE if n not in NORM),
}  # fmt: skip
KEEPS = {"FedPer": HEAD, "FedRep": HEAD, "FedAS": HEAD, "LG-FedAvg": BODY, "FedProto": WHOLE,
         "LocalOnly": WHOLE, "FedBN": NORM}


# ---- every method ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
def test_a_method_splits_the_network_by_role_and_moves_what_it_shares(name: str) -> None:
    run = two_rounds(name)
    groups = run.fed.groups
    assert sorted(groups.shared) == sorted(SHARES.get(name, WHOLE))
    own = [n for n in groups.personal if n in WHOLE]  # Thorki's small model is beside the network
    assert sorted(own) == sorted(KEEPS.get(name, ()))
    first, last = (run.states[i].server["w"] for i in (0, 2))
    for n in groups.shared:
        assert torch.isfinite(last[n]).all() and not torch.equal(first[n], last[n]), n
    assert len(set(run.digests)) == 1
    personal = run.fed.trainer.predict(run.fed.model, expand(run.fed.p0, 1), {
        "pixels": world(name).pixels[None, :2], "features": world(name).features[None, :2],
    }) if name != "FedProto" else torch.zeros(1, 2, len(BASE))
    assert personal.shape == (1, 2, len(BASE))


@pytest.mark.parametrize("name", ["FedAS", "Hermes", "HEART-PFL"])
@pytest.mark.parametrize("law", ["G1", "G3", "G4", "G9"])
def test_invariant(name: str, law: str) -> None:
    trainer = method(name)
    if law in trainer.exempt:
        with pytest.raises(Broken):
            INVARIANTS[law](world(name), trainer)
    else:
        INVARIANTS[law](world(name), trainer)


# ---- what passes through -----------------------------------------------------------------------
def params(run: Any, k: int = 2) -> Tree:
    draw = torch.Generator().manual_seed(3)
    return {n: v + 0.1 * torch.randn(k, *v.shape, generator=draw, dtype=v.dtype)
            for n, v in run.fed.p0.items()}


def test_the_representation_is_what_enters_the_head() -> None:
    run, w = two_rounds("FedAS"), world("FedAS")
    p, x = params(run), w.pixels[:6].unflatten(0, (2, 3))
    found = run.fed.trainer.representation(run.fed.model, p, {"pixels": x})
    net = TwoStages(len(BASE)).double()
    for k in range(2):
        net.load_state_dict({n: v[k] for n, v in p.items()})
        assert (found[k] - net.body(x[k])).abs().max() < 1e-12
    assert run.fed.trainer.width(run.fed.model) == found.shape[-1] == 10


def test_loss_representation_and_stages_are_of_one_pass() -> None:
    run, w = two_rounds("HEART-PFL"), world("HEART-PFL")
    trainer, model, p = run.fed.trainer, run.fed.model, params(run, 1)
    (step, *_) = run.fed.batcher.steps([0], 1, 1, 1, "w")
    (batch,) = step.batches
    loss, z = trainer.supervised(model, p, batch)
    again, stages = trainer.supervised_stages(model, p, batch, [0, 0, 1, 1])
    assert torch.equal(loss, again) and torch.equal(loss, trainer.loss(model, p, batch))
    net = TwoStages(len(BASE)).double()
    net.load_state_dict({n: v[0] for n, v in p.items()})
    x = batch.x["pixels"][0]
    for found, want in zip(stages, [net.one(x)] * 2 + [net.two(net.one(x))] * 2, strict=True):
        assert (found[0] - want.mean((2, 3))).abs().max() < 1e-12
    assert (z[0] - net.body(x)).abs().max() < 1e-12
    assert trainer.stage_widths(model, [0, 0, 1, 1]) == [6, 6, 8, 8]
    assert w.pixels.shape[-1] == 8
    assert not any(m._forward_hooks or m._forward_pre_hooks
                   for m in trainer._part(model).module.modules())


def test_places_are_averaged() -> None:
    maps = torch.arange(24.0).view(1, 2, 3, 4)
    assert over_places(maps).tolist() == [[5.5, 17.5]]
    assert over_places(maps[0]).tolist() == [[4.0, 5.0, 6.0, 7.0], [16.0, 17.0, 18.0, 19.0]]
    assert over_places(maps[0, 0]) is not None and over_places(maps[0, 0]).shape == (3, 4)


# ---- methods whose hooks were CLIP's ------------------------------------------------------------
def test_fedas_aligns_the_received_body_to_old_features() -> None:
    """With ALIGN the second round starts elsewhere; the alignment moves the body alone."""
    run = two_rounds("FedAS")
    assert float(run.events[0].updates.metrics.get("align/loss", torch.zeros(1)).abs().max()) == 0
    assert float(run.events[1].updates.metrics["align/loss"].min()) > 0
    plain = CheckWorld(["TRAINER.NET-FEDAS.ALIGN", "False"]).record(
        method("FedAS"), Setup(rounds=2, pixels=True))
    ours, theirs = (r.states[2].server["w"] for r in (run, plain))
    assert any(not torch.equal(ours[n], theirs[n]) for n in BODY)
    first = [r.states[1].server["w"] for r in (run, plain)]
    assert all(torch.equal(first[0][n], first[1][n]) for n in BODY)


def test_moon_without_its_weight_is_fedavg() -> None:
    one = CheckWorld(["TRAINER.NET-MOON.MU", "0"]).record(
        method("MOON"), Setup(rounds=2, pixels=True)).states[2].server["w"]
    two = two_rounds("FedAvg").states[2].server["w"]
    assert all((one[n] - two[n]).abs().max() < 1e-12 for n in WHOLE)


def test_fedproto_scores_by_distance_to_shared_means() -> None:
    run, w = two_rounds("FedProto"), world("FedProto")
    trainer, proto = run.fed.trainer, run.states[2].server["proto"]
    assert proto["proto.mean"].shape == (len(BASE), 10) and (proto["proto.count"] > 0).all()
    x = {"pixels": w.pixels[None, :3]}
    p = expand(run.fed.p0, 1) | expand(proto, 1)
    z = trainer.representation(run.fed.model, p, x)[0]
    want = -torch.cdist(z, proto["proto.mean"]).square()
    assert (trainer.predict(run.fed.model, p, x)[0] - want).abs().max() < 1e-9
    unseen = p | {"proto.count": torch.zeros_like(p["proto.count"])}
    assert (trainer.predict(run.fed.model, unseen, x) == -1e4).all()
    assert all((v == 0).all() for v in run.states[0].server["proto"].values())


def test_hermes_prunes_hidden_channels_and_they_can_be_taken_out() -> None:
    """Masked rows, entries and columns are zero, and the network without them is the same."""
    words = ["TRAINER.NET-HERMES.RATE", "0.5", "TRAINER.NET-HERMES.ACC_MODE", "abs",
             "TRAINER.NET-HERMES.ACC_THR", "0"]
    run = CheckWorld(words).record(method("Hermes"), Setup(rounds=2, pixels=True))
    state, w = run.states[2], world("Hermes")
    held = run.fed.trainer.units(run.fed.model)
    assert {n: [site for site, _ in held(n)] for n in WHOLE if held(n)} == {
        "one.0.weight": ["one.0"], "one.0.bias": ["one.0"], "one.1.weight": ["one.0"],
        "one.1.bias": ["one.0"], "two.0.weight": ["one.0", "two.0"], "two.0.bias": ["two.0"],
        "hidden.weight": ["two.0", "hidden"], "hidden.bias": ["hidden"], "out.weight": ["hidden"],
    }
    mask = state.clients[0]["mask"]["two.0"] > 0
    assert mask.tolist().count(True) == 4 and len(mask) == 8
    sent = run.events[1].updates.messages()[0]  # type: ignore[union-attr]
    left = {n: sent[n] for n in WHOLE}
    assert all((left[n][~mask] == 0).all() for n in ("two.0.weight", "two.0.bias"))
    assert (left["two.0.weight"][mask].flatten(1).norm(dim=1) > 0).all()
    columns = mask.repeat_interleave(4)  # two by two places of each channel
    assert (left["hidden.weight"][:, ~columns] == 0).all()
    assert (left["hidden.weight"][:, columns] != 0).any()
    net, small = TwoStages(len(BASE)).double(), TwoStages(len(BASE)).double()
    net.load_state_dict(left)
    small.two[0], small.hidden = nn.Conv2d(6, 4, 3, 2, 1).double(), nn.Linear(16, 10).double()
    cut = left | {n: left[n][mask] for n in ("two.0.weight", "two.0.bias")}
    small.load_state_dict(cut | {"hidden.weight": left["hidden.weight"][:, columns]})
    assert (net(w.pixels[:5]) - small(w.pixels[:5])).abs().max() < 1e-12


def test_a_warm_up_of_lg_fedavg_sends_the_body_too() -> None:
    run = CheckWorld(["TRAINER.NET-LG-FEDAVG.WARMUP_ROUNDS", "1"]).record(
        method("LG-FedAvg"), Setup(rounds=2, pixels=True))
    assert set(run.events[0].updates.extras) == set(BODY) and not run.events[1].updates.extras


def test_the_final_phase_trains_the_head_of_the_network() -> None:
    words = ["TRAINER.NET-FEDBABU.FT_PART", "head"]
    fed = CheckWorld(words).federation(method("FedBABU"), Setup(pixels=True))
    assert [n.replace("\\", "") for n in fed.finetuning.train] == list(HEAD)


# ---- what is refused ---------------------------------------------------------------------------
class OneLayer(Net):
    def build(self, model: VLModel) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, len(model.classnames)))


class NoStages(Net):
    def build(self, model: VLModel) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Tanh(), nn.Linear(4, 4))


class ByHand(Net):
    """Its head's weight is used, the head itself is not called."""

    def forward(self, module: nn.Module, params: Any, x: Any) -> Any:
        body = {n: v for n, v in params.items() if not n.startswith("out")}

        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = module

            def forward(self, pixels: torch.Tensor) -> torch.Tensor:
                return self.net.body(pixels)

        z = functional_call(Inner(), {f"net.{n}": v for n, v in body.items()}, (x["pixels"],))
        return z @ params["out.weight"].T + params["out.bias"]


class Convolution(Net):
    def build(self, model: VLModel) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, len(BASE), 6),
                             nn.Flatten())


class Grouped(Net):
    groups = ((".*", SHARED),)


class Choosy(Net):
    def rules(self, names: Sequence[str]) -> Any:
        return [(".*", PERSONAL)]


class Clash(Net):
    options = {"MU": load_trainer("FedProx").options["MU"]}


@pytest.mark.parametrize(("net", "name", "sentence"), [
    (Net, "PromptFL", "PromptFL is defined on CLIP's towers and not on any network"),
    (Net, "FedTV", "FedTV is defined on CLIP's towers"),
    (load_trainer("FedTV"), "FedAS", "FedTV is no ModuleTrainer"),
    (Grouped, "FedAS", "defines groups, so it is a method itself: drop --method FedAS"),
    (Choosy, "FedAS", "defines rules, so it is a method itself"),
    (Clash, "FedProx", "both have an option MU: rename"),
])
def test_classes_that_do_not_fit_are_refused_when_they_are_named(
    net: Any, name: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        over(net, load_trainer(name))


@pytest.mark.parametrize(("net", "name", "sentence"), [
    (OneLayer, "FedPer", "needs something to train in the body of the network, and Sequential has"),
    (NoStages, "HEART-PFL", "Sequential does not name its own: give it stages"),
    (NoStages, "FedBN", "the network has none that is trained: use FedAvg"),
    (OneLayer, "Hermes", "prunes channels that one layer of the network writes"),
    (Convolution, "FedProto", "the head is a Conv2d, which does not say how wide"),
    (ByHand, "MOON", "the forward does not call the module's head"),
])
def test_networks_that_a_method_cannot_use_are_refused(
    net: Any, name: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        world("FedAvg").record(method(name, net), Setup(rounds=1, pixels=True))
    assert sentence in str(refusal.value)


# ---- words -------------------------------------------------------------------------------------
NETS = str(Path(__file__).with_name("nets.py"))


def config(*words: str) -> Any:
    return resolve(parse(["--demo", *words])).jobs[0].cfg


def test_a_network_and_a_method_are_one_trainer() -> None:
    cfg = config("--trainer", f"{NETS}:Net", "--method", "fedas",
                 "TRAINER.NET-FEDAS.ALIGN", "False")
    assert f"{NETS}:Net+fedas" == cfg.TRAINER.NAME and not cfg.TRAINER["NET-FEDAS"].ALIGN
    trainer = load_trainer(cfg.TRAINER.NAME)
    assert trainer is load_trainer(f"{NETS}:Net+FedAS")
    assert trainer.name == "Net-FedAS" and issubclass(trainer, ModuleTrainer)
    assert config_keys(cfg)["TRAINER.NET-FEDAS.ALIGN"] is False


@pytest.mark.parametrize(("words", "sentence"), [
    (("--method", "FedAS"), "--trainer FedTV is no network"),
    (("--trainer", "FedPer", "--method", "FedAS"), "--trainer FedPer is no network; give the file"),
    (("--trainer", f"{NETS}:Net+Ditto", "--method", "FedAS"), "names a method already; drop one"),
    (("--trainer", f"{NETS}:Net", "--method", "FedASS"), "did you mean 'FedAS'"),
    (("--trainer", f"{NETS}:Net", "--method", "FedAS", "TRAINER.FEDAS.ALIGN", "no"),
     "unknown key 'TRAINER.FEDAS.ALIGN'"),
])
def test_words_that_do_not_fit(words: Sequence[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(*words)
    assert sentence in str(refusal.value)
