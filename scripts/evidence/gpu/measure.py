"""What a card can do, whether the methods agree with a processor on it, and what a round costs."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from evidence.bench import methods
from evidence.bench.pairs import Losses, difference, hear, losses_of
from fedvlm.core.trees import State
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation, FedState

Numbers = dict[str, Any]  # plain JSON values
LOSS = 1e-4  # a larger relative difference of a loss from the processor's is marked
SMALL = ("--num-users", "3", "--shots", "2", "--batch-size", "2", "--eval-every", "0")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        backbone: of the speed parts, with random weights where it has none.
        clients, shots, batch: of the speed parts.
        plain: clients of the plain loops beside them.
        square: rows of the products whose rate is the peak.
        rounds: timed ones.
    """

    backbone: tuple[str, ...]
    clients: int
    shots: int
    batch: int
    plain: int
    square: int
    rounds: int = 3


REAL = Size(("--backbone", "ViT-B/16", "--opts", "MODEL.BACKBONE.PRETRAINED", "False"),
            100, 8, 20, 10, 8192)
PRETEND = Size(("--backbone", "tiny", "--opts"), 4, 2, 2, 2, 64, 1)


def measure_card(device: str, size: Size) -> Numbers:
    """Return a card's name, memory, rates of matrix products (FLOP/s) and of copies (bytes/s).

    Args:
        device: ``cuda`` or ``cuda:1``.
    """
    where = torch.device(device)
    free, whole = torch.cuda.mem_get_info(where)
    n = size.square
    rates = {}
    for name, dtype, tf32 in (("fp32", torch.float32, False), ("tf32", torch.float32, True),
                              ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a = torch.randn(n, n, device=where).to(dtype)
        rates[name] = 2 * n**3 / _seconds(lambda a=a: a @ a, where)  # type: ignore[misc]
    torch.backends.cuda.matmul.allow_tf32 = False
    big, one = torch.zeros(n * n, device=where), torch.zeros(1, device=where)
    return {
        "part": "card", "name": torch.cuda.get_device_name(where),
        "capability": list(torch.cuda.get_device_capability(where)), "memory": whole,
        "free": free, "torch": str(torch.__version__), "cuda": torch.version.cuda, "rates": rates,
        "copy": 2 * 4 * n * n / _seconds(lambda: big.clone(), where),
        "launch": _seconds(lambda: [one.add_(1) for _ in range(100)], where) / 100,
    }


def _seconds(work: Callable[[], Any], device: torch.device, tries: int = 5) -> float:
    work()
    spent = []
    for _ in range(tries):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        spent.append(time.perf_counter() - began)
    return max(median(spent), 1e-9)


def try_methods(
    device: str, names: Sequence[str], size: Size, limit: float, tell: Callable[[str], None],
    keep: Callable[[Numbers], None] = lambda _: None,
) -> Numbers:
    """Run methods small, twice on the card and once on the processor, and compare.

    Args:
        limit: seconds, after which no further method begins.
        keep: is given what there is after each method.

    Returns:
        ``rows`` by method (``same_bits``, ``loss``: largest relative difference from the
        processor's, ``seconds``; or ``failed``), ``unreached``.
    """
    began, rows = time.monotonic(), {}
    left = list(names)
    while left and time.monotonic() - began < limit:
        name = left.pop(0)
        rows[load_trainer(name).name] = row = _try(name, device)
        keep({"part": "methods", "rows": rows, "unreached": left})
        tell(f"{name}: {row.get('failed') or ('equal' if row['same_bits'] else 'NOT equal')}")
    return {"part": "methods", "rows": rows, "unreached": left}


def _try(name: str, device: str) -> Numbers:
    gc.collect()
    try:
        first, second, cpu = (_run(name, where) for where in (device, device, "cpu"))
    except Exception as error:  # whatever a card has in store: the other methods go on
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"same_bits": first.fingerprint.keys() == second.fingerprint.keys() and all(
        torch.equal(v, second.fingerprint[k]) for k, v in first.fingerprint.items()),
        "loss": difference(first.losses, cpu.losses), "seconds": second.seconds,
        "cpu_seconds": cpu.seconds}


