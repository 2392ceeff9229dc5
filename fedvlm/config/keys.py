"""Our config keys: those Dassl lacks, and Dassl's own where our default or range differs.

Also the spellings of the federated CoOp family (``DATASET.USERS``), each mapped to our key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedvlm.config.dassl import dassl_options, family_options
from fedvlm.config.engines import engine_options
from fedvlm.config.option import Option, Schema, Value, short_repr

PARTITIONS = (
    "iid", "disjoint", "n_classes", "dirichlet", "superclass_dirichlet", "quantity", "domain",
    "domain_dirichlet",
)  # fmt: skip
PARTITION_ALIASES = {
    "pathological": "disjoint",
    "disjoint-classes": "disjoint",
    "homo": "iid",
    "homogeneous": "iid",
    "noniid-labeldir": "dirichlet",
    "labeldir": "dirichlet",
    "dir": "dirichlet",
    "noniid-labeldir100": "superclass_dirichlet",
    "noniid-labeluni": "n_classes",
    "quantity-skew": "quantity",
    "by-domain": "domain",
    "domains": "domain",
    "domain-dir": "domain_dirichlet",
    "domain-label-dir": "domain_dirichlet",
}


ROLES = {
    "CONTEXT": "prompts' contexts",
    "ADAPTER": "adapters",
    "LORA": "LoRA",
    "HEAD": "a linear head",
    "TOWER": "all other tensors (LayerNorms, a module's own)",
}


def default_schema() -> Schema:
    """Return a new schema with Dassl's keys and ours, without any trainer of this project."""
    return dassl_options() | our_options()


def our_options() -> Schema:
    """Return all keys that this project reads, except the trainers' own."""
    return (
        _job() | _dataset() | _partition() | _federation() | _unreliable() | _aggregation()
        | engine_options() | _model() | _peft() | _optim() | _test()
    )


def _job() -> Schema:
    return {
        "SEED": Option(1, "seed of initial tensors, batches and client sampling", low=0),
        "DATA_SEED": Option(1, "seed of the partition, the shots and the views", low=0),
        "SINKS": Option(
            (), "also send every round's numbers to: tensorboard, wandb (if installed)"
        ),
        "OUTPUT_DIR": Option("output", "folder that holds all run folders"),
        "RESUME": Option("", "run folder to go on with; the same command again resumes by itself"),
        "CACHE_DIR": Option("", "folder of caches; '' is $FEDVLM_CACHE, else ~/.cache"),
        "TAG": Option("", "a word of yours that becomes part of the run folder's name"),
        "DEVICE": Option(
            "auto",
            "auto takes a CUDA device, else mps, else the CPU",
            pattern=r"auto|cpu|mps|cuda(:\d+)?",
            pattern_help="auto, cpu, cuda, cuda:N or mps",
        ),
        "TRAINER.NAME": Option("FedTV", "method: a name of `fedvlm list` or ./file.py:Class"),
    }


