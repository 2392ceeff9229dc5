"""HEART-PFL: alignment, proximal term, groups, modes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, DivergedError, FedvlmError
from fedvlm.core.trees import Tree, numel
from fedvlm.federation.batches import Batch
from fedvlm.federation.rounds import Federation
from fedvlm.models.towers.adapters import adapter_tree
from fedvlm.models.towers.blocks import NoEdits
from tests.trainers.small_clip import CLASSES, PROXY, OwnImages, Recorded, federation

PEFT = {"PEFT.VISUAL": "adapter", "PEFT.TEXT": "none", "PEFT.WIDTH": 4}
F64 = torch.float64


def heart(options: dict[str, Any] | None = None, **more: Any) -> Federation:
    return federation("HEART-PFL", options, PEFT | more.pop("keys", {}), **more)


def shaken(fed: Federation, seed: int, k: int = 1) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    return {n: v + 0.1 * torch.randn(k, *v.shape, generator=draw, dtype=F64)
            for n, v in fed.p0.items()}


def real_batch(fed: Federation, v: Tree) -> tuple[Batch, Tree]:
    """A batch of client 0 and its prototypes under ``v``."""
    ctx = fed.context([0], 1)
    return next(ctx.batches("v")), fed.trainer.prototypes(ctx, v)


@pytest.mark.parametrize("mode", ["proto", "global", "none"])
def test_where_the_gradient_goes(mode: str) -> None:
    """Released code: a constant, under every setting."""
    fed = heart({"HDA_GRAD": mode})
    v, d = ({n: x.requires_grad_() for n, x in shaken(fed, s).items()} for s in (1, 2))
    frozen_v = {n: x.detach() for n, x in v.items()}
    b, proto = real_batch(fed, frozen_v)
    _, parts = fed.trainer.personal_loss(
        fed.model, v, b, received=d, joined=d, proto=proto
    )
    if mode == "global":
        assert "hda" not in parts
        parts = fed.trainer.shared_loss(fed.model, d, b, proto=proto)[1]
        assert flows(parts["hda"], d) and not flows(parts["hda"], v)
        return
    assert parts["hda"].requires_grad is (mode == "proto")
    assert float(parts["hda"].detach()) > 0
    if mode == "proto":
        assert flows(parts["hda"], v) and not flows(parts["hda"], d)


def flows(value: Tensor, tree: Tree) -> bool:
    grads = torch.autograd.grad(
        value.sum(), list(tree.values()), allow_unused=True, retain_graph=True
    )
    return any(g is not None and float(g.abs().max()) > 0 for g in grads)


def test_prototypes_are_class_means_of_the_personal_model() -> None:
    fed = heart()
    v = shaken(fed, 1)
    found = fed.trainer.prototypes(fed.context([0], 1), v)
    source, index = fed.batcher.source, torch.arange(12)
    look = fed.trainer.stage_features(fed.model, v, {"pixels": source.images[index][None]})
    for j, f in enumerate(look):
        want = torch.stack([f[0, source.labels[index] == c].mean(0) for c in range(4)])
        assert torch.allclose(found[f"stage.{j}"][0], want, atol=1e-12)
    assert found["has"].tolist() == [[1, 1, 1, 1]]


def test_stages() -> None:
    """Quarters of the adapted blocks; 2, 5, 8, 11 of twelve."""
    twelve = SimpleNamespace(vision=SimpleNamespace(
        blocks=[SimpleNamespace(index=i) for i in range(12)]
    ))
    assert heart().trainer.stages(twelve) == [2, 5, 8, 11]
    assert heart().trainer.stages(heart().model) == [0, 0, 1, 1]
    assert heart({"HDA_INDICES": (0, 4, 8, 11)}).trainer.stages(twelve) == [0, 4, 8, 11]
    last = heart(keys={"PEFT.BLOCKS": 1})
    assert last.trainer.stages(last.model) == [1, 1, 1, 1]
    low = heart({"HDA_INDICES": (0, 1, 1, 1)}, keys={"PEFT.BLOCKS": 1})
    with pytest.raises(ConfigError, match="HDA_INDICES 0: the adapted blocks are 1 to 1"):
        low.trainer.stages(low.model)


def test_start_is_the_frozen_model() -> None:
    fed = heart()
    x = {"pixels": fed.batcher.source.images[:6][None]}
    start = {n: v[None] for n, v in fed.p0.items()}
    ours = fed.trainer.predict(fed.model, start, x)
    z = fed.model.adapted_image(x, NoEdits())[0]
    assert torch.equal(ours, fed.model.logits(z, fed.model.anchor("template", 0)[None]))
    assert torch.allclose(z, fed.model.image(x), atol=1e-12)


def test_parameter_counts() -> None:
    def blocks(width: int) -> list[Any]:
        return [SimpleNamespace(index=i, shape=lambda site: (width, width)) for i in range(12)]

    gen = torch.Generator()
    assert numel(adapter_tree("image", blocks(768), 32, gen)) == 1_235_712
    assert numel(adapter_tree("image", blocks(192), 32, gen)) == 309_504


@pytest.mark.parametrize(("classes", "count"), [(100, 1_459_428), (101, 1_459_941),
                                                (102, 1_460_454)])
def test_parameter_count_of_the_papers_resnet(classes: int, count: int) -> None:
    """Section 1.1, built here as a reference: the toolkit's own towers are ViTs."""
    from torchvision.models import resnet18

    with torch.device("meta"):
        net = resnet18(num_classes=classes)
        for m in [m for m in net.modules() if hasattr(m, "conv2")]:
            c = m.conv2.out_channels
            for i in (1, 2):
                m.add_module(f"adapter{i}", nn.Sequential(
                    nn.BatchNorm2d(c), nn.Dropout(0.3), nn.Conv2d(c, c, 1, bias=False)
                ))
    wanted = ("adapter", "bn1", "bn2", "fc.weight", "fc.bias")
    trained = {n: p for n, p in net.named_parameters() if any(w in n for w in wanted)}
    convs = sum(p.numel() for n, p in trained.items() if "adapter" in n and p.dim() == 4)
    assert convs == 1_392_640
    assert sum(p.numel() for p in trained.values()) == count
    if classes == 100:
        assert sum(p.numel() for p in net.parameters()) == 12_628_132


