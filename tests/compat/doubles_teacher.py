"""Shapes with a second, frozen model: KgCoOp's pull to hand-written prompts, ProGrad's surgery."""

import torch
import torch.nn as nn
from clip import clip
from dassl.engine import TRAINER_REGISTRY
from dassl.metrics import compute_accuracy
from torch.nn import functional as F

from .doubles_coop import Base, Context, Prompted, backbone_of, unit

CUSTOM_TEMPLATES = {"EuroSAT": "a centered satellite photo of {}."}


def texts(cfg, names, model):
    table = CUSTOM_TEMPLATES[cfg.DATASET.NAME]
    ids = torch.cat([clip.tokenize(table.format(n.replace("_", " "))) for n in names])
    with torch.no_grad():
        return unit(model.encode_text(ids.cuda()))


class Guided(Prompted):
    def __init__(self, model, learner, old):
        super().__init__(model, learner)
        self.old = old  # a plain tensor, as in the authors' file

    def forward(self, image):
        z, text = unit(self.image_encoder(image.type(self.dtype))), self.text()
        score = 1.0 - F.cosine_similarity(text, self.old.type(self.dtype), dim=1, eps=1e-7).mean()
        return self.logit_scale.exp() * z @ text.t(), score


@TRAINER_REGISTRY.register()
class KgCoOpDouble(Base):
    """A pull to the hand-written prompts' features; logits are the first of two outputs."""

    def make(self, model, names):
        node = self.cfg.TRAINER.COOP
        other = backbone_of(self.cfg).float().cuda()
        learner = Context(names, model, node.N_CTX, self.cfg.INPUT.SIZE[0], node.CSC)
        self.w = self.cfg.TRAINER.COOP.W
        return Guided(model, learner, texts(self.cfg, names, other))

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        output, score = self.model(image)
        loss = F.cross_entropy(output, label) + self.w * score
        self.model_backward_and_update(loss)
        return {"loss": loss.item(), "acc": compute_accuracy(output, label)[0].item()}

    def model_inference(self, input):  # noqa: A002
        return self.model(input)[0]


class ZeroShot(nn.Module):
    def __init__(self, cfg, names):
        super().__init__()
        self.clip_model = backbone_of(cfg).float()
        self.text = texts(cfg, names, self.clip_model)

    def forward(self, image):
        z = unit(self.clip_model.encode_image(image))
        return self.clip_model.logit_scale.exp() * z @ self.text.to(z.device).t()


@TRAINER_REGISTRY.register()
class ProGradDouble(Base):
    """The gradient of the loss without what opposes the teacher's; ``LOSS.*`` as its train.py."""

    def build_model(self):
        super().build_model()
        self.zs_clip = ZeroShot(self.cfg, self.dm.dataset.classnames).cuda()
        for p in self.zs_clip.parameters():
            p.requires_grad_(False)
        assert self.cfg.LOSS.NAME == "prograd"

    def losses(self, batch):
        image, label = self.parse_batch_train(batch)
        output = self.model(image)
        with torch.no_grad():
            teacher = F.softmax(self.zs_clip(image) / self.cfg.LOSS.T, dim=-1)
        pull = -(teacher * F.log_softmax(output / self.cfg.LOSS.T, -1)).sum(1).mean()
        return F.cross_entropy(output, label), pull * self.cfg.LOSS.T**2

    def forward_backward(self, batch):
        xe, kl = self.losses(batch)
        self.prograd_backward_and_update(xe, kl, self.cfg.LOSS.LAMBDA)
        return {"xe_loss": xe.item(), "kl_loss": kl.item(), "acc": 0.0}


@TRAINER_REGISTRY.register()
class SurgeryDouble(ProGradDouble):
    """The same, written out in its own forward_backward: ``.grad`` changed before the step."""

    def forward_backward(self, batch):
        xe, kl = self.losses(batch)
        self.model_zero_grad()
        kl.backward(retain_graph=True)
        names = self.get_model_names()
        pulls = [p.grad.clone() for n in names for p in self._models[n].parameters()]
        for n in names:
            self._optims[n].zero_grad()
        xe.backward()
        for n in names:
            for p, pull in zip(self._models[n].parameters(), pulls):  # noqa: B905
                unit_pull = pull / torch.linalg.norm(pull)
                along = torch.dot(p.grad.flatten(), unit_pull.flatten())
                if along < 0:
                    p.grad = p.grad.clone() - self.cfg.LOSS.LAMBDA * along * unit_pull
            self._optims[n].step()
        return {"xe_loss": xe.item(), "kl_loss": kl.item()}
