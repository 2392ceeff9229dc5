"""From a folder to a data set: its shape inferred, read once; its config keys and its YAML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Value
from fedvlm.core.errors import DataError, fold, nearest, one_form, plural
from fedvlm.core.spelling import quote_name
from fedvlm.data.datasets import (
    DEFAULT_TEMPLATE,
    load_dataset,
    load_for_training,
    name_untested,
    refuse_one_class,
    rename_classes,
    untested_words,
)
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.formats.class_names import WORDS, folder_words, runs_together
from fedvlm.data.locate import first_names
from fedvlm.data.own.place import AskedColumns, Keys
from fedvlm.data.own.shape import look

FORMAT_KEY, LEAVE_OUT_KEY, NAME_KEY = "DATASET.FORMAT", "DATASET.LEAVE_OUT", "DATASET.NAME"
CLASSNAMES_KEY = "DATASET.CLASSNAMES"
CLIENTS_BY, GROUPS, COLUMNS = "DATASET.CLIENTS_BY", "DATASET.GROUPS", "DATASET.COLUMNS"
LABELS, CAPTIONS, TOPICS = "DATASET.LABELS", "DATASET.CAPTIONS", "DATASET.TOPICS"
TREES = ("folders", "domains")  # formats whose class names are folders' names
_TABLES = ("csv", "jsonl", "json", "parquet")
_OF_READING = (
    NAME_KEY, FORMAT_KEY, LEAVE_OUT_KEY, "DATASET.IMAGE_DIR", "DATASET.SPLIT_FILE",
    "DATASET.NAMES_FILE", "DATASET.TEST_SHARE", "DATASET.TEMPLATE", CLASSNAMES_KEY, CLIENTS_BY,
    GROUPS, COLUMNS, LABELS, CAPTIONS, TOPICS, "DATASET.UNLABELLED",
)  # fmt: skip
_ANSWERS = {"yes", "no", "y", "n", "true", "false", "ja", "nein", "oui", "non"}
_FEW, _NEARLY = 2, 0.85  # images of a class that may be a slip, and how like another's name it is
_SLIPS = 20  # more classes with so few images are no slips
_NAMED = 8  # clients that the first lines of a run name
PARTITION = "FED.PARTITION"
USUAL_CLIENTS, FEWEST_IMAGES = 10, 10  # simulated clients, and the mean of their training images
BY_CLASSES = ("disjoint", "n_classes")  # partitions that need two classes for each client


@dataclass(frozen=True)
class OwnSet:
    """A folder whose shape was inferred, and its lists.

    Attributes:
        what: its shape, in a few words.
        keys: the config keys that read it, and how clients share it by default.
        data: its lists, checked.
        decided: what was decided, one line each.
        notes: that, and what the reader says, which a run says itself.
        sharing: those of them on how clients share the images.
    """

    what: str
    keys: Keys
    data: DatasetBase
    decided: tuple[str, ...]
    notes: tuple[str, ...]
    sharing: tuple[str, ...] = ()

    origin: ClassVar[str] = "the folder of images"

    @property
    def reading(self) -> tuple[str, ...]:
        """The notes on how the folder was read, for whoever deals its images to nobody."""
        return tuple(note for note in self.notes if note not in self.sharing)

    @property
    def shown(self) -> list[str]:
        """The notes with names of clients, for a screen."""
        return name_untested(self.notes, _untested(self.data), self.data.client_names)

    @property
    def of_texts(self) -> bool:
        """Whether samples are texts."""
        return self.keys.get(FORMAT_KEY) == "texts"

    @property
    def sentence(self) -> str:
        """How the folder was read, in one line."""
        data = self.data
        sizes = "/".join(f"{len(data.parts[part]):,}" for part in PARTS)
        domains = f"{len(data.domain_names)} domains ({first_names(data.domain_names)}), "
        return (f"{self.keys[NAME_KEY]}: {self.what}: {domains if data.domain_names else ''}"
                f"{_classes(data)}, {sizes} {'texts' if self.of_texts else 'images'} in "
                f"{'/'.join(PARTS)}")


@contextmanager
def without_flags(what: str, *lacking: str) -> Iterator[None]:
    """Propose no flag of a run that the caller lacks where a table has no class for each image.

    Args:
        what: needs the class; in messages.
        lacking: flags without dashes: ``labels``, ``captions``.

    Raises:
        DataError: what is raised inside, in other words where it proposes one of these flags.
    """
    try:
        yield
    except DataError as error:
        head, _, flag = str(error).partition(": --")
        if not flag.startswith(lacking):
            raise
        raise DataError(f"{head}: {what} needs one class for each image: --columns "
                        "classname=COLUMN names its column") from error


def _classes(data: DatasetBase) -> str:
    if data.label_names:
        return f"sets of {len(data.label_names)} labels ({first_names(data.label_names)})"
    if data.captioned:
        return (f"{sum(len(d.captions) for d in data.all()):,} captions, {data.num_classes} "
                f"topics ({first_names(data.classnames)})")
    return f"{data.num_classes} classes ({first_names(data.classnames)})"


def understand(
    path: Path, given: Mapping[str, Value] | None = None, whole: bool = True
) -> OwnSet:
    """Look at a folder and read its lists; no image is opened.

    Args:
        given: config keys that the user sets; they override what was inferred.
        whole: as ``CopyInfo``; what is not is shared by no clients.

    Raises:
        DataError: it cannot be read as a data set; says how to mend it.
        ConfigError: ``given`` is wrong.
    """
    given = dict(given or {})
    asked = AskedColumns(
        *(str(given.get(k, "")) for k in (COLUMNS, LABELS, CAPTIONS, CLIENTS_BY, GROUPS)))
    shape = look(path, _words(given.get(LEAVE_OUT_KEY, ())), FORMAT_KEY not in given, asked)
    bare = shape.known or shape.keys.get(FORMAT_KEY) == "texts"
    keys: Keys = {} if bare else {"DATASET.TEMPLATE": DEFAULT_TEMPLATE}
    keys |= shape.keys | {key: given[key] for key in _OF_READING if key in given}
    cfg, _ = build_config(None, None, keys | given, [], default_schema())
    data = load_for_training(cfg) if whole else load_dataset(cfg, whole=False)
    if whole:
        refuse_one_class(data)
    slips = [] if shape.known else _slips(data)
    if not shape.known and CLASSNAMES_KEY not in given:
        names = [] if data.captioned else data.label_names or data.classnames
        joined = runs_together(names) or [n for n in data.label_names if folder_words(n) != n]
        odd = joined if cfg.DATASET.FORMAT in (*TREES, *_TABLES) else []
        if odd:
            keys[CLASSNAMES_KEY] = WORDS
            data = rename_classes(data, WORDS)
            shape = replace(shape, notes=(
                *shape.notes, "class names in words for the prompts: "
                f"{odd[0]} is read as '{folder_words(odd[0])}' "
                f"({len(odd)} of {len(names)} names; --classnames a,b,c sets others)"))
    share: Keys = {}
    notes: list[str] = []
    if not whole:
        pass  # no clients share it
    elif data.client_names:
        number = len(data.client_names)
        share = {PARTITION: "natural", "FED.CLIENTS": number}
        notes = [f"one client for each value of {given.get(CLIENTS_BY, '')}: {number} clients"]
    elif not data.domain_names and (
            data.label_names or (data.captioned and data.num_classes < 2)):
        share = {PARTITION: "iid", "FED.CLIENTS": 2}
        notes = [f"{'sets of labels' if data.label_names else 'one topic'}: FED.PARTITION iid, "
                 "FED.CLIENTS 2, if nothing else is asked for"]
    elif data.domain_names or not shape.known:
        share, notes = default_sharing(
            len(data.domain_names), data.num_classes, len(data.train_x), given)
    sharing = tuple(notes)
    classes = [] if data.captioned else data.label_names or data.classnames
    notes = [*notes, *_names(classes, data.client_names), *slips]
    words = untested_words(_untested(data))
    said = [note.removeprefix(f"{data.name}: ") for note in
            (*shape.notes, *data.notes, *notes, *([words] if words else ()))]
    names = [f"clients: {first_names(data.client_names, _NAMED)}"] if data.client_names else []
    decided = (*shape.notes, *notes, *names)  # names of clients go to the screen, to no file
    return OwnSet(shape.what, keys | share, data, decided, _once(said, shape.what), sharing)


def _untested(data: DatasetBase) -> list[int]:
    """Return the numbers of the clients without a test image, where others have some."""
    tested = {d.client for d in data.test}
    return [k for k, name in enumerate(data.client_names) if tested and name not in tested]


def _names(classes: Sequence[str], clients: Sequence[str]) -> list[str]:
    """Return notes on names that hardly were meant; a client's own is not quoted."""
    out = []
    if classes and {fold(name) for name in classes} <= _ANSWERS:
        words = ",".join(f"{name}=NAME" for name in classes)
        out.append(f"prompts read the class names, and {', '.join(classes)} name nothing: "
                   f"--classnames {words} sets others")
    for what, names in (("classes", classes), ("clients", clients)):
        first: dict[str, str] = {}
        pairs = [(first[fold(n)], n) for n in names if first.setdefault(fold(n), n) != n]
        if pairs:
            shown = f" ('{pairs[0][0]}', '{pairs[0][1]}')" if what == "classes" else ""
            out.append(f"{len(pairs)} of {len(names)} {what} differ from another only in capitals, "
                       f"blanks or dashes{shown}: if they are the same, write them alike")
    return out


