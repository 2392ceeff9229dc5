# mypy: disable-error-code="no-untyped-def,no-any-return"
# What is written beside an export as run.py: those parts that the model needs, without blank lines
# and with TAIL behind them. At most 60 lines of torch, safetensors and open_clip that import
# nothing of fedvlm; ``recipe.Recipe.source`` cuts it. Here it also runs in process: what is proved
# equal to the trainer's predictor, and traced for ONNX, is this code.
# part: base
"""Predict images with an exported fedvlm model, one JSON line each: python run.py IMAGE ..."""
import json
import sys
from pathlib import Path

import open_clip
import torch
import torch.nn.functional as F
from open_clip.transform import PreprocessCfg, image_transform_v2
from safetensors.torch import load_file


class Model(torch.nn.Module):  # pixels [n, 3, S, S] to logits [n, classes]
    def __init__(self, card, p, towers):
        super().__init__()
        self.card, self.p, self.towers = card, p, torch.nn.ModuleList(towers)
        for part in card["adapted"]:
            getattr(self, part)(towers[0].get_submodule(card["blocks"]), card["places"])

    def forward(self, pixels):
        x = native = self.towers[0](pixels)
        # part: two_towers
        native = self.towers[-1](pixels)  # of the tower as it came
        # part: small_tower
        native = pixels if self.card["small"] == "tower" else native
        # part: base
        for step, name in self.card["steps"]:
            x = getattr(self, step)(name, x, native)
        return x

    # part: lora
    def lora(self, blocks, places):  # merged into the frozen weights
        for name in [n for n in self.p if n.startswith("image.lora.") and n.endswith(".A")]:
            _, _, index, site, _ = name.split(".")
            update = self.card["lora"] * self.p[name[:-1] + "B"] @ self.p[name]
            for layer, first, rows in places[site]:
                part, update = update[:rows], update[rows:]
                blocks[int(index)].get_parameter(layer).data[first : first + rows].add_(part)

    # part: norms
    def norms(self, blocks, places):  # added to the blocks' LayerNorms
        for name in [n for n in self.p if n.startswith("image.ln.")]:
            _, _, index, place, kind = name.split(".")
            blocks[int(index)].get_parameter(f"{places[place]}.{kind}").data.add_(self.p[name])

    # part: adapter
    def adapter(self, blocks, places):  # h + up(gelu(down(norm(h)))) behind both branches
        def add(h, n, p):
            x = F.layer_norm(h, h.shape[-1:], p[n + "ln.weight"], p[n + "ln.bias"])
            x = F.gelu(F.linear(x, p[n + "down.weight"], p[n + "down.bias"]))
            return h + F.linear(x, p[n + "up.weight"], p[n + "up.bias"])

        for n in [k.removesuffix("down.weight") for k in self.p if k.endswith(".down.weight")]:
            behind = blocks[int(n.split(".")[2])].get_submodule(places[n.split(".")[3]])
            behind.register_forward_hook(lambda _, __, h, n=n: add(h, n, self.p))

    # part: stages
    def stages(self, tower, places):  # the same behind each stage, over the channels of a map
        def add(h, n, p):
            x = h.movedim(places["channels"], -1)
            x = F.layer_norm(x, x.shape[-1:], p[n + "ln.weight"], p[n + "ln.bias"])
            x = F.gelu(F.linear(x, p[n + "down.weight"], p[n + "down.bias"]))
            x = F.linear(x, p[n + "up.weight"], p[n + "up.bias"])
            return h + x.movedim(-1, places["channels"])

        for n in [k.removesuffix("down.weight") for k in self.p if k.endswith(".down.weight")]:
            behind = tower.get_submodule(places["stages"][int(n.split(".")[2])])
            behind.register_forward_hook(lambda _, __, h, n=n: add(h, n, self.p))

    # part: residual
    def residual(self, name, z, native):
        return z + F.gelu(z @ self.p[name + ".down"].T) @ self.p[name + ".up"].T

    # part: fusion
    def fusion(self, name, z, native):  # FedTV: softmax over three views of the feature
        p, form, views = self.p, self.card["forms"], [z]
        for gate in ("image.shared_adapter.", "image.personal_adapter."):
            h = torch.relu(z @ p[gate + "fc1.weight"].T) @ p[gate + "fc2.weight"].T
            if form["view"] == "residual":
                views.append(z + h)
            else:
                views.append(z * (h.softmax(-1) if form["view"] == "softmax" else h.sigmoid()))
        x = torch.stack(views, 1)
        q = F.linear(z, p[name + ".query.weight"], p[name + ".query.bias"])
        k = F.linear(x, p[name + ".key.weight"], p.get(name + ".key.bias"))
        scale = q.shape[-1] ** -0.5 if form["scores"] == "scaled" else 1.0
        return (((k * q[:, None]).sum(-1) * scale).softmax(-1)[..., None] * x).sum(1)

    # part: cosine
    def cosine(self, name, z, native):
        return self.card["scale"] * F.normalize(z, dim=-1) @ self.p[name].T

    # part: feature
    def feature(self, name, z, native):  # of length one: times a text's, the cosine
        return F.normalize(z, dim=-1)

    # part: distance
    def distance(self, name, z, native):  # FedProto: minus the squared distance to prototypes
        z, c = F.normalize(z, dim=-1), self.p[name]
        return 2 * z @ c.T - z.square().sum(-1, keepdim=True) - c.square().sum(-1)

    # part: gated
    def gated(self, name, large, native):  # Thorki: both models' logits in their own units
        small, (a, b) = getattr(self, "small_" + self.card["small"])(native), self.p["gate.spread"]
        return getattr(self, name)(large / a, small / b, self.p)

    # part: small_mlp
    def small_mlp(self, z):  # of the frozen image feature
        h = F.layer_norm(z, z.shape[-1:]) @ self.p["small.fc1.weight"].T + self.p["small.fc1.bias"]
        return F.linear(F.gelu(h), self.p["small.fc2.weight"], self.p["small.fc2.bias"])

    # part: small_tower
    def small_tower(self, x):  # of the pixels
        for n in ("small.conv1.", "small.conv2.", "small.conv3."):
            x = F.gelu(F.conv2d(x, self.p[n + "weight"], self.p[n + "bias"], stride=2, padding=1))
        return F.linear(x.mean((-2, -1)), self.p["small.fc.weight"], self.p["small.fc.bias"])

    # part: average
    def average(self, a, b, p):
        return (a + b) / 2

    # part: classwise
    def classwise(self, a, b, p):
        return b + torch.sigmoid(p["gate.a"]) * (a - b)

    # part: conf_gate
    def conf_gate(self, a, b, p):
        u = []
        for z in (a, b):
            log_p = z.log_softmax(-1)
            top = log_p.exp().topk(2, -1).values
            u += [top[..., 0], top[..., 0] - top[..., 1], -(log_p.exp() * log_p).sum(-1)]
        h = torch.relu(F.linear(torch.stack(u, -1), p["gate.w1"], p["gate.b1"]))
        return b + torch.sigmoid(F.linear(h, p["gate.w2"], p["gate.b2"]) + p["gate.a"]) * (a - b)

    # part: concat_mlp gate_mlp gate_scalar
    def concat_mlp(self, a, b, p):
        u = torch.cat([F.layer_norm(z, z.shape[-1:]) for z in (a, b)], -1)
        h = torch.relu(F.linear(u, p["gate.w1"], p["gate.b1"]))
        return F.linear(h, p["gate.w2"], p["gate.b2"])

    # part: gate_mlp gate_scalar
    def gate_mlp(self, a, b, p):
        return b + torch.sigmoid(self.concat_mlp(a, b, p)) * (a - b)

    gate_scalar = gate_mlp


