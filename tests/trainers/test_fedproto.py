"""FedProto: prototypes travel, weights do not; an empty shared group is no special case."""

from __future__ import annotations

import pytest
import torch

from fedvlm.check.world import BASE, EMBED, CheckWorld, Setup
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import expand
from fedvlm.federation.aggregation.updates import Updates, join_updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.server import Held

FedProto = load_trainer("FedProto")
BOTH = ["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld(BOTH)


def update(client: int, mean: list[list[float]], count: list[float]) -> Updates:
    extras = {"proto.mean": torch.tensor([mean]).double(), "proto.count": torch.tensor([count])}
    return Updates((client,), {}, torch.ones(1).double(), extras)


def test_server_weighs_by_samples_and_keeps_what_nobody_has(world: CheckWorld) -> None:
    fed = world.federation(FedProto)
    old = {"proto": {"proto.mean": torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]]).double(),
                     "proto.count": torch.tensor([0.0, 5.0, 0.0])}}
    got = fed.trainer.aggregate(fed.server_context(1, Held()), old, join_updates([
        update(1, [[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [3.0, 0.0, 0.0]),
        update(0, [[0.0, 4.0], [0.0, 0.0], [1.0, 2.0]], [1.0, 0.0, 2.0]),
    ]))["proto"]
    assert got["proto.mean"].tolist() == [[3.0, 1.0], [8.0, 8.0], [1.0, 2.0]]
    assert got["proto.count"].tolist() == [4.0, 5.0, 2.0]  # text features count 0, also later


def test_as_released_clients_count_alike_and_squares_are_means(world: CheckWorld) -> None:
    fed = world.federation(FedProto, Setup(opts={"VARIANT": "published"}))
    zero = {"proto": {"proto.mean": torch.zeros(2, 2).double(), "proto.count": torch.zeros(2)}}
    got = fed.trainer.aggregate(fed.server_context(1, Held()), zero, join_updates([
        update(1, [[4.0, 0.0], [0.0, 0.0]], [3.0, 0.0]),
        update(0, [[0.0, 4.0], [1.0, 2.0]], [1.0, 2.0]),
    ]))["proto"]
    assert got["proto.mean"].tolist() == [[2.0, 2.0], [1.0, 2.0]]
    index = torch.tensor([0, 1])
    p, x = expand(fed.p0, 1), {"features": world.features[index][None]}
    b = Batch(x, world.labels[index][None], torch.ones(1, 2, dtype=torch.float64))
    received = {"proto.mean": torch.zeros(1, len(BASE), EMBED, dtype=torch.float64),
                "proto.count": torch.ones(1, len(BASE))}
    _, parts = fed.trainer.prototype_loss(fed.model, p, b, received=received)
    raw = fed.trainer.image_features(fed.model, p, x).square().mean()
    assert float(parts["proto_loss"]) == pytest.approx(float(raw), abs=1e-12)


def test_only_prototypes_travel(world: CheckWorld) -> None:
    run = world.trajectory(FedProto)
    assert run.fed.groups.shared == ()
    c, d = len(BASE), EMBED
    for event in run.events:
        assert len(event.updates) == 4 and event.updates.params == {}
        assert set(event.updates.extras) == {"proto.mean", "proto.count"}
        assert event.bytes_up[0] == {"proto.mean": 8 * c * d, "proto.count": 8 * c}
        assert event.bytes_down[0] == event.bytes_up[0]
    end = run.states[-1]
    assert end.server["w"] == {}
    first, second = end.clients[0]["w"], end.clients[1]["w"]
    assert not torch.equal(first["image.adapter.up"], second["image.adapter.up"])


def test_means_are_of_the_trained_model(world: CheckWorld) -> None:
    run = world.trajectory(FedProto)
    sent, state, split = run.events[0].updates.extras, run.states[1].clients[0], world.splits[0]
    p = expand(state["w"], 1)
    x = {"features": world.features[torch.as_tensor(split.train)][None]}
    z = run.fed.trainer.unit(run.fed.model, p, x)[0]
    for label in range(len(BASE)):
        mine = world.labels[torch.as_tensor(split.train)] == label
        assert torch.allclose(sent["proto.mean"][0, label], z[mine].mean(0), atol=1e-12)
        assert int(sent["proto.count"][0, label]) == int(mine.sum())


def test_prediction_is_the_nearest_prototype(world: CheckWorld) -> None:
    run = world.trajectory(FedProto)
    (ids, p), = run.fed.personal(run.fed.adopt(run.states[-1]), [0])
    x = {"features": world.features[None]}
    logits = run.fed.trainer.predict(run.fed.model, p, x)[0]
    z = run.fed.trainer.unit(run.fed.model, p, x)[0]
    far = torch.stack([(z - m).square().sum(-1) for m in p["proto.mean"][0]], -1)
    assert torch.allclose(logits, -far, atol=1e-12)
    assert ids == [0]


def test_untrained_start_is_zero_shot(world: CheckWorld) -> None:
    run = world.trajectory(FedProto)
    x = {"features": world.features[None]}
    got = run.fed.trainer.predict(run.fed.model, run.fed.shared(run.states[0]), x)
    text = run.fed.model.anchor("template", 0)[None]
    assert torch.equal(got.argmax(-1), run.fed.model.logits(x["features"], text).argmax(-1))


def test_loss_and_unknown_classes(world: CheckWorld) -> None:
    """Class 1 has no prototype yet, so its samples are pulled nowhere."""
    fed = world.federation(FedProto)
    index = torch.tensor([0, 1, 4])
    assert world.labels[index].tolist() == [0, 1, 0]
    p = expand(fed.p0, 1)
    mean = torch.zeros(1, len(BASE), EMBED, dtype=torch.float64)
    count = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    b = Batch({"features": world.features[index][None]}, world.labels[index][None],
              torch.ones(1, 3, dtype=torch.float64))
    received = {"proto.mean": mean, "proto.count": count}
    value, parts = fed.trainer.prototype_loss(fed.model, p, b, received=received)
    assert float(parts["proto_loss"]) == pytest.approx(2 / 3, abs=1e-12)  # |z|^2 = 1, twice of 3
    assert float(value) == pytest.approx(float(parts["cls_loss"]) + 2 / 3, abs=1e-12)
    assert float(fed.trainer.loss(fed.model, p, b)) == pytest.approx(
        float(parts["cls_loss"]), abs=1e-12
    )


def test_first_round_has_no_pull_later_ones_do(world: CheckWorld) -> None:
    run = world.trajectory(FedProto)
    first, second = (event.updates.metrics["proto_loss"] for event in run.events[:2])
    assert first.tolist() == [0.0] * 4
    assert len(second) == 4 and bool((second > 0).all())


def test_head_predicts_where_asked(world: CheckWorld) -> None:
    run = world.record(FedProto, Setup(rounds=1, opts={"PREDICT": "head"}))
    (_, p), = run.fed.personal(run.fed.adopt(run.states[-1]), [0])
    x = {"features": world.features[None]}
    z = run.fed.trainer.image_features(run.fed.model, p, x)
    want = run.fed.model.logits(z, run.fed.model.text(p["text.ctx"]))
    assert torch.equal(run.fed.trainer.predict(run.fed.model, p, x), want)
    assert run.fed.trainer.open_vocabulary
    assert not world.federation(FedProto).trainer.open_vocabulary


def test_frozen_features_are_refused() -> None:
    with pytest.raises(ConfigError, match="FedProto needs something to train on the body side"):
        CheckWorld(["PEFT.VISUAL", "none"]).federation(FedProto)
