"""States on disk: exact round trips, the newest valid one wins, damage is passed over by name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedvlm.core.errors import DataError
from fedvlm.core.trees import State, stack_states
from fedvlm.runs.records import RecordStore
from fedvlm.runs.state import SavedState, clear_states, load_newest_state, save_state

from .format1 import save_format_1

ME = "identity-of-this-run"


def save(folder: Path, round_: int, **extra: Any) -> None:
    """Save a state with a record of two clients' rows."""
    server = {"w": {"text.sigma": torch.full((2, 3), float(round_))}}
    rows = Rows({c: {"w": {"image.a": torch.arange(4.0) + c + round_}} for c in (3, 0)})
    log = RecordStore(folder / "clients", ME)
    named = {"clients": log.accept(round_, rows, {3: round_, 0: round_})}
    save_state(folder, round_, server, named, extra, identity=ME)


class Rows:
    """Clients' states, one form each."""

    def __init__(self, states: dict[int, State]) -> None:
        self.states = states

    def get(self, ids: Sequence[int], versions: Sequence[int]) -> list[tuple[list[int], State]]:
        return [([c], stack_states([self.states[c]])) for c in ids]


def row(folder: Path, state: SavedState, client: int) -> torch.Tensor:
    assert state.records is not None
    log = RecordStore(folder / "clients", ME)
    log.load(state.records["clients"])
    place = log.find(client, log.versions()[client])
    assert place is not None
    return log.read([place])["w"]["image.a"][0]


def load(folder: Path) -> tuple[SavedState | None, list[str]]:
    return load_newest_state(folder, identity=ME)


def every_kind() -> tuple[dict[str, Any], dict[int, Any], dict[str, Any]]:
    block = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    server = {
        "w": {"text.b": torch.tensor([math.nan, -0.0, math.inf]), "text.a": block[1], "q": block},
        "empty": {},
    }
    clients = {
        7: {"w": {"odd|name.x": block[1], "t": block.T}, "alpha": {"alpha": torch.tensor(0.5)}},
        2: {}, 5: {"w": {}},
        1: {"m": {"i": torch.tensor([1, 2]), "b": torch.tensor([True]), "z": torch.zeros(0, 3),
                  "h": torch.ones(2, dtype=torch.bfloat16), "d": torch.ones(1).double() / 3}},
    }
    extra = {"best": math.inf, "third": 1 / 3, "list": [1, None, True, "ß"], "deep": {"a": {}}}
    return server, clients, extra


def same_bits(ours: Any, theirs: Any) -> None:
    assert {s: list(t) for s, t in ours.items()} == {s: list(t) for s, t in theirs.items()}
    for slot, tree in ours.items():
        for name, tensor in tree.items():
            found = theirs[slot][name]
            assert found.dtype == tensor.dtype and found.shape == tensor.shape
            assert torch.equal(bits(found), bits(tensor))


def test_round_trip_keeps_bits_dtypes_order_and_empty_trees(tmp_path: Path) -> None:
    server, clients, extra = every_kind()
    log = RecordStore(tmp_path / "clients", ME)
    versions = {7: 12, 2: 3, 5: 4, 1: 12}
    named = {"clients": log.accept(12, Rows(clients), versions)}
    save_state(tmp_path, 12, server, named, extra, identity=ME)

    state, notes = load(tmp_path)

    assert state is not None and notes == [] and state.round == 12 and state.extra == extra
    assert list(state.server) == ["w", "empty"] and state.clients == {}
    same_bits(server, state.server)
    assert state.records == named
    again = RecordStore(tmp_path / "clients", ME)
    again.load(named["clients"])
    assert again.versions() == versions
    for client, old in clients.items():
        place = again.find(client, versions[client])
        assert place is not None and again.find(client, versions[client] - 1) is None
        found = again.read([place])
        same_bits(old, {s: {n: v[0] for n, v in t.items()} for s, t in found.items()})


