"""Which run is this: its path, its identity, its config as text; whose files lie in a folder.

``manifest.json`` and ``results.json`` say whose they are; a folder of another run is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import read_json
from fedvlm.runs.lock import NAME as LOCK_NAME
from fedvlm.runs.metrics import WORK
from fedvlm.runs.names import RESULTS
from fedvlm.runs.private import public_text
from fedvlm.runs.seal import seal_of

FORMAT = 2  # of manifest.json and results.json
# What of an identity says on what was computed: another device gives other bits.
DEVICE_KEYS = ("device", "cuda", "chunk")
IMPORTS = "imports"  # modules that a method's own file imports; earlier versions passed over them
FORMATS = (FORMAT, 1)  # that are read
LABEL = "label"  # the kind of target: one class of each image,
LABELS = "labels"  # or a set of labels,
CAPTIONS = "captions"  # or texts
_LIMIT = 60  # bytes of one part; the longest folder name has two of them
_PLAIN = "._-+=,"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_ABSENT = object()
_END = "FED.PATIENCE_LOSS"  # which runs of earlier versions lack
_SHOWN = 8
_OF_DATA = {  # what it says of these digests that they differ
    "data": "the list of images, classes or clients has changed",
    "images": "other images are used, or the content of some has changed",
}
Present = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # an identity -> what counts today


def device_words(identity: Mapping[str, Any]) -> str:
    """Return on what an identity's run computes: ``cpu, 16 clients at once``."""
    cuda = identity.get("cuda")
    name = f" ({cuda.get('name')})" if isinstance(cuda, Mapping) else ""
    if isinstance(cuda, Mapping) and not cuda.get("algorithms"):
        name += " in no fixed order"
    return f"{identity.get('device')}{name}, {identity.get('chunk')} clients at once"


@dataclass(frozen=True)
class RunPath:
    """What the path of a run says.

    Attributes:
        setting: ``base2new``, ``personal``, ...
        shots: per class, or a word such as ``all``.
        tag: free text of the user; empty for none.
        partition: e.g. ``dirichlet-0.3-n20``.
        seed, data_seed: model seed; seed of the partition and of the drawn shots.
    """

    setting: str
    dataset: str
    shots: int | str
    trainer: str
    backbone: str
    partition: str
    seed: int
    data_seed: int
    tag: str = ""

    def relative(self) -> Path:
        """Return the path below the output folder, every part safe as one file name."""
        trainer = safe_name(self.trainer) + (f"-{safe_name(self.tag)}" if self.tag else "")
        return Path(
            safe_name(self.setting), safe_name(self.dataset), f"shots_{safe_name(self.shots)}",
            trainer, safe_name(self.backbone), safe_name(self.partition),
            f"seed{safe_name(self.seed)}-data{safe_name(self.data_seed)}",
        )


def safe_name(text: object) -> str:
    """Return ``text`` as one harmless file name: no separator, no leading dot or dash, <= 60 bytes.

    ``/`` becomes ``_`` (``ViT-B/16`` -> ``ViT-B_16``); where anything else was changed or cut, a
    hash of the whole text is appended, so that two texts do not share a folder.
    """
    raw = str(text)
    slashed = raw.replace("/", "_")
    composed = unicodedata.normalize("NFC", slashed)
    name = "".join(c if c.isalnum() or c in _PLAIN else "_" for c in composed)
    if name[:1] in (".", "-"):
        name = "_" + name[1:]
    if name == slashed and 0 < len(name.encode()) <= _LIMIT:
        return name
    mark = hashlib.sha256(raw.encode(errors="surrogatepass")).hexdigest()[:8]
    cut = name.encode()[: _LIMIT - 9].decode(errors="ignore")
    return f"{cut}~{mark}"


