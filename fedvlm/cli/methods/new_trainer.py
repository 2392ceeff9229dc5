"""The two files of a method of your own.

A working method to change and its YAML: trainers/mymethod.py and configs/trainers/mymethod.yaml in
the repository, or both into a folder. The next commands are printed.
"""

from __future__ import annotations

import builtins
import keyword
import re
import shlex
import time
from argparse import Namespace
from pathlib import Path

from fedvlm.config.keys import default_schema
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.files import user_path
from fedvlm.core.repository import checkout
from fedvlm.federation.cards import trainer_files

EXAMPLES = (
    "fedvlm new-trainer MyMethod",
    "fedvlm new-trainer MyMethod --into .  # into this folder, whatever the repository",
)
ALSO = ("create", "scaffold", "template", "init", "new")
LONGEST = 30

CODE = '''"""{name}: what it does, in one line (CHANGE every field of this card).

Paper: none yet, {year}.
Equations: w by FedAvg; client k is evaluated with MIX w_k + (1 - MIX) w, where w_k is its model
    after its own last local training and w the average.
Shared: all of PEFT (w)
Personal: none is trained apart; w_k stays with client k.
Frozen: both towers, the logit scale.
Defaults: MIX 0.5.
Knobs: MIX 0.1 to 0.9.
Departures from the paper: none known.
Departures from the authors' code: none known.
Extra data: none.
Cost: as FedAvg.
Command: python federated_main.py --demo
    --trainer {spec}
"""

from __future__ import annotations

from fedvlm.config.option import Option
from fedvlm.core.trees import State, Tree
from fedvlm.federation.context import Context
from fedvlm.federation.peft_trainer import PeftTrainer
{imports}

{register}class {name}(PeftTrainer):
    """See the module's card."""

    name = "{name}"
    # CHANGE: what is sent ("shared") and what stays with the client ("personal"), by role.
    # "body" is the image side, "head" the prompt or the classifier.
    roles = {{"body": "shared", "head": "shared"}}
    # CHANGE: your settings. Each becomes TRAINER.{node}.<KEY>,
    # with its type, range and help.
    options = {{
        "MIX": Option(0.5, "share of a client's own last model in what it uses", low=0.0, high=1.0),
    }}

    reads_old = True  # a client keeps the shared part of its last model, for personalize

    # CHANGE: one hook; the others are FedAvg's. They are, in the order of a round:
    #   init_client(ctx, start)              its state: add a slot, {{"w": start, "v": start}}
    #   client_update(ctx, state, received)  a client's work on its download; train with ctx.fit
    #   loss(model, params, batch)           one number per client, [K]
    #   aggregate(ctx, server, updates)      the server's new state
    #   personalize(ctx, state, received)    the model that a client is evaluated with
    # On the client's side every tensor has a leading axis of K clients.
    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Mix each client's own last model with the global one."""
        last, mix = state["w"], self.cfg.MIX
        return last | {{n: mix * last[n] + (1 - mix) * v for n, v in received.items()}}
'''
YAML = '''# {name}: what the method does. The defaults of its own settings stand in its Python file;
# here stands only what differs from the common ones (fedvlm config prints them all).
{head}PEFT:
  VISUAL: feature
'''


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("name", metavar="NAME", help="one name, such as MyMethod")
    parser.add_argument("--into", metavar="DIR", help="a folder for both files")


def main(args: Namespace) -> int:
    """Write the two files and print what to do next; return the exit code.

    Raises:
        ConfigError: a bad name, or a file that is there already; nothing is written then.
        DataError: the folder cannot be written.
    """
    name, into = args.name, None if args.into is None else user_path(args.into)
    check_name(name)
    code, yaml = _paths(name, into)
    for path in (code, yaml):
        if path.exists():
            raise ConfigError(f"'{path}' is there already and is not overwritten; take another "
                              "name, or move it away")
    spec = name if into is None else f"{_typed(code)}:{name}"
    code_text, yaml_text = texts(name, registered=into is None)
    for path, text in ((code, code_text), (yaml, yaml_text)):
        with files.explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, text)
    say(f"wrote {code}", f"wrote {yaml}", "next:", *_next(name, spec, yaml, into is None))
    return 0


