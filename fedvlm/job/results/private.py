"""What a run gave away of its clients, and what it spent of their privacy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedvlm.config.engines import of_parties
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import Built
from fedvlm.runs.seal import seal_of

Row = Mapping[str, Any]


HIDDEN = "noise from each site's own secret"
PUBLIC = "noise from the seed: a simulation"
HERE = "a server on the same machine (a simulation)"
AWAY = "the server of the run, from sites with their own images"
MASKED = ("tensors came as sums over the sites of a round, under masks: the server read no "
          "client's and no site's own (FED.SECURE_SUM); counts and numbers came without masks")
CERTAIN = 0.9999  # an epsilon of about 9: from here on a guarantee is none
BEGUN = "begun_from"  # fact of a run that went on from another's state (``api.forgetting.kept``)
LABELS = "labels of single images"
NEVER = ("images", LABELS, "personal tensors", "optimisers' states")


def released(
    built: Built, records: Sequence[Mapping[str, Any]], results: Row, sums: Mapping[str, int],
    baselined: Collection[str] = (), counted: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return what left the clients in a run, beside what its method declares (``released.json``).

    Args:
        records: of all its rounds.
        results: the run's, for baselines and privacy.
        sums: bytes of sums over single sites' images, by name.
        counted: which counts each site told, by site; None or {}: all clients are here.
        baselined: baselines of which some clients' numbers came, though the results lack them.
    """
    federation = built.federation
    groups, up = federation.groups, Counter[str]()
    told, rows = Counter[str](), set[str]()
    for record in records:
        up.update(record.get("bytes_up_by_tensor", {}))
        for numbers in record.get("train", {}).values():
            told.update(list(numbers))
        for row in record.get("clients", ()):
            rows.update(row)
    list_ = federation.trainer.releases(groups)
    asked = of_parties(built.cfg) and bool(built.cfg.TEST.REFERENCES)  # for baselines
    sizes = {n: v.numel() for n, v in federation.p0.items()}
    telling = list_.telling(sums)
    return {
        "format": 1, "method": federation.trainer.name, "rounds": records[-1]["round"],
        "to": AWAY if of_parties(built.cfg) else HERE,
        "masked": MASKED if built.cfg.FED.SECURE_SUM else "",
        "declared": {
            "shared": {n: sizes[n] for n in list_.shared}, "extras": list(list_.extras),
            "metrics": list(list_.metrics), "losses": list(list_.losses),
            "counts": list(list_.counts), "rows": list_.rows, "references": list_.references,
            "sums": list(list_.sums) if asked else [],
        },
        "sent": {
            "shared": {n: up[n] for n in groups.shared if up[n]},
            "extras": {n: b for n, b in sorted(up.items()) if b and n not in groups.shared},
            "metrics": dict(sorted(told.items())), "rows": sorted(rows - {"client"}),
            "references": sorted({*results.get("references", {}), *baselined}), "sums": dict(sums),
            "counts": {site: list(names) for site, names in (counted or {}).items()},
        },
        "tells": telling, "never": never(bool(telling)),
        "privacy": results.get("privacy", {}).get("words", ""),
    }


def never(telling: bool) -> list[str]:
    """Return what did not leave.

    Args:
        telling: what left tells labels of single images.
    """
    return [what for what in NEVER if what != LABELS or not telling]


def certificate(forgotten: Row, identity: str, begun: Row | None = None) -> dict[str, Any]:
    """Return the certificate of a run from which images were taken away (``forgotten.json``).

    Args:
        forgotten: the section of its index file.
        identity: digest of the run that was made without them.
        begun: the run and round of the state that it went on from (``BEGUN``); None: the start.
    """
    told = {k: v for k, v in forgotten.items() if k != "tests"}
    first = int(begun["round"]) + 1 if begun else 1
    how = (f"rounds before {first} are those of the run {begun['run'][:8]}, which drew no client "
           "of the images in them; their evaluations were made again, and all later rounds run "
           "again") if begun else "all rounds were run again, from the untrained start"
    record = {"format": 1, **told, "without": identity, "from_round": first, "how": how}
    return record | {"seal": seal_of(record)}


def promises_privacy(built: Built) -> bool:
    """Tell whether the method has a privacy guarantee, which baselines would not be covered by."""
    own = type(built.federation.trainer).privacy is not Trainer.privacy
    plan = built.federation.plan
    return own or plan.dp is not None or plan.private is not None


def private(built: Built, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``Trainer.privacy`` says of a run.

    Args:
        records: of its rounds; whoever was drawn counts, lost or not.
    """
    dp = built.federation.plan.dp
    if dp is not None:
        return dp.report(int(records[-1]["round"]), built.federation.plan.rounds)
    federation, batch = built.federation, int(built.cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
    drawn = {
        record["round"]: sorted(
            {*record.get("participants", ()), *map(int, record.get("dropped", ()))})
        for record in records
    }
    how, sites = federation.plan.private, of_parties(built.cfg)
    spoken = dict((how.report if how else federation.trainer.privacy)(
        federation.plan.worked(drawn, federation.roster.train.tolist(), batch)
    ))
    if spoken and sites:
        spoken["words"] = f"{spoken['words']}; {HIDDEN}"
    elif how:
        spoken["words"] = f"{spoken['words']}; {PUBLIC}"
    return spoken | ({"noise": "secret" if sites else "seed"} if how else {})


def meaning_of(spoken: Row) -> str:
    """Return what an epsilon allows somebody who guesses who took part."""
    unit, right = spoken.get("unit", "image"), guess_bound(spoken["epsilon"], spoken["delta"])
    seen = " from the shared model" if unit == "client" else ""
    words = (f"who guesses{seen} whether one {unit} was used can be right in up to "
             f"{100 * right:.4g} % of cases (a coin: 50 %)")
    if right < CERTAIN:
        return words
    return f"{words}; an epsilon this large protects nobody (docs/privacy.md)"


def guess_bound(epsilon: float, delta: float) -> float:
    """Return the largest share of right guesses between two equally likely neighbouring data sets.

    (e^epsilon + delta) / (1 + e^epsilon) (Kairouz et al. 2015, the region of the two errors).
    """
    less = math.exp(-epsilon)
    return min(1.0, (1 + delta * less) / (1 + less))
