"""A site's log of its messages, and the record that ``fedvlm site record`` makes of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.own.site import read_site
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.terms import Terms
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.sites import messages
from fedvlm.job.sites.messages import LOG, MessageLog, read_log
from fedvlm.job.sites.resident import Resident, serving
from fedvlm.runs.seal import sha256
from tests import jobs
from tests.job.sites import places

APFL = ("--trainer", "APFL")
GREETING = pack(Frame("forget", {
    "run": "ab" * 16, "like": "ab" * 8, "nonce": "cd" * 8, "keep": {},
}))
Lines = list[bytes]


@pytest.fixture(scope="module")
def made(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return places.make(tmp_path_factory.mktemp("parties"))


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "parties")


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


def test_old_lines_go_and_a_kept_seal_still_shows_a_log_that_was_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three days, each with a start of the site and a run; that of day 1 goes on on day 2."""
    (tmp_path / "site.yaml").write_text(places.RULES)
    site, states = str(tmp_path / "site.yaml"), tmp_path / "states"
    log, path = MessageLog(states), states / LOG
    for day, runs in enumerate((["a0"], ["a1"], ["a1", "a2"], [])):
        monkeypatch.setattr(messages.time, "time", lambda day=day: 100.0 + 86400.0 * day)
        log.begin("", Terms(("tiny",), ("FedAvg",)))
        for run in runs:
            log.enter("in", {"run": run * 16, "kind": "work", "bytes": 1})
    whole, seals = path.read_bytes(), read_log(path)[1]

    def kept() -> list[str]:
        return [line.get("run", line["kind"])[:7] for line in read_log(path)[0]]

    words = ["site", "prune", site, "--days"]
    assert main([*words, "9"]) == 0 and path.read_bytes() == whole
    for days, first in (("2", 2), ("1", 2), ("1", 2)):  # older than a day, but a1 goes on
        assert main([*words, days]) == 0
        assert kept()[:-1] == ["serving", "a1a1a1a", "serving", "a1a1a1a", "a2a2a2a", "serving"]
        assert read_log(path)[1][:-1] == seals[first:] and not messages.log_damage(path)
    assert read_log(path)[0][-1]["lines"] == 2
    assert main([*words, "0"]) == 0
    assert kept() == ["serving", "pruned", "pruned"] and read_log(path)[0][-1]["lines"] == 7
    capsys.readouterr()
    MessageLog(states).enter("in", {"kind": "hello", "bytes": 1})  # the chain goes on
    assert main(["site", "record", site, "--head", seals[7]]) == 0
    assert "that of line 2: everything up to it is as it was, but for the 7 lines until" in (
        capsys.readouterr().out)
    assert "7 lines until 1970" in (tmp_path / "record.md").read_text()
    assert main(["site", "record", site, "--head", seals[0]]) == 3
    assert "or it is that of one of the 7 lines" in capsys.readouterr().err
    assert main(["site", "record", site, "--head", seals[6]]) == 0  # the owner was told to keep it
    assert "is that of the last line which the owner removed (7 lines until" in (
        capsys.readouterr().out)
    assert main([*words, "9" * 400]) == 2
    assert "--days: a number of days, 0 to 36500" in capsys.readouterr().err
    with_ends = path.read_bytes()
    path.write_bytes(with_ends + b'{"at": 1, "dir')  # cut by a kill
    MessageLog(states).enter("in", {"kind": "hello", "bytes": 1})
    assert path.read_bytes().startswith(with_ends) and not messages.log_damage(path)

    start, *rest = with_ends.splitlines()
    for lines, said in (
        ([b'{"after": "' + seals[0].encode() + b'"}', *rest], "line 2 is damaged"),
        (rest, "line 1 is damaged"),
        ([start, rest[0].replace(b"tiny", b"huge"), *rest[1:]], "line 2 is damaged"),
        ([start[:11] + seals[7].encode() + start[75:], *rest[1:]],
         "lines before it are missing, and no line says who removed them"),
    ):
        path.write_bytes(b"\n".join(lines) + b"\n")
        assert said in messages.log_damage(path)
    path.unlink()  # somebody makes all of it anew, with fitting checksums
    for line in (json.loads(one) for one in rest):
        line.pop("seal")
        MessageLog(states).enter(line.pop("direction"), line | {"bytes": 2})
    capsys.readouterr()
    assert messages.log_damage(path) == ""
    assert main(["site", "record", site, "--head", seals[7]]) == 3
    assert f"has no line with the seal {seals[7]}" in capsys.readouterr().err


