"""What a run records of its evaluation: selection on validation, and the final fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.core.trees import stack, stack_states
from fedvlm.federation.rounds import FedState, RoundFinished
from fedvlm.job import run
from fedvlm.job.build import build_run
from fedvlm.job.flags import parse
from fedvlm.job.record import Recorder, make_evaluator, make_panel
from fedvlm.job.resolve import resolve
from fedvlm.runs.state import SavedState
from tests import jobs


def test_selection_does_not_depend_on_test_evaluations(tmp_path: Path) -> None:
    more = ("--opts", "TEST.SELECT", "val")
    assert jobs.run(tmp_path, "--eval-every", "9", "--rounds", "3", *more) == 0
    assert all("personal" in r and r["val"] is not None for r in jobs.records(tmp_path))


@pytest.mark.parametrize("trainer", ["FedAvg", "FedTV"])
def test_on_the_command_line(tmp_path: Path, trainer: str) -> None:
    """The flag leaves training alone; both numbers are in the results, with what it cost."""
    words = ("--trainer", trainer, "--lr", "0.1")
    assert jobs.run(tmp_path / "without", *words) == 0
    assert jobs.run(tmp_path / "with", *words, "--finetune-epochs", "8") == 0
    a, b = jobs.state(tmp_path / "without"), jobs.state(tmp_path / "with")
    assert all(torch.equal(a[name], b[name]) for name in a)
    plain, tuned = (jobs.results(tmp_path / name)["last"] for name in ("without", "with"))
    assert tuned["personal_before_ft"] == plain["personal"]
    assert [c["accuracy_before_ft"] for c in tuned["clients"]] == [
        c["accuracy"] for c in plain["clients"]
    ]
    assert [c["correct"] for c in tuned["clients"]] != [c["correct"] for c in plain["clients"]]
    assert tuned["finetune"]["epochs"] == 8 and tuned["finetune"]["samples"] > 0
    assert plain["personal_before_ft"] == plain["personal"] and "finetune" not in plain
    costs = [jobs.results(tmp_path / name)["spent"] for name in ("without", "with")]
    assert [c["final_epochs"] for c in costs] == [0, 8]
    assert costs[1]["final_steps"] == 8 * 2 and costs[0]["final_steps"] == 0  # a batch a client
    assert costs[1]["local_steps"] == costs[0]["local_steps"] + 8 * 2
    assert jobs.run(tmp_path / "again", *words, "--finetune-epochs", "8") == 0
    again, first = (json.dumps(jobs.records(tmp_path / name)) for name in ("again", "with"))
    assert again == first


KILLED = """
import os
from fedvlm.job import record
call = record.Recorder.__call__
def stop(self, event):
    if getattr(event, "finetuning", {}):
        os._exit(9)
    return call(self, event)
record.Recorder.__call__ = stop
"""


@pytest.mark.parametrize(
    "words",
    [pytest.param(("FedRep", "--local-epochs", "2"), id="FedRep"),
     pytest.param(("LG-FedAvg", "--finetune-epochs", "2", "--opts",
                   "TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "1"), id="LG-FedAvg",
                  marks=pytest.mark.slow)],
)
def test_killed_before_the_fine_tuning_and_resumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The same bits as an uninterrupted run, in states and in both numbers."""
    line = ("--trainer", *words)
    assert jobs.run(tmp_path / "whole", *line) == 0
    assert jobs.spawn(tmp_path / "cut", *line, before=KILLED).returncode == 9
    assert [r["round"] for r in jobs.records(tmp_path / "cut")] == [0, 1]
    assert jobs.run(tmp_path / "cut", *line) == 0
    jobs.same(tmp_path / "whole", tmp_path / "cut")
    assert jobs.results(tmp_path / "cut")["last"]["personal_before_ft"] is not None


