"""A site that waits for runs: what it refuses, and what it remembers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError, UnreadableError
from fedvlm.data import images
from fedvlm.data.own.site import SiteFile
from fedvlm.distributed.site import failure
from fedvlm.distributed.site_yaml import SiteYaml, read_site_yaml
from fedvlm.distributed.terms import Terms
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.job.sites import resident
from fedvlm.job.sites.party import config_plain
from fedvlm.job.sites.resident import RUNS, Resident, config_from

RUN, NONCE = "ab" * 16, "cd" * 8
SEEN: list[str] = []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Resident]:
    file = SiteFile("shapes", ["a", "b"], ["a {}."], {0: {"train": [], "val": [], "test": []}})
    file.write(tmp_path / "site.json")
    terms = Terms(("tiny",), ("FedAvg",), rounds=3, weights=("/own/w.pt",))
    SEEN.clear()
    yield Resident(SiteYaml(tmp_path / "site.json", tmp_path, tmp_path / "states", terms),
                   say=SEEN.append)


def config(*words: str) -> dict[str, Any]:
    return config_plain(resolve(parse([
        "--demo", "--trainer", "FedAvg", "--rounds", "2", *words
    ])).jobs[0].cfg)


def said(site: Resident, frame: Frame) -> str:
    reply = unpack(site.answer(pack(frame)))
    assert reply.op == "failed" and reply.values["nonce"] in (NONCE, "")
    return f"{reply.values['kind']}: {reply.values['text']}"


def hello(words: dict[str, Any]) -> Frame:
    return Frame("hello", {"run": RUN, "nonce": NONCE, "config": words})


@pytest.mark.parametrize(("change", "why"), [
    ({"TRAINER.NAME": "FedTV"}, "this method is not allowed (rule 'trainers')"),
    ({"TRAINER.NAME": "./evil.py:Evil"}, "never as a file (rule 'trainers')"),
    ({"MODEL.BACKBONE.NAME": "RN50"}, "this backbone is not allowed (rule 'backbones')"),
    ({"FED.ROUNDS": 9}, "at most 3 rounds, and 9 are planned (rule 'rounds')"),
    ({"MODEL.INIT_WEIGHTS": "/etc/passwd"}, "a file of the coordinator's is none (rule 'weights')"),
    ({"CACHE_DIR": "/srv/www"}, "differs in CACHE_DIR (absent there, another value here)"),
    ({"X.NEW": 1}, "this site's fedvlm has no X.NEW: the versions differ"),
])  # fmt: skip
def test_what_the_owner_does_not_allow_is_refused_before_anything_is_built(
    site: Resident, change: dict[str, Any], why: str
) -> None:
    assert said(site, hello(config() | change)).endswith(why)
    asked = str(change.get("TRAINER.NAME", config()["TRAINER.NAME"]))
    assert SEEN[-2].startswith(f"run {RUN[:12]}: {asked} on ") and why in SEEN[-1]
    assert SEEN[-2].endswith(" rounds: turned away")
    assert not (site.owner.states / RUNS).exists()


def test_what_hinders_a_build_stays_in_the_site_s_log(site: Resident, tmp_path: Path) -> None:
    (tmp_path / "site.json").unlink()
    words = said(site, hello(config()))
    assert words == "failed: DataError at the site; details are in the site's log"
    assert str(tmp_path) in SEEN[-1]


def test_a_site_does_not_serve_with_an_image_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which before it waits; out of the lists it is no hindrance, and is read once."""
    names = [f"{i}.png" for i in range(4)]
    for name in names:
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    lists = {"train": [(n, 0) for n in names], "val": [], "test": []}
    SiteFile("shapes", ["a", "b"], ["a {}."], {0: lists}).write(tmp_path / "site.json")
    (tmp_path / "site.yaml").write_text("site: site.json\nimages: .\nstates: states\nallow:\n"
                                        "  trainers: [FedAvg]\n  backbones: [tiny]\n")
    (tmp_path / "2.png").write_bytes(b"no image")
    owner, own = read_site_yaml(tmp_path / "site.yaml"), {"CACHE_DIR": str(tmp_path / "cache")}
    waits: list[str] = []
    monkeypatch.setattr(resident, "serve", lambda *words: waits.append("waits"))

    def serve() -> None:
        resident.serve_site(owner, tmp_path / "socket", own, SEEN.append)

    with pytest.raises(DataError, match=r"1 of 4 images of '.*' cannot be read: 2\.png \(cannot "
                                        r"identify image file\).*site forget SITE\.YAML --images"):
        serve()
    (tmp_path / "LIST").write_text("2.png\n")
    assert not waits and main([
        "site", "forget", str(tmp_path / "site.yaml"), "--images", str(tmp_path / "LIST")]) == 0
    assert "leaving the lists: 1 train, 0 val, 0 test images of" in capsys.readouterr().out
    monkeypatch.setattr(images, "check_decodes", lambda raw: pytest.fail("read again"))
    serve()
    assert waits == ["waits"]


def test_a_coordinator_hears_that_an_image_cannot_be_read(tmp_path: Path) -> None:
    told = failure(UnreadableError(f"cannot read the image {tmp_path}/a.png: broken"), SEEN.append)
    assert told == {"kind": "failed", "text": (
        "an image at the site cannot be read; its owner runs `fedvlm site check SITE.YAML --full`")}
    assert str(tmp_path) in SEEN[-1]


def test_a_run_that_nobody_announced_and_other_messages_are_refused(site: Resident) -> None:
    forget = Frame("forget", {"run": RUN, "like": "ab" * 8, "nonce": NONCE, "keep": {}})
    assert "does not know that run: the coordinator must register it again" in said(site, forget)
    assert "a site does not support 'forgot'" in said(site, Frame("forgot", {"nonce": NONCE}))
    assert "not a fedvlm frame" in unpack(site.answer(b"\0" * 64)).values["text"]


def test_greetings_that_nothing_followed_go(
    site: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of runs with states here stay, whatever their age."""
    place = site.owner.states / RUNS
    place.mkdir(parents=True)
    monkeypatch.setattr(resident, "MOST", 2)
    monkeypatch.setattr(site, "_built", lambda config: config)
    for age, name in enumerate(["a1", "b2", "c3", "d4", "e5", "f6"]):
        (place / f"{name}.json").write_text("{}")
        at = time.time() - 60 * age - (2 * resident.IDLE if name == "b2" else 0)
        os.utime(place / f"{name}.json", (at, at))
    for name in ("b2", "f6"):
        (site.owner.states / name).mkdir()
    site._site_of(hello(config()))
    assert {p.stem for p in place.glob("*.json")} == {RUN, "a1", "c3", "b2", "f6"}
    assert SEEN[0] == "2 run(s) that never trained here were removed"
    os.utime(place / "a1.json", (0, 0))
    site._site_of(hello(config()))  # greeted again, as it was: nothing is written
    assert (place / "a1.json").exists()


def test_the_words_of_a_run_are_a_config_again() -> None:
    plain = config("OPTIM.LR", "0.5", "INPUT.VIEWS", "2", "FED.CHUNK", "3")
    again = config_from(plain, {"DEVICE": "cpu"})
    assert config_plain(again) == plain and again.DEVICE == "cpu" and again.OPTIM.LR == 0.5
