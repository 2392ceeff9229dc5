"""Frames: every type there and back, hostile headers refused with one message."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.distributed import schema, wire
from fedvlm.distributed.schema import DEEPEST, VALUES
from fedvlm.distributed.site import failure
from fedvlm.distributed.terms import Refused
from fedvlm.distributed.wire import WIRE, Frame, WireError, pack, unpack

MARK = "ab" * 8
WORK: dict[str, Any] = {
    "run": MARK, "like": MARK, "nonce": MARK, "round": 3, "accepted": {"0": 2, "7": 0},
    "floor": {"0": 1, "7": 0}, "down": {"0": "0", "7": "0"}, "seconds": 60.5,
}
FAILED = {"nonce": MARK, "kind": "refused", "text": "no"}


def frame(**values: Any) -> Frame:
    return Frame("work", WORK | values, {"down/0": {"text.ctx": torch.randn(2, 3)}})


def crafted(head: Any, **tensors: torch.Tensor) -> bytes:
    text = head if isinstance(head, str) else json.dumps(head)
    return wire.checksummed(tensors, text)


HEAD = {"wire": WIRE, "op": "failed", "values": FAILED, "layout": {}}


@pytest.mark.parametrize("kind", [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64,
    torch.uint8, torch.bool,
])  # fmt: skip
def test_every_type_comes_back_bit_by_bit(kind: torch.dtype) -> None:
    tree = {
        "x": torch.tensor([[0, 1], [1, 0]]).to(kind), "scalar": torch.tensor(1).to(kind),
        "empty": torch.zeros(0, 3, dtype=kind), "turned": torch.ones(2, 3).to(kind).mT,
    }
    back = unpack(pack(Frame("work", WORK, {"down/0": tree}))).trees["down/0"]
    assert list(back) == list(tree)
    for name, v in tree.items():
        assert back[name].dtype == v.dtype and back[name].shape == v.shape
        assert torch.equal(back[name], v) and back[name].is_contiguous()


def test_numbers_that_are_none_travel_in_tensors_and_equal_memory_travels_once() -> None:
    big = torch.full((100_000,), torch.nan)
    values = WORK | {"down": {"0": "0", "7": "1"}}
    one = pack(Frame("work", values, {"down/0": {"a": big, "b": big}, "down/1": {"a": big}}))
    assert len(one) < 1.5 * big.nbytes
    back = unpack(one).trees
    assert all(bool(back[t][n].isnan().all()) for t, n in (("down/0", "b"), ("down/1", "a")))
    big.zero_()  # the frame is a copy
    assert bool(unpack(one).trees["down/0"]["a"].isnan().all())


def test_equal_frames_are_equal_bytes_in_every_process() -> None:
    """One key of metadata: safetensors writes several in an order that each call draws anew."""
    metadata = json.loads(crafted("[]")[8:].decode())["__metadata__"]
    assert list(metadata) == ["fedvlm"] and metadata["fedvlm"].endswith("[]")
    assert {crafted(HEAD, t0=torch.zeros(1)) for _ in range(20)} == {
        crafted(HEAD, t0=torch.zeros(1))}


def test_halves_of_one_tensor_are_two() -> None:
    rows = torch.arange(4.0).reshape(2, 2)
    back = unpack(pack(Frame("work", WORK, {"down/0": {"a": rows[0], "b": rows[1]}})))
    assert back.trees["down/0"]["b"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("values", [
    {"round": -1}, {"round": True}, {"round": 2.0}, {"nonce": "../../x"}, {"run": ""},
    {"accepted": {"0": 3, "7": 0}}, {"accepted": {"00": 2, "7": 0}}, {"accepted": {"-1": 0}},
    {"floor": {"0": 2, "7": 1}}, {"floor": {}}, {"down": {"0": "0"}},
    {"down": {"0": "1", "7": "0"}}, {"seconds": float("inf")}, {"seconds": "soon"}, {"extra": 1},
])  # fmt: skip
def test_values_that_do_not_fit_are_refused_on_both_sides(values: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="does not fit"):
        pack(frame(**values))
    text = json.dumps({"wire": WIRE, "op": "work", "values": WORK | values,
                       "layout": {"down/0": {"a": "t0"}}})
    with pytest.raises(WireError):
        unpack(crafted(text, t0=torch.zeros(1)))


@pytest.mark.parametrize("data", [
    b"", b"\x00" * 64, b"\xff" * 64, (2**60).to_bytes(8, "little") + b"{}",
    crafted("[" * 100_000), crafted("{}"), crafted("[]"), crafted(HEAD | {"wire": "fedvlm-wire/2"}),
    crafted(HEAD | {"op": 3}), crafted(HEAD | {"op": "exec"}), crafted(HEAD | {"more": 1}),
    crafted(HEAD | {"layout": {"up/0": {"a": "t9"}}}), crafted(HEAD | {"layout": {"up/0": 3}}),
    crafted(HEAD, t0=torch.zeros(1)), crafted(HEAD | {"layout": {"up/0": {}}}),
    crafted(json.dumps(HEAD).replace('"kind"', '"text": "twice", "kind"')),
    crafted(json.dumps(HEAD).replace('"no"', "NaN")),
    crafted(json.dumps(HEAD).replace('"no"', "9" * 5000)),
    safetensors.torch.save({"t0": torch.zeros(1)}), safetensors.torch.save({}, {"other": "{}"}),
], ids=range(20))  # fmt: skip
def test_hostile_messages_are_refused_in_one_short_sentence(data: bytes) -> None:
    with pytest.raises(WireError) as told:
        unpack(data)
    assert len(str(told.value)) < 200 and "\n" not in str(told.value)


def test_a_frame_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack(frame())
    monkeypatch.setattr(wire, "LIMIT", len(data) - 1)
    for work in (lambda: unpack(data), lambda: pack(frame())):
        with pytest.raises(WireError, match="above the limit"):
            work()


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), new=st.binary(max_size=12), cut=st.integers(0, 40))
def test_a_damaged_frame_is_read_or_refused(at: int, new: bytes, cut: int) -> None:
    data = bytearray(GOOD)
    place = at % len(data)
    data[place : place + len(new)] = new
    whole = bytes(data[: len(data) - cut])
    if whole == GOOD:
        assert unpack(whole).op == "work"
        return
    with pytest.raises(WireError):
        unpack(whole)
    with pytest.MonkeyPatch.context() as patch:  # the same with a checksum that fits
        patch.setattr(wire, "_crc", lambda data: (0, data[:8]))
        try:
            back = unpack(whole)
        except WireError:
            return
    assert back.op == "work" and back.trees.keys() == {"down/0"}


def test_any_flipped_bit_of_a_frame_is_noticed() -> None:
    for bit in range(0, 8 * len(GOOD), 7):
        data = bytearray(GOOD)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            unpack(bytes(data))
    data[bit // 8] ^= 1 << bit % 8  # the last one, in a tensor
    assert bytes(data) == GOOD and unpack(GOOD).op == "work"
    data[-1] ^= 1
    with pytest.raises(wire.Garbled, match="damaged on its way"):
        unpack(bytes(data))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(op=st.sampled_from([*VALUES, "x"]), values=JUNK, layout=JUNK)
def test_any_header_is_read_or_refused(op: str, values: Any, layout: Any) -> None:
    """Whole headers of the right op with one value of chance are tried as well."""
    fields = list(VALUES.get(op, {}))
    for said in (values, dict.fromkeys(fields, values)):
        text = json.dumps({"wire": WIRE, "op": op, "values": said, "layout": layout})
        with contextlib.suppress(WireError):
            assert unpack(crafted(text, t0=torch.zeros(1))).op == op


GOOD = pack(frame())
GOOD_ROWS = torch.ones(1000, 2)


HELLO = {"run": MARK, "nonce": MARK}


def hello(value: Any) -> bytes:
    """Return a hello with a value in its config."""
    words = json.dumps({"wire": WIRE, "op": "hello", "values": HELLO | {"config": {"X": 0}},
                        "layout": {}})
    return crafted(words.replace('{"X": 0}', f'{{"X": {value}}}'))


@pytest.mark.parametrize("depth", [DEEPEST + 1, 490, 700, 900, 990])
def test_a_value_in_many_lists_is_refused_before_anybody_goes_down_into_it(depth: int) -> None:
    for value in ("1", "[" * DEEPEST + "1" + "]" * DEEPEST):
        assert unpack(hello(value)).op == "hello"
    with pytest.raises(WireError):
        unpack(hello("[" * depth + "1" + "]" * depth))


@pytest.mark.parametrize("where", ['"\\ud800"', '["\\udfff"]'])
def test_half_a_pair_of_surrogates_is_no_text(where: str) -> None:
    with pytest.raises(WireError, match="'config' of 'hello' has an invalid value"):
        unpack(hello(where))


def test_a_tree_has_a_limit_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MOST_LEAVES", 2)
    one = torch.zeros(1)
    pack(Frame("work", WORK, {"down/0": {"a": one, "b": one}}))
    with pytest.raises(WireError, match="a tree of more than 2 tensors"):
        pack(Frame("work", WORK, {"down/0": {"a": one, "b": one, "c": one}}))


def test_one_tensor_under_many_names_is_refused_in_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"nonce": MARK, "round": 1, "rows": [], "seconds": {}}
    tree = {f"personal|{c}": GOOD_ROWS for c in range(20)}
    data = pack(Frame("evaluated", values, {"logits": tree}))
    assert len(unpack(data).trees["logits"]) == 20
    monkeypatch.setattr(wire, "LIMIT", 19 * GOOD_ROWS.nbytes)
    with pytest.raises(WireError, match="one by one, above the limit"):
        unpack(data)


@pytest.mark.parametrize("words", [
    "\x1b[2J", "no\nerror: disk full", "\u2028", "\x9b2J", "\u202etxt.exe", "\u2066x", "\u061c",
    "\ud800",
])  # fmt: skip
def test_what_comes_to_a_terminal_is_one_line_of_text(words: str) -> None:
    with pytest.raises(WireError, match="'text' of 'failed' has an invalid value"):
        unpack(crafted(HEAD | {"values": FAILED | {"text": words}}))
    told = failure(Refused(words), lambda line: None)
    assert unpack(pack(Frame("failed", {"nonce": MARK} | told))).values["text"].isprintable()