def identity_digest(identity: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of ``identity`` (sorted keys, floats by repr).

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    text = json.dumps(
        identity_plain(identity), sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def json_plain(value: Any) -> Any:
    """Return ``value`` as JSON reads it back: text keys, lists; floats stay exact."""
    if isinstance(value, Mapping):
        return {str(key): json_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_plain(item) for item in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return json_plain(value.item())
    return value


def identity_plain(value: Any) -> Any:
    """Return ``json_plain(value)`` with NaN and infinities spelt out, as strict JSON wants."""
    value = json_plain(value)
    if isinstance(value, dict):
        return {key: identity_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [identity_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def identity_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return ``KEY: old -> new`` for each leaf that differs, nested keys joined by dots.

    Of a digest of the data there is a sentence in the place of two hashes.
    """
    before, after = dict(_leaves(identity_plain(old))), dict(_leaves(identity_plain(new)))
    shown = ((key, _show(before.get(key, _ABSENT)), _show(after.get(key, _ABSENT)))
             for key in sorted({*before, *after}))
    return [f"{key}: {_OF_DATA.get(key) or f'{was} -> {now}'}"
            for key, was, now in shown if was != now]


def shorten_lines(lines: Sequence[str], most: int = _SHOWN) -> str:
    """Join the first few of ``lines`` for one message."""
    rest = len(lines) - most
    return "; ".join(lines[:most]) + (f"; and {rest} more" if rest > 0 else "")


def config_text(resolved: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Return the config as YAML that loads back as it is, each value's origin as a comment.

    Args:
        resolved: nested mappings of plain values; a flat one with dotted keys is nested first.
        origins: dotted key -> where the value came from (``default``, a file, ``flag --lr``).
    """
    nested: dict[str, Any] = {}
    for key, value in resolved.items():
        *path, last = str(key).split(".")
        node = nested
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return "".join(_lines(nested, origins, "", 0)) or "{}\n"


def _lines(
    node: Mapping[str, Any], origins: Mapping[str, str], at: str, deep: int
) -> Iterator[str]:
    for key, value in node.items():
        place = f"{at}.{key}".lstrip(".")
        head = f"{'  ' * deep}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield head + "\n"
            yield from _lines(value, origins, place, deep + 1)
            continue
        origin = " ".join(str(origins.get(place, "")).split())
        yield f"{head} {_scalar(value)}" + (f"  # {origin}" if origin else "") + "\n"


def _scalar(value: Any) -> str:
    """Return a value on one line of YAML; with line breaks of any kind in it, all escaped."""
    value = json_plain(value)
    if isinstance(value, (list, dict)):
        return _one_line(value)
    return _same_line(repr(value), value)


@lru_cache(maxsize=4096)
def _same_line(_spelling: str, value: Any) -> str:
    """Return what ``_one_line`` does; -0.0 and 0.0, 1 and True differ by spelling."""
    return _one_line(value)


def _one_line(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and _is_plain(value):
        return value
    if type(value) is int:
        return str(value)
    text = yaml.safe_dump(
        value, default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False
    )
    text = text.removesuffix("\n").removesuffix("\n...")
    if len(text.splitlines()) <= 1:
        return text
    text = yaml.safe_dump(
        value, default_flow_style=True, width=2**31, default_style='"', sort_keys=False
    )
    return text.removesuffix("\n")


def _is_plain(text: str) -> bool:
    """Say whether YAML writes a text as it is: a word that is no number, date, truth or null."""
    if not _WORD.fullmatch(text):
        return False
    resolvers = yaml.SafeDumper.yaml_implicit_resolvers
    patterns = (*resolvers.get(text[0], ()), *resolvers.get(None, ()))
    return not any(pattern.match(text) for _, pattern in patterns)


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not at):
        for key, item in value.items():
            yield from _leaves(item, f"{at}.{key}".lstrip("."))
    else:
        yield at, value


def _show(value: Any) -> str:
    text = "absent" if value is _ABSENT else json.dumps(value)
    if len(text) <= 80:
        return text
    return f"{text[:60]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:8]})"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a run folder; None in a folder that holds nothing yet.

    Raises:
        DataError: there are files but no manifest, or it is damaged; nothing is touched.
    """
    path = folder / "manifest.json"
    if not path.exists():
        others = sorted(
            p.name for p in folder.iterdir()
            if p.name != LOCK_NAME and not p.name.startswith(".")
        )
        if others:
            raise DataError(
                f"'{folder}' holds {', '.join(others[:3])} but no manifest.json, so the run in "
                "it cannot be identified: move it away, or choose another --tag"
            )
        return None
    record = read_json(path)
    good = (
        isinstance(record, dict) and isinstance(record.get("identity"), dict)
        and isinstance(record.get("sessions"), list)
        and identity_digest(record["identity"]) == record.get("identity_digest")
    )
    if not good:
        raise DataError(
            f"'{path}' is damaged, so the run in this folder cannot be identified: move the "
            "folder away, or choose another --tag (nothing in it was changed)"
        )
    return dict(record)


def refuse_other(
    folder: Path, old: Mapping[str, Any], new: Mapping[str, Any], present: Present = identity_plain
) -> None:
    """Raise ``ConfigError`` with the difference unless both identities are the same today."""
    old, new = present(old), present(new)
    new = {k: v for k, v in new.items() if k in old or k != IMPORTS}
    if identity_digest(old) == identity_digest(new):
        return
    table = [one.get("config", {}).get("DATASET.SPLIT_FILE") for one in (old, new)]
    differ = {k for k in {*old, *new} if old.get(k) != new.get(k)}
    if differ and differ <= {"trainer", IMPORTS}:
        file = Path(str(new.get("config", {}).get("TRAINER.NAME")).rpartition(":")[0]).name
        raise ConfigError(
            f"'{folder}' holds another run, which is not overwritten: your file {file}, or one "
            "that it imports, changed since the run began; --draft runs it as it is now in a "
            "folder of drafts, another --tag as a run of its own"
        )
    raise ConfigError(
        f"'{folder}' holds another run, which is not overwritten; settings that differ "
        f"(existing -> this command): {shorten_lines(identity_difference(old, new))}; choose "
        "another --tag or --output-dir, or repeat the existing settings to resume"
        + ("; for another table of the same folder, fedvlm data add TABLE --name NAME names a set "
           "of its own" if table[0] != table[1] else "")
        + ("; --continue-elsewhere resumes it on this device, with numbers equal within rounding"
           if differ <= set(DEVICE_KEYS) else "")
        + (f"; the run is of an earlier version: --opts {_END} False goes on as it began"
           if _END in new.get("config", {}) and _END not in old.get("config", {}) else "")
    )


def earlier_results(
    folder: Path, identity: Mapping[str, Any], notes: list[str], present: Present = identity_plain
) -> dict[str, Any] | None:
    """Return the folder's results if they are of a run of this identity; None without any.

    Damaged results count as none, with a note. The manifest says which run they are of; its
    identity, of an older version perhaps, is the same if ``present`` makes it the same.

    Raises:
        ConfigError: they are of another run.
    """
    path = folder / RESULTS
    record = read_results(path)
    if record is None:
        if path.exists():
            notes.append(f"{RESULTS} is damaged: it will be written again")
        return None
    if record["identity_digest"] == identity_digest(identity):
        return record
    manifest = read_manifest(folder)
    if manifest is not None:
        refuse_other(folder, manifest["identity"], identity, present)
        if record["identity_digest"] == manifest["identity_digest"]:
            return record
    raise ConfigError(
        f"'{path}' holds the results of another run: move it away, or choose another --tag"
    )


def read_results(path: Path) -> dict[str, Any] | None:
    """Return a ``results.json`` with all its sections, or None where there is none such.

    One whose seal does not fit is none. What it covers is not looked at (``runs.verify.check``).
    """
    record = whole_results(read_json(path))
    return record if record is not None and seal_fits(record) else None


def whole_results(record: Any) -> dict[str, Any] | None:
    """Return what was read of a ``results.json``, in today's form, if it has all sections.

    Whatever its seal: ``seal_fits`` says whether that fits what was written.
    """
    sections = ("run_info", "protocol", "results")
    if not isinstance(record, dict) or record.get("format") not in FORMATS:
        return None
    if not isinstance(record.get("identity_digest"), str):
        return None
    whole = all(isinstance(record.get(s), dict) for s in sections)
    return upgrade_results(record) if whole else None


def why_not_whole(record: Any) -> str:
    """Return what to say of a ``results.json`` of which ``whole_results`` is None."""
    form = record.get("format") if isinstance(record, dict) else None
    if type(form) is int and form > FORMAT:
        return (f"has format {form}, and this fedvlm reads formats up to {FORMAT}: update fedvlm "
                "(if it is new already, the file is damaged)")
    return "is damaged or of another version"


class UpgradedResults(dict[str, Any]):
    """Results in today's form that were written in an older one.

    Attributes:
        written: as they were; their seal is over that.
    """

    def __init__(self, record: Mapping[str, Any], written: Mapping[str, Any]) -> None:
        super().__init__(record)
        self.written = written


def upgrade_results(record: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a ``results.json`` of any format as one of today's.

    What an older form did not say is absent, but for what was so in all runs of its time and what
    follows from what it says (``docs/files.md`` lists the fields and since when they are).
    """
    if record["format"] == FORMAT:
        return record
    results, info = dict(record["results"]), dict(record["run_info"])
    whole, costs = info.get("totals"), results.get("spent")
    if isinstance(whole, Mapping) and isinstance(costs, Mapping):
        results["spent"] = {**costs, **{name: whole.get(told, 0) for name, told in WORK.items()}}
    machine = info.get("machine")
    if isinstance(machine, Mapping):
        info["machine"] = {k: v for k, v in machine.items() if k != "host"}
    if isinstance(info.get("command"), str):
        info["command"] = public_text(info["command"])
    return UpgradedResults(
        {**record, "format": FORMAT, "draft": False, "run_info": info, "results": results,
         "protocol": {**record["protocol"], "target": LABEL}},
        record,
    )


def as_written(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return results as their file has them, whatever ``upgrade_results`` made of them."""
    return record.written if isinstance(record, UpgradedResults) else record


def seal_fits(record: Mapping[str, Any]) -> bool:
    """Say whether the seal of a ``results.json`` fits; one of before has none, and does."""
    written = as_written(record)
    if "seal" not in written and "covers" not in written:
        return True
    covered = isinstance(written.get("covers"), dict)
    return covered and written.get("seal") == seal_of(written)