@dataclass(frozen=True)
class Trial:
    """Two rounds of a method: all tensors of server and clients, losses, seconds."""

    fingerprint: dict[str, Tensor]
    losses: Losses
    seconds: float


def _run(name: str, device: str) -> Trial:
    epochs = "2" if load_trainer(name).phases else "1"
    fed = methods.build(("--demo", "--trainer", name, "--device", device, *SMALL,
                         "--local-epochs", epochs))
    events = hear(fed)
    began = time.perf_counter()
    state = _rounds(fed, fed.start(), 2)
    spent = time.perf_counter() - began
    whole = fed.read(state)
    parts: dict[str, State] = {"server": whole.server}
    parts |= {f"client{c}": s for c, s in whole.clients.items()}
    return Trial({f"{who}/{slot}/{key}": v.detach().cpu() for who, slots in parts.items()
                  for slot, tree in slots.items() for key, v in tree.items()},
                 losses_of(events), spent)


def _timed(fed: Federation, state: FedState, device: torch.device) -> tuple[FedState, float]:
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    state = _rounds(fed, state, 1)
    torch.cuda.synchronize(device)
    return state, time.perf_counter() - began


def _rounds(fed: Federation, state: FedState, count: int) -> FedState:
    for _ in range(count):
        state = fed.round(state, state.round + 1)
    return state


def measure_speed(
    device: str, method: str, precision: str, size: Size, limit: float = math.inf,
    keep: Callable[[Numbers], None] = lambda _: None,
) -> Numbers:
    """Return what a round costs on the card: seconds, FLOPs, memory; also of ``--fast`` and loops.

    The first round warms up, the second one counts FLOPs (products, convolutions, attention;
    forward and backward), the others are timed, as many as ``size`` has; where time suffices for
    none, the second one. Images are encoded before the rounds unless the method trains inside the
    tower. ``order`` is what a fixed order of kernels costs: seconds of a round by those with
    ``--fast`` (``any``), which is measured last in the same process, if there is time.

    Args:
        limit: seconds for all; half of them for the rounds that come first.
        keep: is given what there is after each of them.
    """
    where, began = torch.device(device), time.monotonic()
    speed = partial(_speed_of, where, method, precision, size)
    fast = speed(size.clients, size.rounds, began + limit / 2)
    out: Numbers = {"part": f"{method}-{precision}", "method": method, "precision": precision,
                    "clients": size.clients, "fast": fast}
    keep(out)
    plain = speed(size.plain, 1, began + limit, "--plain")
    out |= {"plain": plain, "ratio": plain["per_client"] / fast["per_client"]}
    keep(out)
    if time.monotonic() + 3 * fast["seconds"] < began + limit:
        unordered = speed(size.clients, size.rounds, began + limit, "--fast")
        out |= {"any": unordered, "order": fast["seconds"] / unordered["seconds"]}
    return out


def _speed_of(
    device: torch.device, method: str, precision: str, size: Size, clients: int, rounds: int,
    until: float, *words: str,
) -> Numbers:
    gc.collect()
    torch.cuda.init()  # before it the next but one knows no device by its number
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    fed = methods.build((
        "--demo", "--trainer", method, "--device", str(device), "--partition", "iid",
        "--num-users", str(clients), "--shots", str(size.shots), "--batch-size", str(size.batch),
        "--local-epochs", "1", "--rounds", str(rounds + 2), *words, *size.backbone,
        "MODEL.PREC", precision,
    ))
    done = hear(fed)
    state, spent = _rounds(fed, fed.start(), 1), list[float]()
    with FlopCounterMode(display=False) as counter:
        state, counted = _timed(fed, state, device)
    while len(spent) < rounds and time.monotonic() + (spent or [counted])[-1] < until:
        state, second = _timed(fed, state, device)
        spent.append(second)
    second = median(spent or [counted])
    return {"clients": clients, "seconds": second, "per_client": second / clients,
            "flops": counter.get_total_flops(),
            "in_order": torch.are_deterministic_algorithms_enabled(),
            "chunk": getattr(fed.engine, "chunk", 1),
            "steps": done[-1].counters.get("gradients", 0),
            "memory": torch.cuda.max_memory_allocated(device)}
