"""What an upload tells of a client's only image of a class, and that the method says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import method

ALONE, OTHERS = 0, 6  # the image that is alone in its class, and of how many more the client has
BOTH = ["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]
Read = Callable[[dict[str, Tensor]], Tensor]  # extras of a client -> a row for each class


@pytest.mark.parametrize(("name", "read"), [
    ("AFL", lambda e: ((e["afl.gram"] @ e["afl.weight"].mT).mT)),
    ("TOFA", lambda e: e["tofa.total"]),
    ("FedProto", lambda e: e["proto.mean"]),
])
def test_an_image_alone_in_its_class_is_what_the_upload_says(name: str, read: Read) -> None:
    world = CheckWorld(BOTH if name == "FedProto" else ())
    label, none = int(world.labels[ALONE]), np.zeros(0, np.int64)
    others = torch.nonzero(world.labels != label).flatten()[:OTHERS].numpy()
    splits = [IndexSplit(np.array([ALONE, *others]), none, none)]
    run = world.record(load_trainer(name), Setup(splits=splits, rounds=1))
    sent = {n: v[0] for n, v in run.events[0].updates.extras.items()}
    z: Any = world.features[[ALONE]]
    if name == "TOFA":
        z = F.normalize(z, dim=-1)
    elif name == "FedProto":  # of the client's own model
        own = {n: v[None] for n, v in run.states[1].clients[0]["w"].items()}
        z = run.fed.trainer.unit(run.fed.model, own, {"features": z[None]})[0]
    assert torch.allclose(read(sent)[label], z[0].to(read(sent)), atol=1e-9)
    assert run.fed.trainer.releases(run.fed.groups).single == (
        f"{name}'s {'prototypes' if name == 'FedProto' else 'sums'} tell the feature and class of "
        "every image that is a client's only one of its class")


def test_methods_that_tell_classes_say_what_they_tell_of_a_single_image() -> None:
    """FedPFT leaves out a class of at most MIXTURES images (``test_fedpft``)."""
    assert method("FedPFT").tells_single == ""
    assert "may be a single image" in method("FedPFT", MIXTURES=2).tells_single
    for path in trainer_files().values():
        kind = load_trainer(re.sub(":.*", "", path.read_text().split('"""', 2)[1], flags=re.S))
        told = bool(kind.tells_single) or kind.name == "FedPFT"
        assert kind.tells_classes == told, path.name


def test_of_a_sum_over_sites_it_is_the_only_image_of_all() -> None:
    afl: Any = method("AFL")
    groups = type("Shared", (), {"shared": ()})
    afl.root.defrost()
    afl.root.FED.SECURE_SUM = True
    list_ = afl.releases(groups)
    assert list_.single.endswith("every image that is the only one of its class at all sites")
    assert list_.telling(()) == [list_.single] and not list_.sums
