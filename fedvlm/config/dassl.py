"""Dassl's and CoOp's config keys, so that their YAML files load as they are.

Only names, types and defaults (facts). A key with ``used=False`` is read by
nothing here and shown as such. ``keys`` overrides defaults where the FedTV family differs.
"""

from __future__ import annotations

from typing import Any

from fedvlm.config.option import Option, Schema

_UNUSED = "accepted so that Dassl's YAML files load; has no effect"

# node -> {key: Dassl's default}; the empty node is the top of the tree
_TREE: dict[str, dict[str, Any]] = {
    "": {"VERSION": 1, "VERBOSE": True},
    "INPUT": {
        "SIZE": (224, 224), "INTERPOLATION": "bilinear", "TRANSFORMS": (), "NO_TRANSFORM": False,
        "PIXEL_MEAN": [0.485, 0.456, 0.406], "PIXEL_STD": [0.229, 0.224, 0.225],
        "CROP_PADDING": 4, "RRCROP_SCALE": (0.08, 1.0), "CUTOUT_N": 1, "CUTOUT_LEN": 16,
        "GN_MEAN": 0.0, "GN_STD": 0.15, "RANDAUGMENT_N": 2, "RANDAUGMENT_M": 10,
        "COLORJITTER_B": 0.4, "COLORJITTER_C": 0.4, "COLORJITTER_S": 0.4, "COLORJITTER_H": 0.1,
        "RGS_P": 0.2, "GB_P": 0.5, "GB_K": 21,
    },
    "DATASET": {
        "NUM_LABELED": -1, "VAL_PERCENT": 0.1,
        "STL10_FOLD": -1, "CIFAR_C_TYPE": "", "CIFAR_C_LEVEL": 1, "ALL_AS_UNLABELED": False,
        "USER_PROMPT_LENGTHS": (),
    },
    "DATALOADER": {"NUM_WORKERS": 4, "K_TRANSFORMS": 1, "RETURN_IMG0": False},
    "DATALOADER.TRAIN_X": {"SAMPLER": "RandomSampler", "N_DOMAIN": 0, "N_INS": 16},
    "DATALOADER.TRAIN_U": {
        "SAME_AS_X": True, "SAMPLER": "RandomSampler", "BATCH_SIZE": 32, "N_DOMAIN": 0, "N_INS": 16,
    },
    "DATALOADER.TEST": {"SAMPLER": "SequentialSampler"},
    "MODEL.HEAD": {
        "NAME": "", "HIDDEN_LAYERS": (), "ACTIVATION": "relu", "BN": True, "DROPOUT": 0.0,
    },
    "OPTIM": {
        "SGD_DAMPNING": 0, "SGD_NESTEROV": False, "RMSPROP_ALPHA": 0.99, "STAGED_LR": False,
        "NEW_LAYERS": (), "BASE_LR_MULT": 0.1, "WARMUP_RECOUNT": True,
    },
    "TRAIN": {"PRINT_FREQ": 10, "COUNT_ITER": "train_x"},
    "TEST": {
        "EVALUATOR": "Classification",
        "NO_TEST": False, "SPLIT": "test",
    },
}  # fmt: skip

# trainer nodes of Dassl, CoOp, MaPLe and PromptSRC: their YAML files name them
_TRAINERS: dict[str, dict[str, Any]] = {
    "MCD": {"N_STEP_F": 4},
    "MME": {"LMDA": 0.1},
    "CDAC": {
        "CLASS_LR_MULTI": 10, "RAMPUP_COEF": 30, "RAMPUP_ITRS": 1000, "TOPK_MATCH": 5,
        "P_THRESH": 0.95, "STRONG_TRANSFORMS": (),
    },
    "SE": {"EMA_ALPHA": 0.999, "CONF_THRE": 0.95, "RAMPUP": 300},
    "M3SDA": {"LMDA": 0.5, "N_STEP_F": 4},
    "DAEL": {"WEIGHT_U": 0.5, "CONF_THRE": 0.95, "STRONG_TRANSFORMS": ()},
    "CROSSGRAD": {"EPS_F": 1.0, "EPS_D": 1.0, "ALPHA_F": 0.5, "ALPHA_D": 0.5},
    "DDAIG": {
        "G_ARCH": "", "LMDA": 0.3, "CLAMP": False, "CLAMP_MIN": -1.0, "CLAMP_MAX": 1.0,
        "WARMUP": 0, "ALPHA": 0.5,
    },
    "DAELDG": {"WEIGHT_U": 0.5, "CONF_THRE": 0.95, "STRONG_TRANSFORMS": ()},
    "DOMAINMIX": {"TYPE": "crossdomain", "ALPHA": 1.0, "BETA": 1.0},
    "ENTMIN": {"LMDA": 1e-3},
    "MEANTEACHER": {"WEIGHT_U": 1.0, "EMA_ALPHA": 0.999, "RAMPUP": 5},
    "MIXMATCH": {"WEIGHT_U": 100.0, "TEMP": 2.0, "MIXUP_BETA": 0.75, "RAMPUP": 20000},
    "FIXMATCH": {"WEIGHT_U": 1.0, "CONF_THRE": 0.95, "STRONG_TRANSFORMS": ()},
    "COOP": {
        "N_CTX": 16, "CSC": False, "CTX_INIT": "", "PREC": "fp16", "CLASS_TOKEN_POSITION": "end",
    },
    "COCOOP": {"N_CTX": 16, "CTX_INIT": "", "PREC": "fp16"},
    "MAPLE": {"N_CTX": 2, "CTX_INIT": "a photo of a", "PREC": "fp16", "PROMPT_DEPTH": 9},
    "PROMPTSRC": {
        "N_CTX_VISION": 4, "N_CTX_TEXT": 4, "CTX_INIT": "a photo of a", "PREC": "fp16",
        "PROMPT_DEPTH_VISION": 9, "PROMPT_DEPTH_TEXT": 9, "TEXT_LOSS_WEIGHT": 25.0,
        "IMAGE_LOSS_WEIGHT": 10.0, "GPA_MEAN": 15.0, "GPA_STD": 1.0,
    },
    "IVLP": {
        "N_CTX_VISION": 2, "N_CTX_TEXT": 2, "CTX_INIT": "a photo of a", "PREC": "fp16",
        "PROMPT_DEPTH_VISION": 9, "PROMPT_DEPTH_TEXT": 9,
    },
}  # fmt: skip


# Nodes of methods that are not Dassl's own: no key of theirs is passed over in silence.
FAMILY = ("COOP", "COCOOP", "MAPLE", "PROMPTSRC", "IVLP")


def family_options() -> dict[str, Any]:
    """Return the default of every key of the CoOp family's trainer nodes."""
    return {
        f"TRAINER.{name}.{key}": default
        for name in FAMILY for key, default in _TRAINERS[name].items()
    }


def dassl_options() -> Schema:
    """Return an ``Option`` for every key of Dassl that ``keys`` does not define."""
    nodes = {f"TRAINER.{n}": keys for n, keys in _TRAINERS.items() if n not in FAMILY}
    tree = _TREE | nodes
    return {
        f"{node}.{key}" if node else key: Option(default, _UNUSED, used=False)
        for node, keys in tree.items()
        for key, default in keys.items()
    }
