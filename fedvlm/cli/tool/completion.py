"""Print a script that completes commands, flags and names in your shell.

bash: eval "$(fedvlm completion bash)" in ~/.bashrc
zsh:  fedvlm completion zsh > ~/.zfunc/_fedvlm, a folder of your fpath
fish: fedvlm completion fish > ~/.config/fish/completions/fedvlm.fish
"""

from __future__ import annotations

import argparse
from argparse import Action, Namespace

import shtab

from fedvlm.cli.verbs import verbs
from fedvlm.config.read import config_names
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.federation.cards import trainer_files
from fedvlm.job.flags import FLAGS, add_flags

EXAMPLES = (
    'eval "$(fedvlm completion bash)"  # now, in this bash',
    "fedvlm completion zsh > ~/.zfunc/_fedvlm",
    "fedvlm completion fish > ~/.config/fish/completions/fedvlm.fish",
)
ALSO = ("complete", "autocomplete", "tab")
SHELLS = ("bash", "zsh", "fish")
_FILES, _FOLDERS = ("FILE", "PLAN.yaml"), ("DIR", "DATA/", "FOLDER")
_RUNS = ("RUN", "RUN_FOLDER", "RUN_OR_OUTPUT", "OUTPUT")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("shell", choices=SHELLS, help="a shell: bash, zsh or fish")


def main(args: Namespace) -> int:
    """Print the script."""
    say(*shtab.complete(command_tree(), shell=args.shell).splitlines())
    return 0


def command_tree() -> Parser:
    """Return one parser that has every verb below it, with what shtab can complete of values."""
    table = verbs()
    root = Parser(prog="fedvlm", description="federated PEFT of vision-language models")
    below = root.add_subparsers(metavar="VERB", dest="verb")
    for verb in table.values():
        verb.fill(below.add_parser(verb.name, help=verb.sentence))
    add_flags(root)  # the main job needs no word
    for parser in (root, *below.choices.values()):
        for action in parser._actions:
            _complete(action)
    return root


def _complete(action: Action) -> None:
    """Say what a value can be, and show the flags of a run where the help page leaves them out."""
    of_run = {flag.names[0]: flag.help for flag in FLAGS if flag.group}
    if action.help == argparse.SUPPRESS and action.option_strings:
        action.help = of_run.get(action.option_strings[0], argparse.SUPPRESS)
    if action.dest in ("trainer", "trainers", "methods"):
        action.choices = list(trainer_files())
    elif action.dest in ("dataset", "datasets", "names"):
        action.choices = config_names("datasets")
    elif action.dest == "verb" and not isinstance(action, argparse._SubParsersAction):
        action.choices = list(verbs())
    elif action.metavar in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar in (*_FOLDERS, *_RUNS):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