def _slips(data: DatasetBase) -> list[str]:
    """Return a note on each class of one image or two whose name is nearly another's."""
    if data.captioned:
        return []
    images = Counter(data.label_names[label] for d in data.all() for label in d.labels or ()) \
        if data.label_names else Counter(d.classname for d in data.all())
    rare = sorted(name for name, n in images.items() if n <= _FEW)
    usual = [name for name, n in images.items() if n > _FEW]
    near = [(name, nearest(name, usual, _NEARLY)) for name in rare if len(rare) <= _SLIPS]
    return [f"{quote_name(name)} has {plural(images[name], 'image')}; is it {quote_name(other)} "
            f"({images[other]:,})?" for name, other in near if other and _is_slip(name, other)]


def _is_slip(name: str, other: str) -> bool:
    """Return whether two names differ in letters of a long word: not as ``type A``, ``type B`` do.

    What stands before a name negates it: ``atypical``.
    """
    one, two = fold(name), fold(other)
    words, others = ({*re.split(r"[\W_]+", text.lower())} for text in (name, other))
    return not (one.endswith(two) or two.endswith(one)) and all(
        len(word) > 3 and word.isalpha() for word in words ^ others)


def _once(notes: Sequence[str], what: str) -> tuple[str, ...]:
    """Return notes without those that the first line or another note says in other words."""
    own_cut = any(note.endswith("not a published split") for note in notes)
    return tuple(dict.fromkeys(
        note for note in notes
        if not (note.startswith("layout '") and note in what)
        and not (own_cut and note.startswith("not the published split ("))
    ))


