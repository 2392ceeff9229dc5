"""Tuned values as methods' YAML files: in place of their defaults, or as files of their own.

A file of ``configs/trainers`` gets the values of that entry of the tuning which trained what the
file trains (PEFT, the method's node, final fine-tuning, aggregation); without such an entry it
stays as it is. In a folder of one's own every entry has a file, which trains what was tuned. A
value that is declared as the default is not repeated: its line goes. Comments are kept, and one
says whose values stand there.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.config.federation import WORK
from fedvlm.config.option import Schema, Value, nodes
from fedvlm.config.read import lookup, read_yaml
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.repository import checkout
from fedvlm.sweep.tune.tuned import SAY_WHICH, read_tuned
from fedvlm.sweep.tune.values import load_schema, parse_value, read_values

SAYS = "# Tuned: "
MORE = "#   "  # further lines of it
WIDTH = 100
_LINE = re.compile(r"( *)([\w.-]+):(?:[ ]+([^#]*?))?([ ]*#.*)?$")


def write_defaults(tuned: Path, folder: Path | None = None) -> list[tuple[Path, str]]:
    """Write a tuning's values into the methods' YAML files.

    Args:
        tuned: ``tuned.json``.
        folder: of the YAML files; ``configs/trainers`` of this checkout.

    Returns:
        Every file of a tuned method and what was done; files are written together, after all of
        them were checked.

    Raises:
        ConfigError: an installed copy has no checkout; a value that its option refuses.
        DataError: ``tuned.json`` is damaged; a file cannot be written.
    """
    record = read_tuned(tuned)
    if folder is None:
        top = checkout()
        if top is None:
            raise ConfigError("--write-defaults changes configs/trainers/ of a checkout, but this "
                              "fedvlm is an installed copy; add --into FOLDER, or use fedvlm "
                              "sweep --tuned FILE")
        folder = top / "configs" / "trainers"
    told, texts = list[tuple[Path, str]](), dict[Path, str]()
    for name in dict.fromkeys(str(entry["trainer"]) for entry in record["entries"]):
        path = file_of(folder, name)
        if path is None:
            told.append((folder, f"has no file for {name}; nothing was written for it"))
            continue
        text, what = _defaults(path, name, record)
        told.append((path, what))
        if text is not None:
            texts[path] = text
    for path, text in texts.items():
        files.write_text(path, text)
    return told


def write_files(tuned: Path, folder: Path) -> list[tuple[Path, str]]:
    """Write a file for every entry of a tuning: what it trained, its local work, its values.

    Each begins as its method's own file does. ``fedvlm run --config-file FILE`` takes it.

    Args:
        tuned: ``tuned.json``.
        folder: made where it is not there; files of the same names are replaced.

    Returns:
        Every file and what it holds.

    Raises:
        ConfigError: two entries would share a file; a value that its option refuses.
        DataError: ``tuned.json`` is damaged; a file cannot be written.
    """
    record = read_tuned(tuned)
    texts, told = dict[Path, str](), list[tuple[Path, str]]()
    for entry in record["entries"]:
        label = str(entry["label"])
        path = folder / (re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") + ".yaml")
        if path in texts:
            raise ConfigError(f"two entries of {tuned} would both be {path}; give one of them "
                              "another label")
        trainer, schema = load_schema(str(entry["trainer"]))
        base = lookup(trainer.name, "trainers")
        text = base.read_text(encoding="utf-8") if base else f"TRAINER:\n  NAME: {trainer.name}\n"
        settings = record["plan"]["common"] | entry["settings"]
        fixed = {k: v for k, v in settings.items() if k.startswith(SAY_WHICH) or k in WORK}
        words = fixed | entry["values"]
        text = _with_words(text, words, base, schema, label)
        texts[path] = _with_comment(text, _provenance(entry, record))
        told.append((path, ", ".join(f"{key} {word}" for key, word in words.items())))
    with files.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        files.write_text(path, text)
    return told


def file_of(folder: Path, name: str) -> Path | None:
    """Return a method's YAML file in a folder; None where it has none."""
    return next((p for p in sorted(folder.glob("*.yaml")) if fold(p.stem) == fold(name)), None)


