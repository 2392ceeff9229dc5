"""A bit per test image: coded, read back, and held against the numbers beside it."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedvlm.cli.main import main
from fedvlm.core.files import read_json
from fedvlm.job.results.images import image_places
from fedvlm.runs.bits import (
    BITS,
    PLACES,
    bit_problems,
    decode_bits,
    decode_places,
    encode_bits,
    encode_places,
    place_problems,
)
from fedvlm.runs.verify.check import inspect
from tests import jobs
from tests.attacks.forge import edit


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 64, 1000])
def test_bits_come_back(number: int) -> None:
    draw = random.Random(number)
    bits = [draw.random() < 0.5 for _ in range(number)]
    assert decode_bits(encode_bits(bits)) == bits


def test_the_form_is_that_of_the_page() -> None:
    assert encode_bits([True] * 4 + [False] + [True] * 3 + [False]) == "9:9wA="


@pytest.mark.parametrize("text", ["", "x", "3", "-1:", "9:9w==", "3:/w==", "3:???", "16:9w=="])
def test_what_is_no_row_of_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bits"):
        decode_bits(text)


def test_bits_are_held_against_rows() -> None:
    row = {"client": 3, "n": 4, "correct": 3, "accuracy": 75.0}
    record = {"clients": [row], "global": 50.0, BITS: {
        "personal": {"3": encode_bits([True, True, False, True])},
        "shared": encode_bits([True, False]),
    }}
    assert list(bit_problems(record)) == [] and list(bit_problems({"clients": []})) == []
    record[BITS] = {"personal": {"3": encode_bits([True, False, False, True])},
                    "shared": encode_bits([True, True])}
    said = list(bit_problems(record))
    assert said[0] == "image_bits.personal.3 has 2 right of 4, its row 3 of 4"
    assert said[1].startswith("image_bits.shared has 2 right of 2") and len(said) == 2


@pytest.mark.parametrize("places", [[], [0], [0, 1, 5], [65535, 0], [65536, 7, 7]])
def test_places_come_back(places: list[int]) -> None:
    assert decode_places(encode_places(places)) == places


def test_the_form_of_places_is_that_of_the_page() -> None:
    assert encode_places([0, 1, 5]) == "3:AAABAAUA"
    for text in ("", "3", "2:AAABAAUA", "1:A"):
        with pytest.raises(ValueError, match="places"):
            decode_places(text)


def test_places_are_held_against_rows() -> None:
    found = {"0": encode_places([4, 1]), "1": encode_places([3]), "2": "x"}
    rows = [{"client": 0, "n": 2}, {"client": 1, "n": 2}]
    said = list(place_problems({"last": {"clients": rows}, PLACES: {"clients": found}}))
    assert said[0] == "test_images.1 has 1 images, its row 2"
    assert said[1].startswith("test_images.2: 'x'") and len(said) == 2
    assert list(place_problems({"last": {"clients": rows}})) == []


def test_places_are_those_of_the_sets_test_images(tmp_path: Path) -> None:
    """The same image has the same place in every run of a set, whoever holds it."""
    called: list[dict[str, int]] = []
    first = []
    for data_seed in ("1", "2"):
        out = tmp_path / data_seed
        assert jobs.run(out, "--data-seed", data_seed, "TEST.PER_IMAGE", "True") == 0
        images = read_json(jobs.folder(out) / "partition.json")["clients"]
        found = jobs.results(out)[PLACES]["clients"]
        first.append(images[0]["test"])
        called.append({name: place for client, text in found.items() for name, place in zip(
            images[int(client)]["test"], decode_places(text), strict=True)})
    assert first[0] != first[1] and called[0] == called[1]
    assert [called[0][name] for name in sorted(called[0])] == sorted({*called[0].values()})


def test_images_of_a_group_have_its_first_image_s_place() -> None:
    """By the keys alone: a pack has these and no names of groups."""
    samples = [SimpleNamespace(key=key, group=group) for key, group in (
        ("d", "anna"), ("a", None), ("c", "bert"), ("b", "anna"))]
    data = SimpleNamespace(samples=samples, global_test=np.arange(4), clients=[
        SimpleNamespace(test=np.array([0, 2])), SimpleNamespace(test=np.array([3, 1]))])
    last = {BITS: {"personal": {"0": "", "1": ""}}}
    found = image_places(last, data)[PLACES]  # type: ignore[arg-type]
    assert {c: decode_places(text) for c, text in found["clients"].items()} == {
        "0": [1, 2], "1": [1, 0]}
    for one in samples:
        one.group = {"anna": "0", "bert": "1"}.get(one.group)
    assert image_places(last, data)[PLACES] == found  # type: ignore[arg-type]
    assert image_places({}, data) == {}  # type: ignore[arg-type]


def test_a_run_writes_them_on_request_and_no_number_moves(
    tmp_path: Path, quick_run: Path
) -> None:
    assert jobs.run(tmp_path, "TEST.PER_IMAGE", "True") == 0
    folder, last = jobs.folder(tmp_path), jobs.results(tmp_path)["last"]
    plain = jobs.results(quick_run)["last"]
    assert BITS not in plain and not (folder / "logits.safetensors").exists()
    found = last.pop(BITS)
    assert {k: v for k, v in last.items() if k != "seconds"} == {
        k: v for k, v in plain.items() if k != "seconds"}
    for row in last["clients"]:
        bits = decode_bits(found["personal"][str(row["client"])])
        assert (len(bits), sum(bits)) == (row["n"], row["correct"])
    shared = decode_bits(found["shared"])
    assert 100 * sum(shared) / len(shared) == pytest.approx(last["global"])
    assert main(["verify", str(folder)]) == 0
    wrong = {"0": encode_bits([False] * last["clients"][0]["n"])}
    edit(folder / "results.json", lambda r: r["results"]["last"][BITS]["personal"].update(wrong))
    edit(folder / "results.json", lambda r: r["results"][PLACES]["clients"].update({"1": "0:"}))
    damage = inspect(folder).damage
    assert any("personal.0 has 0 right" in clause for clause in damage)
    assert any("test_images.1 has 0 images" in clause for clause in damage)