# ---- rounds ----------------------------------------------------------------------------------
def test_what_travels_and_what_stays() -> None:
    events: list[Any] = []
    fed = heart(rounds=2, frac=0.4, first_round_all=False)
    fed.subscribers.append(events.append)
    assert set(fed.groups.shared) == set(fed.p0)
    assert all(n.startswith("image.adapter.") for n in fed.p0)
    state = fed.start()
    for round_ in (1, 2):
        before = {c: {s: dict(t) for s, t in slots.items()} for c, slots in state.clients.items()}
        state = fed.round(state, round_)
        done = events[-1]
        sent, (client,) = done.updates, done.updates.clients
        assert set(sent.params) == set(fed.groups.shared) and not sent.extras
        assert all(not torch.equal(v[0], state.clients[client]["v"][n])
                   for n, v in sent.params.items() if n.endswith("up.weight"))
        for c in set(before) - {client}:
            for slot, tree in before[c].items():
                assert all(torch.equal(state.clients[c][slot][n], v) for n, v in tree.items())
    frozen = list(fed.model.backbone.model.parameters())
    assert all(p.grad is None and not p.requires_grad for p in frozen)


def test_a_client_starts_from_the_model_it_first_receives() -> None:
    fed = heart({"PROX": 0.0, "HDA_WEIGHT": 0.0})
    state = fed.run()
    down = fed.downloads(state, 3, [0])[0]
    fresh = fed.start().clients[0]
    d = {n: v[None] for n, v in down.items()}
    c = {s: {n: v[None] for n, v in t.items()} for s, t in fresh.items()}
    new, old = fed.context([0], 3), fed.context([0], 3, worked=(0,))
    assert all(torch.equal(v, d[n]) for n, v in fed.trainer.personalize(new, c, d).items())
    assert all(torch.equal(v, c["v"][n]) for n, v in fed.trainer.personalize(old, c, d).items())


def test_without_alignment_and_pull_both_models_are_plain_training() -> None:
    """From one start, over the same loss: v differs from w only by its shuffles."""
    fed = heart({"PROX": 0.0, "HDA_WEIGHT": 0.0}, rounds=1, batch=100)
    events: list[Any] = []
    fed.subscribers.append(events.append)
    v, sent = fed.run().clients[0]["v"], events[-1].updates.messages()[0]
    assert sent.keys() == v.keys()
    assert all(torch.allclose(v[n], w, atol=1e-12) for n, w in sent.items())
    pulled = heart({"PROX": 5.0, "HDA_WEIGHT": 0.0}, rounds=1, batch=100, epochs=3)
    free = heart({"PROX": 0.0, "HDA_WEIGHT": 0.0}, rounds=1, batch=100, epochs=3)
    start = pulled.p0

    def far(fed: Federation) -> float:
        v = fed.run().clients[0]["v"]
        return sum(float((v[n] - start[n]).square().sum()) for n in start)

    assert far(pulled) < 0.9 * far(free)


