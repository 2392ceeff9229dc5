"""Flower's commands: where they are, the environment that keeps them quiet, and how they are asked.

Flower pins other versions of packages than the ones this project is tested with, so it may lie in
a virtual environment of its own: nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.repository import PACKAGE
from fedvlm.distributed.flower.place import Place

VARIABLE = "FEDVLM_FLOWER"
TESTED = "1.41"
LINK = "link"  # what the SuperLink is called in Flower's settings, and among the processes
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0", "NO_COLOR": "1", "COLUMNS": "200",
}
_NEEDED = ("flwr", "flower-superlink", "flower-supernode")
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # of another environment
_FRAME = re.compile(r"[│╭╮╰╯─]+")


def find_flower() -> Path:
    """Return the folder of Flower's commands.

    ``FEDVLM_FLOWER`` (a virtual environment, or its folder of commands), the folder of this Python,
    ``.venv-flower`` of a checkout, and the path of commands, in that order.

    Raises:
        ConfigError: there are none.
    """
    given = os.environ.get(VARIABLE, "")
    path = shutil.which(_NEEDED[1])
    places = [Path(given), Path(given) / "bin"] if given else [
        Path(sys.executable).parent, PACKAGE.parent / ".venv-flower" / "bin",
        *([Path(path).parent] if path else []),
    ]
    for place in places:
        if all((place / name).is_file() for name in _NEEDED):
            return place.absolute()
    raise ConfigError(
        (f"{VARIABLE}={given} has no flower-superlink" if given else "Flower is not installed")
        + ": python3 -m venv flower && flower/bin/pip install 'flwr==1.41.0', then "
        f"export {VARIABLE}=flower (or pip install 'fedvlm[flower]')"
    )


def version_of(flower: Path) -> str:
    """Return Flower's version by the name of what pip noted; empty: it cannot be told."""
    found = sorted(flower.parent.glob("lib/python*/site-packages/flwr-*.dist-info"))
    return found[-1].name.removeprefix("flwr-").removesuffix(".dist-info") if found else ""


def environ(place: Place) -> dict[str, str]:
    """Return the environment of a federation's processes: quiet, and with its folder as home."""
    return quiet(place.flower, place.home)


def quiet(flower: Path, home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes.

    Args:
        flower: folder of its commands.
        home: where it keeps what it wants to keep.
    """
    out = {k: v for k, v in os.environ.items() if k not in _OURS and not k.startswith("FLWR_")}
    path = os.pathsep.join([str(flower), out.get("PATH", "")])
    return out | QUIET | {"FLWR_HOME": str(home), "PATH": path, "OMP_NUM_THREADS": "1"}


def settings(place: Place) -> str:
    """Return Flower's ``config.toml``: one connection, over TLS."""
    return (
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{place.address}"\n'
        f"root-certificates = {json.dumps(str(place.keys / 'ca.crt'))}\n"
    )


def flwr(place: Place, *words: str, seconds: float = 120.0) -> dict[str, Any]:
    """Run ``flwr WORDS --format json``; return what it says.

    Raises:
        FedvlmError: it fails; a clause with the last that it said.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [str(place.flower / "flwr"), *words, "--format", "json"], capture_output=True,
            text=True, env=environ(place), cwd=place.folder / "empty", timeout=seconds,
            check=False, stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FedvlmError(f"flwr {words[0]} does not answer ({type(error).__name__})") from error
    told = _object(done.stdout)
    if done.returncode or told.get("success") is False:
        said = _words(str(told.get("error-message") or done.stdout + done.stderr))
        raise FedvlmError(f"flwr {words[0]} failed: {said[-300:]}")
    return told


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object in what a command says; empty: there is none."""
    at = text.find("{")
    try:
        told = json.JSONDecoder().raw_decode(text[at:])[0] if at >= 0 else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _words(text: str) -> str:
    return " ".join(_FRAME.sub(" ", text).split()) or "no word of why"


def node_of(place: Place, key: Path) -> int:
    """Return the node that the SuperLink made of a public key; 0: none, or it cannot be told."""
    script = Path(__file__).with_name("nodes.py")
    done = subprocess.run(  # noqa: S603
        [str(place.flower / "python"), "-I", str(script), LINK, str(key)], capture_output=True,
        text=True, check=False, env=environ(place), cwd=place.folder / "empty",
        stdin=subprocess.DEVNULL,
    )
    said = done.stdout.split()[-1:]
    return int(said[0]) if said and said[0].isdecimal() and not done.returncode else 0


def make_keys(
    flower: Path, folder: Path, hosts: Sequence[str], names: Sequence[str]
) -> tuple[str, str]:
    """Make the certificates and node keys of a federation that are not there yet (``keys.py``).

    Args:
        hosts: for which the SuperLink's certificate is; none: node keys only.
        names: of sites that get a node key.

    Returns:
        Which certificate had to be made anew, and why: ``link``, which ``ca.crt`` signs as before;
        ``ca``, both; or nothing.

    Raises:
        FedvlmError: Flower's Python cannot.
    """
    script = Path(__file__).with_name("keys.py")
    done = subprocess.run(  # noqa: S603
        [str(flower / "python"), "-I", str(script), str(folder), ",".join(hosts), *names],
        capture_output=True, text=True, check=False, env=quiet(flower, folder),
    )
    if done.returncode:
        last = (done.stderr.strip() or "no word of why").splitlines()[-1]
        raise FedvlmError(f"no keys could be made by {flower / 'python'}: {last}")
    word, _, why = done.stdout.strip().partition(" ")
    return word, why
