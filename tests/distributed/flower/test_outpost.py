"""A site's SuperNode: begun, watched, ended; with a program that stands for Flower's Python."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower import commands, outpost
from fedvlm.distributed.flower.carrier import copy_modules
from fedvlm.distributed.flower.invitation import Invitation
from fedvlm.distributed.flower.network import DOOR_PARTS
from fedvlm.distributed.flower.outpost import (
    FOLDER,
    KEY,
    Outpost,
    key_folder,
    make_key,
    make_pair,
    read_status,
)
from tests.distributed.flower.keys import CERTIFICATE, LINE, MARK, NAME

INVITATION = Invitation(NAME, "127.0.0.1:9", CERTIFICATE, MARK)
LIVES = 'echo "SuperNode ID: 7"; cat; echo gone'  # until its standard input is closed
MAKES = f'echo "{LINE} key" > $3/key.pub; echo secret > $3/key'


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write what stands for Flower's Python."""
    place = tmp_path / "flower-venv"
    place.mkdir()
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (place / name).touch()
    monkeypatch.setenv(commands.VARIABLE, str(place))
    monkeypatch.setattr(outpost, "AGAIN", 0.01)
    monkeypatch.setattr(outpost, "EVERY", 0.01)

    def write(script: str) -> None:
        (place / "python").write_text(f"#!/bin/sh\n{script}\n")
        (place / "python").chmod(0o700)

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / NAME / FOLDER
    place.mkdir(parents=True)
    (place / KEY).write_text("secret")
    (place / f"{KEY}.pub").write_text(f"{LINE} {NAME}\n")
    yield tmp_path / NAME


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_supernode_lives_as_long_as_its_site_is_served(
    folder: Path, python: Callable[[str], None]
) -> None:
    python(LIVES)
    said: list[str] = []
    post = Outpost([folder], INVITATION, said.append)
    with post.quarters():
        worker, token = post.path, post.path.with_name("token")
        assert token.stat().st_mode & 0o77 == 0 and len(str(worker)) < 100
        assert token.read_bytes() == post.token and worker.parent.stat().st_mode & 0o77 == 0
        with post:
            until(lambda: said)
            assert read_status(folder)["state"] == "connected"
            words = " ".join(post.words(5))
        assert "gone" in post.log.read_text()  # it was let say good-bye
    assert said == [f"connected to 127.0.0.1:9 as {NAME}"]
    assert not worker.parent.exists() and not read_status(folder)
    assert f"--superlink 127.0.0.1:9 --root-certificates {folder}/flower/ca.crt" in words
    secret = folder / FOLDER / "secret"
    assert secret.stat().st_mode & 0o77 == 0 and secret.read_text() not in words
    parts = {p.name for p in (folder / FOLDER / "parts").rglob("*.py")}
    assert {"node.py", "client.py", "stream.py"} <= parts


@pytest.mark.parametrize(("script", "why"), [
    ("echo '[code: 2004] Failed'; exit 1", "it is not admitted, or another process uses it"),
    ("echo 'SuperNode terminated gracefully.'", "or no longer, or the clocks of the two"),
    ("echo 'SSL/TLS handshake error detected.'", "the server's certificate is not the "
                                                 "invitation's"),
    ("echo 'ImportError: no such thing'", "ImportError: no such thing (its log: "),
])  # fmt: skip
def test_a_supernode_that_ends_is_begun_again_and_why_is_said(
    folder: Path, python: Callable[[str], None], script: str, why: str
) -> None:
    python(script)
    said: list[str] = []
    with Outpost([folder], INVITATION, said.append):
        until(lambda: len(said) > 1)
        assert read_status(folder)["state"].startswith(("away: ", "begins"))
    assert said[0].startswith("127.0.0.1:9: not connected: ") and why in said[0], said
    assert "again in 0.01 s" in said[0] and "again in 0.02 s" in said[1]


def test_nobody_at_the_address_is_said_once(
    folder: Path, python: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    python("cat")
    monkeypatch.setattr(outpost, "LATE", 0.0)
    said: list[str] = []
    with Outpost([folder], INVITATION, said.append):
        until(lambda: said)
        time.sleep(0.1)
    assert said == ["127.0.0.1:9: no connection yet: connection refused; retrying"]


def test_a_site_makes_one_key_and_hands_over_its_public_half(
    folder: Path, python: Callable[[str], None]
) -> None:
    python(MAKES)
    for path in (folder / FOLDER).iterdir():
        path.unlink()
    key, out = make_key(folder, NAME, anew=False)
    assert (key.name, key.fingerprint, out.read_text()) == (NAME, MARK, f"{LINE} {NAME}\n")
    place = folder / FOLDER
    assert place.stat().st_mode & 0o77 == 0
    python("exit 1")
    assert make_key(folder, NAME, anew=False) == (key, out)
    with pytest.raises(ConfigError, match=f"is the key of '{NAME}': say --name {NAME}, or --anew"):
        make_key(folder, "other", anew=False)
    with pytest.raises(ConfigError, match="is not a site name"):
        make_key(folder, "a b", anew=False)
    assert make_pair(Path("/no"), folder, NAME) == key  # it is there
    assert key_folder(INVITATION, [folder.parent, folder]) == folder
    with pytest.raises(ConfigError, match="the invitation is for the key SHA256:other, and this"):
        key_folder(Invitation(NAME, "a:1", CERTIFICATE, "SHA256:other"), [folder])
    (place / KEY).unlink()
    with pytest.raises(ConfigError, match="there is no key in .*: fedvlm site key makes one"):
        key_folder(INVITATION, [folder])


def test_what_flower_s_python_runs_brings_all_of_fedvlm_that_it_imports(tmp_path: Path) -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
            "import fedvlm.distributed.flower.relay.node, fedvlm.distributed.flower.door\n"
            "assert 'torch' not in sys.modules and 'yacs' not in sys.modules")
    copy_modules(tmp_path / "parts", [*outpost.PARTS, *DOOR_PARTS])
    done = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path / "parts")],
                          capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not done.returncode, done.stderr
