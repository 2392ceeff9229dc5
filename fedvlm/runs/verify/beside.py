"""What follows from the references in a run's results: made here, and checked here again.

Pure arithmetic over ``results.json``: the job writes with it what the method gains, whom it hurts
and what it is below, and ``fedvlm verify`` asks whether that is what the references say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedvlm.runs.bits import bit_problems, pair_problems
from fedvlm.runs.metrics import WORK
from fedvlm.runs.verify.answer import (
    ALONE,
    ANSWER,
    TOGETHER,
    best_alone,
    federation_answer,
    is_retrieval,
)

EXACT = 1e-9  # points; less is rounding
TUNED = ("logreg", "logreg_names")  # alone, and something of it is chosen on validation images
References = Mapping[str, Mapping[str, Any]]


def better(personal: float | None, found: References, kind: str) -> list[tuple[str, float]]:
    """Return the references of a kind that are above ``personal``, with theirs, the best first."""
    kinds = (ALONE,) if kind == ALONE else (ALONE, TOGETHER)
    above = [
        (name, float(one["personal"])) for name, one in found.items()
        if one["kind"] in kinds and one["personal"] is not None and personal is not None
        and one["personal"] > personal + EXACT
    ]
    return sorted(above, key=lambda pair: -pair[1])


def reference_kind(spent: Mapping[str, Any]) -> str:
    """Return a run's kind by what it cost: ``alone`` where nothing was sent or received."""
    return TOGETHER if spent["bytes_up"] or spent["bytes_down"] else ALONE


def gain(personal: float | None, found: References) -> dict[str, Any] | None:
    """Return the collaboration gain: the method less the best reference without collaboration.

    The best one by the same test images, in the reference's favour. None without a number.

    Returns:
        ``points``, ``reference``, ``personal`` of the reference, ``untuned``: what of the two has
        nothing chosen on validation images (the method's settings are the user's: they count as
        not tuned).
    """
    name = best_alone(found)
    if personal is None or not name:
        return None
    alone = float(found[name]["personal"])
    return {
        "points": personal - alone, "reference": name, "personal": alone,
        "untuned": "method" if name in TUNED else "both",
    }


def hurt(
    clients: Sequence[Mapping[str, Any]], found: References, name: str = ""
) -> dict[str, Any] | None:
    """Return whom federation hurts: clients whose model is below what they reach alone.

    Args:
        name: the baseline; empty: the best without communication, as in the run's answer.

    Returns:
        ``share`` (percent of the clients with test images), ``clients`` (their ids), ``of`` (how
        many have test images), ``reference``. None where no baseline was
        made, and of captions: there zero-shot is the only one, and a client trains none alone.
    """
    name = name or best_alone(found)
    if name not in found or any(map(is_retrieval, clients)):
        return None
    own = {row["client"]: row["accuracy"] for row in found[name].get("clients", ())}
    rated = [row for row in clients
             if row["accuracy"] is not None and own.get(row["client"]) is not None]
    worse = [row["client"] for row in rated if row["accuracy"] < own[row["client"]] - EXACT]
    if not rated:
        return None
    return {
        "share": 100.0 * len(worse) / len(rated), "clients": worse, "of": len(rated),
        "reference": name,
    }


def hurt_as_told(
    told: Any, clients: Sequence[Mapping[str, Any]], found: References
) -> dict[str, Any] | None:
    """Return ``hurt`` from the baseline that results say; older ones took each client's ``logreg``.
    """
    if told is None and TUNED[0] not in found:
        return None
    old = isinstance(told, Mapping) and told.get("reference") == TUNED[0]
    return hurt(clients, found, TUNED[0] if old else "")


def disagreements(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not follow from the references beside it; nothing where there are none.

    Args:
        results: the section ``results`` of ``results.json``.
    """
    found, last = results.get("references"), results.get("last")
    if not isinstance(found, Mapping) or not isinstance(last, Mapping) or "personal" not in last:
        return
    yield from pair_problems(results)
    for name, one in found.items():
        yield from (f"references.{name}: {problem}" for problem in bit_problems(one))
    personal = last["personal"]
    made: dict[str, Callable[[], Mapping[str, Any] | None]] = {
        "gain": lambda: gain(personal, found),
        "hurt": lambda: hurt_as_told(results.get("hurt"), last.get("clients", ()), found),
        ANSWER: lambda: federation_answer(results),
    }
    for name, make in made.items():
        if name in results and results[name] != (wanted := make()):
            yield f"{name} is {_told(results[name])}, the baselines give {_told(wanted)}"
    if "below" in results and isinstance(results.get("spent"), Mapping):
        worse = better(personal, found, reference_kind(results["spent"]))
        said = [(one["reference"], one["personal"]) for one in results["below"]]
        if said != worse:
            yield f"below is {_told(dict(said))}, the baselines give {_told(dict(worse))}"


def _told(value: Mapping[str, Any] | None) -> str:
    """Return numbers and words of a section in a few words."""
    if not isinstance(value, Mapping):
        return repr(value)[:40]
    short = (f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {str(v)[:40]}"
             for k, v in value.items())
    return ", ".join(short) or "nothing"


def repeated_numbers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield numbers that a results file says twice, and not the same.

    The rows of the final table are those of its sections, and what was spent follows from the
    totals. A packed run has no rounds to compare with.
    """
    results, info = record["results"], record["run_info"]
    sections = [v for v in results.values() if isinstance(v, Mapping)]
    sections += [v for v in (results.get("references") or {}).values() if isinstance(v, Mapping)]
    for row in results.get("table") or ():
        numbers = {k: v for k, v in row.items() if k and not isinstance(v, str)}
        if numbers and not any(numbers.items() <= _plain(one).items() for one in sections):
            yield f"table, '{row.get('')}': its numbers are those of no section"
    costs, totals = results.get("spent"), info.get("totals")
    if isinstance(costs, Mapping) and isinstance(totals, Mapping):
        for name, wanted in _spent_of(totals).items():
            if name in costs and costs[name] != wanted:
                yield f"spent.{name} is {costs[name]}, the totals give {wanted}"


def _spent_of(totals: Mapping[str, Any]) -> dict[str, Any]:
    """Return what totals say of costs; what older ones do not have is absent."""
    out = {name: totals[name] for name in ("bytes_up", "bytes_down", "seconds") if name in totals}
    out |= {name: totals[told] for name, told in WORK.items() if told in totals}
    for name, told in (("local_steps", "steps"), ("samples", "samples")):
        final = totals.get(f"finetune_{told}")
        if name in totals and final is not None:
            out |= {name: totals[name] + final, f"final_{told}": final}
    return out


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if v is None or isinstance(v, int | float)}
