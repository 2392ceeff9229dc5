"""The flags, as a table: spellings, the config key they set, one line of help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        names: spellings; the first is shown in the help. Case, dash and underscore do not matter.
        help: one line.
        group: heading in the help; "" hides the flag there (spellings of other projects).
        key: config key it sets; ``TRAINER.*.KEY`` is the chosen trainer's own.
        dest: attribute of the namespace, for flags that are no config key.
        kind: ``value`` (one word), ``switch`` (on, or an explicit true/false), ``many`` (whole
            numbers), ``opts`` (KEY VALUE pairs).
        metavar: how the value is shown.
        idle_note: what to say where the chosen trainer lacks the key and the published code does
            nothing with the flag either; without it the flag is an error there.
    """

    names: tuple[str, ...]
    help: str
    group: str = ""
    key: str = ""
    dest: str = ""
    kind: str = "value"
    metavar: str = "X"
    idle_note: str = ""

    def empty(self) -> Any:
        """Return the value of ``dest`` where the flag is absent."""
        return {"switch": False, "many": []}.get(self.kind, "")


def _v(group: str, key: str, names: str, help_: str, metavar: str = "X", **more: str) -> Flag:
    return Flag(tuple(names.split()), help_, group, key, metavar=metavar, **more)


_JOB, _FED, _TRAIN, _MODEL, _RUN = (
    "What to run", "Federation", "Training", "Backbone", "Run and output",
)  # fmt: skip