def after_a_round(options: dict[str, Any]) -> dict[str, Tree]:
    """Return client 0's own model and the shared one that it sent."""
    fed, events = heart(options, rounds=1), list[Any]()
    fed.subscribers.append(events.append)
    state = fed.run()
    return {"v": state.clients[0]["v"], "w": events[-1].updates.messages()[0]}


@pytest.mark.parametrize("mode", ["proto", "global", "none"])
def test_modes_change_the_model_that_they_name(mode: str) -> None:
    plain = after_a_round({"HDA_WEIGHT": 0.0})
    moved = after_a_round({"HDA_WEIGHT": 5.0, "HDA_GRAD": mode})
    differs = {
        slot: any(not torch.equal(moved[slot][n], v) for n, v in plain[slot].items())
        for slot in ("v", "w")
    }
    assert differs == {"v": mode == "proto", "w": mode == "global"}


def test_stacked_is_sequential() -> None:
    one, many = (heart(chunk=c).run() for c in (1, 8))
    for c in one.clients:
        assert one.clients[c]["v"].keys() == one.server["w"].keys()
        for n, v in one.clients[c]["v"].items():
            assert torch.allclose(v, many.clients[c]["v"][n], atol=1e-10)
    assert all(torch.allclose(v, many.server["w"][n], atol=1e-10)
               for n, v in one.server["w"].items())


def test_seeds() -> None:
    ends = [heart(rounds=1, seed=s).run().server["w"] for s in (1, 1, 2)]
    assert all(torch.equal(ends[0][n], v) for n, v in ends[1].items())
    assert any(not torch.equal(ends[0][n], v) for n, v in ends[2].items())


def test_learns() -> None:
    """On its own images: the toy's tower is random, so it says nothing about others."""
    fed = heart(rounds=4, epochs=10)
    state = fed.run()
    source = fed.batcher.source
    assert isinstance(source, Recorded)
    right = total = 0
    for ids, p in fed.personal(state, [0, 1, 2]):
        for k, c in enumerate(ids):
            index = torch.as_tensor(fed.batcher.splits[c].train)
            z = fed.trainer.predict(
                fed.model, {n: v[k : k + 1] for n, v in p.items()},
                {"pixels": source.images[index][None]},
            )
            right += int((z[0].argmax(-1) == source.labels[index]).sum())
            total += len(index)
    assert total == 25 and right >= 20, f"{right} of {total}, chance is {total // len(CLASSES)}"


def test_not_finite_stops_the_run() -> None:
    fed = heart()
    fed.batcher.source.images[0] = torch.nan
    with pytest.raises(DivergedError, match="round 1, client 0"):
        fed.run()


def test_needs_blocks() -> None:
    with pytest.raises(ConfigError, match="set PEFT.VISUAL adapter"):
        heart(keys={"PEFT.VISUAL": "feature"})
    with pytest.raises(ConfigError, match="needs 4 blocks, got 2"):
        heart({"HDA_INDICES": (1, 2)})


LORA = {"PEFT.TEXT": "none", "PEFT.VISUAL": "lora", "PEFT.RANK": "2"}
ADAPTER = {"PEFT.TEXT": "none", "PEFT.VISUAL": "adapter", "PEFT.WIDTH": "4"}
AKT = {"AKT": True, "AKT_STEPS": 1, "AKT_BATCH": 4, "AKT_ATTACK_STEPS": 0, "AKT_ROUNDS": 1.0}


def test_heart_distils_with_a_fixed_factor() -> None:
    """Uploads lack LoRA's A under freeze_a; the server's models must have it nevertheless."""
    keys = LORA | {"PEFT.LORA_AVG": "freeze_a"}
    options = {"AKT": True, "AKT_STEPS": 2, "AKT_BATCH": 4, "AKT_ATTACK_STEPS": 1,
               "AKT_ROUNDS": 1.0, "AKT_GATE": "none", "AKT_LR": 0.01}
    fed = federation("HEART-PFL", options, keys, rounds=1)
    plain = federation("HEART-PFL", options | {"AKT": False}, keys, rounds=1)
    state, without = fed.run(), plain.run()
    assert all(name.endswith(".B") for name in state.server["w"])
    assert all(name.endswith(".A") for name in state.server["fixed"])
    assert "fixed" not in without.server
    moved = [not torch.equal(v, without.server["w"][n]) for n, v in state.server["w"].items()]
    assert any(moved)


