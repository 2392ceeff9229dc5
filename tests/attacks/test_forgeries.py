"""Runs edited consistently and sealed again by our own functions: the replay finds each of them.

``elsewhere``: the forger's manifest claims another version of PyTorch, so that bits prove nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fedvlm.api.replay import Replay, replay
from fedvlm.core.errors import FedvlmError
from fedvlm.data.partition.index_file import canonical_hash
from fedvlm.runs.bits import BITS, decode_bits, encode_bits
from fedvlm.runs.identity import identity_digest
from fedvlm.runs.names import PACKED_FILES
from fedvlm.runs.seal import seal_of, sha256
from fedvlm.runs.verify.answer import federation_answer
from fedvlm.runs.verify.beside import better, gain, hurt, reference_kind
from fedvlm.runs.verify.check import inspect
from fedvlm.runs.verify.cover import cover
from tests import jobs
from tests.attacks.forge import copy, derive, edit, edit_round

Numbers = dict[str, Any]
WORDS = ("--num-users", "4", "--peft", "head", "--trainer", "FedAvg", "TEST.PER_IMAGE", "True")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, *WORDS) == 0
    return jobs.folder(output)


# ---- how a forger works ------------------------------------------------------------------------
def add(numbers: Numbers, changes: Mapping[int, int]) -> None:
    """Let clients have more right answers (fewer: negative), in rows, bits and what follows."""
    for client, more in changes.items():
        row = numbers["clients"][client]
        row["correct"] += more
        row["accuracy"] = 100 * row["correct"] / row["n"]
        texts = numbers.get(BITS, {}).get("personal", {})
        if str(client) in texts:
            bits = decode_bits(texts[str(client)])
            for _ in range(abs(more)):
                bits[bits.index(more < 0)] = more > 0
            texts[str(client)] = encode_bits(bits)
    derive(numbers)


def rewrite(
    folder: Path, change: Callable[[Numbers], None] | None = None, round_: int = 2,
    results: Callable[[Numbers], None] | None = None,
) -> None:
    """Edit a round in every file, or other numbers of the results, and seal all again."""
    path = folder / "metrics.jsonl"
    if path.exists():
        edit_round(folder, round_, change or (lambda record: None))

    def told(record: Numbers) -> None:
        numbers = record["results"]
        if change is not None and round_ in (0, 2):
            change(numbers["last" if round_ else "untrained"])
        if results is not None:
            results(numbers)
        last, found = numbers["last"], numbers.get("references", {})
        numbers["table"][-1] |= {k: last[k] for k in numbers["table"][-1] if k in last}
        if found:
            numbers |= {"gain": gain(last["personal"], found),
                        "hurt": hurt(last["clients"], found)}
            worse = dict(better(last["personal"], found, reference_kind(numbers["spent"])))
            numbers["below"] = [{"reference": name, "personal": value}
                                for name, value in worse.items()]
            numbers["answer"] = federation_answer(numbers)
        if path.exists():
            record["covers"] = cover(folder)

    edit(folder / "results.json", told)


def claim(folder: Path) -> None:
    """Say in the manifest that the run was made with another PyTorch."""
    edit(folder / "manifest.json",
         lambda m: [s["versions"].update(torch="2.99.1") for s in m["sessions"]])


def rename(folder: Path, **config: Any) -> None:
    """Give a run another identity: its config, manifest, protocol, and all seals over it."""
    def told(record: Numbers) -> None:
        record["identity"]["config"] |= config
        record["identity_digest"] = identity_digest(record["identity"])

    edit(folder / "manifest.json", told)
    digest = json.loads((folder / "manifest.json").read_text())["identity_digest"]
    shutil.rmtree(folder / "state")
    shutil.rmtree(folder / "models")
    names = {"SEED": "seed", "DATA_SEED": "data_seed", "TRAINER.NAME": "trainer"}
    text = (folder / "config.yaml").read_text()
    for key, value in config.items():
        last = key.rpartition(".")[2]
        lines = [f"{line.partition(':')[0]}: {value}" if line.strip().startswith(f"{last}: ")
                 and (last != "NAME" or "FedProx" in line or "FedAvg" in line) else line
                 for line in text.splitlines()]
        text = "\n".join(lines) + "\n"
    (folder / "config.yaml").write_text(text)

    def whose(record: Numbers) -> None:
        told(record)
        record["identity_digest"] = digest
        record["protocol"] |= {names[k]: v for k, v in config.items() if k in names}
        record["covers"] = cover(folder)

    edit(folder / "results.json", whose)


def strip(folder: Path) -> None:
    for room in ("state", "models"):
        shutil.rmtree(folder / room)
    edit(folder / "results.json", lambda r: r.update(covers=cover(folder)))


def pack(folder: Path) -> None:
    """Leave of a run what a pack keeps."""
    for path in folder.iterdir():
        if path.name not in PACKED_FILES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def lone(folder: Path, change: Callable[[Numbers], None]) -> None:
    """Edit one place of the results only."""
    edit(folder / "results.json", change)


def dealt(folder: Path, name: str) -> None:
    path = folder / name
    if name.endswith(".csv"):
        head, first, *rest = path.read_text().splitlines()
        cells = first.split(",")
        at = head.split(",").index("images")
        cells[at] = str(int(cells[at]) + 1)
        path.write_text("\n".join([head, ",".join(cells), *rest]) + "\n")
    else:
        told = json.loads(path.read_text())
        clients = told["clients"]
        one, other = clients[0]["train"], clients[1]["train"]
        one[0], other[0] = other[0], one[0]
        told["sha256"] = canonical_hash({k: v for k, v in told.items() if k != "sha256"})
        path.write_text(json.dumps(told))
    edit(folder / "results.json", lambda r: r.update(covers=cover(folder)))


def retensor(folder: Path) -> None:
    """Put other tensors in the place of the recorded ones."""
    (path,) = folder.glob("state/round_0002.safetensors")
    tensors = {k: v * 1.02 if v.is_floating_point() else v
               for k, v in safetensors.torch.load_file(path).items()}
    data = safetensors.torch.save(tensors)
    path.write_bytes(data)
    edit(path.with_suffix(".json"), lambda r: r.update(sha256=sha256(data), bytes=len(data)))
    edit(folder / "results.json", lambda r: r.update(covers=cover(folder)))


def both(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        for step in steps:
            step(folder)
    return do


def two(folder: Path) -> None:
    rewrite(folder, lambda n: add(n, {0: 1, 1: 1}))


def every(folder: Path) -> None:
    rewrite(folder, lambda n: add(n, dict.fromkeys(range(4), 1)))


def swap(folder: Path) -> None:
    rewrite(folder, lambda n: add(n, {0: 1, 1: -1}))


def one_more(section: str) -> Callable[[Path], None]:
    return lambda f: rewrite(f, results=lambda n: add(n[section], {0: 1, 1: 1}))


def surer(numbers: Numbers) -> None:
    for row in numbers["clients"]:
        row["nll"] *= 0.8
    derive(numbers)


def lower_references(numbers: Numbers) -> None:
    for found in numbers["references"].values():
        if isinstance(found, dict) and found.get("clients"):
            add(found, {0: -2, 1: -2})


FORGERIES: dict[str, Callable[[Path], None]] = {
    # those of the review
    "lone edit of results": lambda f: lone(f, lambda r: r["results"]["last"].update(personal=99.0)),
    "lone edit of spent": lambda f: lone(f, lambda r: r["results"]["spent"].update(samples=1)),
    "another data set": lambda f: lone(f, lambda r: r["protocol"].update(dataset="EuroSAT")),
    "two clients": two,
    "two clients, elsewhere": both(two, claim),
    "two clients, elsewhere, no tensors": both(two, claim, strip),
    "one image, elsewhere": both(lambda f: rewrite(f, lambda n: add(n, {0: 1})), claim),
    "every client, elsewhere": both(every, claim),
    "relabelled": lambda f: rename(f, **{"TRAINER.NAME": "FedProx"}),
    "copied seed": lambda f: rename(f, SEED=2, DATA_SEED=2),
    "lowered references": lambda f: rewrite(f, results=lower_references),
    "packed": both(two, pack),
    "partition.csv": lambda f: dealt(f, "partition.csv"),
    "views": lambda f: lone(f, lambda r: r["protocol"].update(views="center")),
    # our own
    "lowered references, elsewhere": both(lambda f: rewrite(f, results=lower_references), claim),
    "partition.json": lambda f: dealt(f, "partition.json"),
    "partition.json, elsewhere": both(lambda f: dealt(f, "partition.json"), claim),
    "packed, elsewhere": both(two, pack, claim),
    "answers moved between clients, elsewhere": both(swap, claim),
    "surer, elsewhere": both(lambda f: rewrite(f, surer), claim),
    "better zero-shot": one_more("zero_shot"),
    "better zero-shot, elsewhere": both(one_more("zero_shot"), claim),
    "worse start, elsewhere": both(
        lambda f: rewrite(f, lambda n: add(n, {0: -1, 1: -1}), 0), claim),
    "an earlier round, elsewhere": both(lambda f: rewrite(f, lambda n: add(n, {0: 2}), 1), claim),
    "other tensors, elsewhere": both(retensor, claim),
    "cheaper, packed, elsewhere": both(lambda f: lone(
        f, lambda r: r["results"]["spent"].update(samples=1)), pack, claim),
    "extra data, elsewhere": both(
        lambda f: lone(f, lambda r: r["protocol"].update(extra_data="x")), claim),
}
QUICK = ("one image, elsewhere", "two clients, elsewhere, no tensors", "packed, elsewhere",
         "partition.csv", "views", "better zero-shot, elsewhere", "other tensors, elsewhere",
         "copied seed")


def judged(folder: Path) -> tuple[bool, str]:
    """Return whether a run was caught, and what was said."""
    verdict = inspect(folder)
    if verdict.damage:
        return True, verdict.sentence()
    try:
        seen: Replay = replay(folder, 1000)
    except FedvlmError as error:
        return True, str(error)
    return not seen.equal, "\n".join(seen.lines())


@pytest.mark.parametrize("forgery", [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FORGERIES
])
def test_a_forgery_is_caught(run: Path, tmp_path: Path, forgery: str) -> None:
    folder = copy(run, tmp_path / "run")
    FORGERIES[forgery](folder)
    caught, told = judged(folder)
    assert caught, told
    if "elsewhere" in forgery and "NOT EQUAL" in told:
        assert "claimed to be made elsewhere: versions.torch" in told


@pytest.mark.parametrize("steps", [(claim,), (claim, strip), (claim, pack)])
def test_an_honest_run_of_elsewhere_is_equal(
    run: Path, tmp_path: Path, steps: tuple[Callable[[Path], None], ...]
) -> None:
    """Bits are equal here; the comparison in images agrees with it."""
    folder = copy(run, tmp_path / "run")
    both(*steps)(folder)
    caught, told = judged(folder)
    assert not caught and "equal bit for bit" in told


def test_seconds_are_believed(run: Path, tmp_path: Path) -> None:
    """The one number that no replay can check; docs/seals.md and SECURITY.md say so."""
    folder = copy(run, tmp_path / "run")
    lone(folder, lambda r: [r["results"]["spent"].update(seconds=0.1),
                            r["run_info"]["totals"].update(seconds=0.1)])
    assert not judged(folder)[0]


def test_seal_of_is_what_a_forger_uses(run: Path) -> None:
    record = json.loads((run / "results.json").read_text())
    assert record["seal"] == seal_of(record)


def test_numbers_of_a_pack_that_are_said_twice_agree(run: Path, tmp_path: Path) -> None:
    """What stands in published tables cannot be edited at one place of a packed run."""
    folder = copy(run, tmp_path / "run")
    pack(folder)
    path = folder / "results.json"
    whole = json.loads(path.read_text())

    def found(*keys: Any) -> bool:
        record = json.loads(json.dumps(whole))
        place = record["results"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] += 1
        record["seal"] = seal_of(record)
        path.write_text(json.dumps(record))
        return bool(inspect(folder).damage)

    sections = ("zero_shot", "untrained", "last")
    assert all(found(section, key) for section in sections
               for key in ("personal", "personal_worst", "personal_micro", "base_all"))
    assert all(found(section, "clients", 0, key) for section in sections
               for key in ("n", "correct", "accuracy"))
    assert all(found("table", row, "personal") for row in range(len(whole["results"]["table"])))
    assert all(found("spent", key) for key in whole["results"]["spent"] if key != "final_epochs")
