"""README.md of an export, in the Hub's model-card form."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedvlm.export.recipe import ExportRecipe, steps_in_words
from fedvlm.export.towers import hub_name
from fedvlm.export.trained import Facts, TrainedModel
from fedvlm.federation.cards import card_of, fields
from fedvlm.models.load.names import LOCAL_DIR

UNKNOWN = "unknown"
OWN, OWN_LICENCE = "tiny", "apache-2.0"  # the backbone that comes with this project (LICENSE)
_OF_TEXTS = ("for images and captions (texts are encoded by the base model's own text tower, which "
             "was not trained)")


def readme(recipe: ExportRecipe, trained: TrainedModel, library: str, usage: str) -> str:
    """Return the card of one model: front matter, what it is, how to use it.

    Args:
        recipe: how it predicts.
        trained: facts and base model.
        library: the Hub's name of what loads it.
        usage: of this format, in Markdown.
    """
    from huggingface_hub import EvalResult, ModelCardData  # start-up: 0.3 s

    facts, backbone = trained.facts, trained.model.backbone
    who, classes = recipe.card["method"], recipe.card["classnames"]
    base, licence = facts.base or hub_name(backbone), licence_of(trained)
    what = "labels" if "sets" in recipe.card else "classes"
    task = "image-classification" if classes else "image-feature-extraction"
    results = [
        EvalResult(
            task_type=task, dataset_type=_slug(facts.data or UNKNOWN),
            dataset_name=facts.data or UNKNOWN, metric_type="accuracy" if "acc" in name else name,
            metric_name=name, metric_value=round(float(value), 2),
        )
        for name, value in facts.metrics.items()
    ]
    name = f"{who}, {facts.owner}" if facts.owner else who
    data = ModelCardData(
        base_model=base or None, library_name=library, license=licence or UNKNOWN,
        pipeline_tag=task, tags=["fedvlm", "federated-learning", _slug(who)],
        model_name=name if results else None, eval_results=results or None,
    )
    lines = [
        f"---\n{data.to_yaml()}\n---", f"# {name}",
        "An adapted vision-language model "
        f"{f'over {len(classes)} {what}' if classes else _OF_TEXTS}, exported by fedvlm.",
        "\n".join(f"- **{key}**: {value}" for key, value in _rows(recipe, trained, base).items()),
    ]
    if facts.metrics:
        count, head, rule = (f" {facts.images:,} |", " test images |", "---:|") if (
            facts.images) else ("", "", "")
        rows = "\n".join(f"| {n} | {v:.2f} |{count}" for n, v in facts.metrics.items())
        lines.append(f"## Results\n| metric | % |{head}\n|---|---:|{rule}\n{rows}")
    elif facts.untested:
        lines.append(f"## Results\n{facts.untested}")
    lines.append(f"## Use\n{usage}")
    if classes:
        lines.append(f"## {what.capitalize()}\n" + ", ".join(str(c) for c in classes))
    if facts.notes:
        lines.append("## Notes\n" + "\n".join(f"- {note}" for note in facts.notes))
    return "\n\n".join(lines) + "\n"


def licence_of(trained: TrainedModel) -> str:
    """Return the licence of the base weights: as it was said, or of the project's own; else ''."""
    own = trained.model.backbone.name == OWN
    return trained.facts.licence or (OWN_LICENCE if own else "")


def _rows(recipe: ExportRecipe, trained: TrainedModel, base: str) -> Mapping[str, str]:
    """Return what every card says, in order."""
    facts, backbone, look = trained.facts, trained.model.backbone, recipe.card["transform"]
    paper = fields(card_of(trained.trainer.name)).get("Paper", "")
    rows = {
        "Base model": f"{_named(backbone.name)} ({_named(backbone.weights)})" + (
            f", {base}" if base else ""),
        "Method": recipe.card["method"] + (f": {' '.join(paper.split())}" if paper else ""),
        "Whose": facts.owner or "not said", "Data": facts.data or "not said",
        "Prediction": steps_in_words(recipe.card["steps"]),
        "Image": f"{look['size']} pixels, {look['interpolation']}, {look['resize_mode']}, mean "
                 f"{look['mean']}, std {look['std']}; of an image that `decode` in pixels.py made "
                 "of a file's bytes, as in training (of 16 bits the upper 8)",
        "Licence of the base weights": licence_of(trained) or "unknown to fedvlm: ask the authors",
        "Backbone digest": backbone.digest,
    }
    if facts.run:
        rows["Run"] = facts.run
    if "sets" in recipe.card:
        sets = recipe.card["sets"]
        limits = zip(recipe.card["classnames"], sets["thresholds"], strict=True)
        rows["Labels"] = ("a set of labels for each image: sigmoid(logit / "
                          f"{sets['temperature']:.3g}) at least the label's threshold: "
                          + ", ".join(f"{name} {limit:.3f}" for name, limit in limits))
    if "temperature" in recipe.card:
        rows["Probabilities"] = (f"softmax(logits / {recipe.card['temperature']:.3g}); the "
                                 "temperature was fitted on the client's validation images")
    if trained.trainer.extra_data:
        rows["Extra data"] = trained.trainer.extra_data
    return rows


def index(names: Mapping[str, Facts], differences: Mapping[str, float], form: str) -> str:
    """Return README.md of a folder of models: one line each."""
    metrics = sorted({m for facts in names.values() for m in facts.metrics})
    head = ["model", "whose", *metrics, "largest logit difference"]
    rows = [
        [f"[{name}]({name}/README.md)", facts.owner or "not said",
         *(f"{facts.metrics[m]:.2f}" if m in facts.metrics else "" for m in metrics),
         f"{differences[name]:.1e}"]
        for name, facts in names.items()
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
    return (
        f"# {len(names)} models, format {form}\n\nOne folder per model; shared files are next "
        f"to this file.\n\n{table}\n"
    )


def _named(word: str) -> str:
    """Return a backbone's name, or its weights', without the folders that they lie in here."""
    head, colon, path = word.rpartition(":")
    here = path.startswith(("/", "~", ".", "$")) or f"{head}:" == LOCAL_DIR
    return f"{head}{colon}{path.rstrip('/').rpartition('/')[2]}" if here else word


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or UNKNOWN
