"""Baselines of clients at sites, as a coordinator asks for them: four questions at most.

The first two bring each client's numbers alone: of its own images, and from the class names on.
Where all sites send theirs, the third brings a sum over each site's training images, and the fourth
takes the ridge regression of all sums to the sites and brings its numbers. A site whose owner does
not allow it (rule ``baselines``) sends nothing, and then nothing is known of all. A site with a
class under its rule ``count`` sends no sum, and a run that does not release sums of single sites
(``FED.SECURE_SUM``) asks for none: then ``pooled`` is not known. No site is asked for a sum that
another site's owner makes useless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, nbytes
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.server.rows import RowAnswers
from fedvlm.distributed.site import BASELINE, NAMES
from fedvlm.distributed.wire import Frame
from fedvlm.evaluation.references.parties import (
    WEIGHTS,
    pooled_weights,
    site_references,
    sound_sums,
)
from fedvlm.evaluation.references.suite import ALONE
from fedvlm.evaluation.scores import ABSENT
from fedvlm.federation.groups import Releases
from fedvlm.federation.server import Measure, Question, Row

_BRINGS = {ALONE: "logreg", NAMES: "logreg_names", BASELINE: "pooled"}
_NOTHING: Tree = {}


def site_baselines(
    engine: RemoteEngine, clients: Sequence[int], width: int, classes: int, list_: Releases,
    names: bool,
) -> dict[str, dict[str, Any]] | None:
    """Return baselines of clients at sites, by name; None where a site does not tell.

    Args:
        width, classes: of the features and the setting.
        list_: what leaves in the run; without ``sums`` there is no ``pooled``.
        names: whether the backbone reads class names.

    Raises:
        FedvlmError: a site sends sums that the list does not have.
    """
    home = engine.members.home
    alone, _ = _ask(engine, clients, list_, ALONE)
    if alone is None:
        return None
    heard = {home[c] for c, row in zip(clients, alone, strict=True) if ABSENT not in row}
    if silent := sorted({home[c] for c in clients} - heard):
        engine.say(f"{', '.join(silent)}: no baselines are sent (rule 'baselines' of site.yaml), "
                   "so what the clients reach alone is not known")
        return None
    rows: dict[str, list[Row] | None] = {ALONE: alone}
    if names:
        rows[NAMES], _ = _ask(engine, clients, list_, NAMES)
    if list_.sums:
        rows[BASELINE] = _pooled(engine, clients, width, classes, list_)
    return site_references({_BRINGS[model]: some for model, some in rows.items() if some})


def _pooled(
    engine: RemoteEngine, clients: Sequence[int], width: int, classes: int, list_: Releases
) -> list[Row] | None:
    """Return each client's row of the ridge regression of all sites' sums; None: not known.

    A site that withholds class counts (``Terms.tell``) withholds its sums, and is not asked.
    """
    home, counts = engine.members.home, engine.members.counts
    trees: Mapping[str, Tree] = {}
    without = {home[c] for c in clients if not counts[c]["classes"]}
    if not without:
        told, trees = _ask(engine, clients, list_, BASELINE)
        if told is None:
            return None
        sound = {site for site, tree in trees.items() if sound_sums(tree, width, classes)}
        without = {home[c] for c in clients} - sound
    if without:
        engine.say(f"{', '.join(sorted(without))}: no sums for baselines are sent, since a class "
                   "there has too few images to be counted (rule 'count' of site.yaml), so what "
                   "one place with all images would reach (pooled) is not known")
        return None
    weights = pooled_weights([trees[site] for site in sorted(trees)])
    return _ask(engine, clients, list_, BASELINE, {WEIGHTS: weights})[0]


def _ask(
    engine: RemoteEngine, clients: Sequence[int], list_: Releases, model: str,
    download: Tree = _NOTHING,
) -> tuple[list[Row] | None, Mapping[str, Tree]]:
    """Return a row of each client, None where one is lacking, and the sums of each site."""
    measure, start = Measure(), dict.fromkeys(clients, 0)
    question = Question(0, clients, dict.fromkeys(clients, download), start)
    answers = RowAnswers(question, measure, engine.members, engine.say)
    trips = engine.requests.trips(
        "evaluate", 0, start, question.downloads, engine.members.home,
        lambda ids: {"tune": False, "model": model, "measure": measure.plain()},
    )
    allowed = list_ if model == BASELINE else replace(list_, sums=())
    sums: dict[str, Tree] = {}
    for site, reply in engine.requests.ask(trips, end=False).items():
        answers.take(site, reply, {int(c) for c in trips[site].values["accepted"]})
        if isinstance(reply, Frame) and "sums" in reply.trees:
            sums[site] = reply.trees["sums"]
            engine.sums.update(nbytes(sums[site]))
            if stray := allowed.outside((), (), (), sums[site]):
                raise FedvlmError(
                    f"{site} sends {', '.join(map(repr, stray[:3]))}, sums over its own images, "
                    "which this run's list of releases does not have"
                )
    if any(ABSENT not in row for row in answers.rows.values()):
        engine.baselined.add(_BRINGS[model if download or model != BASELINE else ALONE])
    rows = None if answers.missing else [answers.rows[c] for c in clients]
    return rows, sums
