"""Plain data is read as pickle itself reads it; whatever else is in a file is refused, unbuilt."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tracemalloc
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import DataError
from fedvlm.data.untrusted.pickles import PickledObject, load_restricted, loads_restricted

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    SCALARS | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ARRAYS = [
    np.arange(6, dtype=np.uint8).reshape(2, 3), np.asfortranarray(np.eye(3)), np.zeros(0),
    np.arange(3, dtype=">i4"), np.array(["bird", "čáp"]), np.array([b"ab", b"c"]),
    np.array(["a", None, 3, b"x", 2.5, np.str_("s")], dtype=object), np.array(5),
    np.array([True, False]), np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    np.array([["a", "b"], ["c", "d"]], dtype=object),
]  # fmt: skip


def loads(raw: bytes, objects: bool = False) -> Any:
    return loads_restricted(raw, "the file", objects=objects)


@settings(deadline=None)
@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back(content: Any, protocol: int) -> None:
    found = loads(pickle.dumps(content, protocol))
    assert found == content and type(found) is type(content)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{a.shape}")
def test_arrays_come_back(array: np.ndarray, protocol: int) -> None:
    raw = pickle.dumps([array, {"x": array}], protocol)
    twice, own = loads(raw), pickle.loads(raw)[0]
    for found in (twice[0], twice[1]["x"]):
        assert type(found) is np.ndarray
        assert found.dtype == own.dtype and found.shape == array.shape
        assert found.tolist() == array.tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [np.float32(1.5), np.int64(-2), np.str_("čáp"), np.bool_(True)])
def test_numpy_scalars_come_back(value: np.generic, protocol: int) -> None:
    found = loads(pickle.dumps([value], protocol))[0]
    assert found == value and type(found) is type(value)


def datum_pickle(module: str, protocol: int) -> bytes:
    """CoOp's few-shot file: a class of another package, which is not there when it is read."""
    names = module.split(".")
    made = {".".join(names[:i]): types.ModuleType(".".join(names[:i]))
            for i in range(1, len(names) + 1)}
    kind = type("Datum", (), {"__module__": module})
    made[module].Datum = kind  # type: ignore[attr-defined]
    sys.modules.update(made)
    try:
        items = []
        for n in range(2):
            one = kind()
            one.__dict__.update(_impath=f"/x/{n}.jpg", _label=n, _domain=0, _classname="cat")
            items.append(one)
        return pickle.dumps({"train": items, "val": items[:1]}, protocol)
    finally:
        for name in made:
            sys.modules.pop(name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "module", ["dassl.data.datasets.base_dataset", "Dassl.dassl.data.datasets.base_dataset",
               "datasets.oxford_pets"],
)  # fmt: skip
def test_records(module: str, protocol: int) -> None:
    raw = datum_pickle(module, protocol)
    found = loads(raw, objects=True)
    assert [len(found["train"]), len(found["val"])] == [2, 1]
    assert type(found["train"][1]) is PickledObject
    assert found["train"][1].fields == {
        "_impath": "/x/1.jpg", "_label": 1, "_domain": 0, "_classname": "cat"
    }  # fmt: skip
    assert not any(name.startswith(("dassl", "Dassl", "datasets")) for name in sys.modules)
    with pytest.raises(DataError, match="asks for"):
        loads(raw)


class Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def array_state(*state: Any) -> bytes:
    """A pickle that gives an empty array the state."""
    made = Call(np.zeros(0).__reduce__()[0], np.ndarray, (0,), b"b")
    made.call = (*made.call, state)  # type: ignore[assignment]
    return pickle.dumps(made, 2)


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


