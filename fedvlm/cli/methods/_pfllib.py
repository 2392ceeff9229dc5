"""``new-trainer --from``: a skeleton in PFLlib's order, with what a client file of PFLlib says.

The file is read as a syntax tree, never run, and none of its text is taken over but names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedvlm.cli.methods._templates import Kind
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path

WORD = "pfllib"  # --from pfllib: without a file
COUNT = re.compile("epochs|steps|rounds|num")  # names of whole numbers
# what every client of PFLlib has from its arguments
COMMON = frozenset({
    "model", "algorithm", "dataset", "device", "save_folder_name", "num_classes", "batch_size",
    "local_learning_rate", "local_epochs", "few_shot", "learning_rate_decay",
    "learning_rate_decay_gamma", "num_clients", "global_rounds",
})


@dataclass(frozen=True)
class ClientFacts:
    """What a client file of PFLlib says.

    Attributes:
        options: names behind ``args.`` that are the method's own.
        copies: attributes that hold a further copy of the model.
        phases: loops over epochs in ``train``.
        split: it trains ``model.base`` and ``model.head`` apart.
        protos: it has class means (``protos``).
        file: its name; empty without one.
    """

    options: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    phases: int = 1
    split: bool = False
    protos: bool = False
    file: str = ""


def pfllib_kind(source: str) -> Kind:
    """Return what to write for ``--from pfllib`` or ``--from ./clientx.py``.

    Raises:
        ConfigError: no such file, or no client of PFLlib in it.
    """
    return _kind(ClientFacts() if source.lower() == WORD else client_facts(user_path(source)))


def client_facts(path: Path) -> ClientFacts:
    """Return what a file of ``system/flcore/clients`` says.

    Raises:
        ConfigError: it cannot be read, or has no class that derives from ``Client``.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--from {path}: cannot be read ({error.strerror}); give {WORD}, or a "
                          "file such as system/flcore/clients/clientamp.py") from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"--from {path}: is not valid Python: {error}") from None
    found = [n for n in tree.body if isinstance(n, ast.ClassDef)
             and any("client" in ast.unparse(base).lower() for base in n.bases)]
    if not found:
        raise ConfigError(f"--from {path}: has no class that derives from PFLlib's Client; give a "
                          "file such as system/flcore/clients/clientamp.py")
    cls = found[0]
    chains = [ast.unparse(n) for n in ast.walk(cls) if isinstance(n, ast.Attribute)]
    options = [c.removeprefix("args.") for c in chains if c.startswith("args.")]
    copies = [
        node.targets[0].attr for node in ast.walk(cls) if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and ast.unparse(node.value).startswith("copy.deepcopy(")
        and ast.unparse(node.value).endswith("model)")
    ]
    train = [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "train"]
    loops = [n for f in train for n in ast.walk(f)
             if isinstance(n, ast.For) and ast.unparse(n.iter).startswith("range(")]
    # base and head in turns: each is frozen while the other is trained
    split = any(c.endswith(".requires_grad") for c in chains) and any(
        ".model.head" in c for c in chains)
    return ClientFacts(
        tuple(dict.fromkeys(o for o in options if o.isidentifier() and o not in COMMON)),
        tuple(dict.fromkeys(copies)), max(1, len(loops)), split,
        any(c.endswith(".protos") for c in chains), path.name,
    )


def _kind(facts: ClientFacts) -> Kind:
    several = facts.phases > 1
    options = [f'        "{o.upper()}": Option({"1" if COUNT.search(o) else "1.0"}, '
               f'"CHANGE: args.{o}", low=0),' for o in facts.options]
    slots = [f'"{name}": start' for name in facts.copies]
    fits = _fits(facts)
    notes = [
        "    # PFLlib's words, in the order of a round (docs/pfllib.md has all of them):",
        "    #   Client.__init__    init_client: further models of a client are slots",
        "    #   set_parameters     download: what a client receives; client_update gets it",
        "    #   Client.train       client_update: ctx.fit is the loop over epochs and batches",
        "    #   aggregate_parameters  aggregate; Server.send_models: download",
        "    #   test_metrics       personalize: the model that a client is evaluated with",
    ]
    if facts.protos:
        notes.append("    #   protos             ctx.whole(\"fit\") and extras_up: see fedproto.py")
    head = "personal" if facts.split else "shared"
    body = [
        '    # CHANGE: "body" is model.base, "head" model.head; "personal" stays with the client.',
        f'    roles = {{"body": "shared", "head": "{head}"}}',
        *(["    phases = True  # a round has several loops over epochs",
           '    exempt = {"G5": "a round has several phases"}'] if several else []),
        *(["    options = {", *options, "    }"] if options else []),
        "", *notes,
    ]
    if slots:
        body += [
            "    def init_client(self, ctx: Context, start: Tree) -> State:",
            '        """Return a client\'s state: its model and the further ones."""',
            f'        return {{"w": start, {", ".join(slots)}}}',
            "",
        ]
    body += [
        "    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, "
        "Upload]:",
        '        """Train on what was received; see PFLlib\'s train."""',
        *fits,
        '        return state | {"w": w}, ctx.upload(w)',
        "",
    ]
    names = sorted({"Context", "PeftTrainer", "State", "Tree", "Upload"}
                   | ({"Option"} if options else set())
                   | ({"PERSONAL", "SHARED"} if facts.split and several else set()))
    names.sort(key=lambda word: (not word.isupper(), word))  # as ruff sorts imports
    return Kind(
        about="PFLlib's order of a round", sentence="what it does, in one line",
        base="PeftTrainer",
        card="Equations: w by FedAvg (CHANGE).\n"
             f"Shared: {'the body' if facts.split else 'all of PEFT'}\n"
             f"Personal: {'the head' if facts.split else 'none'}\n"
             "Frozen: both towers, the logit scale.\n"
             "Defaults: none.\nKnobs: none.",
        cost="as FedAvg.",
        imports=f"from fedvlm.method import ${{registry}}{', '.join(names)}\n",
        body="\n".join(body) + "\n",
        yaml="PEFT:\n  VISUAL: feature\n" + ("  HEAD: linear\n  TEXT: none\n" if facts.split
                                             else ""),
    )


def _fits(facts: ClientFacts) -> Sequence[str]:
    """Return the lines of a client's work: one ``ctx.fit`` for each loop over epochs."""
    start = '        w = state["w"] | received'
    if facts.phases < 2:
        return [start, "        w = ctx.fit(w, self.loss).params"]
    lines = [start, "        # CHANGE: each phase has its epochs; after= are those before it"]
    for at in range(facts.phases):
        train = ""
        if facts.split:  # as FedRep: the head first
            train = f", train=({'PERSONAL' if at == 0 else 'SHARED'},)"
        lines.append(f'        w = ctx.fit(w, self.loss{train}, epochs=1, after={at}, '
                     f'tag="phase{at + 1}").params')
    return lines
