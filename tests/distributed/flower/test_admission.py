"""Sites on other machines: admitted, shown, dismissed; with a command that stands for Flower's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.flower import network, processes
from fedvlm.distributed.flower.admission import admit, connected_sites, dismiss
from fedvlm.distributed.flower.invitation import PublicKey, read_invitation
from fedvlm.distributed.flower.place import Place, new_place, read_place
from tests.distributed.flower.keys import CERTIFICATE, LINE, MARK, NAME

KEY = PublicKey(NAME, LINE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A federation that listens and runs, with one site here."""
    made = new_place(tmp_path / "f", tmp_path, ["a.yaml"], "0.0.0.0:7400", "host.example:7400")
    (made.keys / "ca.crt").write_text(CERTIFICATE)
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 1)
    yield made


def flwr(tmp_path: Path, told: object, code: int = 0) -> None:
    """Let ``flwr`` say something, and write down what it was asked."""
    path = tmp_path / "flwr"
    path.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/words\n"
                    f"echo '{json.dumps(told)}'\nexit {code}\n")
    path.chmod(0o700)


def test_a_site_is_admitted_invited_seen_and_dismissed(place: Place, tmp_path: Path) -> None:
    flwr(tmp_path, {"success": True, "node-id": 7})
    after, told = admit(place, KEY)
    assert after == read_place(place.folder) and [s.name for s in after.here] == ["site0"]
    assert read_invitation(after.invitation(NAME)) == told
    assert (told.address, told.key, told.certificate) == ("host.example:7400", MARK, CERTIFICATE)
    assert after.public(NAME).read_text() == f"{LINE} {NAME}\n" and after.node(NAME) == 7
    assert admit(after, KEY)[0] == after  # again: today's invitation, no second registration
    assert (tmp_path / "words").read_text().count("supernode register") == 1
    with pytest.raises(ConfigError, match=f"a site '{NAME}' is admitted with another key"):
        admit(after, replace(KEY, line=LINE.replace("D9ezyhEtnB0bDgZBsA", "D9ezyhEtnB0bDgZBsB")))
    flwr(tmp_path, {"nodes": [{"node-id": "7", "status": "online"}]})
    assert connected_sites(after) == {NAME: True}
    flwr(tmp_path, {"nodes": [{"node-id": "7", "status": "offline"}]})
    assert connected_sites(after) == {NAME: False} and connected_sites(place) == {}
    with pytest.raises(ConfigError, match="unknown word 'clinic_b'; did you mean 'clinic_a'"):
        dismiss(after, "clinic_b")
    dismiss(after, NAME)
    assert "supernode unregister 7 link" in (tmp_path / "words").read_text()
    assert read_place(place.folder) == place and not after.public(NAME).exists()
    assert not after.invitation(NAME).exists() and not after.node(NAME)


def test_what_cannot_be_admitted_leaves_no_trace(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is reachable from this machine only; open it with .* "
                                          "up --listen"):
        admit(replace(place, listen="", reach=""), KEY)
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    flwr(tmp_path, {"success": False, "error-message": "Public key already in use"}, 1)
    with pytest.raises(ConfigError, match="was dismissed, .*fedvlm site key SITE.YAML --anew"):
        admit(place, KEY)
    flwr(tmp_path, {"success": False, "error-message": "no"}, 1)
    with pytest.raises(FedvlmError, match="flwr supernode failed: no"):
        admit(place, KEY)
    assert read_place(place.folder) == place and not place.public(NAME).exists()
    with pytest.raises(ConfigError, match="has no sites on other machines"):
        dismiss(place, NAME)


def test_a_key_that_the_superlink_has_already_is_asked_for(place: Place, tmp_path: Path) -> None:
    """Who registered it was killed before the note was written."""
    flwr(tmp_path, {"success": False, "error-message": "Public key already in use"}, 1)
    (tmp_path / "python").write_text("#!/bin/sh\necho hello\necho 12345678901234567890\n")
    (tmp_path / "python").chmod(0o700)
    network.register(place, place.sites[0])
    assert place.node("site0") == 12345678901234567890


def test_without_a_superlink_a_key_waits_for_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 0)
    after, _ = admit(place, KEY)
    assert [s.name for s in after.sites] == ["site0", NAME] and not after.node(NAME)
    dismiss(after, NAME)
    assert read_place(place.folder) == place


