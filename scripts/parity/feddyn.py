"""FedDyn beside its authors' ``train_FedDyn``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from parity.authors import in_double, repository
from parity.figures import AUTHORS, Source, Values
from parity.net import Net, data, gradients, net_case, network, outcome, tensors
from parity.pfllib import NEVER, quiet
from parity.world import World

SOURCE = Source(
    "FedDyn", AUTHORS, "alpemreacar/FedDyn", "48a19fac440ef079ce563da8e0c2896f8256fef9",
    ("utils_methods.py", "utils_general.py", "utils_dataset.py"),
    differs="a feature adapter and a linear head on both sides; their files compute in float64 "
    "(their words float32 and float() are replaced); no clipping of the gradient's norm at 10",
)
CASES = {
    f"alpha {alpha}": net_case("FedDyn", {"ALPHA": alpha}, epochs=3, rate=0.1)
    for alpha in (1.0, 0.1)
}
FILES = ("utils_dataset", "utils_general", "utils_methods")


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their training function."""
    c, start = world.case, network(world)
    z, y = ([pair[i].numpy() for pair in data(world)] for i in (0, 1))
    images = SimpleNamespace(n_client=len(y), clnt_x=z, clnt_y=y, tst_x=z[0], tst_y=y[0],
                             name="toy", dataset="synt")
    here = Path.cwd()
    stubs = ("matplotlib", "matplotlib.pyplot", "LEAF", "LEAF.utils_eval", "utils_models",
             "LEAF.utils_eval.language_utils", "LEAF.utils_eval.model_utils")
    with (repository(folder, *stubs) as load, tempfile.TemporaryDirectory() as empty, quiet()):
        load("utils_libs")
        for name in FILES:
            theirs = in_double(folder, name)
        vars(theirs)["max_norm"] = sys.modules["utils_general"].__dict__["max_norm"] = NEVER
        os.chdir(empty)
        try:
            Path("Output/toy").mkdir(parents=True)
            *_, clouds = vars(theirs)["train_FedDyn"](
                images, 1.0, c.rate, max(c.sizes), c.epochs, c.rounds, NEVER, c.decay,
                lambda: Net(world), start, c.options["ALPHA"], c.rounds, 1.0,
            )
        finally:
            os.chdir(here)
    return gradients(world) | outcome(world, tensors(clouds[0]), [clouds[0]] * len(y))