def _dataset() -> Schema:
    return {
        "DATASET.ROOT": Option("", "folder of the datasets (CoOp's $DATA), or a feature pack"),
        "DATASET.NAME": Option("", "dataset"),
        "DATASET.DIR": Option("", "the dataset's folder below ROOT"),
        "DATASET.IMAGE_DIR": Option("", "folder of the images below DIR"),
        "DATASET.SPLIT_FILE": Option(
            "", "below DIR: split_zhou_*.json, or a table (CSV, JSON lines, parquet); a,b for "
            "several tables, a part each"
        ),
        "DATASET.FORMAT": Option(
            "",
            "layout on disk; '' is the set's own, or as SPLIT_FILE's name says; memory: what "
            "fedvlm.train(data=...) was given",
            choices=(
                "", "coop", "csv", "jsonl", "parquet", "folders", "domains", "cifar",
                "tiny_imagenet", "memory",
            ),
        ),
        "DATASET.NAMES_FILE": Option(
            "", "own sets: class names of folders or labels that are codes, below DIR: words.txt, "
            "classnames.txt or JSON", neutral="",
        ),
        "DATASET.LEAVE_OUT": Option(
            (), "own sets: names of folders that are not read", neutral=()
        ),
        "DATASET.TEST_SHARE": Option(
            0.0, "own sets without test images: share of each class that becomes test images, "
            "drawn by DATA_SEED; 0 draws none", low=0, high=1, high_open=True, neutral=0.0,
        ),
        "DATASET.TEMPLATE": Option("", "prompt with {} for the class name; '' is the set's own"),
        "DATASET.NUM_SHOTS": Option(
            16, "training images per class; -1 takes all (Dassl: -1), as the Dirichlet kinds and "
            "quantity do unless a number is given", low=-1, never=(0,)
        ),
        "DATASET.VAL_SHOTS": Option(
            -1, "validation images per class; -1 is CoOp's rule, min(shots, 4)", low=-1
        ),
        "DATASET.SERVER_HOLDOUT": Option(
            0,
            "images per class that no client gets and the server may train on (HEART-PFL); from "
            "train, then val, before shots are drawn; the same for every method of a table",
            low=0,
            neutral=0,
        ),
        "DATASET.FEWSHOT_FILE": Option(
            "", "CoOp's few-shot pickle or a JSON list below DIR, instead of drawing the shots"
        ),
        "DATASET.SOURCE_DOMAINS": Option(
            (), "Dassl's: all domains but the one left out (FED.HELD_OUT_DOMAIN), or nothing",
            neutral=(),
        ),
        "DATASET.TARGET_DOMAINS": Option(
            (), "Dassl's: the domain for FED.HELD_OUT_DOMAIN", neutral=()
        ),
        "DATASET.SUBSAMPLE_CLASSES": Option(
            "all",
            "classes that the clients hold (FedTV's code: base)",
            choices=("all", "base", "new"),
        ),
        "DATASET.TEST_NEW": Option(True, "with base classes, also test on the new ones"),
        "DATASET.ON_CORRUPT": Option(
            "skip", "an unreadable image: skip and count it, or stop", choices=("skip", "refuse")
        ),
        "INPUT.VIEWS": Option(
            1,
            "views per image: 1 is one deterministic view, n > 1 that many augmented ones, "
            "0 a fresh one per local epoch of the whole run (the papers')",
            low=0,
            high=1000,  # each has files of its own in the store
        ),
        "INPUT.RRCROP_SCALE": Option(
            (0.08, 1.0),
            "smallest and largest area share of the random resized crop",
            low=0,
            low_open=True,
            high=1,
            length=2,
        ),
    }


def _partition() -> Schema:
    return {
        "FED.PARTITION": Option(
            "disjoint",
            "how classes and images are shared out",
            choices=PARTITIONS,
            aliases=PARTITION_ALIASES,
        ),
        "FED.BETA": Option(
            0.3, "concentration of the Dirichlet (kinds with dirichlet, quantity)",
            low=0, low_open=True,
        ),
        "FED.BETA_FINE": Option(
            10.0, "superclass_dirichlet: concentration over the classes of a superclass",
            low=0, low_open=True,
        ),
        "FED.CLASSES_PER_CLIENT": Option(2, "n_classes: classes that each client holds", low=1),
        "FED.HELD_OUT_DOMAIN": Option(
            "", "leave one domain out: no client holds it, `unseen` is the accuracy on it"
        ),
        "FED.MIN_SIZE": Option(
            2, "fewest training images of a client (Dirichlet kinds and quantity)", low=1
        ),
        "FED.REPEAT_RATE": Option(
            0.0, "share of classes that all disjoint clients hold", low=0, high=1
        ),
        "FED.PERSONAL": Option(
            "",
            "tensors that stay with each client, as a regular expression of whole names; for "
            "methods that share everything (modules of your own, files of the CoOp family)",
            neutral="",
        ),
        "FED.INDEX_FILE": Option("", "index file with a split to use instead of drawing one"),
        "FED.LEGACY": Option(False, "the family's own class map (random.seed(2023))"),
    }


