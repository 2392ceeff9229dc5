"""Write the table of ``docs/faults.md``: fault, outcome, message.

    python scripts/fault_table.py docs/faults.md

Each line is a run that is made here, of two sites and a server that exchange frames; what it says
is taken down. The page's text stays; lines between ``<!-- table -->`` and ``<!-- end -->`` are
written anew.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedvlm.check.compare import Broken, same_fed
from fedvlm.check.disk import read_state
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import FedvlmError
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.readmission import readmit
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.reliability.unreliable import Unreliable, count_reasons, parse_absences
from fedvlm.federation.rounds import Federation, RoundFinished, WholeState
from tests.distributed import test_faults as faults
from tests.distributed.grid import CONFIG, RUN, Grid, federation, local
from tests.distributed.test_faults import KEEP_ON, METHOD, ROUNDS, Faulty, Out, Outcome, edited

BEGIN, END = "<!-- table -->", "<!-- end -->"
HEAD = "| fault | outcome | message |\n|---|---|---|"
NORM = Policy(wait=0, max_norm=100.0)


@dataclass
class Bench:
    """What all cases share: the data, and the run in which nothing goes wrong."""

    world: CheckWorld
    whole: WholeState
    folder: Path

    def place(self) -> Path:
        """Return an empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def line(done: str, happened: str, said: Sequence[str]) -> str:
    """Return a line of the table; what was said again, numbers aside, stands once."""
    first = {re.sub(r"\d+", "N", words): words for words in reversed(said)}
    words = "; ".join(words for words in said if words in first.values())
    words = "; ".join(dict.fromkeys(words.replace("\n", "; ").replace("|", "/").split("; ")))
    return f"| {done} | {happened} | {f'`{words}`' if words else 'nothing'} |"


def outcome(bench: Bench, done: str, run: Outcome) -> str:
    """Run and return the line of what came out."""
    return ended(bench, done, run.grid, run.end, run.dropped)


def ended(
    bench: Bench, done: str, grid: Grid, end: Callable[[], WholeState],
    dropped: Mapping[int, Mapping[int, str]], began: bool = True,
) -> str:
    """Return the line of a run that is made now.

    Args:
        began: what hinders it comes after its first round began.
    """
    try:
        after = end()
    except FedvlmError as error:
        how = "stopped; the state before is kept" if began else "did not begin"
        return line(done, f"{how}; exit code {error.exit_code}", [*grid.said, str(error)])
    lost = [c for round_ in sorted(dropped) for c in dropped[round_]]
    if lost:
        each = {c: lost.count(c) for c in sorted(set(lost))}
        who = ", ".join(f"client {c} in {n} round(s)" for c, n in each.items())
        happened = f"finished without {who}, from the accepted version again each time"
    else:
        try:
            same_fed(after, bench.whole, done)
            happened = "finished, bits of the run without a fault"
        except Broken as error:
            happened = f"finished with other bits ({error})"
    return line(done, happened, grid.said)