def texts(name: str, *, registered: bool) -> tuple[str, str]:
    """Return the Python file and the YAML of a method; ``registered``: of the repository's."""
    spec = name if registered else f"./{name.lower()}.py:{name}"
    imports = "from fedvlm.federation.trainer import TRAINER_REGISTRY\n" if registered else ""
    about = {
        "name": name, "node": name.upper(), "spec": spec, "year": time.strftime("%Y"),
        "imports": imports,
        "register": f'@TRAINER_REGISTRY.register("{name}")\n' if registered else "",
        "head": f"TRAINER:\n  NAME: {name}\n" if registered else "",
    }
    return CODE.format(**about), YAML.format(**about)


def check_name(name: str) -> None:
    """Refuse a name that cannot be a class, a file and a config node at once, or is taken.

    Raises:
        ConfigError: with the reason and a name that would do.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or len(name) > LONGEST:
        bare = re.sub(r"[^A-Za-z0-9_]", "", name).lstrip("0123456789_")[:LONGEST]
        near = f", such as {bare[0].upper()}{bare[1:]}" if bare else ", such as MyMethod"
        raise ConfigError(
            f"'{name}' cannot be a trainer's name: it wants a letter, then up to {LONGEST - 1} "
            f"letters, digits or underscores{near}"
        )
    node = f"TRAINER.{name.upper()}"
    keys = [k for k in default_schema() if k == node or k.startswith(f"{node}.")]
    inside = re.findall(r"import ([\w, ]+)", CODE.replace("{imports}", "import TRAINER_REGISTRY\n"))
    reserved = {fold(w) for line in inside for w in line.split(", ")} | {"trainer"}
    bad = keyword.iskeyword(name) or hasattr(builtins, name) or fold(name) in reserved
    if bad or keys:
        why = f"the config key {keys[0]}" if keys else "a word of Python or of the file itself"
        raise ConfigError(f"'{name}' is {why} already; take another name, such as My{name.title()}")
    taken = next((s for s in trainer_files() if fold(s) == fold(name)), None)
    if taken is not None:
        raise ConfigError(f"there is a trainer '{taken}' already ({trainer_files()[taken]}); take "
                          f"another name, such as My{name}")


def _paths(name: str, into: Path | None) -> tuple[Path, Path]:
    stem = name.lower()
    if into is not None:
        if into.exists() and not into.is_dir():
            raise ConfigError(f"--into {into}: is a file, not a folder")
        return into / f"{stem}.py", into / f"{stem}.yaml"
    root = checkout()
    if root is None:
        raise ConfigError(
            "this fedvlm is an installed copy, which the next installation replaces: give --into "
            "DIR, a folder of yours"
        )
    return root / "trainers" / f"{stem}.py", root / "configs" / "trainers" / f"{stem}.yaml"


def _typed(path: Path) -> str:
    """Return a path as it is typed: ``./my.py`` for a file in the current folder."""
    return str(path) if len(path.parts) > 1 or path.is_absolute() else f"./{path}"


def _next(name: str, spec: str, yaml: Path, registered: bool) -> list[str]:
    """Return the three next commands."""
    word = shlex.quote(spec)
    config = "" if registered else f" --trainer-config-file {shlex.quote(_typed(yaml))}"
    tests = "tests/check/test_invariants.py tests/trainers/test_every_trainer.py"
    return [
        f"  python -m fedvlm run --demo --rounds 2 --trainer {word}{config}",
        f"  python -m fedvlm check {word}{config}",
        f"  python -m pytest {tests} -k {name.lower()}" if registered
        else f"  python -m fedvlm bench methods {word}",
    ]
