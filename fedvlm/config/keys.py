"""Our config keys: those Dassl lacks, and Dassl's own where our default or range differs."""

from __future__ import annotations

from typing import Any

from fedvlm.config.dassl import dassl_options
from fedvlm.config.engines import engine_options
from fedvlm.config.federation import federation_options
from fedvlm.config.option import Option, Schema, declare
from fedvlm.core.plugins import Plugins

LOADERS = Plugins("fedvlm.models.load", "LOADERS", "loader", ("open_clip", "transformers"))
ROLES = {
    "CONTEXT": "prompts' contexts",
    "ADAPTER": "adapters",
    "LORA": "LoRA",
    "HEAD": "a linear head",
    "TOWER": "all other tensors (LayerNorms, tensors of a module)",
}


def default_schema() -> Schema:
    """Return a new schema with Dassl's keys and ours, without any trainer of this project."""
    return dassl_options() | our_options()


def method_schema(trainer: Any) -> Schema:
    """Return every key of a run with this method: those of other nodes that its file reads, too."""
    known = default_schema() | dict(getattr(trainer, "foreign", {}))
    return declare(known, f"TRAINER.{trainer.name.upper()}", trainer.options)


def our_options() -> Schema:
    """Return all keys that this project reads, except the trainers' own."""
    return (
        _job() | _dataset() | _own_sets() | federation_options() | engine_options() | _model()
        | _peft()
        | _optim() | _test()
    )


def _job() -> Schema:
    return {
        "SEED": Option(1, "seed of initial tensors, batches and client sampling", low=0),
        "DATA_SEED": Option(1, "seed of the partition, the shots and the views", low=0),
        "SINKS": Option(
            (), "also send every round's numbers to: tensorboard, wandb (if installed)"
        ),
        "OUTPUT_DIR": Option("output", "folder that contains all run folders"),
        "RESUME": Option("", "run folder to resume; repeating the same command resumes without "
                             "this flag"),
        "CACHE_DIR": Option("", "folder of caches; '' is $FEDVLM_CACHE, else ~/.cache"),
        "TAG": Option("", "a label added to the run folder's name"),
        "CONTINUE_ELSEWHERE": Option(
            False, "go on with a folder that another kind of device began (a GPU's on a CPU, or "
            "back); the numbers are equal within rounding, not to the bit", neutral=False,
        ),
        "DRAFT": Option(
            False, "for developing a method: each draft run overwrites the last one in a "
            "separate folder; tables ignore drafts", neutral=False,
        ),
        "DEVICE": Option(
            "auto",
            "auto: a CUDA device, else mps, else the CPU",
            pattern=r"auto|cpu|mps|cuda(:\d+)?",
            pattern_help="auto, cpu, cuda, cuda:N or mps",
        ),
        "FAST": Option(
            False, "CUDA: kernels in no fixed order; a repeated or resumed run is then equal "
            "within rounding, not to the bit", neutral=False,
        ),
        "TRAINER.NAME": Option("FedTV", "method: a name of `fedvlm list` or ./file.py:Class"),
    }


FORMATS = (
    "", "coop", "csv", "jsonl", "parquet", "folders", "domains", "cifar", "tiny_imagenet", "memory",
    "json", "texts",
)


_CORRUPTIONS = (  # data/corruption.py: KINDS
    "gaussian_noise", "shot_noise", "impulse_noise", "gaussian_blur", "brightness", "contrast",
    "pixelate", "jpeg",
)

_CORRUPTION = Option(
    "", "corrupt the test images as CIFAR-10-C and ImageNet-C do: gaussian_noise:3; '': none",
    pattern=f"|({'|'.join(_CORRUPTIONS)}):[1-5]", neutral="",
    pattern_help=f"one of {', '.join(_CORRUPTIONS)}, a colon and 1 to 5, or ''",
)


