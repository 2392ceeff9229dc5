"""A method's numbers beside the references': what it is below, what collaboration gains and hurts.

Of its kind: a method whose clients send and receive nothing is set beside the references without
collaboration, every other one beside those of federations too. Nobody has to reach a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlm.runs.verify.beside import References, better

_BOUND = "bound"  # kind of a reference that nobody has to reach (``evaluation.references``)
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
    return [
        {"reference": name, "kind": found[name]["kind"], "personal": value, "sentence":
         f"{method}'s personal {personal:.1f} is below {WORDS[name]}, {value:.1f}"}
        for name, value in better(personal, found, kind)
    ]


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
    ranked = sorted(found, key=lambda name: found[name]["kind"] == _BOUND)
    return {
        ROWS[name]: {k: v for k, v in found[name].items() if k.startswith("personal")}
        for name in ranked if name in ROWS
    }