def _federation() -> Schema:
    return {
        "FED.ROUNDS": Option(10, "communication rounds", low=1, high=1_000_000),
        "FED.CLIENTS": Option(10, "clients", low=1),
        "FED.FRAC": Option(1.0, "share of clients per round", low=0, low_open=True, high=1),
        "FED.FIRST_ROUND_ALL": Option(True, "all clients work in round 1, whatever FRAC says"),
        "FED.UNSEEN_CLIENTS": Option(
            0,
            "of the clients, drawn by DATA_SEED, that never work: they are only personalised at "
            "the end, as a new client would be (`unseen_clients`)",
            low=0,
            neutral=0,
        ),
        "FED.LOCAL_EPOCHS": Option(2, "epochs a client trains per round", low=1, high=100_000),
        "FED.LOCAL_STEPS": Option(
            0,
            "local steps of every client and round instead of epochs, on and on through its "
            "shuffled samples; the schedule's clock still goes FED.LOCAL_EPOCHS per round",
            low=0,
            high=1_000_000,
            neutral=0,
        ),
        "FED.EPOCHS_RANGE": Option(
            (),
            "(fewest, most) local epochs, drawn for each client and round; at most "
            "FED.LOCAL_EPOCHS; () is FED.LOCAL_EPOCHS for all",
            neutral=(),
        ),
        "FED.EARLY_STOP": Option(
            0,
            "local epochs in a row without a lower loss on its own validation images after which "
            "a client's fit ends, with the last tensors, not the best; 0 never",
            low=0,
            neutral=0,
        ),
        "FED.NONFINITE": Option(
            "abort",
            "a NaN or Inf update: stop the run, or drop that client for the round",
            choices=("abort", "drop"),
        ),
        "FED.CHUNK": Option(0, "clients computed at once; 0 is by memory", low=0),
        "FED.SITES": Option(
            "",
            "clients by site, 0-4,5-7: clients of two sites are never computed together, which "
            "moves last bits only; '' is one site",
            pattern=r"|\d+(-\d+)?( ?, ?\d+(-\d+)?)*",
            pattern_help="ranges of clients such as 0-4,5-7",
            neutral="",
        ),
        "FED.PLAIN": Option(False, "plain path: no cache, no packing, client by client"),
        "FED.FINETUNE_EPOCHS": Option(
            -1,
            "epochs that every client fine-tunes a copy of its model after the last round, without "
            "upload; 0 is none, -1 the method's own",
            low=-1,
        ),
        "FED.FINETUNE_TRAIN": Option(
            "own",
            "what the final fine-tuning trains: the method's own choice, all tensors, a group, or "
            "a side of the model",
            choices=("own", "all", "shared", "personal", "body", "head"),
        ),
        "FED.FINETUNE_LR": Option(0.0, "its constant rate; 0 is the method's, or OPTIM.LR", low=0),
        "FED.BUDGET": Option(
            "rounds",
            "what a fair comparison holds equal: rounds, or FedAvg's local gradients or "
            "samples (a method that spends more per round gets fewer of the FED.ROUNDS)",
            choices=("rounds", "steps", "samples"),
        ),
    }


def _unreliable() -> Schema:
    """Return what ``docs/unreliable.md`` explains."""
    node = "FED.UNRELIABLE."
    return {
        node + "DROPOUT": Option(
            0.0, "probability that a client of a round never answers", low=0, high=1, neutral=0.0
        ),
        node + "STRAGGLERS": Option(
            0.0, "probability that a client is slow; it matters with a DEADLINE", low=0, high=1,
            neutral=0.0,
        ),
        node + "SLOWDOWN": Option(
            (2.0, 4.0), "a slow client's steps take so many times as long, drawn between the two",
            low=1, length=2, neutral=(2.0, 4.0),
        ),
        node + "SLOW_BY": Option(
            "round", "stragglers are drawn anew for each round, or once for each client",
            choices=("round", "client"), neutral="round",
        ),
        node + "DEADLINE": Option(
            0.0, "how long the server waits for a round's clients, in CLOCK; 0: for everybody",
            low=0, neutral=0.0,
        ),
        node + "CLOCK": Option(
            "work", "unit of the deadline: 1 is a client's own round at full speed, or local steps "
            "at full speed", choices=("work", "steps"), neutral="work",
        ),
        node + "LATE": Option(
            "drop", "a client that is late: nothing of it counts, or it sends what it has by then",
            choices=("drop", "partial"), neutral="drop",
        ),
        node + "JOIN": Option(
            0.0, "probability that a client joins after round 1, in any later round", low=0, high=1,
            neutral=0.0,
        ),
        node + "LEAVE": Option(
            0.0, "probability that a client leaves for good, after any round", low=0, high=1,
            neutral=0.0,
        ),
        node + "AWAY": Option(
            "", "absences by name: 3:1-4,7:20- is client 3 in rounds 1 to 4 and client 7 from "
            "round 20 on", neutral="",
        ),
        node + "QUORUM": Option(
            0.0, "share of a round's clients that have to answer, else the run ends with exit code "
            "6 and its state kept; 0: a round may pass without any", low=0, high=1, neutral=0.0,
        ),
    }


