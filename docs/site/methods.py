"""A page per method, generated from its card, its class and its YAML; and an index by family.

The family follows from the card's fields Shared and Personal and from the hooks that the class
overrides, so that a new file in ``trainers/`` needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from docs.site.tables import code, escape_markup, row, table
from fedvlm.cli.methods._lines import method_rows, piece_rows, sizes
from fedvlm.cli.methods.config import meaning
from fedvlm.core.repository import repository
from fedvlm.federation.cards import card, fields, trainer_files, year
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer

FOLDER = "methods"
OWN, ONE, PART, COPY, NONE = (
    "Methods for CLIP that prescribe their prompts and adapters",
    "One shared model; you choose what is trained (`--peft`)",
    "Part of the model stays with the client; you choose what is trained",
    "A personal model for each client; you choose what is trained",
    "Baselines without communication",
)
FAMILIES = (OWN, ONE, PART, COPY, NONE)
SHORT = ("Shared", "Personal", "Frozen", "Defaults", "Extra data", "Cost")
LONG = (
    "Departures from the paper", "Departures from the authors' code", "Expected numbers",
)
_SOME_SET = re.compile(r"\bPEFT\b|\bbody\b|\bhead\b")  # a method that takes what it is given
_A_PART = re.compile(r"(the )?(body|head)\b|(image|text|small)\.|\*\.")


@dataclass(frozen=True)
class Method:
    """A method as its pages need it."""

    stem: str
    title: str
    sentence: str
    fields: Mapping[str, str]
    year: str
    trainer: type[Trainer]

    @property
    def family(self) -> str:
        """One of ``FAMILIES``."""
        shared, personal = self.fields["Shared"], self.fields["Personal"]
        if shared.startswith("none") and not self.trainer.extras_up:
            return NONE
        if not _SOME_SET.search(f"{shared} {personal}"):
            return OWN
        if _A_PART.match(personal):
            return PART
        return COPY if self._personal_model else ONE

    @property
    def _personal_model(self) -> bool:
        personal = self.fields["Personal"]
        ends = self.trainer.own_finetune is not Trainer.own_finetune
        makes = self.trainer.personalize is not Trainer.personalize and personal != "none"
        return ends or makes or not personal.startswith("none")


def methods() -> list[Method]:
    """Return every method of ``trainers/``, by name."""
    every = []
    for stem, path in trainer_files().items():
        text = card(path)
        title, _, sentence = text.partition("\n")[0].partition(":")
        every.append(
            Method(stem, title, sentence.strip(), fields(text), year(text), load_trainer(stem))
        )
    return sorted(every, key=lambda m: m.title.lower())


def pages() -> dict[str, str]:
    """Return the pages, ``methods/index.md`` first: path in the site -> Markdown."""
    every = methods()
    made = {f"{FOLDER}/index.md": _index(every), f"{FOLDER}/lines.md": _lines_page()}
    return made | {f"{FOLDER}/{m.stem}.md": _page(m) for m in every}


def _index(every: list[Method]) -> str:
    lines = [
        "# Methods", f"{len(every)} methods, each one file of `trainers/`. A page shows the card, "
        "options and default settings. `fedvlm list NAME` prints the card, `--trainer NAME` runs "
        "the method. If a method does not prescribe what is trained, choose it with `--peft`: "
        "`prompt`, `prompt+lora`, `text-lora`, `feature`, `head+adapter`, and so on.",
    ]
    for family in FAMILIES:
        rows = [
            row(f"[{m.title}]({m.stem}.md)", m.year, m.sentence) for m in every
            if m.family == family
        ]
        if rows:
            lines += [f"## {family}", table(("method", "year", "what it does"), rows)]
    return "\n\n".join(lines) + "\n"


def _lines_page() -> str:
    every = sizes(trainer_files())
    total = sum(size.lines for size in every)
    return "\n\n".join([
        "# Lines of code per method", f"{len(every)} methods, {total:,} lines of code (median "
        f"{median(size.lines for size in every):g}), without docstrings, comments and blank lines. "
        "`fedvlm list --lines` prints this page.",
        _rows_table(method_rows(every)), "## Code that methods share", "Parts of the core that "
        "methods import by name. If only one method is named, the part was written for it.",
        _rows_table(piece_rows(every)),
    ]) + "\n"


def _rows_table(rows: Sequence[Mapping[str, str]]) -> str:
    return table(list(rows[0]), [row(*each.values()) for each in rows])


def _page(m: Method) -> str:
    parts = m.fields
    lines = [f"# {m.title}", _sentence(m.sentence), f"*{_line(parts['Paper'])}*"]
    lines += [code("sh", re.sub(r"\s*\n\s*", " ", parts["Command"]))]
    lines += [table(("", ""), [row(f"**{name}**", _tensors(_line(parts[name]))) for name in SHORT])]
    lines += ["## Equations", code("text", parts["Equations"])]
    for name in LONG:
        if name in parts:
            lines += [f"## {name}", _sentence(_line(parts[name]))]
    lines += _options(m) + _contract(m)
    settings = repository() / "configs" / "trainers" / f"{m.stem}.yaml"
    if settings.is_file():
        lines += [f"## `configs/trainers/{m.stem}.yaml`",
                  code("yaml", settings.read_text(encoding="utf-8"))]
    return "\n\n".join(lines) + "\n"


def _options(m: Method) -> list[str]:
    """Return the section of the method's own config keys."""
    if not m.trainer.options:
        return []
    node = f"TRAINER.{m.trainer.name.upper()}"
    rows = [
        row(f"`{name}`", f"`{option.default!r}`", escape_markup(meaning(option)))
        for name, option in m.trainer.options.items()
    ]
    return ["## Options", f"Keys below `{node}`: `--opts {node}.{next(iter(m.trainer.options))} "
            "VALUE`, or the YAML.", table(("key", "default", "meaning"), rows)]


def _contract(m: Method) -> list[str]:
    """Return the section of the declarations that differ from the defaults."""
    trainer, rows = m.trainer, []
    travels = {"also sent to the server": trainer.extras_up,
               "also received by clients": trainer.extras_down,
               "metrics sent to the server": trainer.metrics}
    for what, patterns in travels.items():
        if patterns:
            rows.append(row(what, ", ".join(f"`{p}`" for p in patterns)))
    if not trainer.batched:
        rows.append(row("clients", "trained one by one"))
    rows += [row(f"exempt from invariant {g}", why) for g, why in trainer.exempt.items()]
    if not rows:
        return []
    return ["## Declarations of the class", table(("", ""), rows)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _line(text: str) -> str:
    return " ".join(text.split())


def _tensors(text: str) -> str:
    """Set names of tensors and keys as code, so that their stars stay stars."""
    return re.sub(r"(?<![\w`])((?:[a-z_]+|\*)(?:\.(?:[A-Za-z_]+|\*))+)", r"`\1`", text)
