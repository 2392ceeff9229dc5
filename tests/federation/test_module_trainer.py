"""A torch module as a method: its tree, its randomness, what it may not do, and torch's numbers."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.check.compare import Broken, global_generators, same_fed
from fedvlm.check.invariants import INVARIANTS
from fedvlm.check.world import BASE, EPOCHS, NEW, CheckWorld, Setup
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.optim import OptimSpec, Schedule
from fedvlm.federation.rounds import Federation
from fedvlm.models.vlmodel import VLModel
from tests import jobs


class OnFeatures(nn.Module):
    """Takes a batch's streams as ``ModuleTrainer`` gives them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        return self.inner(x["features"])


class Mlp(ModuleTrainer):
    """A plain head on features."""

    def build(self, model: VLModel) -> nn.Module:
        d, c = model.embed_dim, len(model.classnames)
        return OnFeatures(nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Linear(8, c)))


class Still(ModuleTrainer):
    """BatchNorm with statistics of its own and a dropout that drops nothing."""

    drop = 0.0

    def build(self, model: VLModel) -> nn.Module:
        d, c = model.embed_dim, len(model.classnames)
        norm = nn.BatchNorm1d(d)
        nn.init.normal_(norm.running_mean)
        head = nn.Sequential(norm, nn.Dropout(self.drop), nn.Linear(d, c))
        head.register_parameter("fixed", nn.Parameter(torch.randn(3), requires_grad=False))
        return OnFeatures(head)


class Dropped(Still):
    """The same with dropout: no two clients draw alike."""

    drop = 0.5
    exempt = {"G5": "the written-out loop draws other masks", "G6": "clients draw their own masks"}


class PeftClip(ModuleTrainer):
    """LoRA of peft inside a Hugging Face image tower, and a linear head."""

    def streams(self, model: VLModel) -> tuple[str, ...]:
        return ("pixels",)

    def build(self, model: VLModel) -> nn.Module:
        from peft import LoraConfig, get_peft_model
        from transformers import CLIPVisionConfig, CLIPVisionModel

        shape = CLIPVisionConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            image_size=model.backbone.image_size, patch_size=4,
        )
        lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        tower = get_peft_model(CLIPVisionModel(shape), lora)
        return nn.ModuleDict({"tower": tower, "head": nn.Linear(16, len(model.classnames))})

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
        of = {part: {n.removeprefix(part + "."): v for n, v in params.items()
                     if n.startswith(part + ".")} for part in ("tower", "head")}
        out = functional_call(module["tower"], of["tower"], (), {"pixel_values": x["pixels"]})
        return functional_call(module["head"], of["head"], (out.pooler_output,))


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    """One world: it keeps each trainer's trajectory."""
    return CheckWorld()


def needs(trainer: type[ModuleTrainer]) -> None:
    """Skip, visibly, where the packages of a module are missing."""
    if trainer is PeftClip:
        pytest.importorskip("peft")
        pytest.importorskip("transformers")


# ---- the invariants ------------------------------------------------------------------------
@pytest.mark.parametrize("name", list(INVARIANTS))
@pytest.mark.parametrize("trainer", [Mlp, Still, Dropped, PeftClip])
def test_invariant(world: CheckWorld, trainer: type[ModuleTrainer], name: str) -> None:
    needs(trainer)
    if name not in trainer.exempt:
        INVARIANTS[name](world, trainer)
        return
    with pytest.raises(Broken):  # an exemption that is not needed must go
        INVARIANTS[name](world, trainer)


# ---- the tree ------------------------------------------------------------------------------
@pytest.mark.parametrize("trainer", [Mlp, Still, PeftClip])
def test_the_tree_is_what_requires_a_gradient_and_starts_as_build_gave_it(
    world: CheckWorld, trainer: type[ModuleTrainer]
) -> None:
    needs(trainer)
    fed = world.federation(trainer)
    seed = int(torch.randint(2**63 - 1, (), generator=rng.stream(1, "init")))
    with rng.fork_generators(seed, fed.model.device):
        module = trainer(world.config(trainer)).build(fed.model)
    want = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert list(fed.p0) == list(want) and len(want) < len(module.state_dict()) + (trainer is Mlp)
    for name, value in want.items():
        assert torch.equal(fed.p0[name], value.detach().double()), name
    assert fed.groups.shared == tuple(want)
    assert fed.p0.keys() == world.federation(trainer).p0.keys()
    other = world.federation(trainer, Setup(seed=2)).p0
    assert any(not torch.equal(other[n], v) for n, v in fed.p0.items())