def _aggregation() -> Schema:
    return {
        "FED.STORE": Option(
            "auto", "where clients' states lie: in memory, or on disk in the run folder; moves no "
            "bit (auto: memory up to 4 GiB)", choices=("auto", "memory", "disk"),
        ),
        "FED.WEIGHTING": Option(
            "auto",
            "weight of a client in the average: its training samples, the same for all, or as "
            "each method has it",
            choices=("auto", "samples", "uniform"),
            neutral="auto",
        ),
        "FED.AGGREGATOR": Option(
            "auto",
            "how uploads become one model: as each method has it, or by name (similarity is "
            "FedTV's; median and Krum read no weights)",
            choices=(
                "auto", "mean", "similarity", "median", "trimmed_mean", "krum", "multi_krum",
                "clipped_mean",
            ),
            neutral="auto",
        ),
        "FED.TRIM": Option(
            0.1, "trimmed_mean: share of the uploads dropped at each end, per coordinate",
            low=0, high=0.5, high_open=True, neutral=0.1,
        ),
        "FED.BYZANTINE": Option(
            0, "krum, multi_krum: hostile clients f that a round of 2 f + 3 or more is to stand",
            low=0, neutral=0,
        ),
        "FED.CLIP_NORM": Option(
            0.0, "clipped_mean: longest move of a client; 0 is the median of the round's",
            low=0, neutral=0.0,
        ),
        "FED.SAA_TEMP": Option(
            1.0, "similarity: temperature of its weights", low=0, low_open=True, neutral=1.0
        ),
        "FED.SERVER_OPTIM": Option(
            "none",
            "the server's step to the aggregate: all the way, or FedAvgM, FedAdam, FedYogi",
            choices=("none", "momentum", "adam", "yogi"),
            neutral="none",
        ),
        "FED.SERVER_LR": Option(
            0.0, "its rate; 0 is 1 for momentum, 0.01 for adam and yogi", low=0, neutral=0.0
        ),
        "FED.SERVER_MOMENTUM": Option(
            0.9, "momentum's decay", low=0, high=1, high_open=True, neutral=0.9
        ),
        "FED.SERVER_BETA1": Option(
            0.9, "first decay of adam and yogi", low=0, high=1, high_open=True, neutral=0.9
        ),
        "FED.SERVER_BETA2": Option(
            0.99, "their second decay", low=0, high=1, high_open=True, neutral=0.99
        ),
        "FED.SERVER_TAU": Option(
            1e-3, "their degree of adaptivity: added to the root of the second moment",
            low=0, low_open=True, neutral=1e-3,
        ),
    }


def _model() -> Schema:
    return {
        "MODEL.BACKBONE.NAME": Option(
            "ViT-B/16", "CoOp's name, an open_clip name, a folder, or tiny (embedded)"
        ),
        "MODEL.BACKBONE.PRETRAINED": Option(True, "False starts from random weights"),
        "MODEL.INIT_WEIGHTS": Option(
            "", "tag, file or local-dir:FOLDER; '' is openai for OpenAI's CLIP names"
        ),
        "MODEL.LOADER": Option(
            "open_clip",
            "library that builds the towers; timm and transformers-vit bring an image tower "
            "without text tower (--peft head)",
            choices=("open_clip", "transformers", "timm", "transformers-vit"),
        ),
        "MODEL.PREC": Option(
            "fp32",
            "precision of the frozen towers; fp64 holds for the trainables too",
            choices=("fp32", "bf16", "fp64"),
        ),
        "BANK.PREC": Option(
            "full",
            "type of kept activations (patches, what enters a block): full is MODEL.PREC's; bf16 "
            "takes half and moves the numbers",
            choices=("full", "bf16"), neutral="full",
        ),
        "BANK.GB": Option(
            0.0, "most GB of activations that a run may add to CACHE_DIR; 0: half of what is free",
            low=0, neutral=0.0,
        ),
        "DATALOADER.TRAIN_X.BATCH_SIZE": Option(32, "training batch; no batch is dropped", low=1),
        "DATALOADER.TEST.BATCH_SIZE": Option(100, "test batch (Dassl: 32)", low=1),
        "DATALOADER.NUM_WORKERS": Option(
            0, "threads that decode images, 0 is one per core (Dassl: 4)", low=0, high=1024
        ),
    }


