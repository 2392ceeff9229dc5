"""What the columns of a table mean: image, class, part, domain, client, group.

Words that say one thing only are read as they are (``file_name``, ``class``). Words that may say it
(``image_id``, ``dx``) count where no better column is there. Columns that usually say whose image
it is, or which images belong together, are proposed and never used unasked. Any other is skipped.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold, one_form
from fedvlm.core.spelling import quote_name
from fedvlm.data.formats.parts import PART_NAMES
from fedvlm.data.locate import first_names

TABLE_COLUMNS = ("path", "label", "classname", "split", "domain")
SYNONYMS = {
    "file_name": "path", "filename": "path", "file": "path", "filepath": "path",
    "file_path": "path", "image_path": "path", "image": "path", "img": "path", "img_path": "path",
    "class": "classname", "class_name": "classname", "category": "classname",
    "label_name": "classname", "part": "split", "subset": "split", "site": "domain",
}  # fmt: skip
# In this order, where no column of the words above is there.
_PERHAPS = {
    "path": ("img_filename", "image_name", "image_id", "img_id", "isic_id", "dicom_id", "photo_id",
             "dateiname", "bilddatei", "nom_fichier", "fichier", "image_index",
             "file_name", "file_path", "image_path", "image_file"),
    "classname": (
        "dx", "diagnosis", "diagnostic", "species", "scientific_name", "common_name", "disease",
        "finding", "tumor", "tumour", "malignant", "celebrity", "landmark_id", "target", "y",
        "diagnose",
    ),
    "split": ("partition", "phase", "stage", "set"),
}  # fmt: skip
_BARE = ("target", "y", "landmark_id")  # of these no class can be named
CLIENT_WORDS = (
    "client", "client_id", "user", "user_id", "site", "site_id", "hospital", "hospital_id",
    "center", "centre", "center_id", "clinic", "clinic_id", "klinik", "krankenhaus", "zentrum",
    "clinique", "hopital", "clinica", "institution", "writer", "writer_id", "observer", "subject",
    "klinikum", "spital", "ward", "station", "etablissement",
)  # fmt: skip
GROUP_WORDS = (
    "patient", "patient_id", "patientid", "subject_id", "participant", "participant_id", "person",
    "case", "case_id", "lesion_id", "lesion", "slide", "slide_id", "study_id", "video", "video_id",
    "camera", "camera_trap", "camera_id", "location", "sequence", "sequence_id", "seq_id",
    "patienten_id", "id_patient", "paciente", "id_paciente", "patientennummer", "fallnummer",
    "fall_id", "numero_patient", "node", "pat_id", "pat_nr", "pat_no", "patient_no", "patient_nr",
    "patient_number", "patienten_nr", "mrn",
)  # fmt: skip
BINARY = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_UNKNOWN = ("", "-1", "-1.0")  # of a column of 0 and 1: not said, uncertain
_NEAR = 0.8  # how like a column must be to a known word for a hint
_MOST = 9  # columns that a message lists
_TEXTS = ("caption", "sentence", "text", "description", "report")  # or more than one
_SETS = ("labels", "tags", "classes", "categories", "findings", "findinglabels", "attributes")


@dataclass(frozen=True)
class Wish:
    """What the user says of columns.

    Attributes:
        clients_by: columns that together name a client; empty where the partition decides.
        groups: columns that together name a group.
        columns: ``path``, ``classname``, ... to the column that says it, or for ``path`` a text
            with ``{column}`` in it; ``-`` for none.
        labels: columns that say an image's set of labels; empty for one class.
        captions: columns of its captions; empty for none.
    """

    clients_by: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()


def wish_of(
    clients_by: str, groups: str, columns: str, labels: str = "", captions: str = ""
) -> Wish:
    """Return what DATASET.CLIENTS_BY, GROUPS, COLUMNS, LABELS and CAPTIONS say.

    Patterns are no columns.

    Raises:
        ConfigError: COLUMNS names what no column can say, or a word without ``=``.
    """
    named: dict[str, str] = {}
    for word in _words(columns):
        meaning, equals, column = word.partition("=")
        if not equals or meaning not in TABLE_COLUMNS:
            raise ConfigError(
                f"DATASET.COLUMNS '{word}'{did_you_mean(meaning, TABLE_COLUMNS)}: write "
                f"classname=COLUMN, with one of {', '.join(TABLE_COLUMNS)} before the =; patients, "
                "and other groups that stay whole, go by --groups COLUMN"
            )
        if named.setdefault(meaning, column) != column:
            raise ConfigError(f"DATASET.COLUMNS {columns}: {meaning} is {named[meaning]} and "
                              f"{column}; keep one")
    by, whole = ("" if "{" in text else text for text in (clients_by, groups))
    return Wish(_words(by), _words(whole), named, _words(labels), _words(captions))


def _words(text: str) -> tuple[str, ...]:
    return tuple(one_form(word.strip()) for word in text.split(",") if word.strip())


@dataclass(frozen=True)
class Header:
    """Where a table says what.

    Attributes:
        at: ``path``, ``label``, ``classname``, ``split``, ``domain`` to a position.
        client, group: positions whose cells together name them.
        names: all columns, as they are written, blanks aside.
        path: text with ``{column}`` that makes the path; empty where a column has it.
        guessed: of ``at``, those that were taken from words that may say something else.
        labels: positions that say an image's set of labels; empty where it has one class.
        words: those columns as the user names them, in any spelling that finds them.
        captions: positions of an image's captions; empty where it has none.
    """

    at: Mapping[str, int]
    client: tuple[int, ...]
    group: tuple[int, ...]
    names: tuple[str, ...]
    path: str = ""
    guessed: frozenset[str] = frozenset()
    labels: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    captions: tuple[int, ...] = ()

    @property
    def used(self) -> list[str]:
        """What the table says."""
        more = [word for word, at in (
            ("client", self.client), ("group", self.group), ("labels", self.labels),
            ("captions", self.captions)) if at]
        return [*(["path"] if self.path else []), *self.at, *more]

    def unused(self) -> list[str]:
        """Return the columns that are not read, with a hint where one is nearly a known word."""
        read = {*self.at.values(), *self.client, *self.group, *self.labels, *self.captions}
        read |= {i for i, name in enumerate(self.names) if f"{{{name}}}" in self.path}
        others = [name for i, name in enumerate(self.names) if i not in read and name]
        return [name + _hint(name, self.at) for name in others]

    def cell(self, line: Sequence[str], at: tuple[int, ...]) -> str:
        """Return the text of several cells; empty where one of them is."""
        cells = [line[i].strip() for i in at]
        return ", ".join(cells) if all(cells) else ""

    def path_of(self, line: Sequence[str]) -> str:
        """Return the path that a line gives."""
        if not self.path:
            text = line[self.at["path"]].strip()
            return "" if text.startswith('["') else text  # a list is no path
        cells = dict(zip(self.names, line, strict=True))
        return re.sub(r"\{([^{}]*)\}", lambda m: cells[m[1]].strip(), self.path)


def _hint(name: str, used: Mapping[str, int]) -> str:
    known = [word for word in (*TABLE_COLUMNS, *SYNONYMS) if SYNONYMS.get(word, word) not in used]
    near = difflib.get_close_matches(name.lower(), known, 1, _NEAR)
    return f" (did you mean '{near[0]}'?)" if near and near[0] != name.lower() else ""


def read_header(
    cells: Sequence[str], path: Path, bare: bool, wish: Wish | None = None,
    lines: Sequence[Sequence[str]] = (),
) -> Header:
    """Return what the columns of a table mean.

    Args:
        bare: the class may come from the images' folders.
        wish: what the user says of them.
        lines: cells of the table's lines, where a column's values decide.

    Raises:
        DataError: no column of paths or classes, two of them, or one that is named and not there.
    """
    wish = wish or Wish()
    names = tuple(one_form(" ".join(cell.split())) for cell in cells)
    at = _certain(names, path, wish)
    guessed: set[str] = set()
    named = {meaning: _find(names, word, path, f"DATASET.COLUMNS {meaning}=")
             for meaning, word in wish.columns.items() if word != "-" and "{" not in word}
    template = next((word for word in wish.columns.values() if "{" in word), "")
    for inner in re.findall(r"\{([^{}]*)\}", template):
        if inner not in names:
            raise _absent(inner, names, path, "DATASET.COLUMNS path=")
    for meaning, word in wish.columns.items():
        at.pop(meaning, None)
        if meaning in ("label", "classname") and word != "-":
            at.pop("label", None)
            at.pop("classname", None)
    at |= named
    labels = tuple(_find(names, word, path, "--labels") for word in wish.labels)
    if labels:
        if one := sorted({"label", "classname"} & named.keys()):
            raise DataError(f"{path}: --labels {','.join(wish.labels)} gives each image a set of "
                            f"labels, and --columns {one[0]}={wish.columns[one[0]]} one "
                            "class: give one of the two")
        at = {m: i for m, i in at.items() if i not in labels and m not in ("label", "classname")}
    captions = tuple(_find(names, word, path, "--captions") for word in wish.captions)
    if labels and captions:
        raise DataError(f"{path}: --labels gives each image a set of labels, and --captions texts: "
                        "give one of the two")
    at = {meaning: i for meaning, i in at.items() if i not in captions}
    client = tuple(_find(names, word, path, "--clients-by") for word in wish.clients_by)
    group = tuple(_find(names, word, path, "--groups") for word in wish.groups)
    lower = {name.lower(): i for i, name in reversed(list(enumerate(names)))}
    loose = {fold(name): i for i, name in reversed(list(enumerate(names)))}
    if captions and not {"label", "classname"} & set(at) and "topic" in lower:
        at["classname"] = lower["topic"]
    for meaning, words in _PERHAPS.items():
        there = meaning in at or meaning in wish.columns or (
            (labels or captions) and meaning == "classname")
        if there or (meaning == "classname" and "label" in at) or (meaning == "path" and template):
            continue
        likely = [lower[w] for w in words if w in lower]
        if meaning == "path":  # then Image Index, Image-ID, imageId
            likely += [loose[fold(w)] for w in words if fold(w) in loose]
        place = next((i for i in likely if _may_be(meaning, lines, i)), None)
        if place is not None and place not in (*client, *group, *labels, *captions):
            bare_word = meaning == "classname" and names[place].lower() in _BARE
            at["label" if bare_word else meaning] = place
            guessed.add("label" if bare_word else meaning)
    if at.get("domain") in (*client, *group):
        del at["domain"]
    classed = bare or labels or captions or {"label", "classname"} & set(at)
    if ("path" not in at and not template) or not classed:
        if "path" in at or template:
            _refuse_class_of_holders(names, wish, path)
        raise _incomplete(names, at, path, template, lines, bool(labels or captions))
    return Header(at, client, group, names, template, frozenset(guessed), labels,
                  wish.labels, captions)


def _may_be(meaning: str, lines: Sequence[Sequence[str]], at: int) -> bool:
    """Return whether a column's values can be what its name suggests: parts are known words."""
    if meaning != "split":
        return True
    values = {line[at].strip().lower() for line in lines if at < len(line)}
    return bool(values) and values <= set(PART_NAMES)


