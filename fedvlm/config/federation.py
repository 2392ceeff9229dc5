"""Keys of the federation: how data are dealt out, rounds, who fails, how models are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvlm.config.option import Option, Schema

EPOCHS, STEPS = "FED.LOCAL_EPOCHS", "FED.LOCAL_STEPS"
AUTO_ROUNDS = -1  # FED.ROUNDS auto, before ``job.resolve`` puts these two in its place
MOST_ROUNDS, PATIENCE = 100, 5
# OPTIM.LR of a linear head or feature adapter there, unless somebody gives one: the default is a
# prompt's, under which validation is flat long before these have come near the best
# (docs/own_data.md has numbers).
HEAD_RATE = 0.05
WORK = (EPOCHS, STEPS)  # what a client does in a round; a number of steps counts before epochs
PARTITIONS = (
    "iid", "disjoint", "n_classes", "dirichlet", "superclass_dirichlet", "quantity", "domain",
    "domain_dirichlet", "natural",
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
    "natural-id": "natural",
    "by-client": "natural",
}
_SKEW = "dirichlet --beta 0.3 (class shares differ, more so with a smaller beta) or disjoint"

ATTACKS = ("sign", "scale", "constant", "alie", "label_flip", "backdoor")


def local_work(config: Mapping[str, Any]) -> str:
    """Return a client's local work of a round in words, ``2 epochs``, by values of ``WORK``."""
    number, unit = (config[STEPS], "step") if config[STEPS] else (config[EPOCHS], "epoch")
    return f"{number} {unit}{'' if number == 1 else 's'}"


def federation_options() -> Schema:
    """Return all keys of ``FED`` but the engines'."""
    return (
        _partition() | _rounds() | _clients() | _unreliable() | _hostile() | _privacy()
        | _aggregation()
    )


def _partition() -> Schema:
    return {
        "FED.PARTITION": Option(
            "disjoint",
            "how classes and images are divided among clients",
            choices=PARTITIONS,
            aliases=PARTITION_ALIASES,
            hints=dict.fromkeys(("noniid", "niid", "labelskew", "skew", "skewed", "hetero",
                                 "heterogeneous"), _SKEW),
        ),
        "FED.BETA": Option(
            0.3, "concentration of the Dirichlet distribution (partitions with dirichlet, and "
                 "quantity)",
            low=0, low_open=True,
        ),
        "FED.BETA_FINE": Option(
            10.0, "superclass_dirichlet: concentration over the classes of a superclass",
            low=0, low_open=True,
        ),
        "FED.CLASSES_PER_CLIENT": Option(2, "n_classes: classes that each client holds", low=1),
        "FED.HELD_OUT_DOMAIN": Option(
            "", "domain left out: no client has it; `unseen` is the accuracy on it"
        ),
        "FED.MIN_SIZE": Option(
            2, "minimum of training images per client (Dirichlet partitions and quantity)", low=1
        ),
        "FED.REPEAT_RATE": Option(
            0.0, "share of classes that all disjoint clients hold", low=0, high=1
        ),
        "FED.PERSONAL": Option(
            "",
            "tensors that stay with each client: a regular expression that matches whole "
            "names, or a name and its rows, such as prompt_learner.ctx[1:]; none: all are shared; "
            "for methods that share everything (your own modules, files of the CoOp family)",
            neutral="",
        ),
        "FED.INDEX_FILE": Option("", "index file with a partition to use instead of drawing one"),
        "FED.LEGACY": Option(False, "class map of the FedTV/FedPGP code (random.seed(2023))"),
    }


def _rounds() -> Schema:
    return {
        "FED.ROUNDS": Option(
            10,
            "communication rounds; auto: until the clients' validation accuracy and loss are flat, "
            f"at most {MOST_ROUNDS} (the default of own images)",
            low=1, high=1_000_000, words={"auto": AUTO_ROUNDS},
        ),
        "FED.PATIENCE": Option(
            0,
            "ends the run after so many checks of the clients' validation accuracy without a rise "
            f"of half a point; 0: after FED.ROUNDS ({PATIENCE} under --rounds auto)",
            low=0, neutral=0,
        ),
        "FED.PATIENCE_LOSS": Option(
            True,
            "FED.PATIENCE counts only checks in which the validation loss did not fall by 2 % "
            "either; False: it looks at accuracy alone",
            neutral=False,
        ),
    }


