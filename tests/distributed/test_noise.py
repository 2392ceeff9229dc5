"""Noise that is a site's own: nobody subtracts it, the same work has the same, other work never."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import DataError
from fedvlm.distributed.noise import FILE, LENGTH, client_keys, site_secret
from fedvlm.federation.batches import Batch, Moment
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import WholeState
from fedvlm.federation.toolbox.image_privacy import ImagePrivacy
from fedvlm.federation.toolbox.privacy import add_noise, secret_normal

from .grid import Grid, federation

SIZE, STD = 20_000, 3.0


@pytest.fixture(scope="module")
def world() -> CheckWorld:
    return CheckWorld()


def step(secrets: dict[int, bytes]) -> Batch:
    """A step of the clients 0 and 1, of one sample each."""
    one = torch.ones(2, 1, dtype=torch.float64)
    moment = Moment(1, 1, "w", 1, 0, secrets)
    return Batch({}, torch.zeros(2, 1), one, clients=(0, 1), moment=moment)


def test_the_recovery_by_the_seed_works_on_a_simulation_and_fails_on_a_site() -> None:
    """What is left of an upload when the seed's noise is taken away: the gradient, or noise."""
    gradient = {"g": torch.linspace(-1, 1, SIZE, dtype=torch.float64).expand(2, -1)}
    zero = {"g": torch.zeros(2, SIZE, dtype=torch.float64)}
    known = add_noise(zero, step({}), STD, "dp")["g"]
    left = add_noise(gradient, step({}), STD, "dp")["g"] - known
    assert torch.allclose(left, gradient["g"], atol=1e-12)
    keys = {0: b"a" * 32, 1: b"b" * 32}
    left = add_noise(gradient, step(keys), STD, "dp")["g"] - known
    for k in range(2):
        spread = float((left[k] - gradient["g"][k]).std())
        assert spread == pytest.approx(STD * 2**0.5, rel=0.03)
        assert abs(float(torch.corrcoef(torch.stack([left[k], gradient["g"][k]]))[0, 1])) < 0.2


def test_secret_noise_has_the_same_size_and_is_each_clients_own() -> None:
    zero = {"g": torch.zeros(2, SIZE, dtype=torch.float64)}
    out = add_noise(zero, step({0: b"a" * 32, 1: b"b" * 32}), STD, "dp")["g"]
    for row in out:
        assert float(row.std()) == pytest.approx(STD, rel=0.03)
        assert abs(float(row.mean())) < 4 * STD / SIZE**0.5
        assert float((row.abs() > 3 * STD).double().mean()) == pytest.approx(0.0027, abs=0.0015)
    assert abs(float(torch.corrcoef(out)[0, 1])) < 0.03
    assert secret_normal(b"k", (2, 3)).shape == (2, 3)
    assert torch.equal(secret_normal(b"k", (4,)), secret_normal(b"k", (4,)))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_no_bits_give_an_infinite_number(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "shake_256", lambda key: SimpleNamespace(
        digest=lambda size: byte * size))
    assert 8 < float(secret_normal(b"k", (1,)).abs()) < 9


def test_the_file_is_for_its_user_and_stays(tmp_path: Path) -> None:
    first = site_secret(tmp_path / "a")
    file = tmp_path / "a" / FILE
    assert len(first) == LENGTH and site_secret(tmp_path / "a") == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert site_secret(tmp_path / "b") != first
    file.write_bytes(b"short")
    with pytest.raises(DataError, match="is damaged: a site's secret has 32 bytes"):
        site_secret(tmp_path / "a")


def test_other_work_has_another_key() -> None:
    tree = {"w": torch.tensor([1.0, 2.0])}
    key = client_keys(b"s", "run", 3, {0: 2}, {0: tree})[0]
    assert key == client_keys(b"s", "run", 3, {0: 2, 1: 0}, {0: tree, 1: tree})[0]
    others = [
        client_keys(b"t", "run", 3, {0: 2}, {0: tree}),
        client_keys(b"s", "nur", 3, {0: 2}, {0: tree}),
        client_keys(b"s", "run", 4, {0: 2}, {0: tree}),
        client_keys(b"s", "run", 3, {0: 1}, {0: tree}),
        client_keys(b"s", "run", 3, {0: 2}, {0: {"w": torch.tensor([1.0, 2.5])}}),
    ]
    assert key not in [one[0] for one in others]


@pytest.mark.parametrize(("method", "name"), [("DP-FPL", "text.global"), ("PromptFL", "text.ctx")])
def test_sites_with_secrets_go_on_to_the_same_bits_which_nobody_else_has(
    world: CheckWorld, tmp_path: Path, method: str, name: str
) -> None:
    """DP-FPL's noise, and that of ``FED.DP.UNIT image``."""
    trainer, setup = load_trainer(method), Setup(rounds=2)
    how = ImagePrivacy("image", 1.0, 2.0, 1e-5, (0,)) if method == "PromptFL" else None

    def grid(folder: Path, taken_down: bool) -> WholeState:
        one = Grid(world, trainer, folder, setup)

        def hide() -> None:
            for name, site in one.sites.items():
                site.secret = name.encode() * 4
                site.federation.plan = replace(site.federation.plan, private=how)

        hide()
        fed, _ = one.server()
        state = fed.run(until=1)
        if taken_down:
            one.restart()
            hide()
        return copy_fed(one.whole(fed, fed.run(state)))

    whole = grid(tmp_path / "whole", False)
    same_fed(whole, grid(tmp_path / "again", True), "a site begun again")
    fed = federation(world, trainer, setup)
    fed.plan = replace(fed.plan, private=how)
    seeded = fed.run()
    assert not torch.equal(whole.server["w"][name], seeded.server["w"][name])