def _certain(names: Sequence[str], path: Path, wish: Wish) -> dict[str, int]:
    """Return the columns whose words say one thing only."""
    at: dict[str, int] = {}
    own = {name.lower() for name in names}
    asked = {fold(word) for word in (*wish.clients_by, *wish.groups)}
    for position, cell in enumerate(names):
        name = cell.lower()
        meant = SYNONYMS.get(name, name)
        if fold(name) in asked and meant == "domain":
            continue
        if name in at or (meant in at and meant not in own and meant not in wish.columns):
            raise DataError(f"{path}: the column '{meant}' is there twice")
        if name in TABLE_COLUMNS or (meant in TABLE_COLUMNS and meant not in own):
            at[meant] = position
    return at


def _find(names: Sequence[str], word: str, path: Path, flag: str) -> int:
    for key in (str, str.lower, fold):
        found = [i for i, name in enumerate(names) if key(name) == key(word)]
        if len(found) == 1:
            return found[0]
        if found:
            raise DataError(f"{path}: {flag} {word}: the column '{names[found[0]]}' is there twice")
    raise _absent(word, names, path, flag)


def _absent(word: str, names: Sequence[str], path: Path, flag: str) -> DataError:
    there = [name for name in names if name]
    blank = "" if flag.endswith("=") else " "
    more = f" and {len(there) - _MOST} more" if len(there) > _MOST else ""
    return DataError(f"{flag}{blank}{word}: {path} has no column '{word}'"
                     f"{did_you_mean(word, there)} (it has {', '.join(there[:_MOST])}{more})")