HUGE = 2**40
DTYPE = glob("numpy", "dtype")
O_AS_BYTES = (  # an object array whose flags say that its bytes are the pointers
    glob("numpy.core.multiarray", "_reconstruct") + b"(" + glob("numpy", "ndarray")
    + b"(I0\ntS'b'\ntR(I1\n(I1\nt" + DTYPE
    + b"(S'O8'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'AAAAAAAA'\ntb."
)
EVIL = {
    "os.system": pickle.dumps(Call(os.system, "true")),
    "eval, protocol 0": pickle.dumps(Call(eval, "1"), 0),
    "nested in an array's list": pickle.dumps(np.array([Call(os.getcwd)], dtype=object)),
    "nested in a key": pickle.dumps({"a": [({"b": Call(os.getcwd)},)]}, 4),
    "getattr by dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
    "numpy.load": glob("numpy", "load") + b"(S'x'\ntR.",
    "instance": b"(S'true'\nios\nsystem\n.",
    "object instruction": b"(" + DTYPE + b"S'i4'\no.",
    "keyword object": b"\x80\x04" + glob("numpy", "dtype") + b"(t}\x92.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"Pname\n.",
    "out-of-band buffer": b"\x80\x05\x97.",
    "a set": pickle.dumps({1, 2}, 4),
    "build on a class": DTYPE + b"}S'x'\nI1\nsb.",
    "build on a class, slots": glob("numpy", "ndarray") + b"(N}S'__init__'\nI1\nstb.",
    "build on a list": b"](S'x'\nI1\ndb.",
    "a mark in the result": DTYPE + b".",
    "a dtype in the result": pickle.dumps(np.dtype("i4")),
    "structured dtype": pickle.dumps(np.zeros(2, [("a", "i4")])),
    "dates": pickle.dumps(np.zeros(2, "M8[s]")),
    "array called directly": glob("numpy", "ndarray") + b"(I9\ntR.",
    "huge shape": array_state(1, (HUGE,), np.dtype("u1"), False, b"x"),
    "huge shape of objects": array_state(1, (HUGE,), np.dtype(object), False, ["x"]),
    "huge empty shape": array_state(1, (HUGE, 0), np.dtype("u1"), False, b""),
    "negative shape": array_state(1, (-1,), np.dtype("u1"), False, b""),
    "too many objects": array_state(1, (3,), np.dtype(object), False, ["x"]),
    "no-size items": array_state(1, (HUGE,), np.dtype("S0"), False, b""),
    "objects that are lists": array_state(1, (1,), np.dtype(object), False, [[1]]),
    "pointers from bytes": O_AS_BYTES,
    "no character": array_state(1, (1,), np.dtype("U1"), False, b"\xff\xff\xff\xff"),
    "huge byte array": b"\x80\x05\x96" + struct.pack("<Q", HUGE) + b"x.",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", HUGE) + b"x.",
    "huge whole number": b"I" + b"9" * 10_000 + b"\n.",
    "deep lists": b"]" * 5000 + b"a" * 4999 + b".",
    "deep tuples": b")" + b"\x85" * 50_000 + b".",
    "deep tuple as a key": b"}" + b")" + b"\x85" * 50_000 + b"Ns.",
    "deep marks": b"(" * 100_000 + b".",
    "a list in itself, deep": b"]q\x00h\x00a" + b"]" * 200 + b"a" * 200 + b".",
    "one text copied again and again": (
        b"V" + b"x" * 100_000 + b"\np0\nVlatin1\np1\n0" + glob("_codecs", "encode") + b"p2\n0]"
        + b"g2\n(g0\ng1\ntRa" * 200 + b"."
    ),
    "memo that is not there": b"g7\n.",
    "empty stack": b"a.",
    "no end": b"]",
    "nothing": b"",
    "text": b"<html>not found</html>",
}  # fmt: skip


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("raw", EVIL.values(), ids=EVIL)
def test_refused(raw: bytes, objects: bool, tmp_path: Path) -> None:
    (tmp_path / "f.pkl").write_bytes(raw)
    with pytest.raises(DataError, match=r"f.pkl is not a plain pickle of arrays and lists: .") as e:
        load_restricted(tmp_path / "f.pkl", objects=objects)
    assert "\n" not in str(e.value) and len(str(e.value)) < 400 + len(str(tmp_path))


def test_nothing_is_run(tmp_path: Path) -> None:
    raw = pickle.dumps([Call(os.mkdir, str(tmp_path / "ran"))])
    with pytest.raises(DataError, match=r"asks for posix.mkdir|asks for nt.mkdir"):
        loads(raw)
    assert not (tmp_path / "ran").exists()
    pickle.loads(raw)  # the same file does run where pickle itself reads it
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "state", [b"}Vx\nI1\nsVy\nI2\ns", b"N", b"(N}S'__class__'\nI1\nst", b"}I1\nI2\ns"],
    ids=["fields", "nothing", "slots", "numbers as names"],
)  # fmt: skip
def test_a_record_takes_fields_only(state: bytes) -> None:
    raw = b"\x80\x02" + glob("dassl.x", "Datum") + b")\x81" + state + b"b."
    if state.startswith(b"}V"):
        assert loads(raw, objects=True).fields == {"x": 1, "y": 2}
    else:
        with pytest.raises(DataError, match="not a dict of its fields"):
            loads(raw, objects=True)


def test_the_record_class_itself_stays_as_it_is() -> None:
    """BUILD on the class, not on an object of it, would change every later record."""
    with pytest.raises(DataError, match="sets the state of a _Mark"):
        loads(glob("dassl.x", "Datum") + b"}S'build'\nI1\nsb.", objects=True)
    assert callable(PickledObject.build)


@pytest.mark.parametrize(
    "raw", [b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x04\x95" + struct.pack("<Q", HUGE) + b"N."],
    ids=["memo index", "frame"],
)  # fmt: skip
def test_no_memory_is_reserved_for_what_a_file_announces(raw: bytes) -> None:
    tracemalloc.start()
    try:
        assert loads(raw) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(25))
def test_damaged_files_end_in_an_error_or_in_plain_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = (np.array(["a/b.jpg"] * 3, object), np.array(["x"] * 3), np.arange(3), {"k": [1.5]})
    raw = bytearray(pickle.dumps(content, seed % 6))
    for _ in range(3):
        raw[rng.integers(len(raw))] = rng.integers(256)
    try:
        found = loads(bytes(raw))
    except DataError:
        return
    plain = (dict, list, tuple, str, bytes, bytearray, int, float, np.ndarray, np.generic)
    assert found is None or isinstance(found, plain)


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read .*none.pkl"):
        load_restricted(tmp_path / "none.pkl")
