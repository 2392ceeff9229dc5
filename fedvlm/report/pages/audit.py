"""The page of an audit: what attacks found, beside the list of what left the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlm.report.pages.frame import PageSection, page
from fedvlm.report.pages.grid import table
from fedvlm.report.pages.html import Html, element, join_content
from fedvlm.report.pages.origin import gifts
from fedvlm.runs.finished import FinishedRun


def audit_page(run: FinishedRun, record: Mapping[str, Any]) -> str:
    """Return the page of an audit of ``run`` as one HTML document."""
    intro = element(
        "p", "Members are images that a client trained on, others are its test images of the same "
        "classes. An AUC of 0.5 is a coin. Attacks give lower bounds: one that fails proves "
        "nothing, since a better one may exist.")
    parts = [
        PageSection("membership", "Who was trained on", _membership(record)),
        PageSection("epsilon", "Epsilon", _epsilon(record)),
        PageSection("step", "What one step tells", _step(record)),
        PageSection("released", "What the run gave away", gifts(run)),
    ]
    return page(f"Audit of {run.method} on {record['data']}", intro, parts,
                f"fedvlm audit --seed {record['seed']} --shadows {record['shadows']}")


def _membership(record: Mapping[str, Any]) -> Html:
    heads = ("model", "attack", "AUC", "95 % interval",
             "members found at 1 % false", "members found at 5 % false", "epsilon at least")
    rows = [[row["model"], row["attack"], f"{row['auc']:.3f}",
             f"{row['low']:.3f} to {row['high']:.3f}", *map(_rate, row["rates"]),
             f"{row['epsilon']:.2f}"] for row in record["membership"]]
    images = record["images"]
    why = f" No shadow runs: {record['why_no_shadows']}." if record["why_no_shadows"] else ""
    return join_content([
        table(heads, rows, caption=f"{images['members']} members and {images['others']} others; "
              "intervals by DeLong (AUC) and by Clopper and Pearson (shares)"),
        element("p", "Personal: each client's own model on its own images. Global: the shared "
                     f"model on all of them.{why}"),
    ])


def _rate(rate: Mapping[str, Any]) -> str:
    share = rate["hits"] / rate["members"]
    return f"{100 * share:.1f} % ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"


def _epsilon(record: Mapping[str, Any]) -> Html:
    claimed = record["claimed"]
    parts = [*claim_sentences(record), *([f"Claimed: {claimed['words']}."] if claimed else [])]
    return join_content([
        *[element("p", one) for one in parts],
        element("p", "Lower bounds hold with 95 %. They count images as independent tries; they are"
                     " of one run."),
    ])


def exceeds_claim(record: Mapping[str, Any]) -> bool:
    """Tell whether an attack shows more than a run claims, of a model that the claim covers."""
    most = (record["claimed"] or {}).get("image_epsilon")
    return most is not None and any(
        row["epsilon"] > most for row in record["membership"] if row["covered"])


def claim_sentences(record: Mapping[str, Any]) -> list[str]:
    """Return the lower bounds of epsilon beside what is claimed of the same models."""
    claimed, rows = record["claimed"], record["membership"]

    def least(covered: bool) -> str:
        return f"{max(row['epsilon'] for row in rows if row['covered'] is covered):.2f}"

    if not claimed or claimed["epsilon"] is None:
        beside = "the run claims no bound" if claimed else "the run claims none"
        return [f"epsilon of an image: at least {least(bool(claimed))} by the attacks ({beside})"]
    beside, models = f"claimed {claimed['epsilon']:.3g}", "all models"
    if claimed["image_epsilon"] != claimed["epsilon"]:
        beside += (f" for the presence of a client, which is {claimed['image_epsilon']:.3g} for "
                   "one of its images")
        if claimed["image_delta"] >= 1:
            beside += ", with delta 1: it says nothing of one image"
    lines = []
    if claimed["own"]:
        models = "the global model"
        lines.append(f"epsilon of an image: at least {least(False)} by the attacks on personal "
                     f"models, which the claim does not cover ({claimed['own']})")
    lines.insert(0, f"epsilon of an image: at least {least(True)} by the attacks on {models} "
                    f"({beside})")
    if exceeds_claim(record):
        lines.append("WARNING: an attack shows a larger epsilon than is claimed of the same model: "
                     "the claim does not hold, or this is the one audit of twenty that errs")
    return lines


def _step(record: Mapping[str, Any]) -> Html:
    step = record["step"]
    if "why" in step:
        return element("p", f"Not read: {step['why']}.")
    labels = element(
        "p", "Labels: from one step of gradient descent on all images of a client, "
        f"{100 * step['label_error']:.1f} % of the images are counted under a wrong class "
        f"({step['clients']} clients); equal counts would be wrong for "
        f"{100 * step['guess_error']:.1f} %{no_better(step)}. The attacker compares with "
        "gradients of the public test images.")
    parts = [labels]
    if "cosine" in step:
        parts.append(element(
            "p", "Feature of a linear head: from a step on one image it is computed in closed form;"
            f" the smallest cosine to the true one in {step['images']} tries is "
            f"{step['cosine']:.6f}."))
    return join_content([*parts, element(
        "p", f"Features by gradient inversion: {inversion_words(step['inversion'])}. The search "
        "seeks features whose gradient is the one that was sent; the cosine is to the true ones, "
        "in the best order. The guess, which no gradient is needed for, is the mean feature of "
        "public test images of each image's true class. No image is computed from a feature.")])


def no_better(step: Mapping[str, Any]) -> str:
    """Return that counts of labels are worth nothing, where equal counts are as good."""
    return ": no better than a guess" if step["label_error"] >= step["guess_error"] else ""


def inversion_words(found: Mapping[str, Any]) -> str:
    """Return in a line what a search for features found in one step, beside the guess.

    Args:
        found: ``inversion`` of a step in ``audit.json``.
    """
    if "why" in found:
        return f"not tried: {found['why']}"
    one, batch = found["one"], found["batch"]
    return (f"cosine {one['cosine']:.3f} from 1 image (a guess: {one['guess']:.3f}), "
            f"{batch['cosine']:.3f} from {batch['images']} (a guess: {batch['guess']:.3f}): "
            f"1 image shows {_than(one)} its class, a batch {_than(batch)} its classes")


def _than(found: Mapping[str, Any]) -> str:
    return "more than" if found["cosine"] > found["guess"] else "no more than"