def test_heart_fine_tunes_on_training_images_alone() -> None:
    """The server's images are its own: no client ever sees them, and it sees none of theirs."""
    fed = federation("HEART-PFL", AKT, ADAPTER | {"FED.FINETUNE_EPOCHS": 2}, rounds=1)
    state = fed.run()
    source, proxy = fed.batcher.source, fed.proxy
    assert isinstance(source, Recorded) and isinstance(proxy, OwnImages)
    trained = {int(i) for s in fed.batcher.splits for i in s.train}
    assert source.seen == trained and proxy.seen and proxy.seen <= set(range(PROXY))
    source.seen.clear()
    proxy.seen.clear()
    tuned = {c: p for ids, p in fed.personal(state, [0, 1, 2], chunk=1) for c in ids}
    assert source.seen == trained and not proxy.seen
    before = dict(fed.personal(state, [0], chunk=1, finetune=False).__next__()[1])
    assert any(not torch.equal(v, before[n]) for n, v in tuned[0].items())


@pytest.mark.parametrize("average", ["freeze_a", "factors"])
def test_alignment_is_to_the_model_received(average: str) -> None:
    """Under freeze_a the download is B alone: with its A it is a model, without it was CLIP."""
    fed = federation("HEART-PFL", {}, LORA | {"PEFT.LORA_AVG": average}, rounds=1)
    trainer = fed.trainer
    draw = torch.Generator().manual_seed(3)
    start = {n: x[None] for n, x in fed.p0.items()}
    sent = {n: 0.3 * torch.randn(1, *fed.p0[n].shape, generator=draw, dtype=F64)
            for n in fed.groups.shared}
    real, gaps = trainer.stage_features, []

    def watched(model: Any, p: Tree, x: Any) -> Any:
        stages = real(model, p, x)
        if not torch.is_grad_enabled():  # prototypes of v, and what v is aligned to
            pairs = zip(stages, real(model, start | sent, x), strict=True)
            gaps.append(max(float((f - g).abs().max()) for f, g in pairs))
        return stages

    state = {slot: {n: x[None] for n, x in tree.items()}
             for slot, tree in trainer.init_client(fed.context([0]), fed.p0).items()}
    ctx = fed.context([0], 2, worked=(0,))  # v is its own, the start, and not what was received
    with mock.patch.object(type(trainer), "stage_features", staticmethod(watched)):
        trainer.client_update(ctx, state, sent)
    steps = 3  # 12 images by 4
    assert sorted(gaps)[:steps] == [0.0] * steps  # 1.26 and more before
    assert len(gaps) > steps and min(sorted(gaps)[steps:]) > 0.1  # the frozen tower is far away


def test_only_one_factor_is_refused() -> None:
    fed = federation("HEART-PFL", {}, LORA | {"PEFT.LORA_AVG": "freeze_a"}, rounds=1)
    b = next(fed.context([0], 1).batches("v"))
    for lacking, there in ((".A", ".B"), (".B", ".A")):
        half = {n: x[None] for n, x in fed.p0.items() if not n.endswith(lacking)}
        with pytest.raises(FedvlmError, match=rf"lora\.0\.q has .*\{there} but no .*\{lacking}"):
            fed.trainer.stage_features(fed.model, half, b.x)


def test_labels_that_the_images_do_not_have_are_refused() -> None:
    unknown = OwnImages(torch.zeros(6, 3, 32, 32), torch.tensor([0, 1, -1, 2, -1, 3]))
    for key, value, instead in (("LABELS", "true", "pseudo"), ("GATE", "val_acc", "kl")):
        fed = federation("HEART-PFL", AKT | {f"AKT_{key}": value}, ADAPTER)
        with pytest.raises(ConfigError, match=rf"AKT_{key} {value}: 2 of the server's 6 images "
                                              rf".*set it to {instead}"):
            fed.trainer.check_proxy(unknown)
    fine = federation("HEART-PFL", AKT, ADAPTER).trainer
    fine.check_proxy(unknown)
    with pytest.raises(ConfigError, match="1 proxy image"):
        fine.check_proxy(OwnImages(torch.zeros(1, 3, 32, 32), torch.zeros(1).long()))
    off = federation("HEART-PFL", {"AKT": "no"}, ADAPTER).trainer
    off.check_proxy(None)
    assert off.proxy_source == off.extra_data == ""


def test_where_the_servers_images_come_from_is_checked() -> None:
    for word in ("val", "train", "dataset:", "folder:", "holdout:2"):
        with pytest.raises(ConfigError, match="be holdout, dataset:NAME, folder:DIR or clients"):
            federation("HEART-PFL", {"AKT_PROXY": word}, ADAPTER)
    words = {"clients": "which is impossible in a real federation",
             "dataset:dtd": "images of dataset:dtd", "folder:/x": "images of folder:/x"}
    for source, said in words.items():
        trainer = federation("HEART-PFL", {"AKT_PROXY": source}, ADAPTER).trainer
        assert trainer.proxy_source == source and said in trainer.extra_data
