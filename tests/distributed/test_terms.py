"""What a site's owner allows: each rule alone, and at a site before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.rng import stream
from fedvlm.distributed import site as room
from fedvlm.distributed.ledger import Account, Ledger
from fedvlm.distributed.server.baselines import site_baselines
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.site import Site
from fedvlm.distributed.terms import Refused, Terms
from fedvlm.distributed.wire import Frame, pack, unpack
from fedvlm.evaluation.scores import notes
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import BASELINE_SUMS, Releases
from fedvlm.federation.server import Measure
from tests.distributed.grid import CONFIG, RUN, Grid
from tests.distributed.in_process import InProcess
from tests.distributed.test_site import ask, work

CONFIGURED = {"TRAINER.NAME": "FedTV", "MODEL.BACKBONE.NAME": "tiny", "FED.ROUNDS": 5}
SECRET = "/home/anna/clip.pt"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    grid = Grid(CheckWorld(), load_trainer("fedper"), tmp_path_factory.mktemp("grid"))
    return grid.sites["site0"]


@pytest.mark.parametrize(("terms", "config", "said"), [
    (Terms(trainers=("FedAvg",)), {}, "this method is not allowed (rule 'trainers')"),
    (Terms(trainers=("FedTV",)), {"TRAINER.NAME": "./evil.py:FedTV"}, "never as a file"),
    (Terms(trainers=("a.py",)), {"TRAINER.NAME": "a.py"}, "never as a file (rule 'trainers')"),
    (Terms(backbones=("ViT-B/16",)), {"MODEL.BACKBONE.NAME": f"local-dir:{SECRET}"},
     "this backbone is not allowed (rule 'backbones')"),
    (Terms(rounds=4), {}, "at most 4 rounds, and 5 are planned (rule 'rounds')"),
])  # fmt: skip
def test_a_run_is_refused_by_the_name_of_the_rule(
    terms: Terms, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as error:
        terms.admit(CONFIGURED | config)
    assert said in str(error.value) and SECRET not in str(error.value)


def test_what_is_allowed_passes() -> None:
    Terms().admit({"TRAINER.NAME": "./mine.py:Mine"})
    terms = Terms(("tiny",), ("FedTV",), 5, 8, 100, 3.0)
    terms.admit(CONFIGURED)
    terms.allow_round(5)
    terms.allow_steps([8, 2])
    terms.allow_size(100)
    terms.allow_time(2.9)


@pytest.mark.parametrize(("terms", "values", "said"), [
    (Terms(rounds=1), {"round": 2}, "at most 1 rounds, and this is round 2 (rule 'rounds')"),
    (Terms(steps=1), {}, "a client takes at most 1 steps, not"),
    (Terms(bytes=300), {}, "a message has at most 300 bytes, not"),
    (Terms(seconds=2.0), {}, "this config has used up its 2 seconds of work (rule 'seconds')"),
])  # fmt: skip
def test_a_site_refuses_before_it_works(
    site: Site, terms: Terms, values: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it worked")

    ledger = Ledger(site.folder / RUN)
    ledger.path.parent.mkdir(parents=True, exist_ok=True)
    ledger.path.unlink(missing_ok=True)
    ledger.enter("work", 1, 10, 10, 2.0, False)
    monkeypatch.setattr(site, "terms", terms)
    monkeypatch.setattr(site.federation.engine.__class__, "run", never)
    reply = ask(site, "work", **values)
    assert reply.values["kind"] == "refused" and said in reply.values["text"]
    assert str(site.folder) not in reply.values["text"]


def test_a_site_enters_what_it_does_for_a_run(site: Site) -> None:
    ledger = Ledger(site.folder / RUN)
    ledger.path.unlink(missing_ok=True)
    assert ask(site, "work").op == "worked"
    assert ask(site, "work", accepted={"0": 7}, floor={"0": 7}, round=8).op == "failed"
    account = ledger.read()
    assert account.answers == {"work": 1, "failed": 1} and account.round == 1
    assert account.down > 500 and account.up > 500 and account.seconds > 0
    whole = ledger.path.read_text()
    for damage in ("{", "[]", whole.replace(": 1", ': "1"'), whole.replace(": 1", ": null")):
        ledger.path.write_text(damage)
        assert ask(site, "work").op == "worked"  # what hinders the entry hinders no answer
        with pytest.raises(DataError, match="is damaged: delete it"):
            ledger.read()
    ledger.path.unlink()
    assert ledger.read() == Account()


def test_time_is_counted_for_templates_and_over_names_of_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server chooses the name of its run, and a template makes no states."""
    monkeypatch.setattr(site, "terms", Terms(seconds=1e-6))
    site._spent().path.unlink(missing_ok=True)
    values = {
        "round": 0, "accepted": {"0": 0}, "down": {"0": "0"}, "tune": False, "model": "template",
        "measure": asdict(Measure()),
    }
    for run, kind in (("12" * 16, "evaluated"), ("34" * 16, "failed")):
        frame = Frame("evaluate", {"run": run, "like": site.like, "nonce": "ab" * 8} | values,
                      {"down/0": {}})
        reply = unpack(site.answer(pack(frame)))
        assert reply.op == kind, reply.values
        assert not (site.folder / run).exists()
    assert "(rule 'seconds')" in reply.values["text"]


