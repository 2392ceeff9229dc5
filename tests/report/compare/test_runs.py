"""``fedvlm compare RUN_A RUN_B``: what it finds, and how it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main

from .compare_runs import record, write

Capture = pytest.CaptureFixture[str]
A = [record(0, [50.0, 40.0]), record(1, [60.0, 50.0], 1.0), record(2, [70.0, 60.0], 0.5)]


def found(a: Path, b: Path, capsys: Capture, *more: str) -> dict[str, Any]:
    assert main(["compare", str(a), str(b), "--format", "json", *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def said(a: Path, b: Path, capsys: Capture, *more: str) -> str:
    assert main(["compare", str(a), str(b), *more]) == 0
    return capsys.readouterr().out


def parts(data: dict[str, Any]) -> dict[str, Any]:
    return {part["part"]: part["parting"] for part in data["rounds"]}


def test_settings_are_grouped_by_what_they_do(tmp_path: Path, capsys: Capture) -> None:
    a = write(tmp_path / "a", A, elsewhere={"TAG": ""}, config={"TRAINER.FEDAVG.X": 1})
    b = write(tmp_path / "b", A, "Ditto", config={"OPTIM.LR": 0.02, "TRAINER.DITTO.LAM": 0.5},
              elsewhere={"TAG": "mine"}, torch="2.16.0")
    settings = found(a, b, capsys)["settings"]
    assert settings["numbers"] == ["OPTIM.LR: 0.01 -> 0.02", 'TRAINER.NAME: "FedAvg" -> "Ditto"']
    assert settings["method"] == ["TRAINER.DITTO.LAM: absent -> 0.5",
                                  "TRAINER.FEDAVG.X: 1 -> absent"]
    assert settings["elsewhere"] == ['TAG: "" -> "mine"']
    assert settings["machine"] == ["versions.torch: 2.15.0 -> 2.16.0"]
    assert not settings["equal"]


def test_paired_difference_per_client(tmp_path: Path, capsys: Capture) -> None:
    last = record(2, [80.0, 58.0, None], 0.4, **{"global": 55.0})
    a = write(tmp_path / "a", [*A[:2], record(2, [70.0, 60.0, 1.0], 0.5, **{"global": 50.0})])
    b = write(tmp_path / "b", [*A[:2], last], "Ditto")
    data = found(a, b, capsys)
    assert data["paired"]
    assert data["clients"] == [
        {"client": 0, "n": 10, "a": 70.0, "b": 80.0, "difference": 10.0},
        {"client": 1, "n": 10, "a": 60.0, "b": 58.0, "difference": -2.0},
    ]
    spread = data["per_client"]
    half = 12.706204736174698 * math.sqrt(72) / math.sqrt(2)  # t(0.975, 1), std of 10 and -2
    assert spread["difference"] == 4.0 and spread["t"] == pytest.approx([4 - half, 4 + half])
    assert (spread["wins"], spread["ties"], spread["losses"]) == (1, 0, 1)
    assert data["metrics"]["global"] == {"a": 50.0, "b": 55.0, "difference": 5.0}
    assert data["cost"]["totals.bytes_up"]["a"] == 1_000_000
    text = said(a, b, capsys)
    assert "no test images for client 2: left out" in text
    assert "B is better for 1, equal for 0, worse for 1" in text


def test_equal_runs_are_said_to_be(tmp_path: Path, capsys: Capture) -> None:
    slower = [r | {"seconds": 9.0, "counters": {"text_passes": i}} for i, r in enumerate(A)]
    a, b = write(tmp_path / "a", A), write(tmp_path / "b", slower)
    assert set(parts(found(a, b, capsys)).values()) == {None}
    text = said(a, b, capsys)
    assert "all common rounds are equal, bit for bit" in text
    assert "every client is equal: nothing to test" in text
    assert "no setting that changes results differs" in text
    assert "A and B are the same folder" in said(a, a, capsys)


def test_first_round_at_which_they_part(tmp_path: Path, capsys: Capture) -> None:
    nearly = math.nextafter(1.5, 2)  # one bit, in the loss of client 1 of round 2
    other = A[2] | {"train": {"0": {"loss": 0.5}, "1": {"loss": nearly}}}
    later = record(3, [1.0, 2.0], 0.1)
    a = write(tmp_path / "a", [*A, later])
    b = write(tmp_path / "b", [*A[:2], other, record(3, [1.0, 3.0], 0.1)])
    data = found(a, b, capsys)
    assert parts(data)["training"] == {
        "round": 2, "name": "train.loss", "client": 1, "a": 1.5, "b": nearly,
    }
    assert parts(data)["evaluation"] == {
        "round": 3, "name": "clients.accuracy", "client": 1, "a": 2.0, "b": 3.0,
    }
    assert parts(data)["traffic"] is None
    text = said(a, b, capsys)
    assert f"train.loss of client 1, A 1.5, B {nearly}" in text
    assert "different bits: this should not happen" in text


def test_a_common_number_comes_before_one_that_a_side_lacks(
    tmp_path: Path, capsys: Capture
) -> None:
    own = {"train": {"0": {"extra": 1.0, "loss": 2.0}}}
    a = write(tmp_path / "a", [A[0], A[1] | {"train": {"0": {"loss": 2.0}}}])
    b = write(tmp_path / "b", [A[0], A[1] | own])
    c = write(tmp_path / "c", [A[0], A[1] | {"train": {"0": {"extra": 1.0, "loss": 2.5}}}])
    lacks = parts(found(a, b, capsys))["training"]
    assert (lacks["name"], lacks["a"], lacks["b"]) == ("train.extra", "absent", 1.0)
    assert parts(found(a, c, capsys))["training"]["name"] == "train.loss"


def test_unfinished_shorter_and_rarely_evaluated_runs(tmp_path: Path, capsys: Capture) -> None:
    rare = [A[0], record(1, [], 1.0), A[2], record(3, [], 0.3)]
    a = write(tmp_path / "a", [*A, record(3, [75.0, 65.0], 0.3), record(4, [76.0, 66.0], 0.2)])
    b = write(tmp_path / "b", rare, finished=False)
    data = found(a, b, capsys)
    assert data["headline"] == {"rounds": [2, 2], "note": "B is unfinished"}
    assert data["metrics"]["personal"]["difference"] == 0.0
    assert {p["part"]: p["rounds"] for p in data["rounds"]} == {
        "training": [1, 2, 3], "evaluation": [0, 2], "traffic": [1, 2, 3],
    }
    assert "only A has round 4" in said(a, b, capsys)
    c = write(tmp_path / "c", A, "Ditto")
    data = found(a, c, capsys)
    assert data["headline"] == {
        "rounds": [4, 2], "note": "A's last round is 4, B's is 2",
    }


def test_another_partition_pairs_no_clients(tmp_path: Path, capsys: Capture) -> None:
    a, b = write(tmp_path / "a", A), write(tmp_path / "b", A, data="f" * 64)
    data = found(a, b, capsys)
    assert not data["paired"] and "clients" not in data
    assert data["metrics"]["personal"]["difference"] == 0.0
    text = said(a, b, capsys)
    assert "the partitions differ" in text and "clients are not paired" in text
    for path in (a, b):
        (path / "partition.json").write_text('{"sha256": "same"}')
    assert found(a, b, capsys)["paired"]


def test_one_client_has_no_interval(tmp_path: Path, capsys: Capture) -> None:
    a, b = (write(tmp_path / n, [record(0, [v])]) for n, v in (("a", 50.0), ("b", 51.0)))
    assert found(a, b, capsys)["per_client"]["t"] is None
    assert "one client alone has no interval" in said(a, b, capsys)


def test_many_clients_show_the_ends(tmp_path: Path, capsys: Capture) -> None:
    a = write(tmp_path / "a", [record(0, [50.0] * 60)])
    b = write(tmp_path / "b", [record(0, [20.0 + c for c in range(60)])])
    text = said(a, b, capsys)
    assert "10 that lost and 10 that gained most of 60 clients" in text
    assert "-30.00" in text and "+29.00" in text and "+0.00" not in text
    assert len(found(a, b, capsys)["clients"]) == 60


def logits(right: list[int], kind: str = "float32") -> dict[str, Any]:
    """Return kept logits of two clients, six images each, all of class 1; which are right."""
    import numpy as np

    each = {"personal|0": right[:6], "personal|1": right[6:]}
    out: dict[str, Any] = {}
    for name, hits in each.items():
        out[name] = np.asarray([[0, 1] if hit else [1, 0] for hit in hits], dtype=kind)
        out[f"true|{name}"] = np.ones(6, dtype="int64")
    return out


def test_mcnemar_where_both_kept_logits(tmp_path: Path, capsys: Capture) -> None:
    a = write(tmp_path / "a", A, logits=logits([1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]))
    b = write(tmp_path / "b", A, logits=logits([1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0]))
    test = found(a, b, capsys)["images"]["personal"]
    assert test.pop("p") == pytest.approx(2 * (1 + 6) / 64)
    assert test == {"n": 12, "both": 4, "only_a": 1, "only_b": 5, "neither": 2}
    c = write(tmp_path / "c", A)
    assert "B kept no logits" in said(a, c, capsys) and "A kept no logits" in said(c, a, capsys)
    other = logits([1] * 12)
    other["true|personal|1"] = other["true|personal|1"] * 0
    d = write(tmp_path / "d", A, logits=other)
    assert "not of the same test images" in said(a, d, capsys)
    (d / "logits.safetensors").write_bytes(b"\x08")
    assert "cannot be read" in said(a, d, capsys)


def test_markdown(tmp_path: Path, capsys: Capture) -> None:
    a = write(tmp_path / "a_1", A)
    text = said(a, write(tmp_path / "b", A[:2], "Ditto"), capsys, "--format", "md")
    assert "| metric | A | B | B - A |\n| --- | --- | --- | --- |" in text
    assert "| personal | 65.00 | 55.00 | -10.00 |" in text and "a\\_1" in text


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: Capture) -> None:
    a, b = write(tmp_path / "a", A), write(tmp_path / "b", A)
    (b / "manifest.json").write_text("{")
    (b / "metrics.jsonl").write_text(json.dumps(A[0]) + "\n{broken\n" + json.dumps(A[2]) + "\n{cut")
    text = said(a, b, capsys)
    assert "line 2 is damaged and was dropped" in text and "(4) is truncated" in text
    assert "cannot read" in text and "one manifest has no identity" in text
    (b / "metrics.jsonl").unlink()
    text = said(a, b, capsys)
    assert "rounds cannot be compared" in text and "bit for bit" not in text


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "needs two folders, got 0"),
        (["A", "B", "A"], 2, "needs two folders, got 3"),
        (["A", "B", "--format", "jsn"], 2, "did you mean 'json'"),
        (["A", "B", "--over-seed"], 2, "unknown flag '--over-seed'; did you mean '--over-seeds'"),
        (["A", "ROOT"], 2, "holds 4 runs"),
        (["A", "nowhere"], 3, "is not a folder that contains runs"),
        (["A", "EMPTY"], 3, "no run in"),
        (["A", "DAMAGED"], 3, "is damaged or of another version"),
        (["A", "HALF"], 3, "cannot read"),
    ],
)
def test_refuses_in_one_sentence(
    tmp_path: Path, capsys: Capture, words: list[str], code: int, told: str
) -> None:
    for name in ("A", "B", "DAMAGED", "HALF"):
        write(tmp_path / "ROOT" / name, A)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "ROOT" / "DAMAGED" / "results.json").write_text("{")
    (tmp_path / "ROOT" / "HALF" / "results.json").unlink()
    (tmp_path / "ROOT" / "HALF" / "manifest.json").write_text("[")
    places = {"ROOT": tmp_path / "ROOT", "EMPTY": tmp_path / "EMPTY"}
    places |= {name: tmp_path / "ROOT" / name for name in ("A", "B", "DAMAGED", "HALF")}
    assert main(["compare", *(str(places.get(word, word)) for word in words)]) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and told in err and err.count("\n") == 1


def test_table_and_verify_compare_in_the_same_way(tmp_path: Path, capsys: Capture) -> None:
    a = write(tmp_path / "a", A)
    b = write(tmp_path / "b", [*A[:2], record(2, [80.0, 58.0], 0.5)], config={"OPTIM.LR": 0.02})
    text = said(a, b, capsys)
    assert main(["table", str(a), str(b), "--paired"]) == 0
    assert capsys.readouterr().out == text
    assert main(["verify", str(a), "--against", str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"A: {a}", f"B: {b}"]
    assert "  changes numbers: OPTIM.LR: 0.01 -> 0.02" in lines
    (parting,) = [line for line in lines if "evaluation: differs from round 2 on" in line]
    assert parting in text.splitlines()


@pytest.mark.parametrize(("words", "told"), [
    (["table", "A", "A", "--paired", "--metric", "global"], "--metric cannot be combined with "
                                                            "--paired"),
    (["table", "A", "A", "--paired", "--format", "tex"], "text, md, json, not tex"),
    (["table", "A", "--paired"], "table --paired needs two folders, got 1"),
    (["table", "A", "--format", "json"], "--format json needs --paired"),
    (["verify", "A", "A", "--against", "A"], "fedvlm verify RUN_A --against RUN_B"),
])
def test_table_and_verify_refuse_in_one_sentence(
    tmp_path: Path, capsys: Capture, words: list[str], told: str
) -> None:
    path = str(write(tmp_path / "A", A))
    assert main([path if word == "A" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and told in err and err.count("\n") == 1


def test_help(capsys: Capture) -> None:
    assert main(["compare", "--help"]) == 0
    assert "--over-seeds" in capsys.readouterr().out
