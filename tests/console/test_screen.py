"""Console and log file: live table, plain lines, and an ending that CoOp's parser reads."""

from __future__ import annotations

import io
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from fedvlm.console.guard import exit_code_of
from fedvlm.console.live import LiveTable
from fedvlm.console.log import Headline, LogFile
from fedvlm.console.rows import (
    ClientRow,
    RoundRow,
    human_bytes,
    one_line,
    round_line,
    select_clients,
    spark,
    table_lines,
)
from fedvlm.console.screen import Console, complain, say, wants_live
from fedvlm.core.errors import FedvlmError


class Terminal(io.StringIO):
    """A stream that claims to be a UTF-8 terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def row(round_: int, accuracies: list[float | None], **more: object) -> RoundRow:
    clients = tuple(
        ClientRow(cid, 32, 1.5, a, "NaN" if a is None else "trained")
        for cid, a in enumerate(accuracies)
    )
    rated = [a for a in accuracies if a is not None]
    mean = sum(rated) / len(rated) if rated else None
    worst = min(rated, default=None)
    return RoundRow(round_, 0.4, 1.234, mean, worst, 2_130_000, clients, **more)  # type: ignore[arg-type]


def parse_test_res(text: str, end_signal: str = "Finish training") -> float | None:
    """Return what CoOp's script reads: an equal line arms it, then the last match wins."""
    armed, found = False, None
    for line in text.splitlines():
        armed = armed or line.strip() == end_signal
        match = re.search(r"\* accuracy: ([\.\deE+-]+)%", line)
        if match and armed:
            found = float(match.group(1))
    return found


def test_round_line():
    assert round_line(row(3, [60.0, 100.0]), 10) == (
        "round  3/10  loss 1.234  personal 80.0 (worst 60.0)  0.4 s"
    )
    assert round_line(RoundRow(1, 2.0), 3) == "round 1/3  2.0 s"
    assert "global 71.2" in round_line(row(1, [1.0], extra={"global": 71.2}), 3)
    assert "lost: 1 NaN" in round_line(row(1, [1.0, None]), 3)


def test_round_line_says_whose_mean_it_is():
    assert round_line(row(3, [60.0, 100.0], asked=2), 10) == (
        "round  3/10  loss 1.234  personal 80.0 (worst 60.0, 2 clients)  0.4 s"
    )
    assert "(worst 60.0, 1 client)" in round_line(row(3, [60.0], asked=1), 10)


def shown(table: LiveTable) -> str:
    out = io.StringIO()
    RichConsole(file=out, width=100).print(table.table(table.live.console))
    return out.getvalue()


def test_a_client_that_a_round_left_alone_keeps_its_last_numbers():
    table = LiveTable(Terminal(), 3, "x")
    table.round_finished(RoundRow(1, 0.1, clients=[
        ClientRow(c, 7, 1.5 + c, 50.0 + c) for c in range(3)
    ]))
    table.round_finished(RoundRow(2, 0.1, 1.0, 61.0, 61.0, asked=1, clients=[
        ClientRow(1, 7, 0.5, 61.0)
    ]))
    table.round_finished(RoundRow(3, 0.1, clients=[ClientRow(2, 7, 0.25)]))  # not evaluated
    rows = [re.findall(r"[^\s│┃]+", line) for line in shown(table).splitlines()]
    cells = {row[0]: row for row in rows if row and row[0].isdigit()}
    assert cells["0"][1:4] == ["7", "1.500", "50.0"] and cells["0"][-1] == "absent"
    assert cells["1"][1:5] == ["7", "0.500", "61.0", "+10.0"] and cells["1"][-1] == "absent"
    assert cells["2"][1:4] == ["7", "0.250", "52.0"] and cells["2"][-1] == "trained"
    assert table.history == {0: [50.0], 1: [51.0, 61.0], 2: [52.0]}