def _peft() -> Schema:
    return {
        "PEFT.TEXT": Option(
            "prompt", "trained on the text side: nothing, a prompt, or LoRA inside the tower",
            choices=("none", "prompt", "lora"),
        ),
        "PEFT.VISUAL": Option(
            "none", "trained on the image side: nothing, an adapter on the feature, or LoRA or "
            "two adapters in each block of the tower",
            choices=("none", "feature", "lora", "adapter"),
        ),
        "PEFT.HEAD": Option(
            "text", "classifier: text features, or linear rows that start as text features",
            choices=("text", "linear"),
        ),
        "PEFT.N_CTX": Option(16, "context tokens of a prompt", low=1),
        "PEFT.CTX_INIT": Option(
            "", "words that a prompt's context starts as, as many tokens as PEFT.N_CTX (a photo of "
            "a: 4); empty: random numbers", neutral="",
        ),
        "PEFT.CSC": Option(
            False, "a context of its own for every class; unseen classes then have none",
            neutral=False,
        ),
        "PEFT.WIDTH": Option(32, "hidden width of the adapters", low=1),
        "PEFT.RANK": Option(8, "LoRA's rank", low=1),
        "PEFT.ALPHA": Option(16.0, "LoRA's alpha; its update counts alpha / rank", low=0),
        "PEFT.TARGETS": Option("q,v", "layers that LoRA changes, of q,k,v,o,mlp"),
        "PEFT.BLOCKS": Option(
            0, "last blocks of a tower that LoRA, adapters or LN change; 0 takes all", low=0
        ),
        "PEFT.LN": Option(
            False, "train the LayerNorms in the image tower's blocks as well (FedBN's own part)",
            neutral=False,
        ),
        "PEFT.LORA_AVG": Option(
            "factors", "what is shared of LoRA and how it is averaged (docs/lora.md)",
            choices=("factors", "freeze_a", "product_svd", "by_norm", "fair", "residual", "stack",
                     "share_a", "alternate"),
        ),
        "PEFT.LORA_RIDGE": Option(
            0.01, "lambda of PEFT.LORA_AVG fair", low=0, low_open=True, neutral=0.01
        ),
        "PEFT.RANKS": Option(
            (), "LoRA ranks of the clients in turn, such as 2,4,8, of PEFT.RANK at the server; "
            "empty: all have that", neutral=(),
        ),
        "PEFT.PRIVATE_RANK": Option(
            0, "rank of a second LoRA in the same layers that stays with its client; 0: none",
            low=0, neutral=0,
        ),
    }


