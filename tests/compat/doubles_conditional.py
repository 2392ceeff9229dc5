"""CoCoOp's shape: a context shifted by each image's features; the model returns its own loss."""

from collections import OrderedDict

import torch
import torch.nn as nn
from dassl.engine import TRAINER_REGISTRY
from torch.nn import functional as F

from .doubles_coop import Base, Context, Prompted, unit


class Shifted(Context):
    def __init__(self, names, model, n_ctx, size):
        super().__init__(names, model, n_ctx, size)
        d, width = model.visual.output_dim, model.ln_final.weight.shape[0]
        self.meta_net = nn.Sequential(OrderedDict([
            ("linear1", nn.Linear(d, d // 16)), ("relu", nn.ReLU(inplace=True)),
            ("linear2", nn.Linear(d // 16, width)),
        ]))
        self.meta_net.half()


class Conditional(Prompted):
    def forward(self, image, label=None):
        z = unit(self.image_encoder(image.type(self.dtype)))
        learner = self.prompt_learner
        shifts = learner.meta_net(z)
        rows = []
        for one, shift in zip(z, shifts):  # noqa: B905 (as such files have it)
            text = unit(self.text_encoder(learner(learner.ctx + shift), learner.ids))
            rows.append(self.logit_scale.exp() * one @ text.t())
        logits = torch.stack(rows)
        if learner.training:
            return F.cross_entropy(logits, label)
        return logits


@TRAINER_REGISTRY.register()
class CoCoOpDouble(Base):
    """Instance-conditional prompts."""

    def check_cfg(self, cfg):
        assert cfg.TRAINER.COCOOP.PREC in ["fp16", "fp32", "amp"]

    def make(self, model, names):
        node = self.cfg.TRAINER.COCOOP
        return Conditional(model, Shifted(names, model, node.N_CTX, self.cfg.INPUT.SIZE[0]))

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        loss = self.model(image, label)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        if (self.batch_idx + 1) == self.num_batches:
            self.update_lr()
        return {"loss": loss.item()}
