"""What ``new-trainer`` writes: a method for each kind of thing that is trained, and its YAML.

Each runs and keeps the invariants as it stands, and its comments say what to change. ``$name`` and
the like are ``string.Template``'s; ``${registry}`` is what a file of the repository imports more,
``$kept`` and ``$settings`` are lines that most kinds have.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

FRAME = Template('''"""$name: $sentence (CHANGE every field of this card).

Paper: none yet, $year.
$card
Departures from the paper: none known.
Departures from the authors' code: none known.
Extra data: none.
Cost: $cost
Claim: none.
Command: python federated_main.py --demo
    --trainer $spec
"""

from __future__ import annotations

$imports


${register}class $name($base):
    """See the module's card."""

    name = "$name"
$body''')
YAML = Template('''\
# $name: what the method does. The defaults of its own settings stand in its Python file;
# here stands only what differs from the common ones (fedvlm config prints them all).
$head$yaml''')
REGISTRY = "TRAINER_REGISTRY"


@dataclass(frozen=True)
class Kind:
    """A kind of method.

    Attributes:
        about: for the help.
        sentence: the card's first line, without the name; at most 29 letters.
        base: the class that it derives from.
        card: the fields from ``Equations`` to ``Knobs``.
        cost: the card's.
        imports: lines; ``${registry}`` or ``${registry_line}``: where the registry is imported.
        body: of the class, below its name.
        yaml: what differs from the common settings; of most that are no PEFT the rate alone.
    """

    about: str
    sentence: str
    base: str
    card: str
    cost: str
    imports: str
    body: str
    yaml: str = "OPTIM:\n  LR: 0.01\n"

    def texts(self, name: str, spec: str, *, registered: bool) -> tuple[str, str]:
        """Return the Python file and the YAML; ``registered``: of the repository's own."""
        more = f"{REGISTRY}, " if registered else ""
        alone = f"    {REGISTRY},\n" if registered else ""
        words: dict[str, str] = {
            "name": name, "spec": spec, "year": time.strftime("%Y"),
            "sentence": self.sentence, "cost": self.cost, "base": self.base,
            "register": f'@{REGISTRY}.register("{name}")\n' if registered else "",
            "registry": more, "registry_line": alone,
            "kept": "Personal: none\nFrozen: both towers, the logit scale.",
            "settings": f"# CHANGE: your settings. Each becomes TRAINER.{name.upper()}.<KEY>,\n"
                        "    # with its type, range and help.",
            "head": f"TRAINER:\n  NAME: {name}\n" if registered else "",
        }
        parts = {
            part: Template(getattr(self, part)).substitute(words).rstrip("\n")
            for part in ("card", "imports", "body", "yaml")
        }
        words |= parts
        return FRAME.substitute(words) + "\n", YAML.substitute(words) + "\n"

    def names(self) -> set[str]:
        """Return the names that its file imports, which no method may be called."""
        text = Template(self.imports).substitute(registry=f"{REGISTRY}, ", registry_line="")
        return {
            alias.asname or alias.name
            for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }


OWN = Kind(
    about="whatever PEFT says",
    sentence="what it does, in one line",
    base="PeftTrainer",
    card='''\
Equations: w by FedAvg; client k is evaluated with MIX w_k + (1 - MIX) w, where w_k is its model
    after its own last local training and w the average.
Shared: all of PEFT (w)
Personal: none is trained apart; w_k stays with client k.
Frozen: both towers, the logit scale.
Defaults: MIX 0.5.
Knobs: MIX 0.1 to 0.9.''',
    cost="as FedAvg.",
    imports='''from fedvlm.method import ${registry}Context, Option, PeftTrainer, State, Tree
''',
    body='''\
    # CHANGE: what is sent ("shared") and what stays with the client ("personal"), by role.
    # "body" is the image side, "head" the prompt or the classifier.
    roles = {"body": "shared", "head": "shared"}
    $settings
    options = {
        "MIX": Option(0.5, "share of a client's own last model in what it uses", low=0.0, high=1.0),
    }

    reads_old = True  # a client keeps the shared part of its last model, for personalize

    # CHANGE: one hook; the others are FedAvg's. They are, in the order of a round:
    #   init_client(ctx, start)              its state: add a slot, {"w": start, "v": start}
    #   client_update(ctx, state, received)  a client's work on its download; train with ctx.fit
    #   loss(model, params, batch)           one number per client, [K]
    #   aggregate(ctx, server, updates)      the server's new state
    #   personalize(ctx, state, received)    the model that a client is evaluated with
    # On the client's side every tensor has a leading axis of K clients.
    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Mix each client's own last model with the global one."""
        last, mix = state["w"], self.cfg.MIX
        return last | {n: mix * last[n] + (1 - mix) * v for n, v in received.items()}
''',
    yaml="PEFT:\n  VISUAL: feature\n",
)
PROMPT = Kind(
    about="a context in front of the class names",
    sentence="a context near the template",
    base="Trainer",
    card='''\
