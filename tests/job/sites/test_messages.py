"""A site's log of its messages, and the record that ``fedvlm site record`` makes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.data.own.site import read_site
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.terms import Terms
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.job.sites import messages
from fedvlm.job.sites.messages import LOG, MessageLog, read_log
from fedvlm.job.sites.resident import Resident
from fedvlm.runs.seal import sha256
from tests import jobs
from tests.job.sites import places

APFL = ("--trainer", "APFL")
GREETING = pack(Frame("forget", {
    "run": "ab" * 16, "like": "ab" * 8, "nonce": "cd" * 8, "keep": {},
}))
Lines = list[bytes]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Eight built-in images of a class for training and for tests, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (8, 2, 8))
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("few")))
        yield


@pytest.fixture
def place(few: None, tmp_path: Path) -> Path:
    return places.make(tmp_path / "parties")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The ``site.yaml`` of a site that answered three questions of runs that it does not know."""
    (tmp_path / "site.yaml").write_text(places.RULES)
    log = MessageLog(tmp_path / "states")
    log.begin("127.0.0.2:7400, certificate SHA256:x", Terms(("tiny",), ("FedAvg",), rounds=3))
    for _ in range(3):
        log.carry(GREETING, lambda data: failed("no"), lambda: None)
    return tmp_path / "site.yaml"


def failed(text: str) -> bytes:
    return pack(Frame("failed", {"nonce": "cd" * 8, "kind": "refused", "text": text}))


def log_of(place: Path) -> Path:
    return place / "states" / LOG