# part: base
def load(folder):
    card, towers = json.loads((folder / "model.json").read_text(encoding="utf-8")), []
    for _ in range(card["towers"]):
        # part: by_name
        clip = open_clip.create_model(card["tower"]["name"], pretrained=card["tower"]["pretrained"])
        # part: by_file
        clip = getattr(open_clip, card["tower"]["class"])(**card["tower"]["arch"])
        clip.visual.load_state_dict(load_file(folder / card["tower"]["file"]))
        # part: base
        towers.append(clip.visual.eval().requires_grad_(False))
    return Model(card, load_file(folder / "model.safetensors"), towers).eval()


# part: end
_START = """
if __name__ == "__main__":
    from pixels import decode  # beside this file

    model = load(Path(__file__).resolve().parent)
    look = image_transform_v2(PreprocessCfg(**model.card["transform"]), is_train=False)
    sys.stdout.reconfigure(encoding="utf-8")
"""
TAIL = _START + """\
    for image in sys.argv[1:]:
        logits = model(look(decode(Path(image).read_bytes()))[None])[0].tolist()
        name = model.card["classnames"][logits.index(max(logits))]
        print(json.dumps({"image": image, "class": name, "logits": logits}, ensure_ascii=False))
"""
WITH_PROBABILITY = (  # where a temperature was fitted
    '"logits": logits}',
    '"logits": logits,\n                          "probability": max(\n            '
    '(torch.tensor(logits) / model.card["temperature"]).softmax(0).tolist())}',
)
WITH_FEATURE = (  # where there are no classes
    """        logits = model(look(decode(Path(image).read_bytes()))[None])[0].tolist()
        name = model.card["classnames"][logits.index(max(logits))]
        print(json.dumps({"image": image, "class": name, "logits": logits}, ensure_ascii=False))
""", """        feature = model(look(decode(Path(image).read_bytes()))[None])[0].tolist()
        print(json.dumps({"image": image, "feature": feature}, ensure_ascii=False))
""")
SETS_TAIL = _START + """\
    sets = model.card["sets"]
    for image in sys.argv[1:]:
        logits = model(look(decode(Path(image).read_bytes()))[None])[0]
        each = torch.sigmoid(logits / sets["temperature"]).tolist()
        p = dict(zip(model.card["classnames"], each))
        names = [n for n, t in zip(p, sets["thresholds"]) if p[n] >= t]
        print(json.dumps({"image": image, "labels": names, "probabilities": p}, ensure_ascii=False))
"""
_USED_BY_TAIL = (PreprocessCfg, image_transform_v2, Path, sys)
