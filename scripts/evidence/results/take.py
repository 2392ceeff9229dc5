"""Runs of others: what ``fedvlm reproduce`` packed, taken after checksums and a replayed sample.

Checksums show damage; only a replay, from nothing, shows that the numbers are what these configs
give. So a pack is taken only where a sample of its runs gave the same numbers here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.cli import main as cli
from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.spelling import NOT_RANKED
from fedvlm.core.stats import mean
from fedvlm.report.collect import collect
from fedvlm.report.tables.papers import dataset_name
from fedvlm.report.tables.render import escape_markdown
from fedvlm.runs.cells import ENDING
from fedvlm.runs.finished import FinishedRun

TAKEN, PAGE = "reproduced", "reproduced.md"
WHOLE = "1000000"  # rounds: a replay from nothing


def take(packs: Sequence[str], into: Path, sample: int, places: Mapping[str, str]) -> None:
    """Check packs, copy them into ``into/reproduced`` and write the page of all that lie there.

    Args:
        sample: runs of each pack that are replayed.
        places: ``root``, ``weights``, ``device`` of ``fedvlm verify``; empty ones are left out.

    Raises:
        DataError: a pack is damaged, or a replay did not give its numbers; nothing was taken.
    """
    words = [w for name, value in places.items() if value for w in (f"--{name}", value)]
    for word in packs:
        path = Path(word)
        if not path.name.endswith(ENDING) or not path.is_file():
            raise DataError(f"--take {word}: not a pack of runs (*{ENDING}), as fedvlm reproduce "
                            "writes it into sealed/")
        code = cli.main(["verify", word, "--replay", WHOLE, "--sample", str(sample), *words])
        if code:
            raise DataError(f"--take {word}: not taken, since a run is damaged or its replay did "
                            "not give its numbers (above)")
        refuse_simulated(collect([path]).runs)
    folder = into / TAKEN
    folder.mkdir(parents=True, exist_ok=True)
    for word in packs:
        files.write_bytes(folder / Path(word).name, Path(word).read_bytes())
    files.write_text(into / PAGE, page_of(sorted(folder.glob(f"*{ENDING}")), sample))


def refuse_simulated(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs on a simulated text tower, of which no page may rank or claim (``DataError``)."""
    for run in runs:
        if run.simulated:
            raise DataError(f"{run.path}: {NOT_RANKED}; take it out of the runs to publish")


def page_of(packs: Sequence[Path], sample: int) -> str:
    """Return the page: a row for each recipe, data set and method."""
    rows = [line for path in packs for line in _lines(path)]
    return "\n".join([
        "# Papers' numbers, measured by others", "",
        f"Sealed runs of `fedvlm reproduce`, taken after {sample} of each pack gave the same "
        "numbers in a replay from nothing. They are in no table of the other pages; "
        "`fedvlm reproduce RECIPE` has the published numbers.", "",
        "| recipe | data set | method | seeds | personal, % | backbone |",
        "|---|---|---|---:|---:|---|", *rows, ""])


def _lines(path: Path) -> list[str]:
    name = path.name.removesuffix(ENDING)
    several: dict[tuple[str, str], list[FinishedRun]] = {}
    for run in collect([path]).runs:
        several.setdefault((str(run.protocol["dataset"]), run.method), []).append(run)
    lines = []
    for (dataset, method), runs in sorted(several.items()):
        value = mean([v for run in runs if (v := run.value("personal")) is not None])
        digest = str(runs[0].protocol.get("backbone_digest", ""))[:12]
        cells = [name, dataset_name(dataset), method, str(len(runs)),
                 "-" if value is None else f"{value:.1f}",
                 f"{runs[0].protocol['backbone']} {digest}"]
        lines.append(f"| {' | '.join(map(escape_markdown, cells))} |")
    return lines