def test_groups_are_rules_as_everywhere(world: CheckWorld) -> None:
    class Split(Mlp):
        groups = ((r"inner\.0\..*", "shared"), (r"inner\.2\..*", "personal"))

    run = world.record(Split, Setup(rounds=1))
    assert run.fed.groups.personal == ("inner.2.weight", "inner.2.bias")
    assert set(run.events[0].updates.params) == {"inner.0.weight", "inner.0.bias"}  # type: ignore[union-attr]


def test_the_module_is_made_once_per_model_and_not_kept_on_the_trainer(world: CheckWorld) -> None:
    calls: Counter[int] = Counter()

    class Counted(Mlp):
        def build(self, model: VLModel) -> nn.Module:
            calls[len(model.classnames)] += 1
            return super().build(model)

    run = world.record(Counted, Setup(rounds=1))
    assert calls == {len(BASE): 1}
    assert sorted(vars(run.fed.trainer)) == ["_sealed", "_seed", "cfg", "root"]
    assert run.fed.trainer.predict(run.fed.model, expand(run.fed.p0, 1), {
        "features": world.features[None, :2]
    }).shape == (1, 2, len(BASE))
    run.fed.trainer.trainables(run.fed.model.with_classes(NEW), rng.stream(1, "init"))
    assert calls == {len(BASE): 1, len(NEW): 1}


def test_one_trainer_serves_one_seed(world: CheckWorld) -> None:
    fed = world.federation(Mlp)
    with pytest.raises(FedvlmError, match="a Mlp can be used for one run only"):
        fed.trainer.trainables(fed.model, rng.stream(2, "init"))
    bare = Mlp(world.config(Mlp))
    with pytest.raises(FedvlmError, match="trainables must be called before"):
        bare.predict(world.model(), expand(fed.p0, 1), {"features": world.features[None]})


class Nothing(Mlp):
    def build(self, model: VLModel) -> nn.Module:
        return super().build(model).requires_grad_(False)


class Bar(Mlp):
    def build(self, model: VLModel) -> nn.Module:
        return nn.ParameterDict({"a|b": nn.Parameter(torch.zeros(2))})


class InsideTheBackbone(Mlp):
    def build(self, model: VLModel) -> nn.Module:
        visual = model.backbone.model.visual
        visual.ln_post.register_parameter("gate", nn.Parameter(torch.zeros(1)))
        return visual


