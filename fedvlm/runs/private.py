"""What of a run stays on its machine: names of host and folders, and where they are kept.

Results, manifest and config of a run may be published: they name no host, no user and no folder of
the machine. An absolute path, or one in a home folder, stands there by its last name, or not at
all where it only says what lies where; a relative one stays: it says nothing of the machine.
``private.json`` beside them has the words as they were given; it is in no pack, nothing vouches for
it, and a run without it is read all the same.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedvlm.core import files

NAME = "private.json"
HOSTS = ("FED.SITES_AT", "FED.WORKERS_AT")  # keys whose values are addresses
PLACES = (  # keys whose values are only where something lies here
    "OUTPUT_DIR", "RESUME", "CACHE_DIR", "DATASET.ROOT", "DATASET.FEWSHOT_FILE", "FED.INDEX_FILE",
    "FED.TOKEN_FILE", "FED.SITE_FILE", "FED.FEDERATION",
)
LISTS = ("clients", "notes")  # of texts, in ``private.json`` where they are not empty
HOST_FLAGS = ("--sites-at", "--workers-at")
HOMES = ("home", "Users")  # folders of home folders
HIDDEN = "..."  # in the place of an address
# A quoted path; and one that ends at a blank or at a sign that no usual path has.
_QUOTED = re.compile(r"""(['"])(?:~[\w.-]*|\$\w+)?/(?!/)([^'"\n]*?)/*\1""")
# Notes that name images (``data.images``, ``data.federated``): how many they are stays.
_IMAGES = re.compile(
    r"(image\(s\) do not decode and are left out): .*|"
    r"( have the same bytes as a training image) \(first: .*?\)(?=, so the numbers)")
_PROCESS = re.compile(r"\bprocess \d+ on [^\s,;()]+")
_PLAIN = re.compile(r"""(?<![\w.~/$-])(?:~[\w.-]*|\$\w+)?/(?!/)([^\s'",;()<>|]*[^\s'",;()<>|.:])""")


def public_text(text: str) -> str:
    """Return a text with absolute paths by their last names, no process of a host, and no image."""
    text = _IMAGES.sub(lambda m: m[1] or m[2], text)
    text = _PROCESS.sub("another process", text)
    text = _QUOTED.sub(lambda m: f"{m[1]}{_last(m[2])}{m[1]}", text)
    return _PLAIN.sub(lambda m: _last(m[1]), text)


def public_value(key: str, value: Any) -> Any:
    """Return a config value as it may be published.

    A path may stand behind a word and a colon (``local-dir:/data/clip``) and before a class
    (``/home/me/net.py:Net``).
    """
    if isinstance(value, list | tuple):
        return type(value)(public_value(key, item) for item in value)
    if not isinstance(value, str):
        return value
    if key in HOSTS:
        return ",".join(HIDDEN for _ in value.split(",")) if value else value
    if key in PLACES:
        return "" if _leaves_here(value) else value
    if "," in value and any(map(_leaves_here, value.split(","))):
        return ",".join(public_value(key, part) for part in value.split(","))
    head, colon, path = value.partition(":")
    if colon and head.isascii() and head.replace("-", "").isalpha() and _leaves_here(path):
        return f"{head}:{_last(path)}"
    return _last(value) if _leaves_here(value) else value


def public_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values, nested ones too, with every text as ``public_text`` has it."""
    return {key: _public(key, value) for key, value in record.items()}


def _public(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return public_facts(value)
    if isinstance(value, list | tuple):
        return [_public(key, item) for item in value]
    return public_text(public_value(key, value)) if isinstance(value, str) else value


def public_command(argv: Sequence[str]) -> str:
    """Return a command line, quoted for a shell, as it may be published."""
    words: list[str] = []
    for at, word in enumerate(argv):
        before = words[-1] if words else ""
        flag, equals, value = word.partition("=")
        if not at and word.endswith("/__main__.py"):  # python -m
            words.append(Path(word).parent.name)
        elif before in (*HOSTS, *HOST_FLAGS):
            words.append(HIDDEN)
        elif equals and flag.startswith("--"):
            hidden = flag in HOST_FLAGS
            words.append(f"{flag}={HIDDEN if hidden else _public_word(value)}")
        else:
            words.append(_public_word(word))
    return shlex.join(words)


def _public_word(word: str) -> str:
    """Return a word of a command line: of a path a file's name, of a folder nothing."""
    folder = _leaves_here(word) and "." not in _last(word).lstrip(".")
    return HIDDEN if folder else str(public_value("", word))


def private_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a flat config that may not be published."""
    return {key: value for key, value in config.items() if public_value(key, value) != value}


def private_session(argv: Sequence[str]) -> dict[str, Any]:
    """Describe this process as only its machine may know it."""
    return {
        "command": shlex.join(argv), "folder": os.getcwd(), "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def take_private(session: dict[str, Any]) -> dict[str, Any]:
    """Take out of a session of an older form what only its machine may know, and return it."""
    machine = session.get("machine")
    host = machine.pop("host", None) if isinstance(machine, dict) else None
    kept = {"command": session.get("command"), "folder": session.pop("folder", None),
            "host": host, "pid": session.pop("pid", None)}
    session["command"] = public_text(str(kept["command"] or ""))
    return kept


def read_private(folder: Path) -> dict[str, Any]:
    """Return what a run folder's ``private.json`` holds: ``sessions``, ``config``, and two lists.

    ``clients`` are the names of the clients by number, where the data say them; ``notes`` are those
    that name images or folders. All are empty where there is no such file, or none that can be
    read: nothing depends on it.
    """
    try:
        record = json.loads((folder / NAME).read_bytes())
        sessions, config = record["sessions"], record["config"]
        told = {key: record.get(key, []) for key in LISTS}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        sessions, config, told = [], {}, {}
    return {key: _texts(told.get(key)) for key in LISTS} | {
        "sessions": [s for s in sessions if isinstance(s, dict)]
        if isinstance(sessions, list) else [],
        "config": dict(config) if isinstance(config, dict) else {},
    }


def _texts(value: Any) -> list[str]:
    """Return a list of texts; an empty one of anything else."""
    return list(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else []


def write_private(
    folder: Path, session: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None, clients: Sequence[str] | None = None,
    notes: Sequence[str] | None = None,
) -> None:
    """Add a session to ``private.json``, or put other values of config keys or other lists there.

    Raises:
        DataError: it cannot be written.
    """
    record = read_private(folder)
    if session is not None:
        record["sessions"].append(dict(session))
    if config is not None:
        record["config"] = dict(config)
    for key, value in zip(LISTS, (clients, notes), strict=True):
        if value is not None:
            record[key] = list(value)
        if not record[key]:
            del record[key]
    files.write_json(folder / NAME, files.json_ready(record))


def client_label(number: int, names: Sequence[str]) -> str:
    """Return ``client 3``, or ``client 3 (Utrecht)`` where its name is known; for this machine."""
    name = names[number] if number < len(names) else ""
    return f"client {number} ({name})" if name else f"client {number}"


def _leaves_here(path: str) -> bool:
    """Say whether a text is an absolute path, or one that begins at a home folder or variable."""
    return path.startswith(("/", "~", "$")) and not path.startswith("//") and "/" in path


def _last(path: str) -> str:
    """Return the last name of a path; of the root ``/``, of a home folder ``~``."""
    folders, _, name = path.rstrip("/").rpartition("/")
    if folders.strip("/") in HOMES or (name and name in _names()):
        return "~"
    return name or "/"


@cache
def _names() -> frozenset[str]:
    """Return the names of this host and of its user."""
    return frozenset({socket.gethostname(), Path(os.path.expanduser("~")).name})
