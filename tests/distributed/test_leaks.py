"""What has to stay at a site is in no frame, byte by byte (``test_parity`` has every method)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.discovery import load_trainer
from tests.distributed.grid import Grid, Tapped, leaks, measured, raw


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


@pytest.mark.parametrize(("name", "slots"), [
    ("apfl", ["v", "alpha"]), ("ditto", ["v"]), ("fedper", []), ("heart_pfl", ["v"]),
])  # fmt: skip
def test_no_frame_holds_a_personal_model_an_image_or_a_path(
    world: CheckWorld, tmp_path: Path, name: str, slots: list[str]
) -> None:
    grid = Grid(world, load_trainer(name), tmp_path / "a-secret-place")
    fed, _ = grid.server()
    measured(fed)
    fed.run()
    assert isinstance(grid.carrier, Tapped)
    private = grid.private(slots)
    assert {"train", "val", "test"} <= {what.split()[2] for what in private if "image" in what}
    assert any("of client 3, round 2" in what for what in private)
    assert leaks(private, grid.carrier.frames) == []
    everything = b"".join(grid.carrier.frames)
    assert b"a-secret-place" not in everything and b"/a/b" in everything  # the server's own key
    shared = {n: v for n, v in fed.p0.items() if n in fed.groups.shared}
    assert leaks(shared, grid.carrier.frames)  # the scan sees what travels


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_scan_sees_an_image_in_lower_precision(world: CheckWorld, kind: torch.dtype) -> None:
    image = {"image": world.features[1]}
    assert leaks(image, [b"x" + raw(world.features[:3].to(kind))]) == ["image"]
    assert leaks(image, [raw(world.features[2:4].to(kind))]) == []


def test_the_scan_sees_a_method_that_sends_what_is_personal(
    world: CheckWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extras are declared by a method; a personal tensor among them is told."""
    method = load_trainer("fedper")

    def client_update(self, ctx, state, received):  # type: ignore[no-untyped-def]
        state, upload = usual(self, ctx, state, received)
        name = ctx.groups.personal[0]
        return state, Upload(
            upload.params, upload.weight, {"secret": state["w"][name]}, upload.absent
        )

    usual = method.client_update
    monkeypatch.setattr(method, "client_update", client_update)
    monkeypatch.setattr(method, "extras_up", ("secret",))
    grid = Grid(world, method, tmp_path)
    fed, _ = grid.server()
    fed.run()
    assert isinstance(grid.carrier, Tapped)
    told = leaks(grid.private(), grid.carrier.frames)
    assert any("of client 2, round 1" in what for what in told)
