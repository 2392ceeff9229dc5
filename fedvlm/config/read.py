"""YAML files to plain entries: key, value, line. Nothing in a file is ever executed.

yacs runs a ``.py`` config as code, so the suffix is checked before a file is opened, and PyYAML's
safe loader reads it. All mistakes of a file are collected, each with its line.

Where config files are: names match ignoring case, dash and underscore.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedvlm.config.option import Value
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.core.repository import repository

SUFFIXES = (".yaml", ".yml")
_MAX_BYTES = 1_000_000  # a config is a few kB; more is a mistake or an attack
_SAFE = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Assignment:
    """One assignment: ``key`` may be unknown yet; ``where`` is shown in messages and origins."""

    key: str
    value: Value
    where: str


def check_suffix(path: Path) -> None:
    """Raise ``ConfigError`` unless ``path`` is named like a YAML file (before anybody opens it)."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"{path}: a config must be a .yaml or .yml file; "
            f"'{path.suffix or path.name}' is refused unread"
        )


def read_yaml(path: Path, inner: Container[str]) -> tuple[list[Assignment], list[str]]:
    """Return the entries of a YAML file and its mistakes, one message each.

    Args:
        path: the file.
        inner: dotted names of the config's inner nodes; only these are descended into, so
            a file cannot nest without end (``{"FED": ...}`` under an unknown name is one entry).

    Raises:
        ConfigError: the file cannot be read as a YAML mapping at all.
    """
    check_suffix(path)
    loader = yaml.SafeLoader(_text(path))
    try:
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(f"{path}: the file is empty; a config needs at least one KEY: value")
        _refuse_tag(root, path)
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise ConfigError(f"{path}: holds {kind} at the top, not KEY: value pairs")
        walk = _Walk(loader, path, inner)
        walk.mapping(root, "")
        return walk.entries, walk.mistakes
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(path, error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply for a config") from None
    finally:
        loader.dispose()


def _text(path: Path) -> str:
    """Return the file's text; a UTF-8 byte order mark is dropped, tabs are named."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes are too many for a config")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise ConfigError(f"{path}:{number}: is indented with a tab; YAML needs spaces")
    try:
        yaml.reader.Reader(text)  # refuses control characters
    except yaml.YAMLError:
        raise ConfigError(f"{path}: holds control characters; it is not a text file") from None
    return text


def _sentence(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f"{path}{line}: is not valid YAML ({' '.join(str(problem).split())})"


def _refuse_tag(node: yaml.Node, path: Path) -> None:
    tag = str(node.tag)
    if not tag.startswith(_SAFE) or tag.startswith(f"{_SAFE}python"):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}:{line}: YAML tag '{tag}' is refused; give a plain value")


class _Walk:
    """Collects entries and mistakes of one file."""

    def __init__(self, loader: yaml.SafeLoader, path: Path, inner: Container[str]) -> None:
        self.loader, self.path, self.inner = loader, path, inner
        self.entries: list[Assignment] = []
        self.mistakes: list[str] = []

    def mapping(self, node: yaml.MappingNode, prefix: str) -> None:
        """Add all pairs below ``prefix``."""
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            where = f"{self.path}:{line}"
            if not isinstance(key_node, yaml.ScalarNode):
                self.mistakes.append(f"{where}: a key must be a word such as ROUNDS")
                continue
            if key_node.value == "<<":
                self.mistakes.append(f"{where}: YAML's '<<' is not supported; write it out")
                continue
            key = prefix + str(key_node.value)
            if key in seen:
                self.mistakes.append(f"{where}: '{key}' is set twice (first on line {seen[key]})")
                continue
            seen[key] = line
            self._pair(key, value_node, where)

    def _pair(self, key: str, node: yaml.Node, where: str) -> None:
        try:
            _refuse_tag(node, self.path)
            if isinstance(node, yaml.MappingNode):
                if key in self.inner:
                    self.mapping(node, f"{key}.")
                else:
                    self.entries.append(Assignment(key, {}, where))
            elif key in self.inner:
                # `TRAINER:` with nothing below it is an empty section, not a mistake
                if self.loader.construct_object(node, deep=True) is not None:
                    self.mistakes.append(f"{where}: '{key}' is a section, not a value")
            else:
                value = self.loader.construct_object(node, deep=True)
                self.entries.append(Assignment(key, value, where))
        except ConfigError as error:
            self.mistakes.append(str(error))
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            why = " ".join(str(error).split())
            self.mistakes.append(f"{where}: '{key}' cannot be read ({why})")


def roots() -> list[Path]:
    """Return the folders in which ``configs/`` is looked for: here, then fedvlm's own."""
    here, home = Path(), repository()
    return [here] if here.resolve() == home else [here, home]


def config_names(kind: str) -> list[str]:
    """Return the stems of all configs of ``kind``, ``datasets`` or ``trainers``."""
    folders = [root / "configs" / kind for root in roots()]
    return sorted({p.stem for folder in folders for p in _yamls(folder)})


def find_config(name: str, kind: str) -> Path:
    """Return the YAML file that ``name`` means: a path, or a bare name in ``configs/<kind>``.

    Raises:
        ConfigError: not a YAML name, or no such file; the nearest name and the list are shown.
    """
    path = lookup(name, kind)
    if path is not None:
        return path
    names = config_names(kind)
    near = did_you_mean(Path(name).stem, names)
    listing = ", ".join(names) if names else f"no configs/{kind} folder found"
    raise ConfigError(f"no config '{name}'{near} (known {kind}: {listing})")


def lookup(name: str, kind: str) -> Path | None:
    """Return the file that ``name`` means; None without one (``ConfigError``: another suffix)."""
    if not name.strip() or "\0" in name:
        return None
    path = user_path(name)
    if path.suffix:
        check_suffix(path)
        if path.is_file():
            return path
    bare = path.parent == Path()
    places = [root / path.parent for root in roots()] if path.suffix or not bare else []
    if bare:
        places += [root / "configs" / kind for root in roots()]
    wanted = fold(path.stem if path.suffix else path.name)
    return next((p for place in places for p in _yamls(place) if fold(p.stem) == wanted), None)


def _yamls(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
    except OSError:
        return []