@pytest.mark.parametrize(("trainer", "sentence"), [
    (ModuleTrainer, "add build"),
    (Nothing, "no parameter of its module requires a gradient"),
    (Bar, "parameter 'a|b' has a '|' in its name"),
    (InsideTheBackbone, "build changed the frozen backbone: give it copy.deepcopy"),
])
def test_what_cannot_be_a_tree_is_refused(trainer: type[ModuleTrainer], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        CheckWorld().federation(trainer)
    assert sentence in str(refusal.value)


def test_a_part_of_the_backbone_trains_where_it_is(world: CheckWorld) -> None:
    """BitFit: biases of the frozen tower itself; the backbone never shows it."""

    class Biases(ModuleTrainer):
        def streams(self, model: VLModel) -> tuple[str, ...]:
            return ("pixels",)

        def build(self, model: VLModel) -> nn.Module:
            tower = model.backbone.model.visual
            tower.ln_post.bias.requires_grad_(True)
            return nn.ModuleDict({"tower": tower})

        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
            ours = {n.removeprefix("tower."): v for n, v in params.items()}
            return functional_call(module["tower"], ours, (x["pixels"],))[:, : len(BASE)]

    run = world.record(Biases, Setup(rounds=1, pixels=True))
    assert list(run.fed.p0) == ["tower.ln_post.bias"]
    assert not torch.equal(run.states[1].server["w"]["tower.ln_post.bias"],
                           run.fed.p0["tower.ln_post.bias"])
    assert len(set(run.digests)) == 1
    assert not any(p.requires_grad for p in world.backbone.model.parameters())


# ---- torch's numbers -----------------------------------------------------------------------
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("trainer", [Mlp, Still])
def test_one_client_equals_a_loop_of_torch_optim(
    world: CheckWorld, trainer: type[ModuleTrainer], name: str
) -> None:
    """Same shuffles and batches (the last one short), then torch's own optimiser on the module."""
    fed = world.federation(trainer, Setup(splits=world.splits[:1]))
    spec = OptimSpec(name, 0.05, 0.9, 1e-2)
    plan = fed.plan
    object.__setattr__(plan, "optim", spec)
    object.__setattr__(plan, "schedule", Schedule(spec.lr))
    ours = fed.run()
    twin = trainer(world.config(trainer))
    model = world.model()
    twin.trainables(model, rng.stream(1, "init"))
    module = model.once((twin, "module"), pytest.fail).module
    for n in fed.p0:
        module.get_parameter(n).requires_grad_(True)
    weights = [module.get_parameter(n) for n in fed.p0]
    for round_ in range(1, plan.rounds + 1):
        optimiser: Any = (
            torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=1e-2) if name == "sgd"
            else torch.optim.AdamW(weights, lr=0.05, weight_decay=1e-2)
        )
        for step in fed.batcher.steps([0], round_, EPOCHS, 1, "w"):
            (batch,) = step.batches
            optimiser.zero_grad()
            F.cross_entropy(module({"features": batch.x["features"][0]}), batch.y[0]).backward()
            optimiser.step()
    for n, value in ours.server["w"].items():
        assert (value - module.get_parameter(n)).abs().max() <= 1e-12, n


def test_a_criterion_and_an_output_of_its_own(world: CheckWorld) -> None:
    class Smooth(Mlp):
        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Any:
            class Out:
                logits = super(Smooth, self).forward(module, params, x)
            return Out

        def criterion(self, out: Any, y: Tensor, w: Tensor) -> Tensor:
            return F.cross_entropy(out.logits, y, label_smoothing=0.1)

    smooth, plain = world.record(Smooth, Setup(rounds=1)), world.record(Mlp, Setup(rounds=1))
    first = next(iter(plain.fed.p0))
    assert torch.equal(smooth.fed.p0[first], plain.fed.p0[first])
    assert not torch.equal(smooth.states[1].server["w"][first], plain.states[1].server["w"][first])


def test_padding_is_out_of_the_loss(world: CheckWorld) -> None:
    trainer = world.federation(Mlp).trainer
    out, y = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    w = torch.tensor([1.0, 1.0, 0.0]).double()
    assert torch.isclose(trainer.criterion(out, y, w), F.cross_entropy(out[:2], y[:2]), atol=1e-14)


# ---- randomness ----------------------------------------------------------------------------
def masks(fed: Federation) -> list[tuple[int, int, int, tuple[bool, ...]]]:
    """Run ``fed`` and return (round, client, step, what dropout let through) in order."""
    seen: list[Any] = []
    part = fed.model.once((fed.trainer, "module"), pytest.fail)
    (drop,) = [m for m in part.module.modules() if isinstance(m, nn.Dropout)]
    now: list[Any] = []
    inner = fed.trainer.loss

    def loss(model: VLModel, params: Tree, batch: Any) -> Any:
        now[:] = [(batch.moment.round, batch.clients[0], batch.moment.step)]
        return inner(model, params, batch)

    def look(module: nn.Module, args: Any, out: Tensor) -> None:
        if module.training:
            seen.append((*now[0], tuple((out != 0).flatten().tolist())))

    vars(fed.trainer)["loss"] = loss
    handle = drop.register_forward_hook(look)
    try:
        fed.run()
    finally:
        handle.remove()
    return seen


