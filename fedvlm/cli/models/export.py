"""Export a trained model for other libraries (safetensors, PEFT, open_clip, ONNX).

Formats: safetensors (with a run.py of 60 lines), peft, open_clip, onnx. Every export is read
back and compared before it is kept; a method that a format cannot hold is refused, with the reason.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.models._run import add_run, open_run
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.files import user_path

EXAMPLES = (
    "fedvlm export RUN --client 3 --to model/ --format safetensors",
    "fedvlm export RUN --client all --to models/ --format onnx  # one folder per client, and an "
    "index",
    "fedvlm export RUN --to lora/ --format peft --licence mit  # the global model",
)
ALSO = ("save", "convert", "onnx")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add_run(parser)
    add = parser.add_argument
    add("--to", required=True, metavar="DIR", help="a new folder")
    add("--format", required=True, metavar="NAME", help="safetensors, peft, open_clip or onnx")
    add("--licence", "--license", dest="licence", default="", metavar="NAME",
        help="licence of the base weights, for the model card (mit, apache-2.0, ...)")


def main(args: Namespace) -> int:
    """Write the folder."""
    run = open_run(args)
    from fedvlm.export.write import check_target, export, export_all  # start-up: PyTorch, 2 s

    folder = user_path(args.to)
    check_target(folder, args.format)
    models = {n: m.licensed(args.licence).trained for n, m in run.named(args.client).items()}
    if args.client.lower() == "all":
        done = list(export_all(models, folder, args.format).values())
    else:
        (trained,) = models.values()
        done = [export(trained, folder, args.format)]
    for one in done:
        say(f"{one.folder}: {one.format}, read back, largest logit difference "
            f"{one.difference:.1e}")
    return 0
