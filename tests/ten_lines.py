"""From an empty folder: train FedTV, ask client 3, export its model, ask that (tests/wheel.sh)."""

import json

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw

import fedvlm

run = fedvlm.train(demo=True, trainer="FedTV", rounds=3, output_dir="output")
model = fedvlm.load(run.path).client(3)
image = Image.new("RGB", (64, 64), "white")
ImageDraw.Draw(image).ellipse((12, 12, 52, 52), fill="red")
said = model.predict(image)
how = json.loads((model.export("client-3", "onnx").folder / "model.json").read_text())["transform"]
pixels = np.asarray(image.resize((how["size"], how["size"]), Image.Resampling.BICUBIC)) / 255
pixels = ((pixels - how["mean"]) / how["std"]).transpose(2, 0, 1)[None].astype(np.float32)
(logits,) = onnxruntime.InferenceSession("client-3/model.onnx").run(None, {"pixels": pixels})
odds = np.exp(logits - logits.max())

gap = np.abs(odds / odds.sum() - said.probabilities).max()
print(said, f"and the same by onnxruntime: largest difference of a probability {gap:.1e}")
assert gap < 1e-5