def test_dropout_differs_by_client_step_and_round_and_repeats(world: CheckWorld) -> None:
    seen = masks(world.federation(Dropped, Setup(splits=[world.splits[0]] * 3, rounds=2, batch=7)))
    assert {s[:3] for s in seen} == {
        (r, c, t) for r in (1, 2) for c in range(3) for t in range(1, EPOCHS + 1)
    }
    drawn = [s[3] for s in seen]
    assert all(False in m and True in m for m in drawn)
    assert len(set(drawn)) == len(drawn) == 12  # none shared by clients, steps or rounds
    again = masks(world.federation(Dropped, Setup(splits=[world.splits[0]] * 3, rounds=2, batch=7)))
    assert again == seen


def test_phases_of_a_round_draw_anew_and_a_batch_by_hand_has_no_moment(world: CheckWorld) -> None:
    batcher = world.federation(Dropped).batcher

    def seed(tag: str, step: int, part: int, per_step: int = 2) -> int | None:
        steps = list(batcher.steps([0, 1], 1, 1, per_step, tag))
        return steps[step].batches[part].seed("module", 0)

    seeds = [seed("w", 0, 0), seed("w", 0, 1), seed("head", 0, 0)]
    assert len(set(seeds)) == 3 and None not in seeds
    whole = batcher.whole([0, 1], "train")
    assert whole is not None and whole.clients == (0, 1) and whole.seed("module", 1) is None


def test_a_resumed_run_draws_the_same(world: CheckWorld) -> None:
    whole = world.trajectory(Dropped)
    rest = world.record(Dropped, start=whole.states[2])
    same_fed(rest.states[-1], whole.states[-1], "resumed after round 2")


def test_all_global_generators_stand_where_they_stood_and_decide_nothing(world: CheckWorld) -> None:
    class Noisy(Mlp):
        def build(self, model: VLModel) -> nn.Module:
            module = super().build(model)
            nn.init.constant_(module.inner[0].bias, random.random() + np.random.rand())
            return module

        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
            noise = torch.rand(1).double() + random.random() + np.random.rand()
            return super().forward(module, params, x) * noise

    before = global_generators()
    first = world.record(Noisy, Setup(rounds=1))
    assert global_generators() == before
    torch.rand(3), random.random(), np.random.rand()
    same_fed(world.record(Noisy, Setup(rounds=1)).states[-1], first.states[-1], "moved generators")


def test_generators_are_put_back_after_an_error() -> None:
    before = global_generators()
    with pytest.raises(ValueError), rng.fork_generators(5, torch.device("cpu")):
        assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(5))
        random.random(), np.random.rand()
        raise ValueError
    assert global_generators() == before


# ---- modes and writes ----------------------------------------------------------------------
def test_modes_in_training_and_in_prediction(world: CheckWorld) -> None:
    fed = world.federation(Dropped)
    part = fed.model.once((fed.trainer, "module"), pytest.fail)
    modes: list[dict[str, bool]] = []
    norm, drop, linear = part.module.inner
    part.module.register_forward_hook(lambda *_: modes.append(
        {type(m).__name__: m.training for m in (norm, drop, linear)}))
    batch = next(fed.batcher.steps([0], 1, 1, 1, "w")).batches[0]
    p = expand(fed.p0, 1)
    fed.trainer.loss(fed.model, p, batch)
    fed.trainer.predict(fed.model, p, batch.x)
    assert modes == [
        {"BatchNorm1d": False, "Dropout": True, "Linear": True},
        {"BatchNorm1d": False, "Dropout": False, "Linear": False},
    ]
    assert not any(m.training for m in part.module.modules())


def test_buffers_stay_as_they_came_and_are_used(world: CheckWorld) -> None:
    fed = world.federation(Dropped)
    part = fed.model.once((fed.trainer, "module"), pytest.fail)
    before = {n: b.clone() for n, b in part.module.named_buffers()}
    state = fed.run()
    assert len(before) == 3
    for n, b in part.module.named_buffers():
        assert torch.equal(b, before[n]), n
    x = {"features": world.features[None, :4]}
    logits = fed.trainer.predict(fed.model, expand(state.server["w"], 1), x)
    shifted = {"features": x["features"] + before["inner.0.running_mean"]}
    assert not torch.allclose(
        logits, fed.trainer.predict(fed.model, expand(state.server["w"], 1), shifted))


