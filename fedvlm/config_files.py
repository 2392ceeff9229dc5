"""Where config files are: names match ignoring case, dash and underscore."""

from __future__ import annotations

from pathlib import Path

from fedvlm.config_yaml import SUFFIXES, check_suffix
from fedvlm.errors import ConfigError, did_you_mean, fold


def package_root() -> Path:
    """Return the folder that holds the package ``fedvlm`` (the repository in a checkout)."""
    return Path(__file__).resolve().parents[1]


def roots() -> list[Path]:
    """Return the folders in which ``configs/`` is looked for: here, the project's, the wheel's."""
    here, home = Path(), package_root()
    shipped = home / "fedvlm" / "_repo"
    return [here] if here.resolve() == home else [here, home, shipped]


def config_names(kind: str) -> list[str]:
    """Return the stems of all configs of ``kind``, ``datasets`` or ``trainers``."""
    folders = [root / "configs" / kind for root in roots()]
    return sorted({p.stem for folder in folders for p in _yamls(folder)})


def find_config(given: str, kind: str) -> Path:
    """Return the YAML file that ``given`` means: a path, or a bare name in ``configs/<kind>``.

    Raises:
        ConfigError: not a YAML name, or no such file; the nearest name and the list are shown.
    """
    found = lookup(given, kind)
    if found is not None:
        return found
    names = config_names(kind)
    near = did_you_mean(Path(given).stem, names)
    known = ", ".join(names) if names else f"no configs/{kind} folder found"
    raise ConfigError(f"no config '{given}'{near} (known {kind}: {known})")


def lookup(given: str, kind: str) -> Path | None:
    """Return the file that ``given`` means, or None where there is none.

    Raises:
        ConfigError: ``given`` has a suffix that is not YAML's.
    """
    if not given.strip() or "\0" in given:
        return None
    path = Path(given).expanduser()
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