def _clients() -> Schema:
    return {
        "FED.CLIENTS": Option(10, "clients", low=1),
        "FED.FRAC": Option(1.0, "share of clients per round", low=0, low_open=True, high=1),
        "FED.FIRST_ROUND_ALL": Option(True, "all clients train in round 1, regardless of FRAC"),
        "FED.UNSEEN_CLIENTS": Option(
            0,
            "number of clients, drawn by DATA_SEED, that never train: they are only "
            "personalised at the end, like new clients (`unseen_clients`)",
            low=0,
            neutral=0,
        ),
        "FED.MIN_IMAGES": Option(
            0,
            "clients with fewer training images never train and are personalised at the end, like "
            "those of FED.UNSEEN_CLIENTS; 0: all train",
            low=0,
            neutral=0,
        ),
        "FED.LOCAL_EPOCHS": Option(2, "epochs a client trains per round", low=1, high=100_000),
        "FED.LOCAL_STEPS": Option(
            0,
            "local steps per client and round instead of epochs, cycling through its "
            "shuffled samples; the schedule still advances FED.LOCAL_EPOCHS per round",
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
            "early stopping: local epochs without a lower validation loss after which a client "
            "stops, keeping its last tensors, not the best; 0: never",
            low=0,
            neutral=0,
        ),
        "FED.NONFINITE": Option(
            "abort",
            "a NaN or Inf update: stop the run, or drop that client for the round",
            choices=("abort", "drop"),
        ),
        "FED.CHUNK": Option(0, "clients computed at once; 0: chosen by memory", low=0),
        "FED.SITES": Option(
            "",
            "clients of each site, such as 0-4,5-7: clients of different sites are never "
            "computed together, which changes only the last bits; '': one site",
            pattern=r"|\d+(-\d+)?( ?, ?\d+(-\d+)?)*",
            pattern_help="ranges of clients such as 0-4,5-7",
            neutral="",
        ),
        "FED.PLAIN": Option(False, "reference implementation: no cache, no packing, client by "
                                   "client"),
        "FED.FINETUNE_EPOCHS": Option(
            -1,
            "epochs of fine-tuning on each client after the last round, without upload; 0: none, "
            "-1: the method's default",
            low=-1,
        ),
        "FED.FINETUNE_TRAIN": Option(
            "own",
            "what the final fine-tuning trains: the method's choice, all tensors, a group, or a "
            "side of the model",
            choices=("own", "all", "shared", "personal", "body", "head"),
        ),
        "FED.FINETUNE_LR": Option(0.0, "constant learning rate of the final fine-tuning; 0: the "
                                       "method's, or OPTIM.LR", low=0),
        "FED.BUDGET": Option(
            "rounds",
            "budget that is equal for all methods: rounds, or FedAvg's local gradients "
            "or samples (a method that uses more per round runs fewer rounds)",
            choices=("rounds", "steps", "samples"),
        ),
    }