@pytest.mark.parametrize("logits", [True, False])
def test_which_images_are_right_is_told_where_logits_are(
    site: Site, logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "terms", Terms(logits=logits))
    frame = Frame("evaluate", {
        "run": "56" * 16, "like": site.like, "nonce": "ab" * 8, "round": 0, "accepted": {"0": 0},
        "down": {"0": "0"}, "tune": False, "model": "template",
        "measure": Measure(answers=True).plain(),
    }, {"down/0": {}})
    reply = unpack(site.answer(pack(frame)))
    assert reply.op == "evaluated", reply.values
    (row,) = reply.values["rows"]
    assert ("right.0" in row) == logits and "answers" not in Measure().plain()


def test_the_owner_of_a_site_hears_first_what_his_rules_forbid(site: Site) -> None:
    with pytest.raises(ConfigError, match="this method is not allowed .rule 'trainers'"):
        Site(site.federation, [0], site.folder, CONFIGURED, terms=Terms(trainers=("FedAvg",)))
    most = int(site.federation.roster.train[0]) + 1
    with pytest.raises(ConfigError, match=r"clients \[0\] have fewer training images than"):
        Site(site.federation, [0], site.folder, CONFIGURED, terms=Terms(count=most))


def test_a_server_that_asks_for_more_is_refused_at_the_first_word(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "terms", Terms(rounds=2))
    hello = {"run": RUN, "nonce": "ab" * 8, "config": CONFIG | {"FED.ROUNDS": 3}}
    reply = unpack(site.answer(pack(Frame("hello", hello))))
    assert "at most 2 rounds, and 3 are planned (rule 'rounds')" in reply.values["text"]
    assert work(site)["like"] == site.like


COUNTS = {"train": 9, "val": 2, "test": 3, "classes": [6, 0, 3]}


@pytest.mark.parametrize(("count", "told"), [
    (1, COUNTS), (3, COUNTS | {"val": 3}),
    (5, {"train": 9, "val": 5, "test": 5, "classes": []}),
])  # fmt: skip
def test_rare_counts_are_not_told(count: int, told: dict[str, Any]) -> None:
    assert Terms(count=count).tell(COUNTS) == told


