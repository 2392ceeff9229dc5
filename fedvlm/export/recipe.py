"""How a trained model predicts, as plain data: read by tensor names, proved on images.

A recipe is what ``runner.Model`` needs: constant class features, tensors, and the steps from pixels
to logits; of a model trained on captions to the image feature, of length one, which is compared
with text features of the base model, whose text tower is frozen. Whatever a trainer's tensors are
called that is not in ``KNOWN`` is refused, and so is a method whose own predictor gives other
logits: no export predicts otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.trees import Tree, first_non_finite, matching
from fedvlm.export import runner
from fedvlm.export.towers import arch_of, block_places, plain_visual, stage_places
from fedvlm.export.trained import TrainedModel
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import Predictor
from fedvlm.models.adapt.gates import KINDS
from fedvlm.models.adapt.visual import OUTPUTS
from fedvlm.models.load.names import known_tags, open_clip_name
from fedvlm.models.towers.adapters import plain_lora
from fedvlm.models.vlmodel import VLModel

TOLERANCE = 1e-5  # of logits, relative to the largest one where that is above 1
PROBES = 4  # images of noise that a proof looks at
# What a trainer's ``forms`` may say, and which values the runner computes.
FORMS: Mapping[str, tuple[str, ...]] = {
    "view": OUTPUTS,  # image.shared_adapter, image.personal_adapter: their output
    "scores": ("plain", "scaled"),  # image.fusion
    "score": ("cosine", "distance"),  # class features: by cosine, or distance to prototypes
    "gate": KINDS,  # gate.*
}
LORA = r"image\.lora\.\d+\.(q|k|v|o|fc|proj)\.[AB]"
NORMS = r"image\.ln\.\d+\.[12]\.(weight|bias)"
STAGES = r"image\.adapter\.\d+\.stage\.(ln|down|up)\.(weight|bias)"
ADAPTER = r"image\.adapter\.\d+\.(attn|mlp)\.(ln|down|up)\.(weight|bias)"
RESIDUAL = {n: rf"image\.{n}\.(down|up)" for n in ("adapter", "private")}  # in this order
VIEWS = r"image\.(shared|personal)_adapter\.fc[12]\.weight"
FUSION = r"image\.fusion\.(query|key)\.(weight|bias)"
PROTOTYPES = r"proto\.(mean|count)"
SMALL = r"small\.(fc[12]?|conv[123])\.(weight|bias)"
GATE = r"gate\.(w1|b1|w2|b2|a|on|spread)"
# Constant per class list: ``text_features`` says what comes of them.
TEXT = (
    r"(text\.ctx|head\.weight)(\.private\.(left|right))?", r"text\.(sigma|U|S|V|global|u|v|r)",
    r"text\.ctx\.(global|local)|text\.trained", r"text\.net\..*",
    r"text\.lora\.\d+\.(q|k|v|o|fc|proj)\.[AB]",
)
KNOWN = (LORA, NORMS, ADAPTER, STAGES, *RESIDUAL.values(), VIEWS, FUSION, PROTOTYPES, SMALL, GATE,
         *TEXT)


class Unheld(ConfigError):
    """A model whose prediction is no recipe: ``onnx`` may hold it as a graph (``traced``).

    Attributes:
        who: the method.
    """

    def __init__(self, who: str, sentence: str) -> None:
        super().__init__(sentence)
        self.who = who


@dataclass(frozen=True)
class ExportRecipe:
    """What predicts.

    Attributes:
        card: ``model.json``, plain values: class names, transform, steps and their forms.
        tensors: what the steps read, float32 on the CPU.
        lora: low-rank factors of both towers.
        difference: the largest one of its logits to the trainer's own, see ``TOLERANCE``.
        pixels, logits: the images of that proof, and the trainer's own logits.
    """

    card: dict[str, Any]
    tensors: Tree
    lora: Tree = field(default_factory=dict)
    difference: float = 0.0
    pixels: Tensor = field(default_factory=lambda: torch.zeros(0))
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def beyond(self) -> str:
        """What prediction needs beside one tower and constant class features; empty: nothing."""
        steps = [step for step, _ in self.card["steps"]]
        words = {
            "residual": "an adapter on the image feature", "fusion": "a fusion of three views of "
            "the image feature", "distance": "distances to prototypes instead of cosines",
            "gated": "a second model and a gate",
        }
        first = next((words[s] for s in steps if s in words), "")
        if "stages" in self.card["adapted"]:
            return "adapters behind the tower's stages"
        return "adapters inside the tower's blocks" if "adapter" in self.card["adapted"] else first

    @property
    def source(self) -> str:
        """The parts of ``runner`` that this model needs, as a file of its own."""
        steps = [step for step, _ in self.card["steps"]]
        by = "by_name" if "pretrained" in self.card["tower"] else "by_file"
        needs = {"base", by, *self.card["adapted"], *steps}
        needs |= {"two_towers"} if self.card["towers"] == 2 else set()
        if "gated" in steps:
            needs |= {self.card["steps"][-1][1], "small_" + self.card["small"]}
        lines, keep = [], False
        for line in Path(runner.__file__).read_text(encoding="utf-8").splitlines():
            part = re.match(r"\s*# part: (.*)", line)
            if part:
                keep = bool(needs & set(part.group(1).split()))
            elif keep and line.strip():
                lines += [""] * line.startswith(("class ", "def ")) + [line]
        text = "\n".join(lines) + "\n" + (runner.SETS_TAIL if "sets" in self.card else runner.TAIL)
        if steps[-1] == "feature":
            text = _changed(text, *runner.WITH_FEATURE)
        if "temperature" in self.card:
            text = _changed(text, *runner.WITH_PROBABILITY)
        return text if text.count("\n") <= 60 else re.sub(r"\n\n+", "\n", text)

    def module(self, model: VLModel) -> nn.Module:
        """Return the model in process, over plain copies of the frozen image tower."""
        towers = [plain_visual(model) for _ in range(self.card["towers"])]
        return runner.Model(self.card, self.tensors, towers).eval()


def build_recipe(trained: TrainedModel) -> ExportRecipe:
    """Return how ``trained`` predicts, proved on images of noise.

    Raises:
        ConfigError: tensors or a way to predict that no format can hold; numbers that are not
            finite; towers in bfloat16.
    """
    trainer, model = trained.trainer, trained.model
    who = trainer.title or type(trainer).__name__
    _refuse(trained, who)
    p = plain_lora({n: v.detach().cpu().float() for n, v in trained.params.items()})
    _refuse_names(p, who)
    forms = {k: str(v) for k, v in trainer.forms().items()}
    odd = [k for k, v in forms.items() if v not in FORMS.get(k, ())]
    if odd:
        known = "; ".join(f"{k}: {', '.join(v)}" for k, v in FORMS.items())
        raise ConfigError(
            f"{who} declares forms {odd[0]} {forms[odd[0]]}, which no export format supports "
            f"(known: {known})"
        )
    steps, tensors = _image_side(p, forms, who)
    if trained.facts.captioned:
        steps.append(("feature", ""))
    elif forms.get("score") == "distance":
        steps.append(("distance", "proto.mean"))
        tensors |= _taken(p, PROTOTYPES)
    else:
        steps.append(("cosine", "text"))
        with torch.no_grad():
            text = trainer.text_features(model, trained.placed(model))
        if model.sets and model.has_text:  # scale * z . (text - neutral)
            text = text - model.neutral
        tensors["text"] = text[0].detach().cpu().float().contiguous().clone()
    if "gate.on" in p:
        kind = forms.get("gate", "") if float(p["gate.on"]) > 0 else "average"
        _need(kind, "gate", who)
        steps.append(("gated", kind))
        tensors |= _taken(p, SMALL, GATE)
    inside = {"lora": LORA, "norms": NORMS, "adapter": ADAPTER, "stages": STAGES}
    adapted = [part for part, names in inside.items() if matching(p, [names])]
    tensors |= _taken(p, *inside.values())
    small = ""  # Thorki's second model
    if steps[-1][0] == "gated":
        small = "tower" if "small.fc.weight" in tensors else "mlp"
    two = bool(adapted) and small == "mlp"
    card = {
        "format": "fedvlm 1", "method": who, "classnames": class_names_of(trained),
        "scale": float(model.scale), "adapted": adapted, "steps": steps, "forms": forms,
        "lora": _lora_scale(trained, who) if any(".lora." in n for n in p) else 0.0,
        "towers": 2 if two else 1, "small": small, "transform": transform_of(model),
        "tower": _tower(model), **sets_card(trained),
    }
    if adapted:  # where the tower keeps what they change
        card |= stage_places(model) if "stages" in adapted else block_places(model)
    lora = {n: v for n, v in p.items() if re.fullmatch(r"(image|text)\.lora\..*", n)}
    return _prove(ExportRecipe(card, tensors, lora), trained, who)


def class_names_of(trained: TrainedModel) -> list[str]:
    """Return the names of the classes; none of a model trained on captions (it has topics)."""
    return [] if trained.facts.captioned else list(trained.classnames)


def sets_card(trained: TrainedModel) -> dict[str, Any]:
    """Return the temperature, where one was fitted; of sets of labels with the thresholds."""
    facts = trained.facts
    if not trained.model.sets:
        return {} if facts.temperature == 1.0 else {"temperature": facts.temperature}
    limits = facts.thresholds or (0.5,) * len(trained.classnames)
    return {"sets": {"temperature": facts.temperature, "thresholds": list(limits)}}


def _refuse(trained: TrainedModel, who: str) -> None:
    backbone, params = trained.model.backbone, trained.params
    if backbone.dtype is torch.bfloat16:
        raise ConfigError("the towers are in bfloat16: load the model in float32 to export it")
    bad = first_non_finite(params)
    if bad is not None:
        raise ConfigError(f"'{bad}' contains non-finite numbers: the model cannot be exported")
    if "gate.on" in params and len(trained.classnames) < 2:
        raise ConfigError(f"{who}: a gate over one class cannot be exported as a classifier")
    if isinstance(trained.trainer, ModuleTrainer):
        raise Unheld(
            who,
            f"{who} trains its own torch module, which only --format onnx can store, as a "
            "graph; for its state_dict use ModuleTrainer.export(model, params)"
        )


def _refuse_names(params: Tree, who: str) -> None:
    unknown = sorted(set(params) - set(matching(params, KNOWN)))
    if unknown:
        raise Unheld(
            who,
            f"{who} has {len(unknown)} tensor(s) that only --format onnx can store, as a graph, "
            f"the first '{unknown[0]}'{did_you_mean(unknown[0], set(params) - set(unknown))}"
        )


def _changed(text: str, old: str, new: str) -> str:
    """Return ``text`` with ``new`` in the place of ``old``, which stands there once."""
    if text.count(old) != 1:
        raise RuntimeError(f"run.py has {text.count(old)} of the lines to replace: {old[:60]!r}")
    return text.replace(old, new)


def _image_side(p: Tree, forms: Mapping[str, str], who: str) -> tuple[list[tuple[str, str]], Tree]:
    """Return the steps between tower and class features, and what they read."""
    steps: list[tuple[str, str]] = []
    tensors: Tree = {}
    for name, pattern in RESIDUAL.items():
        if matching(p, [pattern]):
            steps.append(("residual", f"image.{name}"))
            tensors |= _taken(p, pattern)
    if matching(p, [VIEWS, FUSION]):
        _need(forms.get("view", ""), "view", who)
        _need(forms.get("scores", ""), "scores", who)
        steps.append(("fusion", "image.fusion"))
        tensors |= _taken(p, VIEWS, FUSION)
    return steps, tensors


def _taken(p: Tree, *patterns: str) -> Tree:
    return {n: p[n].contiguous().clone() for n in matching(p, patterns)}


def _need(form: str, key: str, who: str) -> None:
    if not form:
        raise ConfigError(
            f"{who} does not define how its tensors are applied: its forms() lacks '{key}' "
            f"({', '.join(FORMS[key])})"
        )


def _lora_scale(trained: TrainedModel, who: str) -> float:
    if not isinstance(trained.trainer, PeftTrainer):
        raise ConfigError(f"{who} has LoRA tensors but no PEFT node: its alpha is unknown")
    return float(trained.trainer.spec.scale)


def transform_of(model: VLModel) -> dict[str, Any]:
    """Return the image transform as plain values."""
    return {k: list(v) if isinstance(v, tuple) else v
            for k, v in asdict(model.backbone.transform_spec).items()}


def _tower(model: VLModel) -> dict[str, Any]:
    """Return where the runner gets the frozen tower: by open_clip's names, or from a file."""
    backbone = model.backbone
    if not backbone.standard:
        return {}
    if not backbone.weights.startswith("transformers:") and backbone.weights != "embedded":
        try:
            name = open_clip_name(backbone.name)
        except ConfigError:
            name = ""
        if name and backbone.weights in known_tags(name):
            return {"name": name, "pretrained": backbone.weights}
    kind = "CustomTextCLIP" if backbone.arch.get("custom_text") else "CLIP"
    return {"class": kind, "arch": arch_of(backbone), "file": "tower.safetensors"}