def _words(value: Value) -> Sequence[str]:
    if isinstance(value, str):
        words = (word.strip(" '\"") for word in value.strip("()[]").split(","))
        return [one_form(word) for word in words if word]
    return [one_form(str(word)) for word in value]


def default_sharing(
    domains: int, classes: int, images: int, given: Mapping[str, Value]
) -> tuple[Keys, list[str]]:
    """Return how clients share a set by default that does not say whose images are whose.

    They hold unlike shares of all classes, as parties do who see the same things: with classes of
    their own, each would have a problem that needs no others.

    Args:
        domains, classes, images: how many there are, of images for training; 0 domains for a set
            that has none.
        given: config keys that the user sets.

    Returns:
        Config keys, and notes on them.
    """
    asked, word = fold(str(given.get(PARTITION, ""))), str(given.get("FED.CLIENTS", ""))
    clients = int(word) if word.isdecimal() else 0
    if domains:
        return ({PARTITION: "domain", "FED.CLIENTS": domains},
                [] if asked not in ("", "domain") or clients not in (0, domains) else
                [f"one client per domain: FED.PARTITION domain, FED.CLIENTS {domains}"])
    if asked in BY_CLASSES:
        number = max(2, min(USUAL_CLIENTS, classes // 2))
        return ({"FED.CLIENTS": number},
                [f"{classes} classes are few: FED.CLIENTS {number}, with two classes or three "
                 "each"] if classes < 2 * USUAL_CLIENTS else [])
    number = clients or max(2, min(USUAL_CLIENTS, images // FEWEST_IMAGES))
    if asked:
        return {"FED.CLIENTS": number}, []
    return ({PARTITION: "dirichlet", "FED.BETA": 1.0, "FED.CLIENTS": number},
            [f"nothing says which client holds what: {number} clients are simulated, each with "
             f"about {images // number} to train on and unlike shares of each class (Dirichlet 1): "
             "what is found is about such clients; --clients-by names real ones, --num-users and "
             "--partition simulate others"])


def yaml_text(own: OwnSet) -> str:
    """Return the set's YAML: how it was read as comments, then the keys."""
    lines = [f"# {line}" for line in (own.sentence, *own.notes)]
    lines.append("# Written by fedvlm data add; change what you like. --root moves ROOT.")
    for node in ("DATASET", "FED"):
        rows = {k.partition(".")[2]: v for k, v in own.keys.items() if k.startswith(f"{node}.")}
        if rows:
            lines.append(f"{node}:")
            lines += [f"  {key}: {_yaml(key, value)}" for key, value in rows.items()]
    return "\n".join(lines) + "\n"


def _yaml(key: str, value: Value) -> str:
    if f"DATASET.{key}" == LEAVE_OUT_KEY:
        return json.dumps(list(_words(value)), ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)  # JSON is YAML