def _optim() -> Schema:
    return {
        "OPTIM.NAME": Option("sgd", "optimiser (Dassl: adam)", choices=("sgd", "adam", "adamw")),
        "OPTIM.LR": Option(
            0.005, "learning rate (Dassl: 3e-4)", low=0, low_open=True, high=1e6
        ),
        "OPTIM.MOMENTUM": Option(0.9, "SGD's momentum", low=0, high=1, high_open=True),
        "OPTIM.WEIGHT_DECAY": Option(5e-4, "L2 penalty; decoupled in adamw", low=0),
        "OPTIM.SGD_DAMPNING": Option(0.0, "SGD's dampening (Dassl's spelling)", low=0, high=1),
        "OPTIM.SGD_NESTEROV": Option(False, "Nesterov momentum"),
        "OPTIM.ADAM_BETA1": Option(0.9, "Adam's first decay", low=0, high=1, high_open=True),
        "OPTIM.ADAM_BETA2": Option(0.999, "Adam's second decay", low=0, high=1, high_open=True),
        "OPTIM.LR_SCHEDULER": Option(
            "constant",
            "learning rate over the clock (Dassl: single_step)",
            choices=("constant", "single_step", "multi_step", "cosine"),
        ),
        "OPTIM.CLOCK": Option(
            "run",
            "the schedule's clock: local epochs of the whole run, or of each round (legacy)",
            choices=("run", "round"),
            aliases={"legacy": "round"},
        ),
        "OPTIM.STEPSIZE": Option((-1,), "epochs of the steps; -1 is the clock's length"),
        "OPTIM.GAMMA": Option(0.1, "factor of each step", low=0),
        "OPTIM.WARMUP_EPOCH": Option(-1, "warm-up epochs; -1 is none", low=-1),
        "OPTIM.WARMUP_TYPE": Option("linear", "warm-up", choices=("linear", "constant")),
        "OPTIM.WARMUP_CONS_LR": Option(1e-5, "rate of a constant warm-up", low=0),
        "OPTIM.WARMUP_MIN_LR": Option(1e-5, "first rate of a linear warm-up", low=0),
        "OPTIM.LOSS": Option(
            "softmax",
            "loss over the classes: softmax is cross-entropy; sigmoid decides each pair of image "
            "and class text for itself (SigLIP, with its logit_bias)",
            choices=("softmax", "sigmoid"), neutral="softmax",
        ),
        "OPTIM.CLIP": Option(
            0.0, "longest gradient of a client's step, over all its trained tensors; 0 is any",
            low=0, neutral=0.0,
        ),
        "OPTIM.KEEP_STATE": Option(
            False,
            "clients keep the optimiser's state from round to round; memory per client: one number "
            "more for each trained one (sgd), two (adam, adamw)",
            neutral=False,
        ),
    } | _roles()


def _roles() -> Schema:
    """Return what may differ for tensors of a role (``peft.role_of``)."""
    schema: Schema = {}
    for role, what in ROLES.items():
        schema |= {
            f"OPTIM.{role}.NAME": Option(
                "", f"optimiser of {what}; '' is OPTIM.NAME",
                choices=("", "sgd", "adam", "adamw"), neutral="",
            ),
            f"OPTIM.{role}.LR": Option(
                0.0, f"learning rate of {what}, on OPTIM's schedule; 0 is OPTIM.LR",
                low=0, high=1e6, neutral=0.0,
            ),
            f"OPTIM.{role}.WEIGHT_DECAY": Option(
                -1.0, f"weight decay of {what}; -1 is OPTIM.WEIGHT_DECAY", low=-1, neutral=-1.0
            ),
        }
    return schema


def _test() -> Schema:
    return {
        "TRAIN.CHECKPOINT_FREQ": Option(
            0, "rounds between checkpoints (0 and 1: every round); the last round, a stop and "
            "SIGUSR1 save too", low=0,
        ),
        "TRAIN.KEEP_STATES": Option(
            2, "checkpoints that stay on disk, the newest ones; all (0) of them let fedvlm verify "
            "--replay begin at any", low=0, never=(1,), words={"all": 0}, neutral=2,
        ),
        "TEST.EVAL_EVERY": Option(
            1,
            "rounds between evaluations, the last is always one; auto (0): so many that they train "
            "on as many samples as one evaluation takes, a power of two",
            low=0,
            words={"auto": 0},
        ),
        "TEST.COHORT": Option(
            0,
            "personal models that are evaluated: 0 all, n those of n clients drawn by DATA_SEED, "
            "the same for every method of a table",
            low=0,
            neutral=0,
        ),
        "TEST.TARGETS": Option(
            (), "cross-dataset transfer: names of datasets whose test images the global model "
            "also classifies, by their own class names",
        ),
        "TEST.KEEP_LOGITS": Option(False, "keep the last round's logits per sample"),
        "TEST.REFERENCES": Option(
            True,
            "set every run beside references on the same frozen features: class shares, zero-shot, "
            "logistic regression, AFL (they change no number of the method)",
            neutral=True,
        ),
        "TEST.PER_CLASS_RESULT": Option(
            False, "right answers by class, in log.txt as Dassl writes them, and in results.json",
            neutral=False,
        ),
        "TEST.COMPUTE_CMAT": Option(
            False, "confusion counts in results.json, and Dassl's cmat.pt in the run folder",
            neutral=False,
        ),
        "TEST.SELECT": Option(
            "last", "headline round: the last, or the best on validation", choices=("last", "val")
        ),
    }


