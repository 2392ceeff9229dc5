"""Compare a method with the baselines: which are better, what federation gains and harms.

A method without communication is compared with the baselines without communication, every other
method with those of federations too. Bounds (``pooled``) are listed but not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlm.runs.verify.beside import References, better

_BOUND = "bound"  # kind of a reference that is not compared (``evaluation.references``)
WORDS = {
    "chance": "chance",
    "majority": "most frequent class of each client",
    "zero_shot": "zero-shot",
    "zero_shot_local": "zero-shot (own classes)",
    "zero_shot_prior": "zero-shot (class shares)",
    "logreg": "local logistic regression",
    "afl": "AFL (ridge regression, one round)",
    "pooled": "pooled logistic regression",
}
ROWS = {  # of the final table; zero-shot has its own, with more numbers
    "majority": "most frequent class",
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
        personal: its number after the last round; None: no client has test images.
        kind: ``alone`` or ``together``.

    Returns:
        ``reference``, ``kind``, ``personal`` of the reference, and a ``sentence``.
    """
    return [
        {"reference": name, "kind": found[name]["kind"], "personal": value, "sentence":
         f"{method} personal accuracy {personal:.1f} is below {WORDS[name]} {value:.1f}"}
        for name, value in better(personal, found, kind)
    ]


def sentences(method: str, results: Mapping[str, Any]) -> list[str]:
    """Return a run's last note: the baselines that are better, or the gain over local training."""
    worse, better = results.get("below"), results.get("gain")
    if worse:
        values = ", ".join(f"{WORDS[one['reference']]} {one['personal']:.1f}" for one in worse)
        which = "this baseline" if len(worse) == 1 else "these baselines"
        return [f"{method} personal accuracy {results['last']['personal']:.1f} is below {which}: "
                f"{values}"]
    if not better:
        return []
    harm = results.get("hurt")
    said = (
        f"; {len(harm['clients'])} of {harm['of']} clients are below their local logistic "
        "regression"
        if harm else ""
    )
    return [
        f"{method} personal accuracy is {better['points']:.1f} points above the best baseline "
        f"without communication: {WORDS[better['reference']]} {better['personal']:.1f}{said}"
    ]


def table_rows(found: References) -> dict[str, dict[str, Any]]:
    """Return the rows of the final table, by label: bounds last."""
    ranked = sorted(found, key=lambda name: found[name]["kind"] == _BOUND)
    return {
        ROWS[name]: {k: v for k, v in found[name].items() if k.startswith("personal")}
        for name in ranked if name in ROWS
    }