FLAGS: tuple[Flag, ...] = (
    _v(_JOB, "DATASET.ROOT", "--root --data-root", "folder that holds the datasets", "DATA/"),
    _v(_JOB, "", "--dataset", "dataset by name: configs/datasets/NAME.yaml", "NAME",
       dest="dataset"),
    _v(_JOB, "", "--dataset-config-file", "dataset by file", "FILE", dest="dataset_config_file"),
    _v(_JOB, "", "--trainer", "method, or ./file.py:Class (default FedTV)", "NAME",
       dest="trainer"),
    _v(_JOB, "", "--trainer-config-file --config-file", "the method's settings", "FILE",
       dest="trainer_config_file"),
    _v(_JOB, "TRAINER.*.VARIANT", "--variant", "a bundle of the method's own switches", "NAME"),
    _v(_JOB, "DATASET.NUM_SHOTS", "--shots --num-shots", "images per class, -1 takes all", "N"),
    _v(_JOB, "DATASET.SUBSAMPLE_CLASSES", "--subsample-classes --subsample", "all, base or new"),
    Flag(("--demo",), "the built-in set on the tiny backbone; needs no data", _JOB, dest="demo",
         kind="switch"),
    _v(_FED, "FED.CLIENTS", "--num-users --clients --users", "clients", "N"),
    _v(_FED, "FED.ROUNDS", "--rounds --round", "communication rounds", "N"),
    _v(_FED, "FED.LOCAL_EPOCHS", "--local-epochs --local-epoch", "epochs per round", "N"),
    _v(_FED, "FED.FRAC", "--frac", "share of clients per round"),
    _v(_FED, "FED.PARTITION", "--partition", "iid, disjoint, n_classes, dirichlet, "
       "superclass_dirichlet, quantity, domain, domain_dirichlet"),
    _v(_FED, "FED.BETA", "--beta", "concentration of the Dirichlet split"),
    _v(_FED, "FED.HELD_OUT_DOMAIN", "--held-out-domain --held-out",
       "leave one domain out, to be tested on", "NAME"),
    _v(_FED, "FED.FINETUNE_EPOCHS", "--finetune-epochs",
       "final fine-tuning of every client, 0 is none", "N"),
    _v(_FED, "FED.FINETUNE_TRAIN", "--finetune-train", "own, all, shared, personal, body, head"),
    _v(_TRAIN, "", "--peft", "what is trained: prompt, feature, lora, adapter, head, text-lora",
       "A+B", dest="peft"),
    _v(_TRAIN, "OPTIM.LR", "--lr", "learning rate"),
    _v(_TRAIN, "DATALOADER.TRAIN_X.BATCH_SIZE", "--batch-size --train-batch-size",
       "training batch", "N"),
    _v(_TRAIN, "INPUT.VIEWS", "--views", "1 view, n augmented ones, or 0: always a fresh one",
       "N"),
    _v(_TRAIN, "TEST.TARGETS", "--targets", "also test on these datasets (transfer)", "A,B"),
    _v(_TRAIN, "TEST.EVAL_EVERY", "--eval-every", "rounds between evaluations", "N"),
    _v(_TRAIN, "SEED", "--seed", "model seed", "N"),
    _v(_TRAIN, "DATA_SEED", "--data-seed", "seed of partition and shots", "N"),
    Flag(("--seeds",), "one run per seed (both seeds), then the table", _TRAIN, dest="seeds",
         kind="many", metavar="N N N"),
    _v(_MODEL, "MODEL.BACKBONE.NAME", "--backbone", "ViT-B/16, RN50, ..., or tiny (embedded)",
       "NAME"),
    _v(_MODEL, "MODEL.INIT_WEIGHTS", "--weights", "tag, file or local-dir:FOLDER"),
    _v(_MODEL, "DEVICE", "--device", "auto, cpu, cuda, cuda:N, mps"),
    Flag(("--plain",), "the slow plain path (no cache, no packing)", _MODEL, "FED.PLAIN",
         kind="switch"),
    _v(_RUN, "OUTPUT_DIR", "--output-dir", "folder of all runs", "DIR"),
    _v(_RUN, "RESUME", "--resume", "run folder to go on with", "DIR"),
    _v(_RUN, "TAG", "--tag", "a word in the run folder's name"),
    _v(_RUN, "SINKS", "--sinks", "also send each round's numbers to tensorboard, wandb", "A,B"),
    Flag(("--keep-logits",), "keep the last round's logits", _RUN, "TEST.KEEP_LOGITS",
         kind="switch"),
    Flag(("--dry-run",), "build everything, one batch, one aggregation, then stop", _RUN,
         dest="dry_run", kind="switch"),
    Flag(("--print-config",), "print every setting and where it comes from", _RUN,
         dest="print_config", kind="switch"),
    Flag(("--opts",), "any setting, also at the end of the line without --opts", _RUN, dest="",
         kind="opts", metavar="KEY VALUE ..."),
    Flag(("--debug",), "on a bug in fedvlm, print the traceback", _RUN, dest="debug",
         kind="switch"),
    Flag(("--help",), "this page", _RUN, dest="help", kind="switch"),
    Flag(("--version",), "the version of fedvlm", dest="version", kind="switch"),
    # spellings of the CoOp family whose meaning is exact
    Flag(("--iid",), "True is --partition iid", key="DATASET.IID", kind="switch"),
    Flag(("--useall",), "True is --shots -1", key="DATASET.USEALL", kind="switch"),
    _v("", "FED.REPEAT_RATE", "--repeat-rate", "share of classes that all clients hold"),
    _v("", "DATALOADER.TEST.BATCH_SIZE", "--test-batch-size", "test batch"),
    _v("", "OPTIM.NAME", "--optim --optimizer", "sgd, adam or adamw"),
    _v("", "OPTIM.MOMENTUM", "--momentum", "SGD's momentum"),
    _v("", "OPTIM.WEIGHT_DECAY", "--weight-decay", "weight decay"),
    _v("", "OPTIM.GAMMA", "--gamma", "factor of each step of the schedule"),
    _v("", "TRAINER.*.RANK", "--bottleneck --rank", "rank of the low-rank prompt factors"),
    _v("", "TRAINER.*.N_CTX", "--n-ctx", "context tokens"),
    _v("", "TRAINER.*.NUM_PROMPT", "--num-prompt --num-prompts", "prompts per class"),
    _v("", "TRAINER.*.TEMP", "--temp", "temperature of the contrastive loss"),
    _v("", "TRAINER.*.MU", "--mu", "weight of a method's own loss term",
       idle_note="the published code of {trainer} reads --mu and never uses it; "
                 "it changes nothing here"),
)  # fmt: skip

REFUSED: dict[str, str] = {
    "--eval-only": "is not needed: every run evaluates itself at its end",
    "--no-train": "is not needed: --rounds sets the training, reference rows need none",
    "--load-epoch": "is not needed: a run resumes from its newest valid state by itself",
    "--model-dir": "is not known here; --resume DIR goes on with a run folder",
    "--model": "is not known here; choose the method with --trainer NAME",
    "--logdir": "is not known here; --output-dir DIR holds all runs",
    "--imbalance-train": "is not supported; --partition dirichlet gives unequal shares",
    "--split-client": "is not supported; --partition domain gives clients per domain",
}
