"""``site.yaml``: where a site's file, images and states are, and what its owner allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlm.config.read import Assignment, read_yaml
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.distributed.terms import LOCAL, Terms

_ALLOW = "allow"
_PATHS = {"site": "site.json", "images": ".", "states": "states"}  # key -> where nobody says
_Check = tuple[Callable[[Any], bool], str]


def _is_whole(least: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and v >= least


def _texts(v: Any) -> bool:
    return isinstance(v, list) and bool(v) and all(isinstance(x, str) and x for x in v)


_RULES: Mapping[str, _Check] = {
    "trainers": (lambda v: _texts(v) and all(map(LOCAL.fullmatch, v)),
                 "a list of method names, such as [FedAvg, FedTV]; files are not allowed"),
    "backbones": (_texts, "a list of backbones, such as [ViT-B/16]"),
    "weights": (_texts, "a list of files of weights, as coordinators name them"),
    "rounds": (_is_whole(0), "a whole number, 0 for no limit"),
    "steps": (_is_whole(0), "a whole number, 0 for no limit"),
    "bytes": (_is_whole(0), "a whole number, 0 for no limit"),
    "seconds": (lambda v: type(v) in (int, float) and v >= 0, "a number, 0 for no limit"),
    "count": (_is_whole(1), "a whole number from 1"),
    "logits": (lambda v: isinstance(v, bool), "true or false"),
    "baselines": (lambda v: isinstance(v, bool), "true or false"),
    "sums": (lambda v: isinstance(v, bool), "true or false"),
}
_NEEDED = ("trainers", "backbones")


@dataclass(frozen=True)
class SiteYaml:
    """A site as its owner set it up.

    Attributes:
        file: the site file.
        images: the folder that its paths are below.
        states: folder of clients' states.
        terms: what may run here, and what may be told.
    """

    file: Path
    images: Path
    states: Path
    terms: Terms


def read_site_yaml(path: Path) -> SiteYaml:
    """Return what a ``site.yaml`` says; relative paths are below its own folder.

    Raises:
        ConfigError: unreadable, an unknown key, a value that is none, or no ``allow.trainers`` or
            ``allow.backbones``; all mistakes, one a line.
    """
    if path.is_dir() or path.suffix == ".json":
        raise ConfigError(_no_rules(path))
    if not path.is_file():
        raise ConfigError(f"'{path}' does not exist; create it with fedvlm site make")
    entries, mistakes = read_yaml(path, {_ALLOW})
    known = [*_PATHS, *(f"{_ALLOW}.{rule}" for rule in _RULES)]
    values: dict[str, Any] = {}
    for entry in entries:
        fault = _fault(entry, known)
        mistakes += [f"{entry.where}: {fault}"] if fault else []
        values[entry.key] = entry.value
    mistakes += [
        f"{path}: {_ALLOW}.{rule} is missing: {_RULES[rule][1]}" for rule in _NEEDED
        if f"{_ALLOW}.{rule}" not in values
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    places = {
        key: path.parent / user_path(str(values.get(key, usual)))
        for key, usual in _PATHS.items()
    }
    rules = {rule: values[f"{_ALLOW}.{rule}"] for rule in _RULES if f"{_ALLOW}.{rule}" in values}
    rules |= {rule: tuple(rules.get(rule, ())) for rule in (*_NEEDED, "weights")}
    return SiteYaml(places["site"], places["images"], places["states"], Terms(**rules))


def _no_rules(path: Path) -> str:
    """Return what to give in the place of a folder, or of a list of images."""
    what = "a folder" if path.is_dir() else "a list of images"
    folder = path if path.is_dir() else path.parent
    rules = folder / "site.yaml"
    if rules.is_file():
        return f"'{path}' is {what}; the owner's rules are in {rules}"
    return (
        f"'{path}' is {what}, and '{folder}' has no site.yaml, an owner's rules: a coordinator has "
        "none and keeps nothing for runs (fedvlm site check FOLDER/site.json looks at its list)"
    )


def _fault(entry: Assignment, known: list[str]) -> str:
    """Return what is wrong with an entry; empty: nothing."""
    if entry.key not in known:
        return (f"'{entry.key}' is not a key of site.yaml{did_you_mean(entry.key, known)} (known: "
                f"{', '.join(known)})")
    rule = entry.key.removeprefix(f"{_ALLOW}.")
    if rule not in _RULES:
        fine = isinstance(entry.value, str) and bool(entry.value)
        return "" if fine else f"{entry.key} is a path"
    check, wanted = _RULES[rule]
    return "" if check(entry.value) else f"{entry.key} is {wanted}"


def site_yaml_text(file: str, images: str) -> str:
    """Return a ``site.yaml`` for an owner to go through: everything that is not listed is refused.

    Args:
        file, images: paths, as of ``SiteYaml``.
    """
    return f"""\
# What may run on these data, and what may be reported about them. Checked before any work.
site: {file!r}
images: {images!r}
states: states   # what clients keep between rounds; back it up
allow:
  trainers: [FedAvg]    # methods by name: no code comes over the wire
  backbones: [ViT-B/16]
  rounds: 0             # the last round that is worked; 0: no limit, as below
  steps: 0              # local steps of a client in a round of plain training
  bytes: 0              # of one message, either way
  seconds: 0            # of work for all runs of one config
  count: 5              # fewer images than these are told of no class and of no test set
  logits: false         # whether outputs for single images may leave
  baselines: false      # whether numbers of each client alone, and sums of features, may leave
  sums: false           # whether updates leave in secure sums over sites only (FED.SECURE_SUM)
"""