_COLUMNS = {
    "DATASET.CLIENTS_BY": Option(
        "", "your own sets: column that names the client of each image (hospital,scanner: several),"
        " or a pattern of paths, {client}/{class}/*; '': the partition decides", neutral="",
    ),
    "DATASET.GROUPS": Option(
        "", "your own sets: column (or pattern of paths, patient{group}) of what images belong to; "
        "a group is never on two sides of a split, a fold or a partition", neutral="",
    ),
    "DATASET.LABELS": Option(
        "", "your own tables: an image has a set of labels: the column whose cells list them (a|b, "
        "a;b, JSON), or the columns of 0 and 1, one for each label (edema,effusion); '': one class "
        "for each image", neutral="",
    ),
    "DATASET.CAPTIONS": Option(
        "", "your own tables: images have captions, and the run learns to find the text of an "
        "image and the image of a text: the column with a caption in each line or a JSON list of "
        "them, or several columns; '': one class for each image", neutral="",
    ),
    "DATASET.TOPICS": Option(
        10, "captions without a column of classes: images are grouped by their words into so many "
        "topics, by which they are split and dealt", low=1, neutral=10,
    ),
    "DATASET.COLUMNS": Option(
        "", "your own tables: what columns mean, path=img_id,classname=dx,split=- (- for none); a "
        "path may be made of several, path={site}/{id}.png", neutral="",
    ),
}


def _own_sets() -> Schema:
    return {
        "DATASET.NAMES_FILE": Option(
            "", "your own sets: file below DIR with class names for folders or labels that are "
            "codes: words.txt, classnames.txt or JSON", neutral="",
        ),
        "DATASET.CLASSNAMES": Option(
            "", "your own sets: class names for the prompts: a,b,c in the order of the classes, or "
            "folder=name,...; words: folder names as words (AnnualCrop: annual crop); '': as they "
            "are", neutral="",
        ),
        "DATASET.UNLABELLED": Option(
            "", "your own folders: name of the folder beside the class folders whose images have "
            "no label; in a table the cell of the class is empty instead", neutral="",
        ),
        "DATASET.LEAVE_OUT": Option(
            (), "your own sets: names of folders to ignore", neutral=()
        ),
        "DATASET.TEST_SHARE": Option(
            0.0, "your own sets without test images: share of each class used for testing, "
            "drawn by DATA_SEED; 0: none", low=0, high=1, high_open=True, neutral=0.0,
        ),
        "DATASET.JOIN_TEST": Option(
            0.0, "join training and test images, and draw this share of each class as test images "
            "by DATA_SEED, as PFLlib does with 0.25; 0: the set's own test images",
            low=0, high=1, high_open=True, neutral=0.0,
        ),
    }


def _dataset() -> Schema:
    return {
        "DATASET.ROOT": Option("", "folder of the data sets (CoOp's $DATA), or a feature pack"),
        "DATASET.NAME": Option("", "dataset"),
        "DATASET.DIR": Option("", "the dataset's folder below ROOT"),
        "DATASET.IMAGE_DIR": Option("", "folder of the images below DIR"),
        "DATASET.SPLIT_FILE": Option(
            "", "split file below DIR: split_zhou_*.json, or a table (CSV, JSON lines, "
            "parquet); a,b: several tables, one per part"
        ),
        "DATASET.FORMAT": Option(
            "", "layout on disk; '': the set's own, or by the name of SPLIT_FILE; texts: samples "
            "are texts, class folders or a table; memory: the data given to fedvlm.train(data=...)",
            choices=FORMATS,
        ),
        **_COLUMNS,
        "DATASET.TEMPLATE": Option("", "prompt with {} for the class name; '': the set's own"),
        "DATASET.TEMPLATES": Option(
            "", "file with several prompts in the place of TEMPLATE: one on each line, {} for the "
            "class name; or JSON with sentences for each class, {\"cat\": [\"a sentence\", ...]}; "
            "their features are averaged; under the key \"clients\" those of single clients",
            neutral="",
        ),
        "DATASET.NUM_SHOTS": Option(
            16, "training images per class; -1: all (Dassl: -1), the default of the Dirichlet "
            "partitions and quantity", low=-1, never=(0,)
        ),
        "DATASET.VAL_SHOTS": Option(
            -1, "validation images per class; -1 is CoOp's rule, min(shots, 4)", low=-1
        ),
        "DATASET.SERVER_HOLDOUT": Option(
            0,
            "images per class that no client gets and the server may train on (HEART-PFL); "
            "taken from train, then val, before shots are drawn; use the same value for all "
            "methods of a table",
            low=0,
            neutral=0,
        ),
        "DATASET.CORRUPTION": _CORRUPTION,
        "DATASET.FEWSHOT_FILE": Option(
            "", "CoOp's few-shot pickle or a JSON list below DIR, instead of drawing the shots"
        ),
        "DATASET.SOURCE_DOMAINS": Option(
            (), "Dassl's key: all domains except the one left out (FED.HELD_OUT_DOMAIN), or empty",
            neutral=(),
        ),
        "DATASET.TARGET_DOMAINS": Option(
            (), "Dassl's key: same as FED.HELD_OUT_DOMAIN", neutral=()
        ),
        "DATASET.SUBSAMPLE_CLASSES": Option(
            "all",
            "classes that the clients have (FedTV's code: base)",
            choices=("all", "base", "new"),
        ),
        "DATASET.TEST_NEW": Option(True, "with base classes, also test on the new ones"),
        "DATASET.ON_CORRUPT": Option(
            "skip", "what to do with an unreadable image: skip and count it, or "
                    "stop", choices=("skip", "refuse")
        ),
        "INPUT.VIEWS": Option(
            1,
            "views per training image: 1: one deterministic view, n > 1: n augmented "
            "views, 0: a new augmented view in every local epoch (as in the papers)",
            low=0,
            high=1000,  # each has files of its own in the store
        ),
        "INPUT.TEXT_LENGTH": Option(
            128, "samples that are texts: how many tokens of each are read, from its start", low=3,
            high=8192, neutral=128,
        ),
        "INPUT.RRCROP_SCALE": Option(
            (0.08, 1.0),
            "smallest and largest share of the area of the random resized crop",
            low=0,
            low_open=True,
            high=1,
            length=2,
        ),
    }