def _unreliable() -> Schema:
    """Return what ``docs/unreliable.md`` explains."""
    node = "FED.UNRELIABLE."
    return {
        node + "DROPOUT": Option(
            0.0, "probability that a selected client does not answer", low=0, high=1, neutral=0.0
        ),
        node + "STRAGGLERS": Option(
            0.0, "probability that a client is slow; has an effect only with a "
                 "DEADLINE or a BUFFER", low=0, high=1,
            neutral=0.0,
        ),
        node + "SLOWDOWN": Option(
            (2.0, 4.0), "slow-down factor of a slow client, drawn between these two",
            low=1, length=2, neutral=(2.0, 4.0),
        ),
        node + "SLOW_BY": Option(
            "round", "slow clients are drawn for each round, or once for the whole run",
            choices=("round", "client"), neutral="round",
        ),
        node + "DEADLINE": Option(
            0.0, "how long the server waits for the clients of a round, in CLOCK units; 0: until "
                 "all answered",
            low=0, neutral=0.0,
        ),
        node + "CLOCK": Option(
            "work", "unit of the deadline: 1 is the time of a client's own round at full speed, or "
            "of one local step at full speed", choices=("work", "steps"), neutral="work",
        ),
        node + "LATE": Option(
            "drop", "late clients: drop their updates, or use the steps they finished by the "
                    "deadline",
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
            "", "absent clients: 3:1-4,7:20- means client 3 in rounds 1 to 4 and client 7 "
            "from round 20 on", neutral="",
        ),
        node + "QUORUM": Option(
            0.0, "share of a round's clients that must answer; otherwise the run stops with exit "
            "code 6 and keeps its state; 0: no minimum", low=0, high=1, neutral=0.0,
        ),
        node + "BUFFER": Option(
            0, "asynchronous rounds (FedBuff): the server makes a step after so many updates, "
               "while FRAC of the clients are at work; 0: it waits for the clients of a round",
            low=0, neutral=0,
        ),
    }


def _hostile() -> Schema:
    """Return what ``docs/attacks.md`` explains."""
    return {
        "FED.HOSTILE": Option(
            0.0, "share of the clients that are hostile, drawn by SEED for the whole run; a "
                 "simulation; 0: none", low=0, high=1, neutral=0.0,
        ),
        "FED.HOSTILE_BY": Option(
            "client", "hostile clients are drawn one by one, or all clients of drawn sites "
            "(FED.SITES)", choices=("client", "site"), neutral="client",
        ),
        "FED.ATTACK": Option(
            "sign", "what hostile clients do: send their update with the opposite sign, send it "
            "scaled, add one number to every value, send a little less than the honest mean "
            "(alie), train on flipped labels, or train a trigger on pixels (backdoor)",
            choices=ATTACKS, neutral="sign",
        ),
        "FED.ATTACK_SCALE": Option(
            0.0, "factor of sign and scale, number of constant, standard deviations of alie; "
                 "0: 1, 10, 1, and alie's own formula", low=0, neutral=0.0,
        ),
        "FED.ATTACK_TARGET": Option(
            0, "backdoor: class (by number) that images with the trigger are taken for", low=0,
            neutral=0,
        ),
    }


def _privacy() -> Schema:
    """Return what ``docs/privacy.md`` explains."""
    node = "FED.DP."
    return {
        "FED.SECURE_SUM": Option(
            False, "sites send masked sums of their clients' updates, and the server learns the "
                   "sum over all sites only; with --engine sites, from 3 sites on", neutral=False,
        ),
        node + "UNIT": Option(
            "client", "what differential privacy hides: one client (noise on the sum of their "
            "moves), or one image or all images of one group (--groups) of a client (noise on "
            "every gradient, added by the client)", choices=("client", "image", "group"),
            neutral="client",
            hints={one: f"group, and --groups {one} (the column that says whose an image is)"
                   for one in ("patient", "person", "subject")},
        ),
        node + "CLIP": Option(
            0.0, "differential privacy: longest move of a client in a round, all shared tensors "
                 "together (FED.DP.UNIT image, group: longest gradient of one of them); 0: no such "
                 "privacy", low=0, neutral=0.0,
        ),
        node + "EPSILON": Option(
            0.0, "epsilon of the whole run, by which the noise is chosen; 0: FED.DP.NOISE is given",
            low=0, neutral=0.0,
        ),
        node + "TIGHT": Option(
            True, "choose the noise for FED.DP.EPSILON by the epsilon that results say; False: by "
                  "its Renyi bound, more noise than is needed", neutral=False,
        ),
        node + "NOISE": Option(
            0.0, "standard deviation of the noise on the sum of a round's moves (of a batch's "
                 "gradients), in FED.DP.CLIP",
            low=0, neutral=0.0,
        ),
        node + "QUANTILE": Option(
            0.0, "let FED.DP.CLIP follow the moves: the share of them that it is to leave uncut, "
                 "by a count with noise of its own (FED.DP.UNIT client); 0: it stays",
            low=0, high=1, high_open=True, neutral=0.0,
        ),
        node + "SIMILARITY": Option(
            False, "keep weights by similarity (FedTV's, or FED.AGGREGATOR similarity) by a noised "
                   "sum of the weights beside that of the moves (FED.DP.UNIT client); False: all "
                   "clients weigh the same", neutral=False,
        ),
        node + "SAMPLING": Option(
            "shuffle", "batches of FED.DP.UNIT image, group: each image once in a pass (shuffle), "
                       "or each image (group) drawn anew at every step by a coin of batch size "
                       "over images of the client (poisson), which epsilon gains by",
            choices=("shuffle", "poisson"), neutral="shuffle",
        ),
        node + "DELTA": Option(
            0.0, "delta of (epsilon, delta); has to be given, below one over the clients (images "
                 "of a client)", low=0,
            high=1, high_open=True, neutral=0.0,
        ),
    }


