"""BatchContrast: images of one class in a batch are drawn to each other, those of others away.

Equations: L = CE + WEIGHT 1/|B| sum_i l_i, l_i = -mean over the other images j of i's class of
    log softmax_j(z_i . z_j / TAU), j != i (Khosla et al. 2020, equation 2); z = (x + U D x), of
    length 1; server: the means of U and D.
Shared: image.adapter.down (D), image.adapter.up (U)
Personal: none
Command: fedvlm run --demo --rounds 2 --trainer docs/cookbook/in_batch_loss.py:BatchContrast
"""

import torch
import torch.nn.functional as F

from fedvlm.method import Option, Trainer, cross_entropy


class BatchContrast(Trainer):
    """A loss over pairs: clients never mix, and padding (``batch.w`` 0) is in no pair."""

    name = "BatchContrast"
    metrics = (r"loss|ce|contrast",)  # the parts of the loss that travel with an upload
    options = {
        "WEIGHT": Option(0.5, "of the contrast", low=0.0),
        "TAU": Option(0.1, "temperature of the contrast", low=0.0, low_open=True),
    }

    def prompt_sets(self, batch_size):
        """Return 0: no prompt goes through the text tower."""
        return 0

    def trainables(self, model, generator):
        """Return a bottleneck whose upper half is zero: the start is the frozen feature."""
        d, width = model.embed_dim, max(1, model.embed_dim // 8)
        down = torch.randn(width, d, generator=generator) * d**-0.5
        return {"image.adapter.down": down, "image.adapter.up": torch.zeros(d, width)}

    def text_features(self, model, params):
        """Return the template's text features for each client, ``[K, C, d]``."""
        return model.anchor("template", 0).expand(len(params["image.adapter.up"]), -1, -1)

    def image_features(self, model, params, x):
        """Return ``[K, B, d]``."""
        z = model.image(x)
        return z + z @ params["image.adapter.down"].mT @ params["image.adapter.up"].mT

    def loss(self, model, params, batch):
        """Return one number per client ``[K]``, and the parts by name for the metrics."""
        z = F.normalize(self.image_features(model, params, batch.x), dim=-1)
        ce = cross_entropy(model.logits(z, self.text_features(model, params)), batch)
        real, alone = batch.w > 0, torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
        there = real[:, :, None] & real[:, None] & ~alone  # [K, B, B]: the pairs that count
        same = there & (batch.y[:, :, None] == batch.y[:, None])
        scores = (z @ z.mT / self.cfg.TAU).masked_fill(~there, -1e9).log_softmax(-1)
        each = -torch.where(same, scores, 0.0).sum(-1) / same.sum(-1).clamp(min=1)  # [K, B]
        contrast = (each * batch.w).sum(1) / batch.w.sum(1)
        return ce + self.cfg.WEIGHT * contrast, {"ce": ce, "contrast": contrast}
