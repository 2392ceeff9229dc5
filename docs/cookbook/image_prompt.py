"""ImagePrompt: every image shifts the context that it is read with.

Equations: v(x) = v + W z, z = x/|x|; logits_c = scale z . T_c(v(x)) (after Zhou et al. 2022,
    CoCoOp, with one linear map); server: the means of v and W.
Shared: text.ctx (v), text.net.weight (W)
Personal: none
Command: fedvlm run --demo --rounds 1 --shots 4 --trainer docs/cookbook/image_prompt.py:ImagePrompt
"""

import torch
import torch.nn.functional as F

from fedvlm.method import Option, Trainer, layers


class ImagePrompt(Trainer):
    """``predictor`` is the door: the texts depend on the image, so none are computed ahead."""

    name = "ImagePrompt"
    groups = ((r"text\.(ctx|net\.weight)", "shared"),)
    options = {"N_CTX": Option(4, "context tokens", low=1)}

    def prompt_sets(self, batch_size):
        """Return one for each image, which makes the chunk of clients as small as it must be."""
        return batch_size

    def trainables(self, model, generator):
        """Return the context and a map of zeros: the start is the same context for all images."""
        return {
            "text.ctx": torch.randn(self.cfg.N_CTX, model.text_width, generator=generator) * 0.02,
            "text.net.weight": torch.zeros(model.text_width, model.embed_dim),
        }

    def predictor(self, model, params):
        """Return ``x -> logits [K, B, C]``."""

        def predict(x):
            z = F.normalize(model.image(x), dim=-1)  # [K, B, d]
            shift = layers.linear(params, "text.net", z)  # [K, B, width]
            text = model.text(params["text.ctx"][:, None] + shift[:, :, None])  # [K, B, C, d]
            return model.scale * (text @ z[..., None]).squeeze(-1)

        return predict