Equations: L = CE + PULL 1/C sum_c (1 - T_c(v) . T0_c), T0 the template's text features;
    server v = sum_k p_k v_k.
Shared: text.ctx (v)
$kept
Defaults: N_CTX 4, PULL 1.
Knobs: PULL 0.1 to 10 log.''',
    cost="one packed text pass per step; images from the feature cache.",
    imports='''from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import ${registry}Batch, Option, Trainer, Tree, VLModel, cross_entropy
''',
    body='''\
    # CHANGE: the group of each tensor, by its whole name: "shared" is sent, "personal" stays.
    groups = ((r"text\\.ctx", "shared"),)
    metrics = (r"loss|gap",)  # the numbers that travel with an upload, parts of the loss among them
    $settings
    options = {
        "N_CTX": Option(4, "context tokens", low=1),
        "PULL": Option(1.0, "weight of the distance to the template's text features", low=0.0),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what is trained, without client axis; every client starts from it."""
        shape = (self.cfg.N_CTX, model.text_width)
        return {"text.ctx": torch.randn(shape, generator=generator) * 0.02}

    # CHANGE: how the prompt becomes text features. On the client's side every tensor has a leading
    # axis of K clients, which never mix.
    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """Return ``[K, C, d]``, of length 1."""
        return model.text(params["text.ctx"])

    # CHANGE: what a step minimises.
    def loss(
        self, model: VLModel, params: Tree, batch: Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return one number per client ``[K]``, and parts by name."""
        text = self.text_features(model, params)
        ce = cross_entropy(model.logits(model.image(batch.x), text), batch)
        gap = 1 - (text * model.anchor("template", 0)).sum(-1).mean(-1)  # [K]
        return ce + self.cfg.PULL * gap, {"gap": gap}
''',
)
ADAPTER = Kind(
    about="layers behind the image feature",
    sentence="a layer behind the feature",
    base="Trainer",
    card='''\
Equations: x' = x + U relu(D x); logits = scale x'/|x'| . T0, T0 the template's text features;
    server: the means of U and D.
Shared: image.adapter.down (D), image.adapter.up (U)
$kept
Defaults: REDUCTION 4.
Knobs: REDUCTION 2 to 16 log.''',
    cost="no text pass in a step; images from the feature cache.",
    imports='''from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import ${registry}Option, Trainer, Tree, VLModel
''',
    body='''\
    # CHANGE: the group of each tensor, by its whole name: "shared" is sent, "personal" stays.
    groups = ((r"image\\.adapter\\.(down|up)", "shared"),)
    $settings
    options = {"REDUCTION": Option(4, "feature width over the hidden width", low=1)}

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: no prompt goes through the text tower in a step."""
        return 0

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what is trained, without client axis; U is zero: the start is the feature."""
        d = model.embed_dim
        hidden = max(1, d // int(self.cfg.REDUCTION))
        down = torch.randn(hidden, d, generator=generator) * d**-0.5
        return {"image.adapter.down": down, "image.adapter.up": torch.zeros(d, hidden)}

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """Return the template's text features for each client, ``[K, C, d]``."""
        return model.anchor("template", 0).expand(len(params["image.adapter.up"]), -1, -1)

    # CHANGE: what becomes of a feature. On the client's side every tensor has a leading axis of K
    # clients, which never mix: image features are [K, B, d], U is [K, d, hidden].
    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return ``[K, B, d]``."""
        z = model.image(x)
        hidden = (z @ params["image.adapter.down"].mT).relu()
        return z + hidden @ params["image.adapter.up"].mT
''',
)
VISUAL = Kind(
    about="rows that enter blocks of the image tower",
    sentence="rows in the image tower",
    base="Trainer",
    card='''\
Equations: [x_b, _] = Block_b([x_{b-1}, P_b]) in the last DEPTH blocks; logits = scale z . T0, T0
    the template's text features; server P = sum_k p_k P_k.
Shared: image.prompt.* (P)
$kept
Defaults: TOKENS 4, DEPTH 1.
Knobs: TOKENS 2 to 16 log.''',
    cost="DEPTH blocks of the image tower per step; what lies below is computed once per image.",
    imports='''from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedvlm.method import ${registry}Option, Trainer, Tree, VLModel, adapters, blocks, vision
''',
    body='''\
    # CHANGE: the group of each tensor, by its whole name: "shared" is sent, "personal" stays.
    groups = ((r"image\\.prompt\\.\\d+", "shared"),)
    $settings
    options = {
        "TOKENS": Option(4, "rows of a block", low=1),
        "DEPTH": Option(1, "how many of the last blocks", low=1),
    }

    # CHANGE: where the rows enter.
    def chosen_blocks(self, model: VLModel) -> Sequence[blocks.FrozenBlock]:
        """Return the blocks that get rows."""
        return model.vision.blocks[-int(self.cfg.DEPTH):]

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what enters the first of them: what a batch carries, computed once per image."""
        return (vision.stream_name(self.chosen_blocks(model)[0].index),)

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: no prompt goes through the text tower in a step."""
        return 0

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return ``image.prompt.<block> [TOKENS, width]``: the names say where they enter."""
        return adapters.prompt_tree(self.chosen_blocks(model), int(self.cfg.TOKENS), generator)

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """Return the template's text features for each client, ``[K, C, d]``."""
        clients = len(next(iter(params.values())))
        return model.anchor("template", 0).expand(clients, -1, -1)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return features ``[K, B, d]`` of the tower with the rows; K clients never mix."""
        return model.adapted_image(x, adapters.TreeEdits("image", params))[0]
''',
)
LORA = Kind(
    about="how clients' LoRA factors become one",
    sentence="a rule for LoRA's factors",
    base="PeftTrainer",
    card='''\
Equations: A = sum_k q_k A_k, B = sum_k q_k B_k, q_k = n_k^POWER / sum_j n_j^POWER; what is no
    LoRA is averaged by p_k = n_k / sum_j n_j.
Shared: LoRA's A and B, or what else PEFT says
$kept
Defaults: POWER 0.5; LoRA in the image tower.
Knobs: POWER 0 to 1.''',
    cost="as FedAvg with LoRA.",
    imports='''from fedvlm.method import (
${registry_line}    CfgNode,
    Option,
    PeftTrainer,
    ServerContext,
    Tree,
    Updates,
    adapters,
    weighted_mean,
)
''',
    body='''\
    # CHANGE: what is sent ("shared") and what stays with the client ("personal"), by role.
    # "body" is the image side, "head" the text side.
    roles = {"body": "shared", "head": "shared"}
    $settings
    options = {"POWER": Option(0.5, "of a client's size in its weight", low=0.0, high=1.0)}
    # Settings of PEFT that would be passed over in silence, and why; others are refused anyway.
    lora_refused = dict.fromkeys(("product_svd", "RANKS"), "has a rule of its own")
    # CHANGE: the rule again, in plain words of a mean: `fedvlm check` compares `combine` with it.
    server_rules = {r"w/.*\\.lora\\..*": lambda s: s.mean(by=s.weight**s.trainer.cfg.POWER)}

    def __init__(self, cfg: CfgNode) -> None:
        """Refuse a run without LoRA, before any work."""
        super().__init__(cfg)
        self.require(self.spec.has_lora, f"{self.name} is a rule for LoRA: add --peft lora")

    # CHANGE: the rule. updates.params[name] is [K, ...], sorted by client, updates.received what
    # they started from, updates.weight their sizes; ctx.round and ctx.stream are there as well.
    def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
        """Return the aggregate of what clients sent, without client axis."""
        tree = super().combine(ctx, updates)
        mean = weighted_mean(updates, [n**self.cfg.POWER for n in updates.weight.tolist()])
        return tree | {n: mean[n] for n in tree if adapters.is_factor(n)}
''',
    yaml="PEFT:\n  TEXT: none\n  VISUAL: lora\n",
)
MODULE = Kind(
    about="any torch.nn.Module",
    sentence="a torch module on features",
    base="ModuleTrainer",
    card='''\
Equations: min_w sum_k p_k F_k(w), w the module's parameters, by FedAvg.
Shared: every parameter of the module
Personal: none
Frozen: both towers.
Defaults: WIDTH 64.
Knobs: WIDTH 16 to 256 log.''',
    cost="no text pass; images from the feature cache; clients one by one.",
    imports='''from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.method import ${registry}ModuleTrainer, Option, Tree, VLModel
''',
    body='''\
    # CHANGE: the group of each parameter, by its whole name; without groups all are shared.
    # groups = ((r"0\\..*", "shared"), (r"2\\..*", "personal"))
    $settings
    options = {"WIDTH": Option(64, "hidden units", low=1)}

    # With pixels: streams returns ("pixels",), and forward takes x["pixels"] [B, 3, S, S].
    # CHANGE: the module. What requires a gradient is trained, the rest is frozen with the backbone.
    def build(self, model: VLModel) -> nn.Module:
        """Return the module; its start is drawn from the run's seed."""
        return nn.Sequential(
            nn.Linear(model.embed_dim, int(self.cfg.WIDTH)), nn.ReLU(),
            nn.Linear(int(self.cfg.WIDTH), len(model.classnames)),
        )

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: Tree) -> Tensor:
        """Return one client's logits ``[B, C]``; ``x["features"]`` is ``[B, d]``."""
        return functional_call(module, dict(params), (x["features"],))
''',
)
KINDS: Mapping[str, Kind] = {
    "prompt": PROMPT, "adapter": ADAPTER, "visual-prompt": VISUAL, "lora-rule": LORA,
    "module": MODULE,
}