def test_of_many_clients_those_of_the_round_are_shown():
    table = LiveTable(Terminal(), 3, "x")
    table.round_finished(RoundRow(1, 0.1, clients=[
        ClientRow(c, 7, 1.0, float(c)) for c in range(300)
    ]))
    table.round_finished(RoundRow(2, 0.1, 1.0, 75.0, 50.0, asked=2, clients=[
        ClientRow(17, 7, 1.0, 50.0), ClientRow(200, 7, 1.0, 100.0)
    ]))
    assert {c.cid for c in table._clients(table.row)} == {17, 200}
    assert "mean 75.0 of 2 clients" in shown(table)


def test_spark_scales_to_its_own_range_of_at_least_five_points():
    assert spark([0, 50, 100]) == "▁▅█"
    assert spark([80.0, 80.1]) == "▁▁"
    assert spark([], width=3) == "" and spark([float("nan")]) == ""
    assert len(spark(list(range(50)))) == 12
    assert spark([0, 100], ascii_only=True).isascii()


def test_above_twenty_clients_worst_best_and_median():
    few = [ClientRow(c, 1, accuracy=float(c)) for c in range(20)]
    assert select_clients(few[::-1]) == (few, None)
    many = [ClientRow(c, 1, accuracy=float(100 - c)) for c in range(101)]
    shown, middle = select_clients(many)
    assert [c.accuracy for c in shown] == [0, 1, 2, 3, 4, 96, 97, 98, 99, 100] and middle == 50
    assert len(select_clients([ClientRow(c, 1) for c in range(30)])[0]) == 10
    half = [ClientRow(c, 1, accuracy=float(c) if c < 7 else None) for c in range(30)]
    assert len({c.cid for c in select_clients(half)[0]}) == len(select_clients(half)[0]) == 7


def test_table_lines_and_bytes():
    lines = table_lines([{"metric": "personal", "acc": 81.25}, {"metric": "g", "std": None}])
    assert lines == ["metric    acc   std", "personal  81.2  -", "g         -     -"]
    assert table_lines([]) == []
    assert [human_bytes(n) for n in (7, 2_130_000, 3e12)] == ["7 B", "2.1 MB", "3.0 TB"]
    assert one_line("a\nb\x1b[31mé") == "a\\nb\\x1b[31mé"


def test_plain_lines_when_not_a_terminal():
    out = io.StringIO()
    console = Console(2, 2, out)
    console.header({"method": "FedTV", "dataset": "a\nb"})
    console.round_finished(row(0, [50.0, 60.0]))
    console.round_started(1, [0])
    console.round_finished(row(1, [60.0, 70.0]))
    console.notes(["3 images skipped"])
    console.result([{"metric": "personal", "accuracy": 65.0}])
    text = out.getvalue()
    assert "method   FedTV\ndataset  a\\nb\n" in text and "\x1b" not in text
    assert "round 1/2  loss 1.234  personal 65.0 (worst 60.0)  0.4 s\n" in text
    assert "note: 3 images skipped" in text and text.endswith("personal  65.0\n")


def play(console: Console, rounds: int = 3) -> None:
    console.header({"method": "FedTV", "dataset": "shapes"})
    for number in range(rounds + 1):
        if number:
            console.round_started(number, [0, 1])
        console.round_finished(row(number, [50.0 + 10 * number, 60.0, None]))
    console.result([{"metric": "personal", "accuracy": 70.0}])


def test_live_table_has_a_row_per_client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    assert wants_live(out)
    play(Console(3, 3, out))
    text = out.getvalue()
    for part in ("client", "change", "history", "+10.0", "80.0", "NaN", "worst 60.0", "round 3/3",
                 "MB sent", "s per round", "metric    accuracy"):
        assert part in text, part


def test_no_color_and_forty_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    play(Console(3, 3, out))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", out.getvalue())


def test_live_table_redraws_at_most_four_times_a_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    table = LiveTable(out, 500, "x")
    drawn = 0
    draw = table.live.get_renderable

    def counted() -> object:
        nonlocal drawn
        drawn += 1
        return draw()

    monkeypatch.setattr(table.live, "get_renderable", counted)
    assert table.live.refresh_per_second == 4
    table.start()
    for number in range(500):
        table.round_finished(row(number, [50.0]))
    before_stop = drawn
    table.stop()
    assert before_stop < 12  # not one per round