@dataclass(frozen=True)
class Alias:
    """A foreign key: its own type and the one of our keys that it sets.

    Attributes:
        option: what the foreign key may hold.
        target: our key.
        convert: foreign value to ours; ``None`` means that the value sets nothing.
    """

    option: Option
    target: str
    convert: Callable[[Value], Value] = lambda value: value


def family_aliases() -> dict[str, Alias]:
    """Return the federated CoOp family's keys (``dassl_coop.md`` 1.1) and Dassl's twins of ours."""
    number, share = Option(1, "count"), Option(0.3, "share")
    text, flag = Option("", "name"), Option(False, "switch")
    models = {"last_step": "last", "best_val": "val"}
    final_model = Option("last_step", "model tested at the end", choices=tuple(models))
    return _coop_aliases() | {
        "DATASET.USERS": Alias(number, "FED.CLIENTS"),
        "DATASET.PARTITION": Alias(text, "FED.PARTITION"),
        "DATASET.BETA": Alias(share, "FED.BETA"),
        "DATASET.REPEATRATE": Alias(share, "FED.REPEAT_RATE"),
        "DATASET.IID": Alias(flag, "FED.PARTITION", lambda iid: "iid" if iid else None),
        "DATASET.USEALL": Alias(flag, "DATASET.NUM_SHOTS", lambda every: -1 if every else None),
        "OPTIM.ROUND": Alias(number, "FED.ROUNDS"),
        "OPTIM.MAX_EPOCH": Alias(number, "FED.LOCAL_EPOCHS"),
        "USE_CUDA": Alias(flag, "DEVICE", lambda cuda: None if cuda else "cpu"),
        "TEST.FINAL_MODEL": Alias(final_model, "TEST.SELECT", models.__getitem__),
    }


def _coop_aliases() -> dict[str, Alias]:
    """Return CoOp's own options as ours; what has none may only be as it is."""
    def only(value: Value, why: str) -> Callable[[Value], Value]:
        def check(given: Value) -> Value:
            if given != value:
                raise ValueError(f"{short_repr(given)}: {why}")
            return None

        return check

    file = "the authors' file has it: --trainer ./coop.py:CoOp"
    node = "TRAINER.COOP."
    return {
        node + "N_CTX": Alias(Option(16, "context tokens", low=1), "PEFT.N_CTX"),
        node + "CSC": Alias(Option(False, "switch"), "PEFT.CSC"),
        node + "CTX_INIT": Alias(Option("", "words"), "PEFT.CTX_INIT"),
        node + "CLASS_TOKEN_POSITION": Alias(
            Option("end", "position"), "PEFT.N_CTX", only("end", f"the class name ends it; {file}")
        ),
        node + "PREC": Alias(
            Option("fp16", "precision"), "MODEL.PREC", _precision
        ),
    }


def _precision(given: Value) -> Value:
    """Return our precision for CoOp's."""
    if given not in ("fp32", "fp16", "amp"):
        raise ValueError(f"wants fp32, fp16 or amp, got {short_repr(given)}")
    if given != "fp32":
        raise ValueError(
            f"{given}: trained tensors stay fp32 here; MODEL.PREC bf16 has low-precision towers"
        )
    return given


def refused_keys() -> dict[str, str]:
    """Return foreign switches that may only be off, and what to say when they are on."""
    whose = {"COCOOP": "CoCoOp", "MAPLE": "MaPLe", "PROMPTSRC": "PromptSRC", "IVLP": "IVLP"}
    family = {
        key: f"is {whose[key.split('.')[1]]}'s, which is no method of fedvlm: give the authors' "
             f"file, --trainer ./{whose[key.split('.')[1]].lower()}.py"
        for key in family_options() if key.split(".")[1] in whose
    }
    return family | {
        "DATASET.IMBALANCE_TRAIN": "is not supported; FED.PARTITION dirichlet gives unequal shares",
        "DATASET.SPLIT_CLIENT": "is not supported; FED.PARTITION domain gives clients per domain",
    }
