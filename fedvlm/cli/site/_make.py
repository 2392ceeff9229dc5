"""``fedvlm site make``: site files of a party's folders, of a server, or of a run's partition."""

from __future__ import annotations

import os
import shlex
import shutil
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, progress, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.job.flags import pairs

if TYPE_CHECKING:
    from fedvlm.data.federated import FederatedData
    from fedvlm.data.own.site import SiteFile

FILE, YAML = "site.json", "site.yaml"
_FOLDERS = ("client", "classes", "template", "public", "title", "to")
_READING = ("DATASET.GROUPS", "DATASET.COLUMNS")  # flags of a run that say how tables are read
_NAMED = 3  # images that a sentence names
_TRIAL = ("split", "to")
OWN = (*_FOLDERS, "split")


def flags(parser: Parser) -> None:
    """Add what making takes."""
    add = parser.add_argument
    add("--to", default="", metavar="FOLDER", help="make: folder for site.json and site.yaml. "
        "export: a new folder for the model")
    add("--client", nargs="+", action="append", default=[], metavar=("ID", "FOLDER"),
        help="make: a client's number in the federation and the folder of its images; may be "
             "repeated. export, forget: a client's number alone")
    add("--classes", default="", metavar="FILE", help="make: file with all class names of the "
        "federation, one per line, the same at all parties")
    add("--template", action="append", default=[], metavar="TEXT", help="make: prompt with {}, the "
        "same at all parties; may be repeated ('a photo of a {}.')")
    add("--public", default="", metavar="FOLDER", help="make: folder of public test images "
        "of all classes")
    add("--title", default="", metavar="NAME", help="make: name of the data set (default: the "
                                                    "folder's name)")
    add("--split", default="", metavar="0-1,2-3", help="make: divide the clients of a run (add "
        "its flags) into sites and a server, for a trial")


def make_mistakes(args: Namespace) -> list[str]:
    """Return what is missing, or does not go together."""
    out = [] if args.to else ["make needs --to FOLDER, the folder for site.json and site.yaml"]
    if args.split:
        stray = [args.spelling[d] for d in args.spelling if d in _FOLDERS and d not in _TRIAL]
        return out + [f"--split: {name} does not go with it" for name in stray] + pairs(args)
    stray = [args.spelling[d] for d in args.spelling if d not in (*_FOLDERS, *_READING)]
    stray += args.opts[:1]
    out += [f"make uses '{word}' only with --split" for word in stray]
    if not args.classes:
        out.append("make needs --classes FILE with all class names of the federation, or --split")
    for words in args.client:
        if len(words) != 2 or not words[0].isdecimal():
            out.append(f"--client {' '.join(words)}: expected a number and a folder, such as "
                       "--client 0 photos/")
    ids = [int(w[0]) for w in args.client if w[0].isdecimal()]
    out += [f"--client {c} is given twice" for c in sorted({c for c in ids if ids.count(c) > 1})]
    return out + [f"--template '{t}' has no {{}} for the class name" for t in args.template
                  if "{}" not in t]


def make_site(args: Namespace) -> int:
    """Write the files; return the exit code.

    Raises:
        ConfigError: another file is in the place.
        DataError: folders that are no data set, or classes that the federation does not have.
    """
    return _trial(args) if args.split else _party(args)


def _party(args: Namespace) -> int:
    from fedvlm.data.own.party import read_classes, site_of  # start-up: NumPy, 0.15 s

    folders = {int(number): user_path(folder) for number, folder in args.client}
    names = read_classes(user_path(args.classes))
    public = user_path(args.public) if args.public else None
    file, top, said = site_of(
        folders, names, name=args.title, templates=args.template, public=public,
        given={key: args.flags[key] for key in _READING if key in args.flags},
    )
    place = user_path(args.to)
    say(*said, *_write(place, file, str(top) if file.paths() else "."))
    lost = [p for p in file.paths() if not (top / p).is_file() or not os.access(top / p, os.R_OK)]
    if lost:
        named = ", ".join(f"'{path}'" for path in lost[:_NAMED]) + ", ..." * (len(lost) > _NAMED)
        complain(f"{len(lost)} of {len(file.paths())} images are missing or cannot be read below "
                 f"'{top}' ({named}), and the site does not serve without them: put them there; or "
                 f"take their lines out of the list, remove '{place / FILE}' and run the same "
                 "command again", prefix="problem")
    if file.clients:
        say(f"edit {place / YAML}, then run: fedvlm site check "
            f"{shlex.quote(str(place / YAML))}")
    return 0