class Writer(Mlp):
    """Its module does ``what`` in the forward."""

    what = ""

    def build(self, model: VLModel) -> nn.Module:
        module, what = super().build(model), self.what

        class Writes(OnFeatures):
            def forward(self, x: Mapping[str, Tensor]) -> Tensor:
                if what == "buffer":
                    self.count += 1
                elif what == "new buffer":
                    self.count = self.count + 1
                elif what == "late buffer":
                    self.register_buffer("late", torch.ones(1))
                elif what == "frozen":
                    self.fixed.mul_(2)
                elif what == "trained":
                    self.inner[0].weight.mul_(2)
                elif what == "trained without a graph":
                    with torch.no_grad():
                        self.inner[0].weight.mul_(2)
                elif what == "input":
                    x["features"].mul_(2)
                return super().forward(x)

        out = Writes(module.inner)
        out.register_buffer("count", torch.zeros(()))
        out.register_parameter("fixed", nn.Parameter(torch.ones(2), requires_grad=False))
        return out


@pytest.mark.parametrize(("what", "name"), [
    ("buffer", "buffer 'count'"), ("new buffer", "buffer 'count'"), ("late buffer", "'late'"),
    ("frozen", "parameter 'fixed'"), ("trained", "trained parameter 'inner.0.weight'"),
    ("trained without a graph", "trained parameter 'inner.0.weight'"),
    ("input", "its input 'features'"),
])
def test_a_write_in_place_is_refused_by_name(world: CheckWorld, what: str, name: str) -> None:
    trainer = type("Writer", (Writer,), {"what": what})
    fed = world.federation(trainer)
    with pytest.raises(FedvlmError, match=f"the module of Writer modifies (the )?.*{name}"):
        fed.round(fed.start(), 1)
    fed = world.federation(trainer)
    with torch.no_grad(), pytest.raises(FedvlmError, match=name):
        features = {"features": world.features[None, :4]}
        fed.trainer.predict(fed.model, expand(fed.p0, 1), features)


class Once(Mlp):
    """Two layers that share a weight, used twice."""

    again = False

    def build(self, model: VLModel) -> nn.Module:
        d = model.embed_dim
        body = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        body[2].weight = body[0].weight
        out = OnFeatures(nn.Sequential(body, nn.Linear(d, len(model.classnames))))
        if self.again:
            out.first_name, out.second_name = out.inner[0], out.inner[0][2]
        return out


class Twice(Once):
    """The same module, parts of which have further names."""

    again = True


def test_a_submodule_under_two_names_is_the_same_method(world: CheckWorld) -> None:
    ends = []
    for trainer in (Once, Twice):
        fed = world.federation(trainer)
        ends.append(fed.round(fed.start(), 1).server["w"])
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) == 5
    assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])


def test_an_error_of_the_module_itself_is_told_as_it_is(world: CheckWorld) -> None:
    class Wrong(Mlp):
        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    fed = world.federation(Wrong)
    with pytest.raises(FedvlmError, match=r"round 1, client 0: RuntimeError: mat1 and mat2"):
        fed.round(fed.start(), 1)


def test_a_write_behind_the_counters_back_invalidates_the_run(world: CheckWorld) -> None:
    class Behind(Still):
        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
            module.inner.fixed.data.add_(1)
            return super().forward(module, params, x)

    with pytest.raises(FedvlmError, match="frozen tensor of the method's own module"):
        world.federation(Behind).run()


# ---- out again -----------------------------------------------------------------------------
@pytest.mark.parametrize("trainer", [Mlp, Dropped, PeftClip])
def test_export_loads_into_the_module_that_build_makes(
    world: CheckWorld, trainer: type[ModuleTrainer]
) -> None:
    needs(trainer)
    fed = world.trajectory(trainer).fed
    end = world.trajectory(trainer).states[-1].server["w"]
    method = fed.trainer
    file = method.export(fed.model, end)
    module = method.build(fed.model).to(torch.float64)
    assert list(file) == list(module.state_dict())
    module.load_state_dict(file, strict=True)
    module.eval()
    source = world.pixels if trainer is PeftClip else world.features
    x = {"pixels" if trainer is PeftClip else "features": source[:5]}
    theirs = method.forward(module, {}, x)
    ours = method.predict(fed.model, expand(end, 1), {n: v[None] for n, v in x.items()})[0]
    assert torch.equal(ours, theirs)
    kept = {t.data_ptr() for t in (*module.state_dict().values(), *end.values())}
    assert not kept & {t.data_ptr() for t in file.values()}