def _prove(recipe: ExportRecipe, trained: TrainedModel, who: str) -> ExportRecipe:
    """Return the recipe with its proof.

    Raises:
        ConfigError: its logits are not the trainer's own.
    """
    pixels = noise_images(trained.model)
    wanted = wanted_of(trained, pixels)
    with torch.no_grad():
        try:
            ours = recipe.module(trained.model)(pixels)
        except KeyError as error:
            raise Unheld(who, f"{who} has no tensor {error}, which the others need") from error
    gap = difference(ours, wanted)
    if not gap <= TOLERANCE:
        raise Unheld(
            who,
            f"{who} predicts differently from its exported form (image features against constant "
            f"class features): logits differ by {gap:.1e}, allowed "
            f"{TOLERANCE:.0e}; only --format onnx can store it, as a graph"
        )
    return ExportRecipe(recipe.card, recipe.tensors, recipe.lora, gap, pixels, wanted)


def noise_images(model: VLModel) -> Tensor:
    """Return the images ``[n, 3, S, S]`` that a proof looks at, the same each time."""
    side = model.backbone.image_size
    return torch.randn(PROBES, 3, side, side, generator=rng.stream(0, "export"))


def wanted_of(trained: TrainedModel, pixels: Tensor) -> Tensor:
    """Return the trainer's own logits ``[n, C]`` of ``pixels [n, 3, S, S]``, float32 on the CPU."""
    model = trained.model
    with torch.no_grad():
        predict = prediction_of(trained, model)
        streams = {"pixels": pixels[None].to(model.device, model.dtype)}
        return predict(streams)[0].detach().cpu().float()


def prediction_of(trained: TrainedModel, model: VLModel) -> Predictor:
    """Return ``x -> logits [1, B, C]``; of a model trained on captions features ``[1, B, d]``.

    Args:
        model: the towers that compute it.
    """
    params = trained.placed(model)
    if not trained.facts.captioned:
        return trained.trainer.predictor(model, params)
    return lambda x: F.normalize(trained.trainer.image_features(model, params, x), dim=-1)


def difference(ours: Tensor, wanted: Tensor) -> float:
    """Return the largest difference of logits, over the largest logit where that is above 1."""
    if ours.shape != wanted.shape:
        return float("inf")
    gap = (ours.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp_min(1)
    return float(gap) if bool(gap.isfinite()) else float("inf")


def steps_in_words(steps: Sequence[Sequence[str]]) -> str:
    """Return the way from pixels to logits for a card."""
    words = {"residual": "adapter", "fusion": "fusion of three views", "cosine": "cosine to class "
             "features", "feature": "image feature of length one",
             "distance": "distance to prototypes", "gated": "gate with a small model",
             "traced": "the method's own prediction as one graph"}
    return ", ".join(["image tower", *(words[step] for step, _ in steps)])