def test_a_pruning_that_was_cut_leaves_lines_too_many(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log_of(site.parent)
    before = path.read_bytes()
    MessageLog(site.parent / "states").begin("", Terms())

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(messages.files, "write_bytes", killed)
        messages.prune_log(path, 2.0**40)
    assert path.read_bytes().startswith(before) and messages.log_damage(path) == ""
    assert messages.prune_log(path, 2.0**40) == 9 and messages.log_damage(path) == ""


def test_an_owner_lets_sums_be_read_over_other_sites_only_while_nobody_serves(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states, words = site.parent / "states", ["site", "prune", str(site), "--sums"]
    assert main(words) == 0 and "has not helped to read" in capsys.readouterr().out
    (states / ".sums.json").write_text("{}")
    with serving(read_site_yaml(site)):
        assert main(words) == 2 and "already serves this site" in capsys.readouterr().err
    assert (states / ".sums.json").is_file() and main(words) == 0
    assert not (states / ".sums.json").exists()
    assert "whoever has both sums learns the difference" in capsys.readouterr().out
    assert main(["site", "record", str(site)]) == 0
    assert "the owner let secure sums be read over other sites" in (
        site.parent / "record.md").read_text()
    assert main(["site", "prune", str(site)]) == 2
    assert "prune needs --days N or --sums" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyError("secret"), ConfigError("secret")])
@pytest.mark.parametrize("own", ["releases", "privacy"])
def test_a_method_that_cannot_say_what_it_sends_does_not_work_here(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, error: Exception
) -> None:
    """An error of fedvlm's own in 'privacy' is the coordinator's to hear at the end."""
    def fail(*_: object) -> None:
        raise error

    heard: list[str] = []
    resident = Resident(read_site_yaml(place / "site0" / "site.yaml"), say=heard.append)
    with monkeypatch.context() as patch:
        patch.setattr(load_trainer("APFL"), own, fail)
        code, line = places.federated(place, tmp_path / own, patch, *APFL, stop=("hello", 0),
                                      sites={"site0": resident.answer})
    greeting, reply = map(unpack, line.frames[-2:])
    told = read_log(log_of(place / "site0"))[0][-1]
    if own == "privacy" and isinstance(error, ConfigError):
        assert reply.op == "welcome" and told["about"]["privacy"] == "not known: secret"
        return
    assert (reply.op, reply.values["kind"]) == ("failed", "refused") and "about" not in told
    assert f"its own '{own}' fails, so that nobody can say" in reply.values["text"]
    assert "secret" not in reply.values["text"] and any("secret" in words for words in heard)
    asked = Frame("forget", {"run": greeting.values["run"], "like": "ab" * 8, "keep": {},
                             "nonce": "cd" * 8})
    assert "does not know that run" in unpack(resident.answer(pack(asked))).values["text"]


def test_a_page_of_a_run_whose_method_declared_nothing(site: Path) -> None:
    log, run = MessageLog(site.parent / "states"), "ef" * 16
    about = {"method": "Odd", "rounds": 2, "secure": False, "bounded": False, "privacy": None,
             "declared": None}
    line = {"run": run, "tensors": {"up": ["text.ctx"]}, "numbers": [], "bytes": 9, "round": 1}
    log.enter("out", line | {"kind": "welcome", "about": about})
    log.enter("out", line | {"kind": "worked"})
    assert main(["site", "record", str(site)]) == 0
    page = (site.parent / "record.md").read_text()
    assert "What its method declares is not in this log." in page
    assert "run efefefefefef (Odd): no secure sums; no guarantee of privacy" in page


def test_runs_that_worked_count_and_their_epsilons_add_up(site: Path) -> None:
    """A run that was refused, or only measured, is none on which a protection was in force."""
    log = MessageLog(site.parent / "states")
    for run, bounded, kind in (("ef", True, "worked"), ("0a", True, "worked"),
                               ("0b", False, "worked"), ("0c", False, "failed")):
        about = {"method": "Odd", "rounds": 2, "secure": False, "bounded": bounded,
                 "privacy": "epsilon 3" if bounded else None, "declared": None}
        line = {"run": run * 16, "tensors": {}, "numbers": [], "bytes": 9, "round": 1}
        log.enter("out", line | {"kind": "welcome", "about": about})
        log.enter("out", line | {"kind": kind, "why": "no"})
    assert main(["site", "record", str(site)]) == 0
    page = (site.parent / "record.md").read_text()
    assert "of 3 run(s) 0 with secure sums, 2 with noise that bounds epsilon." in page
    assert "epsilons add up, and updates that left without noise are outside of any." in page
    assert log_of(site.parent).stat().st_mode & 0o77 == 0


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