def _aggregation() -> Schema:
    return {
        "FED.STORE": Option(
            "auto", "where clients' states are stored: in memory, or on disk in the run folder; "
            "same results (auto: memory up to 4 GiB)", choices=("auto", "memory", "disk"),
        ),
        "FED.WEIGHTING": Option(
            "auto",
            "weight of a client in the average: its number of training samples, equal "
            "weights, the method's default, or by the clients' losses: q_ffl (Li et al. 2020), "
            "agnostic (Mohri et al. 2019)",
            choices=("auto", "samples", "uniform", "q_ffl", "agnostic"),
            neutral="auto",
        ),
        "FED.FAIR_Q": Option(
            1.0, "q_ffl: exponent of the losses; 0: none counts more than it does otherwise",
            low=0, neutral=1.0,
        ),
        "FED.FAIR_LR": Option(
            0.1, "agnostic: step of the clients' weights along their losses", low=0, neutral=0.1,
        ),
        "FED.AGGREGATOR": Option(
            "auto",
            "aggregation rule: the method's own, or one of these (similarity is FedTV's; "
            "median and Krum ignore weights)",
            choices=(
                "auto", "mean", "similarity", "median", "trimmed_mean", "krum", "multi_krum",
                "clipped_mean", "geometric_median",
            ),
            neutral="auto",
        ),
        "FED.TRIM": Option(
            0.1, "trimmed_mean: share of the uploads dropped at each end, per coordinate",
            low=0, high=0.5, high_open=True, neutral=0.1,
        ),
        "FED.BYZANTINE": Option(
            0, "krum, multi_krum: number f of hostile clients to tolerate; a round needs at "
               "least 2 f + 3 clients",
            low=0, neutral=0,
        ),
        "FED.CLIP_NORM": Option(
            0.0, "clipped_mean: maximum norm of an update; 0: the median norm of the round",
            low=0, neutral=0.0,
        ),
        "FED.SAA_TEMP": Option(
            1.0, "similarity: temperature of its weights", low=0, low_open=True, neutral=1.0
        ),
        "FED.SERVER_OPTIM": Option(
            "none",
            "server optimiser: none (take the aggregate), or FedAvgM, FedAdam, FedYogi",
            choices=("none", "momentum", "adam", "yogi"),
            neutral="none",
        ),
        "FED.SERVER_LR": Option(
            0.0, "server learning rate; 0: 1 for momentum, 0.01 for adam and "
                 "yogi", low=0, neutral=0.0
        ),
        "FED.SERVER_MOMENTUM": Option(
            0.9, "momentum's decay", low=0, high=1, high_open=True, neutral=0.9
        ),
        "FED.SERVER_BETA1": Option(
            0.9, "first decay rate of adam and yogi", low=0, high=1, high_open=True, neutral=0.9
        ),
        "FED.SERVER_BETA2": Option(
            0.99, "their second decay", low=0, high=1, high_open=True, neutral=0.99
        ),
        "FED.SERVER_TAU": Option(
            1e-3, "adaptivity of adam and yogi: added to the root of the second moment",
            low=0, low_open=True, neutral=1e-3,
        ),
    }