def _model() -> Schema:
    return {
        "MODEL.BACKBONE.NAME": Option(
            "ViT-B/16", "CoOp's name, an open_clip name, a folder, timm:NAME, torchvision:NAME, "
            "or tiny (embedded)"
        ),
        "MODEL.BACKBONE.PRETRAINED": Option(True, "False: random weights"),
        "MODEL.INIT_WEIGHTS": Option(
            "", "tag, file or local-dir:FOLDER; '' is openai for OpenAI's CLIP names"
        ),
        "MODEL.LOADER": Option(
            "open_clip",
            "library that builds the towers; timm, torchvision, transformers-vit: no text tower "
            "(--peft head); transformers-text: an encoder such as BERT, for samples that are texts",
            choices=LOADERS.names(),
        ),
        "MODEL.PREC": Option(
            "fp32",
            "precision of the frozen towers; fp64 also applies to the trained tensors",
            choices=("fp32", "bf16", "fp64"), hints=dict.fromkeys(("fp16", "half", "amp"), "bf16"),
        ),
        "BANK.PREC": Option(
            "full",
            "precision of cached activations: full is that of MODEL.PREC; bf16 needs half the "
            "space and changes results slightly",
            choices=("full", "bf16"), neutral="full",
        ),
        "BANK.GB": Option(
            0.0, "maximum GB of activations that a run may add to CACHE_DIR; 0: half of the free "
                 "space",
            low=0, neutral=0.0,
        ),
        "DATALOADER.TRAIN_X.BATCH_SIZE": Option(32, "training batch size; no batch is "
                                                    "dropped", low=1),
        "DATALOADER.TEST.BATCH_SIZE": Option(100, "test batch size (Dassl: 32)", low=1),
        "DATALOADER.NUM_WORKERS": Option(
            0, "threads that decode images; 0: one per core (Dassl: 4)", low=0, high=1024
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
            "adapters: two in each block of the tower, or one behind each stage (ResNet, Swin)",
            choices=("none", "feature", "lora", "adapter"),
        ),
        "PEFT.HEAD": Option(
            "text", "classifier: text features, or linear rows that start as text features",
            choices=("text", "linear"),
        ),
        "PEFT.N_CTX": Option(16, "context tokens of a prompt", low=1),
        "PEFT.CTX_INIT": Option(
            "", "words that initialise a prompt's context, as many tokens as PEFT.N_CTX (a photo "
            "of a: 4); empty: random initialisation", neutral="",
        ),
        "PEFT.CSC": Option(
            False, "a separate context for every class (unseen classes then have none)",
            neutral=False,
        ),
        "PEFT.WIDTH": Option(32, "hidden width of the adapters", low=1),
        "PEFT.RANK": Option(8, "LoRA's rank", low=1),
        "PEFT.ALPHA": Option(16.0, "LoRA's alpha; the update is scaled by alpha / rank", low=0),
        "PEFT.TARGETS": Option("q,v", "layers that LoRA changes, of q,k,v,o,mlp"),
        "PEFT.BLOCKS": Option(
            0, "number of last blocks of a tower with LoRA, adapters or trained LN; 0: all", low=0
        ),
        "PEFT.LN": Option(
            False, "also train the LayerNorms in the image tower's blocks (the personal part of "
                   "FedBN)",
            neutral=False,
        ),
        "PEFT.LORA_AVG": Option(
            "factors", "what is shared of LoRA and how it is averaged (docs/lora.md)",
            choices=("factors", "freeze_a", "product_svd", "by_norm", "by_rank", "fair", "residual",
                     "stack", "share_a", "alternate"),
        ),
        "PEFT.LORA_RIDGE": Option(
            0.01, "lambda of PEFT.LORA_AVG fair", low=0, low_open=True, neutral=0.01
        ),
        "PEFT.RANKS": Option(
            (), "LoRA ranks of the clients in turn, such as 2,4,8; the server uses PEFT.RANK; "
            "empty: PEFT.RANK for all", neutral=(),
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
        "OPTIM.ADAM_EPS": Option(1e-8, "what Adam adds to the root of the second moment", low=0,
                                 neutral=1e-8),
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
        "OPTIM.CLASS_WEIGHTS": Option(
            "none",
            "what a class counts in a client's loss, by the client's own training images: all the "
            "same, inversely to its number of images, or to its effective number (Cui et al. 2019)",
            choices=("none", "balanced", "effective"), neutral="none",
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
            2, "number of newest checkpoints kept on disk; all (0): fedvlm verify --replay can "
            "start at any", low=0, never=(1,), words={"all": 0}, neutral=2,
        ),
        "TEST.EVAL_EVERY": Option(
            1,
            "rounds between evaluations (the last round is always evaluated); auto (0): a power of "
            "two such that these rounds train on as many samples as one evaluation reads",
            low=0,
            words={"auto": 0},
        ),
        "TEST.COHORT": Option(
            0,
            "number of clients whose personal models are evaluated: 0: all, n: n clients drawn "
            "by DATA_SEED, the same for every method of a table",
            low=0,
            neutral=0,
        ),
        "TEST.TARGETS": Option(
            (), "cross-dataset transfer: names of data sets whose test images the global "
            "model also classifies, with their own class names",
        ),
        "TEST.METRICS": Option(
            (), "more metrics of the personal models: auroc, top5, f1, balanced, sensitivity, or a "
            "function of your own as ./file.py:function", neutral=(),
        ),
        "TEST.CALIBRATE": Option(
            False, "fit a temperature of each client's probabilities on its validation images, "
            "for results, predict and export; no prediction changes", neutral=False,
        ),
        "TEST.KEEP_LOGITS": Option(False, "keep the last round's logits per sample"),
        "TEST.REFERENCES": Option(
            True,
            "compare every run with baselines on the same frozen features: class shares, "
            "zero-shot, logistic regression, AFL (no effect on the method's results)",
            neutral=True,
        ),
        "TEST.PER_CLASS_RESULT": Option(
            False, "accuracy by class, in log.txt (Dassl's format) and in results.json",
            neutral=False,
        ),
        "TEST.COMPUTE_CMAT": Option(
            False, "confusion counts in results.json, and Dassl's cmat.pt in the run folder",
            neutral=False,
        ),
        "TEST.PER_IMAGE": Option(
            False, "one bit per test image in results.json, and which image of the set it is: "
            "whether the last round's models classify it correctly", neutral=False,
        ),
        "TEST.SELECT": Option(
            "last", "reported round: the last, or the best on validation", choices=("last", "val")
        ),
    }
