"""What a method is made of: the one import of a method's author.

A version number promises this module: what stands in ``__all__``, with its documented arguments,
shapes and numbers, stays within a minor version (0.2.x), and is changed in the next one only with
a line in CHANGELOG.md. Everything else in the package may move at any time. A method of one's own
imports this, PyTorch and the standard library:

    from fedvlm.method import Option, Trainer, cross_entropy

A method: ``Trainer`` (FedAvg; override what differs), ``PeftTrainer`` (trains what PEFT.* and
MODEL.HEAD.* say), ``ModuleTrainer`` (any ``torch.nn.Module``), ``ContextTrainer`` and
``PairTrainer`` (a learned context; a shared one and one of the client's own), ``TemplateTrainer``
(the texts are constant), ``TrainingFree``; ``TRAINER_REGISTRY`` for methods of the repository.

Its settings: ``Option``, ``CfgNode``, ``weighting``, ``WORDS`` and ``kept_words``; ``ConfigError``
and ``DataError`` refuse them.

Tensors by name: ``Tree``, ``State``, ``per_client``, ``pick``, ``map_leaves``, ``trees``. Groups of
them: ``PERSONAL``, ``SHARED``, ``Groups``, ``Rule``, ``Portion``, and ``Releases``: what leaves.

A client's work: ``Context``, ``Batch``, ``Step``, ``Edit``, ``OptimSpec``, ``Upload``, ``Rows``,
``Worked``, ``pull``, ``fill_newcomers``; loops of a method's own: ``optimise``, ``descend``,
``rates``; after the last round: ``Finetune``, ``TAG``; random numbers: ``rng``.

The model: ``VLModel``, ``Predictor``, ``cross_entropy``; what is trained: ``peft``, ``contexts``,
``prompts``, ``layers``, ``attention``, ``visual``, ``multimodal``, ``gates``, ``small``; what
can be taken out of it: ``channels``; inside the towers: ``adapters``, ``blocks``, ``vision``,
``frozen_linear``.

The server: ``ServerContext``, ``Proxy``, ``Updates``, ``weighted_mean``, ``weighted_sum``,
``require_finite``, ``similarity_aware``, ``rules``, ``lora``.

Parts of methods: ``contrast``, ``prototypes``, ``moments``, ``mixtures``,
``distill``, ``attack``, ``privacy``,
``adaptation``. Names in lower case that are no functions are modules (``peft.role``); each is
documented where it stands, and loaded when a method asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from yacs.config import CfgNode

from fedvlm.config.option import Option
from fedvlm.core import rng, trees
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.trees import State, Tree, map_leaves, per_client, pick
from fedvlm.federation.aggregation import rules
from fedvlm.federation.aggregation.arrival import Rows
from fedvlm.federation.aggregation.updates import (
    Updates,
    require_finite,
    similarity_aware,
    weighted_mean,
    weighted_sum,
)
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Context, Edit, Upload, descend, optimise, rates
from fedvlm.federation.groups import PERSONAL, SHARED, TAG, Finetune, Groups, Releases, Rule
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.local.sent import Portion
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.server import Proxy, ServerContext
from fedvlm.federation.trainer import TRAINER_REGISTRY, Predictor, Trainer, cross_entropy
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:  # loaded by __getattr__, when a method's file asks for them
    from fedvlm.federation.aggregation import lora
    from fedvlm.federation.module_trainer import ModuleTrainer
    from fedvlm.federation.peft_trainer import PeftTrainer
    from fedvlm.federation.toolbox import (
        adaptation,
        contrast,
        distill,
        mixtures,
        moments,
        privacy,
        prototypes,
    )
    from fedvlm.federation.toolbox.contexts import ContextTrainer, PairTrainer
    from fedvlm.federation.toolbox.regularise import (
        WORDS,
        fill_newcomers,
        kept_words,
        pull,
        weighting,
    )
    from fedvlm.federation.toolbox.templates import TemplateTrainer, TrainingFree
    from fedvlm.models.adapt import (
        attack,
        attention,
        channels,
        contexts,
        gates,
        layers,
        multimodal,
        peft,
        prompts,
        small,
        visual,
    )
    from fedvlm.models.towers import adapters, blocks, vision
    from fedvlm.models.towers.layers import frozen_linear

_LATER = {  # module -> what comes of it when it is asked for
    "fedvlm.federation.aggregation": "lora",
    "fedvlm.federation.module_trainer": "ModuleTrainer",
    "fedvlm.federation.peft_trainer": "PeftTrainer",
    "fedvlm.federation.toolbox": "adaptation contrast distill mixtures moments privacy "
                                   "prototypes",
    "fedvlm.federation.toolbox.contexts": "ContextTrainer PairTrainer",
    "fedvlm.federation.toolbox.regularise": "WORDS fill_newcomers kept_words pull weighting",
    "fedvlm.federation.toolbox.templates": "TemplateTrainer TrainingFree",
    "fedvlm.models.adapt": "attack attention channels contexts gates layers multimodal peft "
                           "prompts small visual",
    "fedvlm.models.towers": "adapters blocks vision",
    "fedvlm.models.towers.layers": "frozen_linear",
}
_PLACE = {name: module for module, names in _LATER.items() for name in names.split()}
__all__ = [
    "PERSONAL", "SHARED", "TAG", "TRAINER_REGISTRY", "WORDS",
    "Batch", "CfgNode", "ConfigError", "Context", "ContextTrainer", "DataError", "Edit", "Finetune",
    "Groups", "ModuleTrainer", "OptimSpec", "Option", "PairTrainer", "PeftTrainer", "Portion",
    "Predictor", "Proxy", "Releases", "Rows", "Rule", "ServerContext", "State", "Step",
    "TemplateTrainer", "Trainer", "TrainingFree", "Tree", "Updates", "Upload", "VLModel", "Worked",
    "cross_entropy", "descend", "fill_newcomers", "frozen_linear", "kept_words", "map_leaves",
    "optimise",
    "per_client", "pick", "pull", "rates", "require_finite", "similarity_aware", "weighted_mean",
    "weighted_sum", "weighting",
    "adapters", "adaptation", "attack", "attention", "blocks", "channels", "contexts", "contrast",
    "distill", "gates", "layers", "lora", "mixtures", "moments", "multimodal", "peft", "privacy",
    "prompts", "prototypes", "rng", "rules", "small", "trees", "vision", "visual",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a tool, or a base of methods that few have, when it is first asked for."""
    if name not in _PLACE:
        raise AttributeError(f"module 'fedvlm.method' has no attribute '{name}'")
    module = importlib.import_module(_PLACE[name])
    value = getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