def _defaults(path: Path, name: str, record: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the new text of a file, None for the old one, and what was done."""
    _, schema = load_schema(name)
    config = read_values(path, schema)
    entry = _entry(name, config, schema, record)
    if entry is None:
        labels = [e["label"] for e in record["entries"] if fold(e["trainer"]) == fold(name)]
        return None, f"left alone: {' and '.join(labels)} trained other tensors"
    label, words = str(entry["label"]), entry["values"]
    text = _with_words(path.read_text(encoding="utf-8"), words, path, schema, label)
    text = _with_comment(text, _provenance(entry, record))
    shown = ", ".join(f"{key} {word}" for key, word in words.items()) or "defaults"
    return text, f"{shown} (tuned for {label})"


def _with_words(
    text: str, words: Mapping[str, str], path: Path | None, schema: Schema, label: str
) -> str:
    """Return a file's text with values set; ``path``: the file that it stands in, if any."""
    values = {key: parse_value(schema, key, word, label) for key, word in words.items()}
    config = read_values(path, schema)
    there = {line.key for line in read_yaml(path, nodes(schema))[0]} if path else set()
    for key, value in values.items():
        if value == schema[key].default:
            text = without_key(text, key)
        elif key not in there or config[key] != value:
            text = with_key(text, key, words[key])
    return text


def _entry(
    name: str, config: Mapping[str, Value], schema: Schema, record: Mapping[str, Any]
) -> dict[str, Any] | None:
    def fits(entry: Mapping[str, Any]) -> bool:
        settings = record["plan"]["common"] | entry["settings"]
        return all(key in schema and schema[key].parse(word) == config[key]
                   for key, word in settings.items() if key.startswith(SAY_WHICH))

    same = [e for e in record["entries"] if fold(e["trainer"]) == fold(name) and fits(e)]
    return max(same, key=lambda entry: len(entry["settings"]), default=None)


def _provenance(entry: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    plan = record["plan"]
    sets = ", ".join(str(dataset["label"]) for dataset in plan["datasets"])
    seeds = ", ".join(map(str, plan["seeds"]))
    return (
        f"{len(entry['trials'])} trials as {entry['label']} on {sets}, seeds {seeds}: "
        f"{entry['score']:.1f} +- {entry['error']:.1f} % of {entry['images']} validation images, "
        f"plan {plan['name']} ({record['digest'][:12]})."
    )


# ---- lines of a file, keys by their indentation ----------------------------------------------
@dataclass
class _Place:
    """Where a key stands: its line, its depth in blanks, and the line after what is in it."""

    line: int
    blanks: int
    end: int


def _places(lines: list[str]) -> dict[str, _Place]:
    places, open_ = dict[str, _Place](), list[tuple[int, str]]()
    for at, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None or not line.strip() or line.lstrip().startswith("#"):
            continue
        blanks = len(match[1])
        open_ = [(depth, key) for depth, key in open_ if depth < blanks]
        key = f"{open_[-1][1]}.{match[2]}" if open_ else match[2]
        open_.append((blanks, key))
        places[key] = _Place(at, blanks, at + 1)
        for _, outer in open_:
            places[outer].end = at + 1
    return places


def with_key(text: str, key: str, word: str) -> str:
    """Return YAML with a key's value set: in its line, else at the end of its node."""
    lines = text.splitlines()
    places = _places(lines)
    if key in places:
        at = places[key].line
        match = _LINE.match(lines[at])
        comment = match[4] if match and match[4] else ""
        lines[at] = f"{lines[at][:places[key].blanks]}{key.rpartition('.')[2]}: {word}{comment}"
        return "\n".join(lines) + "\n"
    nodes_, leaf = key.split(".")[:-1], key.rpartition(".")[2]
    depth = next((n for n in range(len(nodes_), 0, -1) if ".".join(nodes_[:n]) in places), 0)
    inner = places.get(".".join(nodes_[:depth]))
    blanks, at = (inner.blanks + 2, inner.end) if inner else (0, len(lines))
    new = [f"{' ' * (blanks + 2 * i)}{node}:" for i, node in enumerate(nodes_[depth:])]
    new.append(f"{' ' * (blanks + 2 * len(new))}{leaf}: {word}")
    return "\n".join([*lines[:at], *new, *lines[at:]]) + "\n"


def without_key(text: str, key: str) -> str:
    """Return YAML without a key's line, nor the heads of nodes that it leaves empty."""
    lines = text.splitlines()
    places = _places(lines)
    while key in places:
        at = places[key].line
        del lines[at]
        places = _places(lines)
        key = key.rpartition(".")[0]
        if any(other.startswith(f"{key}.") for other in places):
            break
    return "\n".join(lines) + "\n"


def _with_comment(text: str, says: str) -> str:
    """Return YAML with a comment behind the first ones, in place of an earlier such comment."""
    lines, rest = list[str](), text.splitlines()
    while rest and rest[0].startswith("#"):
        line = rest.pop(0)
        if line.startswith(SAYS):
            while rest and rest[0].startswith(MORE):
                rest.pop(0)
        else:
            lines.append(line)
    new = textwrap.wrap(says, WIDTH, initial_indent=SAYS, subsequent_indent=MORE)
    return "\n".join([*lines, *new, *rest]) + "\n"