def _write(place: Path, file: SiteFile, images: str) -> list[str]:
    """Write site.json and, where there is none yet, site.yaml; return what is to be said."""
    from fedvlm.data.own.site import GROUPS, read_site  # start-up: NumPy, as _party
    from fedvlm.distributed.site_yaml import site_yaml_text  # start-up: PyTorch, 2 s

    target, rules = place / FILE, place / YAML
    if target.exists() and read_site(target) != file:
        raise ConfigError(f"'{target}' already exists with other content and is not "
                          f"overwritten: choose another --to, or remove {FILE} first ({YAML} and "
                          "the states stay; runs that are under way keep to the old lists: let "
                          "them finish before)")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make '{place}': {error.strerror}; choose another "
                          "--to") from error
    there, named = target.exists(), bool(file.groups) and not _has_groups(target, file)
    if not there or named:
        file.write(target)
    lines = [f"{'there already' if there else 'wrote'} {target}: {_about(file)}"]
    if named:
        lines.append(f"wrote {target.with_suffix(GROUPS)}: who is on which image, for fedvlm site "
                     "forget --group; it stays here")
    if file.clients and not rules.exists():
        files.write_text(rules, site_yaml_text(FILE, images))
        lines.append(f"wrote {rules}")
    return lines


def _has_groups(target: Path, file: SiteFile) -> bool:
    """Say whether the file beside a site's lists has their groups."""
    from fedvlm.data.own.site import read_groups  # start-up: NumPy, as _party

    try:
        return target.exists() and read_groups(target) == file.held_groups()
    except DataError:  # damaged: it is written anew
        return False


def _about(file: SiteFile) -> str:
    counts = [sum(len(lists[p]) for lists in file.clients.values()) for p in ("train", "val",
                                                                             "test")]
    whose = f"{len(file.clients)} client(s) ({', '.join(map(str, file.clients))}), " if (
        file.clients) else "a server without clients, "
    sizes = f"{'/'.join(map(str, counts))} images in train/val/test, " if file.clients else ""
    return (f"{whose}{sizes}{len(file.classnames)} classes, {len(file.public)} public test images"
            + (f", {len(file.server)} of the server's own" if file.server else ""))


def _trial(args: Namespace) -> int:
    from fedvlm.job.resolve import resolve  # start-up: NumPy, 0.15 s

    progress("loading PyTorch")
    plan = resolve(args)
    complain(*plan.notes, prefix="note")
    from fedvlm.data.federated import build_federation  # start-up: NumPy, as resolve
    from fedvlm.data.own.site import cut_site  # start-up: NumPy, as resolve
    from fedvlm.federation.plan import parse_sites  # start-up: PyTorch

    cfg = plan.jobs[0].cfg
    homes = parse_sites(args.split, int(cfg.FED.CLIENTS))
    data, top = build_federation(cfg, progress), user_path(args.to)
    progress.clear()
    for site in sorted(set(homes)):
        clients = [c for c, home in enumerate(homes) if home == site]
        say(*_apart(top / f"site{site}", data, cut_site(data, clients)))
    say(*_apart(top / "server", data, cut_site(data, (), public=True)))
    say("from now on the coordinator and all sites use the flags of that run and "
        f"FED.SITES {args.split}")
    return 0


def _apart(place: Path, data: FederatedData, file: SiteFile) -> list[str]:
    """Give a place its own copies of its images, and its files."""
    sources = {d.key: d for d in data.samples}
    for path in file.paths():
        datum, target = sources[path], place / "images" / path
        if datum.array is not None or datum.packed is not None:
            raise DataError(f"{data.name}: '{path}' is inside a file, but a site needs one file "
                            "per image")
        if not target.exists():
            _put(datum.impath, target)
    return _write(place, file, "images")


def _put(source: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)  # no link: whoever tries things out may spoil an image
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror}") from error
