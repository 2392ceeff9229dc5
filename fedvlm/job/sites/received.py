"""What a site keeps of a run's newest evaluation: with its own states it gives clients' models.

``received.frame`` beside a run's states holds the last question for personal models: round, the
clients' accepted versions, and what each receives after that round's aggregation. Nothing else is
missing for the model that was evaluated; it is made at the site and stays there. ``own.json``
beside it holds what the clients reach on their own test images here: alone, and with the run's
newest model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.trees import Tree, expand, unstack
from fedvlm.distributed.site import BASELINE, NAMES, Site
from fedvlm.distributed.store import LostState
from fedvlm.distributed.wire import Frame, WireError, pack, unpack
from fedvlm.evaluation.references.suite import ALONE, COLUMNS
from fedvlm.federation.server import Measure, Question, Row
from fedvlm.runs.seal import sha256
from fedvlm.runs.verify.answer import ACCURACY, measure_word

FILE = "received.frame"  # beside a run's states: the checksum of a frame, and the frame
OWN = "own.json"  # beside it: ``alone`` and ``model`` -> client -> numbers of its test images
PERSONAL, MODEL = "personal", "model"
Kept = Mapping[str, dict[str, dict[str, Any]]]
_SEAL = 64  # hexadecimal digits


def keep_received(folder: Path, frame: Frame) -> None:
    """Keep a question for personal models that was answered, in place of those of other rounds.

    A round may have several: for other clients, or for the models before the final fine-tuning.

    Raises:
        DataError: it cannot be written.
    """
    values, trees = dict(frame.values), dict(frame.trees)
    try:
        before = read_received(folder) if (folder / FILE).is_file() else None
    except DataError:  # damaged: this one is in its place from now on
        before = None
    if before is not None and _of(before) == _of(frame):
        values["tune"] = values["tune"] or before.values["tune"]
        values["accepted"] = before.values["accepted"] | values["accepted"]
        refs: dict[str, str] = {}
        for client, ref in before.values["down"].items():
            if client not in frame.values["down"]:
                refs.setdefault(ref, str(len(frame.trees) + len(refs)))
                values["down"] = values["down"] | {client: refs[ref]}
                trees[f"down/{refs[ref]}"] = before.trees[f"down/{ref}"]
    data = pack(Frame("evaluate", values, trees))
    files.write_bytes(folder / FILE, sha256(data).encode() + data)


def _of(frame: Frame) -> tuple[object, ...]:
    return frame.values["like"], frame.values["round"]


def read_received(folder: Path) -> Frame:
    """Return the question that was kept of a run (``DataError``: damaged, or not readable)."""
    path = folder / FILE
    with files.explain_errors(path):
        data = path.read_bytes()
    try:
        if sha256(data[_SEAL:]).encode() != data[:_SEAL]:
            raise WireError("its checksum does not fit")
        return unpack(data[_SEAL:])
    except WireError as error:
        raise DataError(f"'{path}' is damaged ({error}): restore it from a backup") from error


def question_of(site: Site, frame: Frame, client: int) -> Question:
    """Return the question for a client's model, with the clients that were asked for beside it.

    Raises:
        ConfigError: the client was not asked, or the site computes otherwise than it did then.
    """
    values, run = frame.values, frame.values["run"][:12]
    if values["like"] != site.like:
        raise ConfigError(
            f"run {run} was answered with another version of fedvlm or PyTorch, another method's "
            "file or other weights than are here now: make the model with those")
    accepted, downloads = site.addressed(frame)
    if client not in accepted:
        raise ConfigError(
            f"client {client} was not asked for in the last evaluation of run {run}, after round "
            f"{values['round']}, which asked for {', '.join(map(str, accepted))}: its model is "
            "there after a round that evaluates it; after the last one all are asked for, or "
            "those of TEST.COHORT")
    return Question(values["round"], list(accepted), downloads, accepted, values["tune"])


def own_model(site: Site, frame: Frame, client: int) -> tuple[Tree, Row]:
    """Return a client's model, no client axis, and what it reaches on the client's test images.

    It is what the site itself evaluated: made of the same tensors by the same chunks.

    Raises:
        ConfigError: as ``question_of``, or the site works for the run at this moment.
        DataError: a state of that round is not here.
    """
    question, fed = question_of(site, frame, client), site.federation
    with site.opened(frame.values["run"]) as store:
        try:
            store.require(question.versions)
        except LostState as error:
            raise DataError(f"{error}. If the run goes on, its next evaluation brings what a model "
                            "needs") from error
        before, fed.clients.store = fed.clients.store, store
        try:
            (params,) = [
                unstack(models, len(ids))[list(ids).index(client)]
                for ids, models in fed.models(question) if client in ids
            ]
        finally:
            fed.clients.store = before
    rows: list[Row] = [{}]
    if fed.meter is not None:
        rows = list(fed.meter(Measure(), iter([([client], expand(params, 1))])))
    return params, rows[0]


def keep_rows(folder: Path, frame: Frame, rows: Sequence[Row]) -> None:
    """Keep what clients reach here, alone or with the models of an evaluation on test images.

    Of two evaluations of one round the one after the final fine-tuning counts.

    Raises:
        DataError: they cannot be written, or those of before are damaged.
    """
    values, model = frame.values, frame.values["model"]
    alone = model in (ALONE, BASELINE, NAMES)
    if not rows or not (alone or (model == PERSONAL and values["measure"]["split"] == "test")):
        return
    kept = read_rows(folder)
    for row in rows:
        client = str(row["client"])
        one: dict[str, Any] = {name: row.get(name) for name in COLUMNS[1:]}
        if alone:
            kept[ALONE].setdefault(client, {}).update(
                {NAMES: one["accuracy"]} if model == NAMES else one)
            continue
        before = kept[MODEL].get(client, {})
        if before.get("round") != values["round"] or values["tune"] >= before["tune"]:
            kept[MODEL][client] = one | {
                "measure": measure_word(row), "round": values["round"], "tune": values["tune"]}
    with files.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / OWN, kept, private=True)


def read_rows(folder: Path) -> Kept:
    """Return ``alone`` and ``model`` -> client -> its numbers; else empty (``DataError``)."""
    found = files.read_valid_json(folder / OWN, _is_rows, "delete it; later evaluations write it "
                                  "anew") if (folder / OWN).exists() else None
    return found or {ALONE: {}, MODEL: {}}


def _is_rows(content: Any) -> bool:
    return isinstance(content, dict) and content.keys() == {ALONE, MODEL} and all(
        isinstance(some, dict) and all(isinstance(one, dict) for one in some.values())
        for some in content.values())


def alone_words(kept: Kept, client: int, allowed: bool) -> str:
    """Return what a client reaches without the others, or why that is not known.

    Args:
        kept: of ``read_rows``.
        allowed: the owner allows baselines.
    """
    found = kept[ALONE].get(str(client), {})
    if found.get("accuracy") is not None:
        names = found.get(NAMES)
        return f"alone (its own logistic regression) {found['accuracy']:.1f} %" + (
            "" if names is None else f", or {names:.1f} % from the class names")
    return "alone not known " + (
        "(the coordinator asked for no baselines in this run)" if allowed else
        "(rule 'baselines' of site.yaml: none are computed)")


def row_lines(kept: Kept, allowed: bool) -> list[str]:
    """Return a sentence for each client: what it reaches alone, and with the run's newest model."""
    return [
        f"client {client}, {'' if one['measure'] == ACCURACY else one['measure'] + ', '}"
        f"{alone_words(kept, int(client), allowed)}, this model {one['accuracy']:.1f} % (after "
        f"round {one['round']}) on its own {one['n']} test images"
        for client, one in sorted(kept[MODEL].items(), key=lambda item: int(item[0]))
        if one.get("accuracy") is not None
    ]