def test_every_message_has_one_line_and_none_says_what_it_holds(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the coordinator stops and the sites begin anew; the bits are those without log."""
    out, bare = tmp_path / "out", tmp_path / "bare"
    code, line = places.federated(place, out, monkeypatch, *APFL, stop=("work", 2))
    assert code == 130
    frames = line.frames
    code, line = places.federated(place, out, monkeypatch, *APFL)
    assert code == 0
    lines: list[dict[str, object]] = []
    for name in places.NAMES:
        told, seals = read_log(log_of(place / name))
        assert messages.log_damage(log_of(place / name)) == "" and len(set(seals)) == len(told)
        lines += told
        words, file = log_of(place / name).read_text(), read_site(place / name / "site.json")
        assert not [p for p in file.paths() if p in words or Path(p).name in words]
        assert not [c for c in file.classnames if f'"{c}"' in words] and str(place) not in words
    assert Counter(one["sha256"] for one in lines) == Counter(
        sha256(data) for data in [*frames, *line.frames])
    sent = next(one for one in lines if one["kind"] == "worked")
    assert sent["direction"] == "out" and sent["round"] == 1
    assert "text.ctx" in sent["tensors"]["up"]  # type: ignore[index]
    capsys.readouterr()
    assert main(["site", "record", str(place / "site0" / "site.yaml")]) == 0
    assert "each fits the one before" in capsys.readouterr().out
    page = (place / "site0" / "record.md").read_text()
    assert "No more left with updates than its method declares: `text.ctx`" in page
    assert "and counts of work (steps, samples, passes through the towers)" in page
    assert "no message in this log declares them" in page
    assert "no secure sums; no guarantee of privacy" in page and page.count("\n## ") == 11

    rows = places.rows(place, out)
    for name in places.NAMES:
        (place / name / "states").rename(place / name / "with_log")
    monkeypatch.setattr(MessageLog, "enter", lambda *_: None)
    assert places.federated(place, bare, monkeypatch, *APFL)[0] == 0
    ours, theirs = jobs.state(out) | rows, jobs.state(bare) | places.rows(place, bare)
    assert ours.keys() == theirs.keys() and not log_of(place / "site0").exists()
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_under_secure_sums_the_page_says_that_a_masked_sum_left(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setattr(places, "NAMES", ("site0", "site1", "site2"))
    words = ("--demo", "--partition", "disjoint", "--num-users", "3", "--shots", "2")
    assert main(["site", "make", "--split", "0,1,2", "--to", str(tmp_path), *words]) == 0
    for name in places.NAMES:
        (tmp_path / name / "site.yaml").write_text(places.RULES)
    assert places.federated(tmp_path, tmp_path / "out", monkeypatch, *APFL, "--num-users", "3",
                            "FED.SECURE_SUM", "True")[0] == 0
    lines = read_log(log_of(tmp_path / "site0"))[0]
    sums = [one for one in lines if one["kind"] == "masked"]
    assert [one["tensors"] for one in sums] == [{"sum": ["sum"]}] * 2
    capsys.readouterr()
    assert main(["site", "record", str(tmp_path / "site0" / "site.yaml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["answers"]
    assert "Updates left in masked sums only." in " ".join(told["What leaves this site?"])
    assert "single updates in 0 run(s), sums only in 1" in told["Who saw my numbers?"][0]


@pytest.mark.parametrize(("how", "said"), [
    (lambda x: [x[0], x[1].replace(b"forget", b"retain"), *x[2:]], "line 2 is damaged"),
    (lambda x: [x[0], x[1], *x[3:]], "line 3 is damaged"),
    (lambda x: [x[0], x[2], x[1], *x[3:]], "line 2 is damaged"),
    (lambda x: [x[0], *x[:]], "line 2 is damaged"),
    (lambda x: x[1:], "line 1 is damaged"),
    (lambda x: [x[0].partition(b', "seal"')[0] + b"}", *x[1:]],
     "line 1 is damaged (its checksum is missing)"),
])  # fmt: skip
def test_a_line_that_was_changed_moved_or_taken_away_is_found(
    site: Path, how: Callable[[Lines], Lines], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of(site.parent)
    path.write_bytes(b"\n".join(how(path.read_bytes().splitlines())) + b"\n")
    assert main(["site", "record", str(site)]) == 3
    assert f"messages.jsonl: {said}" in capsys.readouterr().err
    with pytest.raises(DataError, match="move the file away and keep it"):
        MessageLog(site.parent / "states").enter("in", {"kind": "hello"})


def test_a_seal_that_was_kept_shows_what_no_checksum_shows(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = log_of(site.parent), ["site", "record", str(site)]
    assert main([*words, "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["head"]
    MessageLog(site.parent / "states").enter("in", {"kind": "hello", "bytes": 1})
    assert main([*words, "--head", head]) == 0
    assert "that of line 7: everything up to it is as it was" in capsys.readouterr().out
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:5]) + b"\n")
    assert main(words) == 0  # the last lines are gone, and nothing in the log shows it
    assert main([*words, "--head", head]) == 3
    assert f"has no line with the seal {head}" in capsys.readouterr().err


def test_a_line_that_a_kill_cut_goes_and_the_chain_goes_on(site: Path) -> None:
    path = log_of(site.parent)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"at": 1, "direction": "o')
    assert messages.log_damage(path) == ""
    MessageLog(site.parent / "states").enter("in", {"kind": "hello", "bytes": 1})
    lines, seals = read_log(path)
    assert path.read_bytes().startswith(whole) and len(seals) == 8 and not messages.log_damage(path)
    assert lines[-1]["kind"] == "hello"


def test_an_answer_whose_line_cannot_be_written_does_not_leave(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    resident = Resident(read_site_yaml(place / "site0" / "site.yaml"), say=heard.append)
    plain, there = messages.append_metrics, list[str]()

    def full(path: Path, record: dict[str, object], before: str) -> str:
        if record["direction"] == "out":
            raise DataError(f"cannot write '{path}': the disk is full")
        there.append(str(record["kind"]))
        return plain(path, record, before)

    monkeypatch.setattr(messages, "append_metrics", full)
    for reply in (resident.answer(GREETING), resident.refuse(10**12)):
        values = unpack(reply).values
        assert values["text"] == "DataError at the site; details are in the site's log"
        assert str(place) not in values["text"] and "disk is full" in heard[-1]
    assert there == ["forget", "too long"]
    assert unpack(resident.answer(GREETING)).values["nonce"] == "cd" * 8


def test_what_is_no_frame_is_a_line_without_a_word_of_it(site: Path) -> None:
    log = MessageLog(site.parent / "states")
    log.carry(b"<script>" * 9, lambda data: failed("a `message`"), lambda: None)
    came, went = read_log(log.path)[0][-2:]
    assert came.keys() == {"at", "direction", "kind", "bytes", "sha256"}
    assert (came["kind"], came["bytes"]) == ("unreadable", 72)
    assert main(["site", "record", str(site)]) == 0
    assert "`messages of no run: refused: a 'message'`" in (site.parent / "record.md").read_text()


def test_a_page_of_somebody_else_is_not_written_over(
    site: Path, capsys: pytest.CaptureFixture
) -> None:
    page, words = site.parent / "record.md", ["site", "record", str(site)]
    page.write_text("my own notes")
    assert main(words) == 2 and "is not a page of fedvlm site record" in capsys.readouterr().err
    assert page.read_text() == "my own notes" and main([*words, "--json"]) == 0
    page.unlink()
    assert main(words) == 0 and main(words) == 0  # its own page is made anew


def test_an_update_with_more_than_its_method_declares_is_told(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, run = MessageLog(site.parent / "states"), "ef" * 16
    declared = {"shared": ["text.ctx"], "extras": [], "metrics": ["loss"]}
    about = {"method": "FedAvg", "rounds": 2, "secure": False, "bounded": False, "privacy": "",
             "declared": declared}
    log.enter("out", {"run": run, "kind": "welcome", "tensors": {}, "numbers": [], "bytes": 1,
                      "about": about})
    line = {"run": run, "kind": "worked", "round": 1, "numbers": [], "bytes": 9}
    log.enter("out", line | {"tensors": {"up": ["text.ctx"], "told": ["weight", "metric/loss"]}})
    assert main(["site", "record", str(site)]) == 0
    log.enter("out", line | {"tensors": {"up": ["image.personal"], "told": ["metric/size"]}})
    assert main(["site", "record", str(site)]) == 3
    said = "run efefefefefef (FedAvg) sent what its method does not declare: `image.personal`, `siz"
    assert said in capsys.readouterr().err
    page = (site.parent / "record.md").read_text()
    assert "it cannot be said; see the problems above" in page and "declares them" not in page
    assert "behind Flower at `127.0.0.2:7400, certificate SHA256:x`" in (
        site.parent / "record.md").read_text()


def test_a_site_that_never_served_has_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text(places.RULES)
    assert main(["site", "record", str(tmp_path / "site.yaml")]) == 2
    assert "this site was not served yet" in capsys.readouterr().err
    assert main(["site", "status", str(tmp_path / "site.yaml"), "--head", "ab"]) == 2
    assert "status does not read --head" in capsys.readouterr().err