def test_the_round_is_selected_by_validation_images(tmp_path: Path) -> None:
    built = build_run(resolve(parse(jobs.argv(tmp_path))).jobs[0].cfg)
    asked: list[int] = []
    fetch = built.test.fetch

    class Watched:
        labels = built.test.labels

        def fetch(self, indices: torch.Tensor, view: int) -> dict[str, torch.Tensor]:
            asked.extend(indices.tolist())
            return fetch(indices, view)

    built.meter._batches.source = Watched()  # type: ignore[assignment]
    evaluator, seen = make_evaluator(built), []
    built.federation.subscribers.append(
        lambda e: seen.append(evaluator.validate(e)) if isinstance(e, RoundFinished) else None
    )
    built.federation.run(until=0)
    val = {int(i) for c in built.data.clients for i in c.val}
    assert val and set(asked) == val and seen[0] is not None


def test_rounds_to_select_from_are_alike(tmp_path: Path) -> None:
    """Every round asks all clients, and the last one before its fine-tuning."""
    words = ("--num-users", "3", "--frac", "0.4", "--finetune-epochs", "6", "--lr", "0.1",
             "--rounds", "3")
    assert jobs.run(tmp_path / "tuned", *words, "--opts", "TEST.SELECT", "val") == 0
    plain = [*words[:4], *words[6:]]
    assert jobs.run(tmp_path / "plain", *plain, "--opts", "TEST.SELECT", "val") == 0
    tuned, untuned = (jobs.records(tmp_path / name) for name in ("tuned", "plain"))
    assert [r["val"] for r in tuned] == [r["val"] for r in untuned]
    assert all(len(r["clients"]) == 3 and "personal_clients" not in r for r in tuned)
    assert [len(r["participants"]) for r in tuned] == [0, 3, 1, 1]