def _refuse_class_of_holders(names: Sequence[str], wish: Wish, path: Path) -> None:
    """Refuse a table whose only column of the class is taken for clients or groups."""
    for flag, words in (("--clients-by", wish.clients_by), ("--groups", wish.groups)):
        for word in words:
            name = names[_find(names, word, path, flag)]
            if name.lower() in _PERHAPS["classname"]:
                raise DataError(
                    f"{path}: {quote_name(name)} is named by {flag}, so no column is left for the "
                    f"class: name another column in {flag}, or the column of the class with "
                    "--columns classname=COLUMN")


def _incomplete(
    names: Sequence[str], at: Mapping[str, int], path: Path, template: str,
    lines: Sequence[Sequence[str]], told: bool,
) -> DataError:
    binary = [name for i, name in enumerate(names) if name and i not in at.values() and lines
              and all(i < len(line) and line[i].strip().lower() in BINARY for line in lines)]
    if ("path" in at or template) and len(binary) > 1:
        return DataError(f"{path}: no column names a class, and {flags_words(binary)}")
    texts = [name for name in names if fold(name).rstrip("s") in _TEXTS]
    if ("path" in at or template) and texts:
        return DataError(
            f"{path}: no column names a class, and {quote_name(texts[0])} seems to hold captions: "
            f"--captions {_word(texts[0])} reads it as such (recall of texts and images)")
    sets = [name for name in names if fold(name) in _SETS]
    if ("path" in at or template) and sets:
        return DataError(
            f"{path}: no column names a class, and {quote_name(sets[0])} seems to hold an image's "
            f"labels: --labels {_word(sets[0])} reads it as sets of labels (a|b); --columns "
            f"{_word(f'classname={sets[0]}')} as one class for each image")
    there = [quote_name(name) for name in names if name]
    has = (f"it names {first_names(there, _MOST)}" if there else "it names nothing") + (
        f" ({len(there)} columns)" if len(there) > _MOST else "")
    hints = [name + _hint(name, at) for name in names]
    near = next((hint.removeprefix(name) for name, hint in zip(names, hints, strict=True)
                 if hint != name), "")
    lacks = [] if "path" in at or template else ["path=COLUMN"]
    lacks += [] if told or {"label", "classname"} & set(at) else ["classname=COLUMN"]
    return DataError(
        f"{path}: the first line must name the column{'' if told else 's'} path"
        f"{'' if told else ' and classname (or label)'}, separated by commas, semicolons or tabs, "
        f"and may name split and domain; {has}{near}; where a column has another name, say so: "
        f"--columns {','.join(lacks)}"
    )


