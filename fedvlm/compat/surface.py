"""``import dassl`` and ``import clip`` while a foreign file is loaded or run, and never else.

``NAMES`` is all that the files of the CoOp family import from Dassl, by an AST scan of CoOp, MaPLe,
PromptSRC and eleven federated forks: 31 names and a few cheap ones beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

ROOTS = ("dassl", "Dassl", "clip")
# module below dassl -> names
NAMES: Mapping[str, tuple[str, ...]] = {
    "config": ("get_cfg_default", "clean_cfg"),
    "engine": ("TRAINER_REGISTRY", "build_trainer", "TrainerX", "TrainerBase", "SimpleTrainer"),
    "engine.trainer": (
        "TrainerX", "TrainerBase", "SimpleTrainer", "MetricMeter", "AverageMeter", "SummaryWriter",
        "tolist_if_not", "count_num_param", "load_checkpoint", "save_checkpoint",
        "mkdir_if_missing", "resume_from_checkpoint", "load_pretrained_weights", "DataManager",
        "build_optimizer", "build_lr_scheduler", "build_evaluator",
    ),
    "data": ("DataManager", "DatasetWrapper"),
    "data.data_manager": ("DataManager", "DatasetWrapper"),
    "data.datasets": ("DATASET_REGISTRY", "Datum", "DatasetBase", "build_dataset"),
    "data.datasets.base_dataset": ("Datum", "DatasetBase"),
    "data.transforms": ("build_transform",),
    "evaluation": ("EVALUATOR_REGISTRY", "build_evaluator"),
    "metrics": ("compute_accuracy",),
    "optim": ("build_optimizer", "build_lr_scheduler"),
    "optim.radam": ("RAdam",),
    "utils": (
        "Registry", "check_isfile", "read_json", "write_json", "mkdir_if_missing",
        "listdir_nohidden", "read_image", "set_random_seed", "setup_logger", "collect_env_info",
        "load_checkpoint", "save_checkpoint", "resume_from_checkpoint",
        "load_pretrained_weights", "count_num_param", "tolist_if_not", "MetricMeter",
        "AverageMeter", "check_availability",
    ),
}  # fmt: skip


def package(root: str, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    """Return the modules ``root`` and ``root.<part>``, each with its names.

    Args:
        parts: dotted name below ``root`` to what it holds; ``""`` is the root itself.
    """
    modules: dict[str, ModuleType] = {}
    for part in sorted({"", *parts, *(p.rpartition(".")[0] for p in parts)}):
        name = f"{root}.{part}" if part else root
        module = ModuleType(name, "Put here by fedvlm.compat for a file that imports it.")
        module.__path__ = []  # nothing below it is looked for on disk
        vars(module).update(parts.get(part, {}))
        modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(modules[above], last, module)
    return modules


def loaded_below(roots: Collection[str], since: str = "") -> dict[str, ModuleType]:
    """Return the loaded modules whose top-level name is one of ``roots``, by full name.

    A file's every step asks, among thousands of names: they are looked through only where a root is
    loaded, as it is before what is below it, and from the newest back to ``since``.
    """
    found: dict[str, ModuleType] = {}
    if any(root in sys.modules for root in roots):
        for name in reversed(sys.modules):
            if name.partition(".")[0] in roots:
                found[name] = sys.modules[name]
            if name == since:
                break
    return found


@contextmanager
def replace_modules(
    modules: Mapping[str, ModuleType], roots: Collection[str] = ROOTS
) -> Iterator[None]:
    """Have ``modules`` in ``sys.modules`` for a while; what was there before comes back.

    Args:
        roots: top-level names of which nothing else is visible meanwhile.
    """
    before = loaded_below(roots)
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    first = next(iter(modules), "")  # nothing of the roots is older
    try:
        yield
    finally:
        for name in loaded_below(roots, first):
            del sys.modules[name]
        sys.modules.update(before)
