"""Keys of the federation: how data are dealt out, rounds, who fails, how models are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlm.config.option import Option, Schema

EPOCHS, STEPS = "FED.LOCAL_EPOCHS", "FED.LOCAL_STEPS"
WORK = (EPOCHS, STEPS)  # what a client does in a round; a number of steps counts before epochs
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


def local_work(config: Mapping[str, Any]) -> str:
    """Return a client's local work of a round in words, ``2 epochs``, by values of ``WORK``."""
    number, unit = (config[STEPS], "step") if config[STEPS] else (config[EPOCHS], "epoch")
    return f"{number} {unit}{'' if number == 1 else 's'}"


def federation_options() -> Schema:
    """Return all keys of ``FED`` but the engines'."""
    return _partition() | _rounds() | _unreliable() | _aggregation()


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


def _rounds() -> Schema:
    return {
        "FED.ROUNDS": Option(10, "communication rounds", low=1, high=1_000_000),
        "FED.CLIENTS": Option(10, "clients", low=1),
        "FED.FRAC": Option(1.0, "share of clients per round", low=0, low_open=True, high=1),
        "FED.FIRST_ROUND_ALL": Option(True, "all clients train in round 1, regardless of FRAC"),
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
            0.0, "how long the server waits for a round's clients, in CLOCK; 0: for all of them",
            low=0, neutral=0.0,
        ),
        node + "CLOCK": Option(
            "work", "unit of the deadline: 1 is a client's own round at full speed, or local steps "
            "at full speed", choices=("work", "steps"), neutral="work",
        ),
        node + "LATE": Option(
            "drop", "late clients: drop their updates, or take what they have at the deadline",
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