def test_states_of_format_1_are_read(tmp_path: Path) -> None:
    server, clients, extra = every_kind()
    save_format_1(tmp_path, 12, server, clients, extra, identity=ME)
    state, notes = load(tmp_path)
    assert state is not None and notes == [] and state.records is None
    assert (state.round, state.extra, list(state.clients)) == (12, extra, [7, 2, 5, 1])
    for old, new in [(server, state.server), *((clients[c], state.clients[c]) for c in clients)]:
        same_bits(old, new)
    flip(tmp_path / "round_0012.safetensors", 0.99)
    assert load(tmp_path)[0] is None


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_no_clients_and_no_tensors_at_all(tmp_path: Path) -> None:
    save_state(tmp_path, 0, {}, {}, {}, identity=ME)
    assert load(tmp_path) == (SavedState(0, {}, {}, {}, {}), [])


def test_loaded_tensors_can_be_changed_without_touching_the_file(tmp_path: Path) -> None:
    save(tmp_path, 1)
    state, _ = load(tmp_path)
    assert state is not None
    state.server["w"]["text.sigma"].zero_()
    again, _ = load(tmp_path)
    assert again is not None and again.server["w"]["text.sigma"].eq(1).all()


def test_files_on_disk_are_as_documented(tmp_path: Path) -> None:
    save(tmp_path, 3)
    tensors = safetensors.torch.load_file(tmp_path / "round_0003.safetensors")
    assert set(tensors) == {"server|w|text.sigma"}
    tensors = safetensors.torch.load_file(tmp_path / "clients" / "r000003.safetensors")
    assert set(tensors) == {"0|w|image.a", "1|w|image.a"}
    record = json.loads((tmp_path / "round_0003.json").read_text())
    assert record["round"] == 3 and record["identity"] == ME and len(record["sha256"]) == 64
    assert json.loads((tmp_path / "index.json").read_text())["states"] == ["round_0003"]


