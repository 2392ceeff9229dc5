"""Method x format x backbone: ``python -m tests.export.table`` prints the tables of docs/export.md.

Three backbones: the embedded tiny one, open_clip's ViT-B/32 with random weights, and a small CLIP
of transformers with random weights. A model is a client's after a round, moved by noise.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from fedvlm.export.formats import onnx_file
from fedvlm.export.write import FORMATS
from fedvlm.federation.cards import trainer_files
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.backbones import load_backbone
from tests.export.matrix import MatrixCell, try_exports
from tests.export.models import tiny, trained
from tests.models.adapted import save_hf_clip

SETS = (  # of FedAvg: every trainable set
    "prompt", "prompt PEFT.CSC True", "prompt+feature", "prompt+feature PEFT.CSC True",
    "prompt+adapter", "prompt+lora", "prompt+lora PEFT.LN True", "text-lora", "text-lora+lora",
    "head", "head+lora", "head+adapter",
)
FEW = ("prompt", "prompt+feature", "prompt+lora", "text-lora+lora", "head")
BACKBONES = ("tiny", "ViT-B-32", "transformers")


@cache
def backbone(name: str) -> Backbone:
    """Return a backbone of ``BACKBONES``."""
    if name == "tiny":
        return tiny()
    if name == "ViT-B-32":
        return load_backbone(name, allow_random=True)
    folder = Path(tempfile.mkdtemp())
    save_hf_clip(folder / "clip")
    return load_backbone(str(folder / "clip"), loader="transformers")


def words(peft: str) -> tuple[str, ...]:
    """Return the words of a command for a trainable set."""
    return ("--peft", *peft.split(), *(("PEFT.N_CTX", "4") if "prompt" in peft else ()))


def models(name: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return row -> (method, words) of a backbone's table: all of the tiny one's, else a choice."""
    if name == "tiny":
        methods = {stem: (stem, ()) for stem in trainer_files()}
        methods["thorki, SMALL tower"] = ("thorki", ("TRAINER.THORKI.SMALL", "tower"))
        return methods | {f"FedAvg --peft {p}": ("fedavg", words(p)) for p in SETS}
    few = ("PEFT.N_CTX", "4")
    methods = {"thorki": ("thorki", few)}
    methods["fedtv"] = ("fedtv", ("TRAINER.FEDTV.N_CTX", "4", "TRAINER.FEDTV.RANK", "4"))
    return methods | {f"FedAvg --peft {p}": ("fedavg", words(p)) for p in FEW}


def cells(name: str, rows: Iterable[str] | None = None) -> Iterator[MatrixCell]:
    """Yield the cells of a backbone's table, row by row."""
    formats = [f for f in FORMATS if f != "onnx" or not onnx_file.missing_packages()]
    for row, (method, said) in models(name).items():
        if rows is None or row in rows:
            whole = trained(method, said, backbone=backbone(name), images=12)
            yield from try_exports({row: whole}, formats)


def titles() -> Mapping[str, str]:
    """Return the methods' names as their cards spell them."""
    from docs.site.methods import methods

    return {m.stem: m.title for m in methods()}


def markdown(made: Iterable[MatrixCell]) -> str:
    """Return a table; methods with the same reasons, or none, share a row with the worst number."""
    rows: dict[str, dict[str, MatrixCell]] = {}
    for cell in made:
        rows.setdefault(cell.name, {})[cell.format] = cell
    notes: list[str] = []
    groups: dict[tuple[object, ...], list[str]] = {}
    names = titles()
    for name, row in rows.items():
        key = tuple(_note(c, notes, names.get(name, name)) for c in row.values())
        groups.setdefault((name,) if "--peft" in name or "," in name else key, []).append(name)
    formats = list(next(iter(rows.values())))
    lines = [f"| model | {' | '.join(formats)} |", f"|---|{'---|' * len(formats)}"]
    for members in groups.values():
        texts = []
        for form in formats:
            ours = [rows[n][form] for n in members]
            numbers = [c.difference for c in ours if c.difference is not None]
            mark = _note(ours[0], notes, names.get(members[0], members[0]))
            texts.append(f"{max(numbers):.0e}" if numbers else f"refused ({mark})")
        label = ", ".join(names.get(n.partition(",")[0], n.partition(",")[0])
                          + (f",{n.partition(',')[2]}" if "," in n else "") for n in members)
        lines.append(f"| {label.replace('FedAvg --peft ', '`--peft ') + '`' * ('--peft' in label)} "
                     f"| {' | '.join(texts)} |")
    return "\n".join([*lines, "", *(f"{i}. {note}" for i, note in enumerate(notes, 1))])


def _note(cell: MatrixCell, notes: list[str], who: str) -> int:
    """Return the number of a cell's reason, 0 where there is none; the method's name left out."""
    if cell.difference is not None:
        return 0
    reason = cell.reason.removeprefix(f"{who} ").removeprefix(f"{who}: ")
    if reason not in notes:
        notes.append(reason)
    return notes.index(reason) + 1


def main() -> None:
    """Print a table per backbone: of the words (``tiny``; ``tiny:fedtv`` is one row), or all."""
    chosen: dict[str, list[str]] = {}
    for word in sys.argv[1:] or BACKBONES:
        name, _, row = word.partition(":")
        chosen.setdefault(name, []).extend([row] if row else models(name))
    for name, rows in chosen.items():
        made = []
        for cell in cells(name, rows):
            made.append(cell)
            sys.stderr.write(f"{name} {cell}\n")
        print(f"### {name}\n\n{markdown(made)}\n", flush=True)


if __name__ == "__main__":
    main()