def test_export_gives_a_tied_tensor_under_each_of_its_names(world: CheckWorld) -> None:
    class Tied(Mlp):
        def build(self, model: VLModel) -> nn.Module:
            d = model.embed_dim
            module = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
            module[2].weight = module[0].weight
            return OnFeatures(nn.Sequential(module, nn.Linear(d, len(BASE))))

    run = world.record(Tied, Setup(rounds=1))
    end = run.states[-1].server["w"]
    assert "inner.0.2.weight" not in end
    file = run.fed.trainer.export(run.fed.model, end)
    assert torch.equal(file["inner.0.2.weight"], end["inner.0.0.weight"])


def test_a_module_inside_a_vit_needs_no_resnet() -> None:
    class Inside(ModuleTrainer):
        name = "Inside"

        def streams(self, model: VLModel) -> tuple[str, ...]:
            return ("pixels",)

        def build(self, model: VLModel) -> nn.Module:
            self.visual = model.backbone.model.visual
            return nn.Linear(model.embed_dim, len(BASE)).double()

        def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Any:
            assert len(self.visual.transformer.resblocks) > 1
            return functional_call(module, dict(params), (self.visual(x["pixels"]),))

    INVARIANTS["G9"](CheckWorld(), Inside)


@pytest.mark.parametrize("word", ["from fedvlm.method import Trainer", "import dassl.engine"])
def test_an_edited_file_is_run_again(tmp_path: Path, word: str) -> None:
    path, kinds = tmp_path / "net.py", []
    base = "dassl.engine.TrainerX" if "dassl" in word else "Trainer"
    for size in (3, 3, 5):  # equally long, of one second: Python's own cache would not see it
        path.write_text(f"{word}\n\n\nclass Net({base}):\n    size = {size}\n")
        os.utime(path, (1e9, 1e9))
        kinds.append(load_trainer(f"{path}:Net"))
    assert [vars(kind).get("inner", kind).size for kind in kinds] == [3, 3, 5]
    assert kinds[0] is kinds[1]


def test_a_plain_network_is_trained_by_fedavg(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 8),\n"
        "                         nn.Linear(8, classes))\n"
        "\n\nclass Wide(nn.Linear):\n    pass\n"
    )
    assert load_trainer(f"{path}:Net") is load_trainer(f"{path}:Net")
    for method in ((), ("--method", "FedPer")):
        assert jobs.run(tmp_path / "out", "--trainer", f"{path}:Net", "--rounds", "1",
                        *method) == 0
    two = {p.parent for p in (tmp_path / "out").rglob("manifest.json")}
    assert {next(s for s in p.parts if s.startswith("Net")) for p in two} == {"Net", "Net-FedPer"}
    with pytest.raises(ConfigError, match="Wide is a torch network .* write a ModuleTrainer"):
        load_trainer(f"{path}:Wide")


@pytest.mark.parametrize(("body", "says"), [
    ("self.head = nn.Linear(3, 40)", r"Net\(10\) returns \(2, 40\) for two images, and the 10"),
    ("self.head = nn.Linear(3, 4)", r"Net\(10\) returns \(2, 4\) for two images, and the 10"),
    ("self.head = nn.LazyLinear(n)", "Net has lazy layers"),
    ("self.head = nn.Linear(3, n); self.forward = self.two", "Net.forward has to take one batch"),
])
def test_a_network_without_a_logit_for_each_class_is_refused(
    body: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def __init__(self, n):\n        super().__init__()\n        {body}\n\n"
        "    def forward(self, x):\n        return self.head(x.mean((2, 3)))\n\n"
        "    def two(self, x, y):\n        return self.forward(x)\n"
    )
    assert jobs.run(tmp_path / "out", "--trainer", f"{tmp_path}/net.py:Net") == 2
    assert re.search(says, capsys.readouterr().err)
