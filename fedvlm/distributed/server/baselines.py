"""Baselines of clients at sites, as a coordinator asks for them: three questions at most.

The first brings each client's numbers alone; where all sites send theirs, the second brings a sum
over each site's training images, and the third takes the ridge regression of all sums to the sites
and brings its numbers. A site whose owner does not allow it (rule ``baselines``) sends nothing, and
then nothing is known of all. A site with a class under its rule ``count`` sends no sum, and a run
that does not release sums of single sites (``FED.SECURE_SUM``) asks for none: then ``pooled`` is
not known. No site is asked for a sum that another site's owner makes useless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, nbytes
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.server.rows import RowAnswers
from fedvlm.distributed.site import BASELINE
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


def site_baselines(
    engine: RemoteEngine, clients: Sequence[int], width: int, classes: int, list_: Releases
) -> dict[str, dict[str, Any]] | None:
    """Ask for baselines, and for sums only where every site lets its own leave.

    See ``ask_baselines``. A site that withholds class counts (``Terms.tell``) withholds its sums.

    Raises:
        FedvlmError: a site sends sums that the list does not have.
    """
    alone = ask_baselines(engine, clients, width, classes, replace(list_, sums=()))
    if alone is None or not list_.sums:
        return alone
    counts, home = engine.members.counts, engine.members.home
    if without := sorted({home[c] for c in clients if not counts[c]["classes"]}):
        _miss_sums(engine, without)
        return alone
    return ask_baselines(engine, clients, width, classes, list_)


def ask_baselines(
    engine: RemoteEngine, clients: Sequence[int], width: int, classes: int,
    list_: Releases | None = None,
) -> dict[str, dict[str, Any]] | None:
    """Return ``logreg`` and ``pooled`` of clients at sites; None where a site does not tell.

    Args:
        width, classes: of the features and the setting.
        list_: what leaves in the run; without ``sums`` there is no ``pooled``.

    Raises:
        FedvlmError: a site sends sums that the list does not have.
    """
    none: Tree = {}
    list_ = list_ or Releases()
    alone, trees = _ask(engine, clients, none, list_)
    if alone is None:
        return None
    home = engine.members.home
    heard = {home[c] for c, row in zip(clients, alone, strict=True) if ABSENT not in row}
    sound = {site for site, tree in trees.items() if sound_sums(tree, width, classes)}
    heard = (heard - set(trees)) | sound
    silent = sorted({home[c] for c in clients} - heard)
    if silent:
        engine.say(f"{', '.join(silent)}: no baselines are sent (rule 'baselines' of site.yaml), "
                   "so what the clients reach alone is not known")
        return None
    if not list_.sums:
        return site_references(alone)
    if without := sorted({home[c] for c in clients} - sound):
        _miss_sums(engine, without)
        return site_references(alone)
    weights = pooled_weights([trees[site] for site in sorted(trees)])
    pooled, _ = _ask(engine, clients, {WEIGHTS: weights}, list_)
    return None if pooled is None else site_references(alone, pooled)


def _miss_sums(engine: RemoteEngine, sites: Iterable[str]) -> None:
    """Say whose sums are lacking."""
    engine.say(f"{', '.join(sites)}: no sums for baselines are sent, since a class there has "
               "too few images to be counted (rule 'count' of site.yaml), so what one place "
               "with all images would reach (pooled) is not known")


def _ask(
    engine: RemoteEngine, clients: Sequence[int], download: Tree, list_: Releases
) -> tuple[list[Row] | None, Mapping[str, Tree]]:
    """Return a row of each client, None where one is lacking, and the sums of each site."""
    model = BASELINE if list_.sums else ALONE
    measure, start = Measure(), dict.fromkeys(clients, 0)
    question = Question(0, clients, dict.fromkeys(clients, download), start)
    answers = RowAnswers(question, measure, engine.members, engine.say)
    trips = engine.requests.trips(
        "evaluate", 0, start, question.downloads, engine.members.home,
        lambda ids: {"tune": False, "model": model, "measure": measure.plain()},
    )
    sums: dict[str, Tree] = {}
    for site, reply in engine.requests.ask(trips, end=False).items():
        answers.take(site, reply, {int(c) for c in trips[site].values["accepted"]})
        if isinstance(reply, Frame) and "sums" in reply.trees:
            sums[site] = reply.trees["sums"]
            engine.sums.update(nbytes(sums[site]))
            if stray := list_.outside((), (), (), sums[site]):
                raise FedvlmError(
                    f"{site} sends {', '.join(map(repr, stray[:3]))}, sums over its own images, "
                    "which this run's list of releases does not have"
                )
    if any(ABSENT not in row for row in answers.rows.values()):
        engine.baselined.add("pooled" if download else "logreg")
    rows = None if answers.missing else [answers.rows[c] for c in clients]
    return rows, sums
