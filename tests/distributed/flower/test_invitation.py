"""The two files that a site and a coordinator hand to each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.distributed.flower.invitation import (
    Invitation,
    host_port,
    point,
    read_invitation,
    read_public,
)
from tests.distributed.flower.keys import CERTIFICATE, LINE, MARK, NAME, PEM


def test_a_public_key_says_whose_it_is_and_shows_the_usual_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "a.pub"
    file.write_text(f"{LINE} {NAME}\n")
    told = read_public(file)
    assert (told.name, told.line, told.fingerprint) == (NAME, LINE, MARK)
    assert read_public(file, "b").name == "b"
    assert point(LINE) == point(PEM) and len(point(PEM)) == 97


@pytest.mark.parametrize(("text", "error", "said"), [
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nAA\n", ConfigError, "is a private key and must stay"),
    (LINE, ConfigError, "'' is not a site name"),
    (f"{LINE} site0", ConfigError, "'site0' is not a site name"),
    (f"{LINE} ../x", ConfigError, "'../x' is not a site name"),
    (f"{LINE} a\n{LINE} b\n", DataError, "has no public key of a site"),
    ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== a", DataError, "has no public key of a site"),
    ("ecdsa-sha2-nistp384 AA== a", DataError, "has no public key of a site"),
    ("ecdsa-sha2-nistp384 ?? a", DataError, "has no public key of a site"),
])  # fmt: skip
def test_another_file_is_no_public_key(
    tmp_path: Path, text: str, error: type[Exception], said: str
) -> None:
    (tmp_path / "a.pub").write_text(text)
    with pytest.raises(error, match=said.replace("(", r"\(")):
        read_public(tmp_path / "a.pub")


def test_an_invitation_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(ConfigError, match="there is no .*fedvlm federation admit writes one"):
        read_invitation(file)
    invitation = Invitation(NAME, "192.0.2.7:7400", CERTIFICATE, MARK)
    invitation.write(file)
    assert read_invitation(file) == invitation
    assert invitation.fingerprint.startswith("SHA256:") and invitation.fingerprint != MARK
    plain = json.loads(file.read_text())
    for odd in ({"format": "x"}, {"address": "here"}, {"name": "a b"}, {"certificate": PEM}):
        file.write_text(json.dumps(plain | odd))
        with pytest.raises(DataError, match="is not an invitation to a federation"):
            read_invitation(file)
    for text in ("", "[]", "[" * 9000):
        file.write_text(text)
        with pytest.raises(DataError, match="is not an invitation to a federation"):
            read_invitation(file)


@pytest.mark.parametrize("word", ["nohost", ":7", "host:", "host:99999", "host:7x"])
def test_an_address_is_host_and_port(word: str) -> None:
    with pytest.raises(ConfigError, match="is not an address \\(HOST:PORT\\)"):
        host_port(word)