# ---- what a round tells -------------------------------------------------------------------------
def tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield every tensor that can be reached from ``value`` by attributes, items and keys."""
    if id(value) in seen or isinstance(value, str | int | float | type | type(torch)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        inside: Iterable[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        inside = list(getattr(value, "__dict__", {}).values())
        inside += [getattr(value, n, None) for n in getattr(value, "__slots__", ())]
        if isinstance(value, partial):
            inside += [value.func, value.args, value.keywords]
        inside += [getattr(value, "__self__", None)]
    for item in inside:
        yield from tensors_in(item, seen)


@pytest.mark.parametrize("trainer", ["FedPer", "FedTV", "Ditto", "APFL", "FedRep"])
def test_an_event_holds_no_tensor_of_a_client(tmp_path: Path, trainer: str) -> None:
    """Neither by name nor by value: what stays with a client is in no part of what is told."""
    more = ("--trainer", trainer, "--local-epochs", "3")  # one step: Ditto's two models are equal
    built = build_run(resolve(parse(jobs.argv(tmp_path, *more))).jobs[0].cfg)
    federation, events, states = built.federation, [], []
    federation.subscribers.append(
        lambda e: events.append(e) if isinstance(e, RoundFinished) else None
    )
    federation.savers.append(lambda state: states.append(federation.read(state)))
    federation.run()
    compared = 0
    for event, state in zip(events[1:], states[1:], strict=True):
        found = list(tensors_in(event, set()))
        assert found
        sent = set(federation.groups.shared)
        for client, slots in state.clients.items():
            secrets = [
                v for slot, tree in slots.items() for n, v in tree.items()
                if v.numel() > 1 and (slot != "w" or n not in sent)
                and bool(v.ne(v.flatten()[0]).any())
            ]
            for secret in secrets:
                compared += 1
                for tensor in found:
                    rows = tensor if tensor.shape[1:] == secret.shape else tensor[None]
                    assert not any(
                        row.shape == secret.shape and torch.equal(row, secret) for row in rows
                    ), (event.round, client)
    assert compared


def test_a_line_of_metrics_grows_with_the_round_and_not_with_the_clients(tmp_path: Path) -> None:
    words = ("--num-users", "6", "--frac", "0.34", "--rounds", "3", "--shots", "8")
    assert jobs.run(tmp_path, "--trainer", "FedAvg", *words) == 0
    records = jobs.records(tmp_path)
    for record in records[2:3]:
        by_client = [record[n] for n in ("clients", "participants", "train", "bytes_up",
                                         "bytes_down", "update_norm", "update_cosine")]
        assert {len(part) for part in by_client} == {2} and record["personal_clients"] == 2
        assert [c["client"] for c in record["clients"]] == record["participants"]
    assert [len(r["clients"]) for r in records] == [6, 6, 2, 6]
    log = (jobs.folder(tmp_path) / "log.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(log) if line.startswith("round 2/3"))
    assert ", 2 clients)" in log[at]
    assert [line.startswith("  client ") for line in log[at + 1 : at + 4]] == [True, True, False]


def test_a_round_that_is_not_evaluated_repeats_no_old_number(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--rounds", "3", "--eval-every", "5") == 0
    log = (jobs.folder(tmp_path) / "log.txt").read_text().splitlines()
    at = {line.split()[1]: i for i, line in enumerate(log) if line.startswith("round ")}
    assert at["2/3"] == at["1/3"] + 1  # no lines of clients between them
    assert log[at["3/3"] + 1].startswith("  client 0")


# ---- unseen clients, a cohort, auto -------------------------------------------------------------
@pytest.mark.parametrize("trainer", ["FedAvg", "Ditto", "FedRep"])
def test_unseen_clients_never_work_and_get_what_a_new_client_gets(
    tmp_path: Path, trainer: str
) -> None:
    words = ("--trainer", trainer, "--num-users", "4", "--rounds", "2", "--lr", "0.05",
             "--local-epochs", "2")
    assert jobs.run(tmp_path / "with", *words, "--opts", "FED.UNSEEN_CLIENTS", "1") == 0
    assert jobs.run(tmp_path / "without", *words) == 0
    *_, last = records = jobs.records(tmp_path / "with")
    (one,) = last["unseen_clients_rows"]
    known = set(range(4)) - {one["client"]}
    assert all({c["client"] for c in r["clients"]} == known for r in records)
    assert all(set(r["participants"]) == known for r in records[1:])
    assert last["unseen_clients"] == last["unseen_clients_worst"] == one["accuracy"]
    assert last["unseen_clients_std"] == 0.0 and "unseen_clients" not in records[1]
    assert not any("personal_clients" in r for r in records)
    results, plain = (jobs.results(tmp_path / name) for name in ("with", "without"))
    for row in (results["zero_shot"], results["last"]):
        assert {"unseen_clients", "unseen_clients_std", "unseen_clients_worst"} <= set(row)
    assert "unseen_clients" in results["table"][-1] and "unseen_clients" not in plain["last"]
    ours, theirs = (jobs.folder(tmp_path / name) for name in ("with", "without"))
    assert (ours / "partition.csv").read_text() == (theirs / "partition.csv").read_text()
    content = json.loads((ours / "results.json").read_text())
    assert content["protocol"]["unseen_clients"] == 1
    assert any("1 clients never train" in note for note in content["run_info"]["notes"])
    assert "1 of them never train" in (ours / "log.txt").read_text()


def test_the_model_of_an_unseen_client_is_that_of_a_client_that_begins(tmp_path: Path) -> None:
    """``init_client`` on the start, the newest download, and the final fine-tuning."""
    more = ("--trainer", "FedRep", "--num-users", "3", "--local-epochs", "2",
            "--opts", "FED.UNSEEN_CLIENTS", "1")
    built = build_run(resolve(parse(jobs.argv(tmp_path, *more))).jobs[0].cfg)
    federation = built.federation
    (client,) = federation.roster.unseen
    state = federation.run()
    ctx = federation.context([client], state.round)
    assert bool(ctx.fresh.all()) and client not in state.versions
    received = stack([federation.downloads(state, state.round, [client])[client]])
    begins = stack_states([federation.trainer.init_client(ctx, federation.p0)])
    want = federation.trainer.finetune(ctx, begins, received, federation.finetuning)
    ((_, found),) = federation.personal(state, [client])
    assert found.keys() == want.keys()
    assert all(torch.equal(found[n], want[n]) for n in want)


def test_nobody_left_to_train_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(tmp_path, "--opts", "FED.UNSEEN_CLIENTS", "2") == 2
    assert "clients would be left to train; set it to at most 1" in capsys.readouterr().err


def test_a_cohort_is_said_in_the_results(tmp_path: Path) -> None:
    words = ("--num-users", "4", "--rounds", "2")
    assert jobs.run(tmp_path / "some", *words, "--opts", "TEST.COHORT", "2") == 0
    assert jobs.run(tmp_path / "all", *words, "--opts", "TEST.COHORT", "4") == 0
    some, every = (jobs.records(tmp_path / name) for name in ("some", "all"))
    assert [len(r["clients"]) for r in some] == [2, 4, 2]  # between: all four worked
    ids = [c["client"] for c in some[-1]["clients"]]
    assert [c for c in every[-1]["clients"] if c["client"] in ids] == some[-1]["clients"]
    contents = [
        json.loads((jobs.folder(tmp_path / name) / "results.json").read_text())
        for name in ("some", "all")
    ]
    assert [c["protocol"]["cohort"] for c in contents] == [2, 0]
    assert contents[0]["results"]["last"]["personal_clients"] == 2
    told = [c["results"]["last"]["notes"] for c in contents]
    assert told[0] == ["personal models of 2 of 4 clients are evaluated (TEST.COHORT)"]
    assert told[1] == []


def test_a_cohort_is_the_same_under_every_model_seed(tmp_path: Path) -> None:
    def cohort(*keys: str) -> Sequence[int]:
        words = ("--num-users", "10", "--opts", "TEST.COHORT", "4", *keys)
        cfg = resolve(parse(jobs.argv(tmp_path, *words))).jobs[0].cfg
        return make_panel(build_run(cfg)).clients

    assert cohort() == cohort("SEED", "2") != cohort("DATA_SEED", "2")


def test_auto_by_counts(tmp_path: Path) -> None:
    """Digests of a run with ``auto`` are those of one that evaluates every round."""
    words = ("--rounds", "9", "--frac", "0.5", "--trainer", "FedAvg", "--peft", "head",
             "--local-epochs", "20")
    assert jobs.run(tmp_path / "auto", *words, "--eval-every", "auto") == 0
    assert jobs.run(tmp_path / "each", *words) == 0
    auto, each = (jobs.records(tmp_path / name) for name in ("auto", "each"))
    built = build_run(resolve(parse(jobs.argv(tmp_path, *words))).jobs[0].cfg)
    roster = built.federation.roster
    trained = 20 * int(roster.train.sum()) / 2  # of one client of two
    cost = int(roster.test.sum()) / 2 + len(built.data.global_test)
    due = [r["round"] for r in auto if "personal" in r]
    every = due[1]
    assert every * trained >= cost > every / 2 * trained and every > 1
    assert due == [*range(0, 9, every), 9]
    for record in auto:
        if "personal" in record:
            assert record == each[record["round"]]


def test_a_checkpoint_keeps_what_is_known_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, kept, heard = {"excluded": ["b"]}, dict[str, Any](), list[Any]()
    engine = SimpleNamespace(memory=lambda: memory, recall=heard.append)
    federation = SimpleNamespace(
        last_round=9, engine=engine, save=lambda *_: {}, commit=lambda _: None,
        load=lambda *_: FedState(0, {}),
    )
    folder: Any = SimpleNamespace(
        records={}, notes=[], metrics_path=tmp_path, state_dir=tmp_path,
        save_state=lambda *values: kept.update(values[3]),
        restore=lambda: SavedState(0, {}, extra=kept, records={}),
    )
    built: Any = SimpleNamespace(federation=federation)
    monkeypatch.setattr(run, "read_metrics", lambda _: ([{"round": 0}], []))
    Recorder._write(SimpleNamespace(built=built, folder=folder), FedState(0, {}))
    assert run.restore(built, folder) == FedState(0, {}) and heard == [memory]