def test_keeps_the_newest_two_and_leaves_foreign_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("mine")
    for r in range(5):
        save(tmp_path, r)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["clients", "index.json", "notes.json", *(f"round_000{r}.{e}" for r in (3, 4)
                                                   for e in ("json", "safetensors"))]
    assert sorted(p.stem for p in (tmp_path / "clients").glob("*.json")) == ["r000003", "r000004"]
    clear_states(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clients", "notes.json"]
    assert list((tmp_path / "clients").iterdir()) == []


def test_rounds_beyond_four_digits_still_order(tmp_path: Path) -> None:
    for r in (9999, 10000):
        save(tmp_path, r)
    state, _ = load(tmp_path)
    assert state is not None and state.round == 10000


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": ("safetensors", lambda p: p.write_bytes(p.read_bytes()[:-5]), "bytes instead of"),
    "zero": ("safetensors", lambda p: p.write_bytes(b""), "0 bytes"),
    "flipped": ("safetensors", lambda p: flip(p, 0.99), "hash"),
    "gone": ("safetensors", lambda p: p.unlink(), "missing"),
    "json zero": ("json", lambda p: p.write_bytes(b""), "not readable"),
    "json cut": ("json", lambda p: p.write_bytes(p.read_bytes()[:40]), "not readable"),
    "json nested": ("json", lambda p: p.write_bytes(b"[" * 10**5), "not readable"),
    "json gone": ("json", lambda p: p.unlink(), "missing"),
    "foreign json": ("json", lambda p: p.write_text('{"a": 1}'), "not readable"),
    "list": ("json", lambda p: p.write_text("[1]"), "not readable"),
    "edited": ("json", lambda p: p.write_text(p.read_text().replace('"note": 1', '"note": 2')),
               "checksum"),
    "version": ("json", lambda p: p.write_text(p.read_text().replace('"format": 2', '"format": 9')),
 "format 9"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_a_record_of_the_newest_falls_back_and_is_named(
    tmp_path: Path, kind: str
) -> None:
    suffix, harm, _ = DAMAGE[kind]
    for r in (3, 4):
        save(tmp_path, r, note=1)
    path = tmp_path / "clients" / f"r000004.{suffix}"
    if kind == "edited":
        path.write_text(path.read_text().replace('"name": "r000004"', '"name": "r000005"'))
    elif kind == "version":
        path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    else:
        harm(path)
    state, notes = load(tmp_path)
    assert state is not None and state.round == 3
    assert row(tmp_path, state, 0).tolist() == [3.0, 4.0, 5.0, 6.0]
    assert len(notes) == 1 and f"round 4 skipped: clients/r000004.{suffix}" in notes[0]


def test_every_single_bit_of_a_record_counts(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for suffix in ("json", "safetensors"):
        path = tmp_path / "clients" / f"r000001.{suffix}"
        good = path.read_bytes()
        for i in range(0, len(good), 5):
            path.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1:])
            state, notes = load(tmp_path)
            assert state is None and f"clients/r000001.{suffix}" in notes[0], (suffix, i)
        path.write_bytes(good)
    assert load(tmp_path)[0] is not None


def test_a_record_that_was_exchanged_for_another_valid_one_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    log = RecordStore(tmp_path / "clients", ME)
    log.accept(1, Rows({0: {"w": {"image.a": torch.zeros(4)}}}), {0: 1})
    state, notes = load(tmp_path)
    assert state is None
    assert "clients/r000001.json is not the record that the state names" in notes[0]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_the_newest_falls_back_to_the_one_before(tmp_path: Path, kind: str) -> None:
    suffix, harm, word = DAMAGE[kind]
    for r in (3, 4):
        save(tmp_path, r, note=1)
    harm(tmp_path / f"round_0004.{suffix}")
    state, notes = load(tmp_path)
    assert state is not None and state.round == 3
    assert state.server["w"]["text.sigma"].eq(3).all()
    assert len(notes) == 1 and "round 4" in notes[0] and word in notes[0]


def test_state_of_another_run_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "other").mkdir()  # of a run beside, copied by hand
    save_state(tmp_path / "other", 2, {}, {}, {}, identity="other")
    for path in (tmp_path / "other").glob("round_0002.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    state, notes = load(tmp_path)
    assert state is not None and state.round == 1 and "another run" in notes[0]


def test_renamed_state_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for suffix in ("json", "safetensors"):
        (tmp_path / f"round_0009.{suffix}").write_bytes(
            (tmp_path / f"round_0001.{suffix}").read_bytes())
    state, notes = load(tmp_path)
    assert state is not None and state.round == 1 and "state of round 1" in notes[0]


def test_all_invalid_starts_again_loudly(tmp_path: Path) -> None:
    for r in (1, 2):
        save(tmp_path, r)
        flip(tmp_path / f"round_000{r}.safetensors", 0.99)
    state, notes = load(tmp_path)
    assert state is None and len(notes) == 3 and "NO VALID STATE" in notes[-1]
    assert load(tmp_path / "absent") == (None, [])


def test_damaged_index_does_not_hide_states(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "index.json").write_text("{")
    state, notes = load(tmp_path)
    assert state is not None and state.round == 1 and "index.json" in notes[0]


def test_every_single_bit_counts(tmp_path: Path) -> None:
    """No flipped bit in either file may lead to other tensors, another round or other extras."""
    save(tmp_path, 1, lr=0.125)
    whole, _ = load(tmp_path)
    assert whole is not None
    for suffix in ("json", "safetensors"):
        path = tmp_path / f"round_0001.{suffix}"
        good = path.read_bytes()
        for i in range(0, len(good), 7):
            path.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1:])
            state, _ = load(tmp_path)
            if state is None:
                continue
            assert (state.round, state.extra) == (1, {"lr": 0.125}), (suffix, i)
            assert torch.equal(state.server["w"]["text.sigma"], whole.server["w"]["text.sigma"])
            assert state.records == whole.records
        path.write_bytes(good)


@pytest.mark.parametrize("extra", [{"a": (1, 2)}, {"a": {1: 2}}, {"a": torch.zeros(1)}])
def test_extra_that_json_would_change_is_refused_before_writing(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="extra.a"):
        save_state(tmp_path, 1, {}, {}, extra, identity=ME)
    assert list(tmp_path.iterdir()) == []


def test_slot_with_the_separator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\|b"):
        save_state(tmp_path, 1, {"a|b": {}}, {}, {}, identity=ME)


def test_deleted_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="deleted or moved"):
        save(tmp_path / "gone", 1)
