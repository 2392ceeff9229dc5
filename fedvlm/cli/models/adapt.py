"""Make a personal model for a new client from a run's shared model and labelled images.

The client took no part in the run: it gets the shared model and the method's final phase. The
model is written in a format of fedvlm export.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.models._run import add_model_flags
from fedvlm.console.parser import Parser, whole_number
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.files import user_path

EXAMPLES = (
    "fedvlm adapt RUN --images photos/ --to model/",
    "fedvlm adapt RUN --images photos/ --to model/ --epochs 5 --format onnx",
)
ALSO = ("personalise", "personalize", "finetune", "fine-tune")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run folder")
    add("--images", required=True, metavar="FOLDER", help="folder of labelled images with "
                                                          "classes of the run")
    add("--labels", default="", metavar="COLUMN", help="columns of sets of labels in that table "
                                                       "(default: the run's)")
    add("--columns", default="", metavar="A=B", help="what others of that table mean: path=file")
    add("--to", required=True, metavar="DIR", help="a new folder")
    add("--format", default="safetensors", metavar="NAME", help="safetensors, peft, open_clip or "
        "onnx (safetensors)")
    add("--epochs", type=whole_number(0), default=None, metavar="N", help="epochs of fine-tuning "
        "(default: the run's setting)")
    add_model_flags(parser)


def main(args: Namespace) -> int:
    """Personalise and write the folder."""
    progress("loading PyTorch")
    from fedvlm.api.adapt import adapt  # start-up: PyTorch, 2 s
    from fedvlm.export.write import check_target  # start-up: PyTorch

    folder = user_path(args.to)
    check_target(folder, args.format)
    model, notes = adapt(
        args.run, args.images, epochs=args.epochs, device=args.device, weights=args.weights,
        trainer=args.trainer, trust_code=args.trust_code, round=args.round,
        labels=args.labels, columns=args.columns,
    )
    complain(*notes, prefix="note")
    done = model.export(folder, args.format)
    say(f"{done.folder}: {done.format}, read back, largest logit difference {done.difference:.1e}")
    return 0
