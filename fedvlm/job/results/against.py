"""A method's numbers beside the references': what it is below, what collaboration gains and hurts.

Of its kind: a method whose clients send and receive nothing is set beside the references without
collaboration, every other one beside those of federations too. Nobody has to reach a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvlm.evaluation.references import ALONE, BOUND, TOGETHER

EXACT = 1e-9  # points; less is rounding
TUNED = ("logreg",)  # alone, and something of it is chosen on validation images
WORDS = {
    "chance": "chance",
    "majority": "each client's commonest class",
    "zero_shot": "zero-shot",
    "zero_shot_local": "zero-shot among the client's own classes",
    "zero_shot_prior": "zero-shot with the client's class shares",
    "logreg": "a logistic regression per client on the same features",
    "afl": "AFL, ridge regression in one round, on the same features",
    "pooled": "a pooled logistic regression",
}
ROWS = {  # of the final table; zero-shot has its own, with more numbers
    "majority": "commonest class",
    "zero_shot_local": "zero-shot, own classes",
    "zero_shot_prior": "zero-shot, class shares",
    "logreg": "logistic regression",
    "afl": "AFL (together)",
    "pooled": "pooled (bound)",
}
References = Mapping[str, Mapping[str, Any]]


def below(
    method: str, personal: float | None, found: References, kind: str
) -> list[dict[str, Any]]:
    """Return the references of a method's kind that are better than it, the best first.

    Args:
        method: its name.
        personal: its number after the last round; None: nobody has test images.
        kind: ``alone`` or ``together``.

    Returns:
        ``reference``, ``kind``, ``personal`` of the reference, and a ``sentence``.
    """
    kinds = (ALONE,) if kind == ALONE else (ALONE, TOGETHER)
    better = [
        (name, float(one["personal"])) for name, one in found.items()
        if one["kind"] in kinds and one["personal"] is not None and personal is not None
        and one["personal"] > personal + EXACT
    ]
    return [
        {"reference": name, "kind": found[name]["kind"], "personal": value, "sentence":
         f"{method}'s personal {personal:.1f} is below {WORDS[name]}, {value:.1f}"}
        for name, value in sorted(better, key=lambda pair: -pair[1])
    ]


def gain(personal: float | None, found: References) -> dict[str, Any] | None:
    """Return the collaboration gain: the method less the best reference without collaboration.

    The best one by the same test images, in the reference's favour. None without a number.

    Returns:
        ``points``, ``reference``, ``personal`` of the reference, ``untuned``: what of the two has
        nothing chosen on validation images (the method's settings are the user's: they count as
        not tuned).
    """
    alone = {
        name: float(one["personal"]) for name, one in found.items()
        if one["kind"] == ALONE and one["personal"] is not None
    }
    if personal is None or not alone:
        return None
    name = max(alone, key=lambda n: alone[n])
    return {
        "points": personal - alone[name], "reference": name, "personal": alone[name],
        "untuned": "method" if name in TUNED else "both",
    }


def hurt(
    clients: Sequence[Mapping[str, Any]], found: References, name: str = "logreg"
) -> dict[str, Any] | None:
    """Return whom federation hurts: clients whose model is below their own logistic regression.

    Returns:
        ``share`` (percent of the clients with test images), ``clients`` (their ids), ``of`` (how
        many have test images), ``reference``. None where it was not made.
    """
    if name not in found:
        return None
    own = {row["client"]: row["accuracy"] for row in found[name]["clients"]}
    rated = [row for row in clients
             if row["accuracy"] is not None and own.get(row["client"]) is not None]
    worse = [row["client"] for row in rated if row["accuracy"] < own[row["client"]] - EXACT]
    if not rated:
        return None
    return {
        "share": 100.0 * len(worse) / len(rated), "clients": worse, "of": len(rated),
        "reference": name,
    }


def sentences(method: str, results: Mapping[str, Any]) -> list[str]:
    """Return the one sentence that a run ends with: what the method is below, or what it gains."""
    worse, better = results.get("below"), results.get("gain")
    if worse:
        rest = [f"{WORDS[one['reference']]} ({one['personal']:.1f})" for one in worse[1:]]
        return [worse[0]["sentence"] + (f"; below {', '.join(rest)} too" if rest else "")]
    if not better:
        return []
    harm = results.get("hurt")
    said = f"; {len(harm['clients'])} of {harm['of']} clients are below their own" if harm else ""
    return [
        f"{method} gains {better['points']:.1f} on the best without collaboration, "
        f"{WORDS[better['reference']]} ({better['personal']:.1f}){said}"
    ]


def table_rows(found: References) -> dict[str, dict[str, Any]]:
    """Return the rows of the final table, by label: bounds last."""
    ranked = sorted(found, key=lambda name: found[name]["kind"] == BOUND)
    return {
        ROWS[name]: {k: v for k, v in found[name].items() if k.startswith("personal")}
        for name in ranked if name in ROWS
    }