def frames(bench: Bench) -> list[str]:
    """Faults of a single answer, and of sites."""
    def once(done: str, new: Any, policy: Policy | None = None) -> str:
        return outcome(bench, done, Outcome(
            bench.world, bench.place(), faults.once(new), policy))

    def change(done: str, how: Any) -> str:
        return once(done, lambda carrier, out: edited(out["site1"], how), NORM)

    def always(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        bad = round_ > 0 and "site1" in out
        return out | {"site1": edited(out["site1"], faults.shape)} if bad else out

    restarted = Outcome(bench.world, bench.place(), lambda *given: given[-1])

    def restart(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        if round_ > 0:
            restarted.grid.restart()
        return out

    restarted.carrier.fault = restart
    return [
        once("an answer is lost after the site wrote its new state",
             lambda carrier, out: "no answer within 5 s"),
        outcome(bench, "all sites are ended and begun again after each round's work", restarted),
        once("a late answer to the round before", lambda carrier, out: carrier.old[1]["site1"]),
        once("garbage in the place of an answer", lambda carrier, out: b"\0" * 64),
        once("an answer cut in half", lambda carrier, out: out["site1"][:200]),
        once("an answer with a value in 300 lists", lambda carrier, out: faults.nested(300)),
        once("a site answers for another site's client, with weight 1e9",
             lambda carrier, out: edited(out["site1"], faults.foreign)),
        outcome(bench, "a site is gone from round 2 on, quorum 1",
                Outcome(bench.world, bench.place(), faults.away)),
        outcome(bench, "the same, quorum 0.5",
                Outcome(bench.world, bench.place(), faults.away, KEEP_ON)),
        change("an update with a NaN", faults.nan),
        change("an update of another shape", faults.shape),
        change("a personal tensor in the update", faults.personal),
        change("a number that the method does not declare", faults.number),
        change("a weight below zero", faults.negative),
        change("a weight of 1e9 for a client of three images", faults.heavy),
        outcome(bench, "SCAFFOLD: control variates in float8", Outcome(
            bench.world, bench.place(), faults.once(lambda carrier, out: edited(
                out["site1"], faults.eighths)), KEEP_ON, method=load_trainer("scaffold"))),
        change("2^53 local steps in the account of an answer", faults.boast),
        change("an update of norm 1e6, above FED.ASK.MAX_NORM 100", faults.far),
        outcome(bench, "an update of another shape in each round, four rounds", Outcome(
            bench.world, bench.place(), always, KEEP_ON, Setup(rounds=4))),
    ]


def states(bench: Bench) -> list[str]:
    """States that are gone, and clients that are taken in again."""
    def lose(folder: Path) -> None:
        for path in (folder / "site1" / RUN).glob("s*.safetensors"):
            path.write_bytes(path.read_bytes()[:-1])

    place = bench.place()

    def fault(carrier: Faulty, round_: int, attempt: int, out: Out) -> Out:
        if round_ == 1:
            lose(place)
        return out

    run = Outcome(bench.world, place, fault)
    lines = [outcome(bench, "the state files of a site are damaged after round 1", run)]
    run.carrier.fault = lambda *given: given[-1]
    run.grid.said.clear()
    fed, engine = run.grid.server()
    wishes = [{"id": f"{c:08x}", "client": c, "anew": True} for c in (2, 3)]
    after = fed.run(readmit(engine, wishes, run.states[-1]))
    happened = f"finished; the clients' versions at the end: {after.versions}"
    return [*lines, line("then `fedvlm readmit RUN 2 3 --anew`, and the same command again",
                         happened, run.grid.said)]


def greetings(bench: Bench) -> list[str]:
    """Sites that cannot take part."""
    def met(done: str, spoil: Callable[[Grid], None], began: bool = False) -> str:
        grid = Grid(bench.world, METHOD, bench.place())
        spoil(grid)

        def end() -> WholeState:
            fed, _ = grid.server()
            return grid.whole(fed, fed.run())

        return ended(bench, done, grid, end, {}, began)

    def config(grid: Grid) -> None:
        grid.sites["site1"].config = CONFIG | {"OPTIM.LR": 0.01}

    def version(grid: Grid) -> None:
        grid.sites["site0"].facts |= {"torch": "1.0"}

    def alone(grid: Grid) -> None:
        del grid.carrier.answers["site1"]

    def twin(grid: Grid) -> None:
        grid.carrier.answers["site2"] = grid.carrier.answers["site1"]

    def poison(grid: Grid) -> None:
        setup = replace(grid.setup, poisoned=(2,))
        grid.sites["site1"].federation = federation(bench.world, METHOD, setup)

    spoilt = Outcome(bench.world, bench.place(), lambda *given: given[-1], KEEP_ON)
    poison(spoilt.grid)
    return [
        met("a site with another learning rate", config),
        met("a site with another PyTorch", version),
        met("a site that is not there at the start", alone),
        met("two sites with the same clients", twin),
        met("a loss that is not finite at a site", poison, began=True),
        outcome(bench, "the same, quorum 0.5", spoilt),
    ]


def coordinator(bench: Bench) -> list[str]:
    """A coordinator that dies."""
    run, disk = Outcome(bench.world, bench.place(), lambda *given: given[-1]), bench.place()
    run.save_round_1(disk)
    run.end()

    def again() -> WholeState:
        fed, _ = run.grid.server()
        return run.grid.whole(fed, fed.run(read_state(disk, fed)))

    return [ended(bench, "the coordinator dies with two rounds worked at the sites that no "
                  "checkpoint has; the same command", run.grid, again, {})]


def simulated(bench: Bench) -> list[str]:
    """Unreliable clients of a simulation (``FED.UNRELIABLE``, docs/unreliable.md)."""
    def tried(done: str, **keys: Any) -> str:
        fed: Federation = federation(bench.world, METHOD, ROUNDS)
        fed.plan = replace(fed.plan, unreliable=Unreliable(rounds=3, **keys))
        reasons: list[str] = []
        parts: list[float] = []

        def hear(event: object) -> None:
            if isinstance(event, RoundFinished):
                reasons.extend(event.dropped.values())
                parts.extend(event.partial.values())

        fed.subscribers.append(hear)
        try:
            fed.run()
        except FedvlmError as error:
            return line(done, f"stopped; the state before is kept; exit code {error.exit_code}",
                        [str(error)])
        kinds = ", ".join(f"{n} {kind}" for kind, n in count_reasons(reasons).items())
        some = f"; {len(parts)} sent a part of their work" if parts else ""
        return line(done, f"finished; of 12 client rounds lost: {kinds or 'none'}{some}", reasons)

    slow = {"stragglers": 0.5, "slowdown": (3.0, 3.0), "deadline": 1.0}
    return [
        tried("drop-out with probability 0.4", dropout=0.4),
        tried("half of the clients three times as slow, deadline 1, late updates lost", **slow),
        tried("the same, late clients send what they have", **slow, late="partial"),
        tried("client 3 away in rounds 1 and 2, by name", absences=parse_absences("3:1-2", 4)),
        tried("drop-out with probability 0.4, quorum 0.9", dropout=0.4, quorum=0.9),
    ]


def main(page: Path) -> None:
    """Write the table into the page."""
    with tempfile.TemporaryDirectory() as folder:
        world = CheckWorld()
        bench = Bench(world, local(world, METHOD, ROUNDS)[0], Path(folder))
        lines = [text for part in (frames, states, greetings, coordinator, simulated)
                 for text in part(bench)]
    text = page.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    page.write_text("\n".join([before + BEGIN, HEAD, *lines, END]) + after, encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