def _word(text: str) -> str:
    """Return a text as one word of a shell."""
    return quote(text) if re.search(r"[\s\"'$`\\&|;<>()*?!#~\[\]{}]", text) else text


def flags_words(columns: Sequence[str], one: str = "") -> str:
    """Return what is said of columns of 0 and 1, each of which may be a label or the class.

    Args:
        one: the likeliest class; empty: the first.
    """
    return (f"{first_names(columns, _MOST)} hold 0 and 1: --labels {','.join(columns[:_MOST])} "
            "reads such columns as an image's set of labels (name those that are labels); "
            f"--columns classname={one or columns[0]} reads one as two classes")


def said_values(lines: Sequence[Sequence[str]], at: int) -> set[str]:
    """Return what a column's cells say, in small letters, without what says nothing."""
    return {cell for line in lines if at < len(line)
            if (cell := line[at].strip().lower()) not in _UNKNOWN}


def is_binary(values: set[str]) -> bool:
    """Return whether values of a column are 0 and 1, in some spelling."""
    return bool(values) and values <= set(BINARY)


def binary_names(column: str, cells: Sequence[str]) -> tuple[list[str | None], str]:
    """Return the classes of a column of 0 and 1, None where it does not say, and a note.

    ``tumor`` with 1 and 0 is read as ``tumor`` and ``no tumor``. The note is empty where the column
    has other values; then the list is empty, too.
    """
    known = {cell for cell in cells if cell not in _UNKNOWN}
    if not is_binary({cell.lower() for cell in known}):
        return [], ""
    word = column.replace("_", " ").strip().lower()
    said = (f"no {word}", word)
    names = [None if c in _UNKNOWN else said[BINARY[c.lower()]] for c in cells]
    left = names.count(None)
    note = f"the column '{column}' of 0 and 1 gives the classes '{said[0]}' and '{said[1]}'"
    return names, note + (f"; {left} image(s) without a value were left out" if left else "")


def _plain(name: str) -> str:
    """Return a name folded, without accents: ``Hôpital`` as ``hopital``, ``Pat-ID`` as ``patid``.
    """
    parts = unicodedata.normalize("NFKD", fold(name))
    return "".join(c for c in parts if not unicodedata.combining(c))


def proposals(header: Header, lines: Sequence[Sequence[str]]) -> list[str]:
    """Return one sentence for a column that may name clients, and one for groups, if not asked."""
    sentences = []
    lower = {_plain(name): i for i, name in reversed(list(enumerate(header.names)))}
    client = next((lower[w] for w in map(_plain, CLIENT_WORDS) if w in lower), None)
    group = next((lower[w] for w in map(_plain, GROUP_WORDS) if w in lower), None)
    used = {i for word, i in header.at.items() if word != "domain"} | {*header.labels}
    n = 0 if client is None else len({line[client].strip() for line in lines})
    if client is not None and n > 1 and not header.client and client not in used:
        what = "without it they are dealt to clients by --partition, whoever they belong to"
        if header.at.get("domain") == client:
            what = "as it is, each is a domain, whose name results show"
        sentences.append(
            f"the column {quote_name(header.names[client])} ({n} values) seems to say whose images "
            f"they are: --clients-by {_word(header.names[client])} gives each its own "
            f"client; {what}")
    taken = {*used, *header.client}
    if group is not None and not header.group and group not in taken:
        n = len({line[group].strip() for line in lines})
        sentences.append(
            f"the column {quote_name(header.names[group])} ({n} values) seems to say which images "
            f"belong together: --groups {_word(header.names[group])} keeps them on one side of "
            "train, validation and test")
    return sentences