def test_class_counts_follow_from_sums() -> None:
    """Of independent images as many as features or fewer: what the rule below is for."""
    z = torch.randn(9, 12, generator=stream(1, "z"), dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[[0] * 6 + [2] * 3]
    gram, cross = z.mT @ z, z.mT @ y
    counts = (cross.mT @ torch.linalg.pinv(gram) @ cross).diagonal()
    assert counts.round().tolist() == COUNTS["classes"]


@pytest.mark.parametrize(("count", "told"), [(1, [9]), (99, [9]), (99, [])])
def test_sums_that_tell_a_rare_class_do_not_leave(
    site: Site, monkeypatch: pytest.MonkeyPatch, count: int, told: list[int]
) -> None:
    """Whatever the coordinator was told of the classes; it asks for none where it was told none."""
    said: list[str] = []
    monkeypatch.setattr(site, "terms", Terms(baselines=True, count=count))
    monkeypatch.setattr(site, "baselines", lambda clients: SimpleNamespace(
        clients=clients, classes=2))
    monkeypatch.setattr(site, "_alone", {})
    monkeypatch.setattr(site, "say", said.append)
    row = {"n": 200, "correct": 9, "accuracy": 4.5, "balanced": 4.5, "macro_f1": 4.5, "client": 0}
    better = row | {"correct": 18, "accuracy": 9.0}
    monkeypatch.setattr(room, "alone_rows", lambda asked, model: [better if model else row])
    monkeypatch.setattr(room, "pooled_rows", lambda asked, weights: [row])
    sums = {"gram": torch.eye(2), "cross": torch.eye(2), "count": torch.tensor(2.0)}
    monkeypatch.setattr(room, "site_sums", lambda asked: sums)
    asked: list[tuple[str, list[str]]] = []

    class Carrier(InProcess):
        def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
            out = super().ask(frames, seconds)
            asked.extend((unpack(frames[s]).values["model"], list(unpack(out[s]).trees))
                         for s in frames)
            return out

    engine = RemoteEngine(Carrier({"site0": site.answer}), CONFIG, run_id=RUN, say=said.append)
    engine.requests.like = site.like
    engine.members.home, engine.members.counts = {0: "site0"}, {0: {"test": 200, "classes": told}}
    found = site_baselines(engine, [0], 2, 2, Releases(sums=BASELINE_SUMS), True)
    assert found is not None and found["logreg_names"]["personal"] == 9.0
    assert list(found) == ["logreg", "logreg_names", *(["pooled"] if count == 1 else [])]
    assert {*found} == engine.baselined
    assert asked == [("alone", []), ("names", []), *{
        (1, 1): [("baseline", ["sums"]), ("baseline", [])], (99, 1): [("baseline", [])],
        (99, 0): []}[count, len(told)]]
    assert sum("(rule 'count')" in words for words in said) == (count > 1 and len(told) > 0)
    assert said[-1:] == ([] if count == 1 else [
        "site0: no sums for baselines are sent, since a class there has too few images to be "
        "counted (rule 'count' of site.yaml), so what one place with all images would reach "
        "(pooled) is not known"])


@pytest.mark.parametrize("name", ["afl", "fedpft", "fedproto", "tofa"])
def test_a_method_whose_uploads_tell_counts_is_refused_where_a_class_is_rare(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(site, "terms", Terms(count=99))
    hello = Frame("hello", {"run": RUN, "nonce": "ab" * 8, "config": CONFIG})
    assert unpack(site.answer(pack(hello))).op == "welcome"
    monkeypatch.setattr(site.federation.trainer.__class__, "tells_classes",
                        load_trainer(name).tells_classes)
    for reply in (unpack(site.answer(pack(hello))), ask(site, "work")):
        assert reply.values["kind"] == "refused" and "(rule 'count')" in reply.values["text"]
        assert "too few; set FED.SECURE_SUM True" in reply.values["text"]
    monkeypatch.setitem(site.config, "FED.SECURE_SUM", True)  # only sums over sites leave
    site._allow_counts()


def test_rows_of_few_images_are_not_told() -> None:
    row = {"client": 4, "n": 3, "correct": 2, "accuracy": 66.7, "confusion.0.1": 3}
    assert Terms(count=3).tell_row(row) == row
    hidden = Terms(count=4).tell_row(row)
    assert hidden == {"client": 4, "n": 0, "correct": 0, "accuracy": None, "absent": 2}
    assert notes([hidden]) == ["1 client (4) whose site reports nothing: not in any number"]
    rare = row | {"n": 30, "confusion.0.0": 27}
    assert Terms(count=4).tell_row(rare) == {
        "client": 4, "n": 30, "correct": 2, "accuracy": 66.7
    }