def test_dumb_or_closed_terminals_get_plain_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_live(Terminal())
    closed = io.StringIO()
    closed.close()
    assert not wants_live(closed)


@pytest.mark.parametrize("live", [False, True])
def test_a_closed_pipe_silences_the_screen_and_the_run_goes_on(live: bool):
    play(Console(3, 3, Broken(), live=live))


def test_a_closed_pipe_does_not_kill_the_refresh_thread():
    table = LiveTable(Broken(), 3, "x")
    table.start()
    time.sleep(0.4)  # at least one redraw by the thread
    table.stop()
    assert table.live.console.file.broken


def test_the_screen_is_freed_by_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    console = Console(3, 3, out)
    with pytest.raises(KeyError), ExitStack() as stack:
        stack.callback(console.finish)
        console.round_started(1, [0])
        raise KeyError
    assert "\x1b[?25l" in out.getvalue() and out.getvalue().rstrip().endswith("\x1b[?25h")


def test_text_that_the_stream_cannot_encode_is_escaped(capsys: pytest.CaptureFixture[str]):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    say("Große", stream=stream)
    assert raw.getvalue() == b"Gro\\xdfe\n"
    complain("one\ntwo")
    assert capsys.readouterr().err == "error: one\nerror: two\n"


def written(path: Path) -> str:
    log = LogFile(path, 2)
    bad = "x\nFinish training\n* accuracy: 1%"
    log.header({"method": "FedTV", "tag": bad}, ["TAG * accuracy: 2%"])
    log.notes(["n\n=> result"])
    for number in range(3):
        log.round_started(number, [0])
        log.round_finished(row(number, [50.0, 60.0]))
    log.result([{"metric": "personal", "accuracy": 55.0}])
    assert parse_test_res(path.read_text()) is None  # nothing to read before the end
    log.finish(Headline(1200, 974, 81.249, 79.96))
    return path.read_text()


def test_ctrl_c_at_a_terminal_is_answered_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch):
    def stopped() -> int:
        raise KeyboardInterrupt

    for stream, before in ((Terminal(), "\n"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", stream)
        assert exit_code_of(stopped, ["sweep"]) == 130
        assert stream.getvalue() == f"{before}interrupted: nothing was lost\n"


def test_log_says_what_its_accuracy_is_a_mean_of(tmp_path: Path):
    log = LogFile(tmp_path / "log.txt", 2)
    log.finish(Headline(1549, 545, 37.2, 30.0))
    text = (tmp_path / "log.txt").read_text()
    assert "(accuracy: mean over clients; correct / total is 35.2%)\n* accuracy: 37.2%\n" in text
    assert parse_test_res(text) == 37.2


def test_log_is_read_by_coops_parser(tmp_path: Path):
    text = written(tmp_path / "log.txt")
    assert parse_test_res(text) == 81.2
    assert parse_test_res(text, "=> result") == 81.2
    assert text.endswith(
        "Finish training\n=> result\n* total: 1,200\n* correct: 974\n"
        "* accuracy: 81.2%\n* error: 18.8%\n* macro_f1: 80.0%\n"
    )
    before = text.partition("\nFinish training\n")[0].splitlines()
    assert not any(re.search(r"^\* accuracy:", line) for line in before)
    rounds = [line for line in before if line.startswith(("round", "  client"))]
    assert len(rounds) == 9 and not any("* accuracy:" in line for line in rounds)


def test_log_appends_after_a_resume_and_an_early_end_writes_no_result(tmp_path: Path):
    path = tmp_path / "log.txt"
    LogFile(path, 2).round_finished(row(1, [1.0]))
    LogFile(path, 2).finish()
    assert parse_test_res(path.read_text()) is None
    assert parse_test_res(written(path)) == 81.2 and path.read_text().startswith("round 1/2")
    with pytest.raises(FedvlmError):
        LogFile(path, 2).finish(Headline(1, 1, float("nan"), 0.0))
