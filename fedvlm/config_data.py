"""Config keys of the data: which set, which images of it, and who holds what."""

from __future__ import annotations

from fedvlm.config_schema import Option, Schema

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


def data_options() -> Schema:
    """Return the keys of the data set, the images' views and the partition."""
    return _dataset() | _partition()


def _dataset() -> Schema:
    return {
        "DATASET.ROOT": Option("", "folder that holds the datasets' folders (CoOp's $DATA)"),
        "DATASET.NAME": Option("", "dataset"),
        "DATASET.DIR": Option("", "the dataset's folder below ROOT"),
        "DATASET.IMAGE_DIR": Option("", "folder of the images below DIR"),
        "DATASET.SPLIT_FILE": Option("", "split_zhou_*.json or a CSV table, below DIR"),
        "DATASET.FORMAT": Option(
            "",
            "layout on disk; '' is the set's own",
            choices=("", "coop", "csv", "folders", "domains", "cifar"),
        ),
        "DATASET.TEMPLATE": Option("", "prompt with {} for the class name; '' is the set's own"),
        "DATASET.NUM_SHOTS": Option(
            16, "training images per class; -1 takes all (Dassl: -1)", low=-1, never=(0,)
        ),
        "DATASET.VAL_SHOTS": Option(
            -1, "validation images per class; -1 is CoOp's rule, min(shots, 4)", low=-1
        ),
        "DATASET.FEWSHOT_FILE": Option(
            "", "CoOp's few-shot pickle or a JSON list below DIR, instead of drawing the shots"
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
        "FED.INDEX_FILE": Option("", "index file with a split to use instead of drawing one"),
        "FED.LEGACY": Option(False, "the family's own class map (random.seed(2023))"),
    }
