"""Shapes that change the towers: MaPLe's prompts for both, PromptSRC's own prompts and averages,
and plain hooks."""

import copy

import numpy as np
import torch
import torch.nn as nn
from dassl.engine import TRAINER_REGISTRY
from dassl.optim import build_lr_scheduler, build_optimizer
from torch.nn import functional as F

from .doubles_coop import Base, Context, Prompted, backbone_of, unit


class Coupled(Context):
    """A context, prompts of the deeper text blocks, and both projected to the image tower."""

    def __init__(self, names, model, n_ctx, size, depth):
        super().__init__(names, model, n_ctx, size)
        width, vision = self.ctx.shape[-1], model.visual.ln_post.weight.shape[0]
        self.proj = nn.Linear(width, vision)
        self.proj.half()
        self.deep = nn.ParameterList(
            [nn.Parameter(nn.init.normal_(torch.empty(n_ctx, width), std=0.02))
             for _ in range(depth - 1)])
        layer = nn.Linear(width, vision)
        self.projections = nn.ModuleList([copy.deepcopy(layer) for _ in range(depth - 1)])


class Both(Prompted):
    def forward(self, image, label=None):
        learner = self.prompt_learner
        text = unit(self.text_encoder(learner(), learner.ids, learner.deep))
        deep = [f(p) for f, p in zip(learner.projections, learner.deep)]  # noqa: B905
        z = unit(self.image_encoder(image.type(self.dtype), learner.proj(learner.ctx), deep))
        logits = self.logit_scale.exp() * z @ text.t()
        return F.cross_entropy(logits, label) if learner.training else logits


class Whole(Base):
    """Registers the whole model, as MaPLe and PromptSRC do."""

    registered = ""

    def check_cfg(self, cfg):
        pass

    def build_model(self):
        self.model = self.make(None, self.dm.dataset.classnames)
        for name, p in self.model.named_parameters():
            wanted = "prompt_learner" in name or "VPT" in name
            p.requires_grad_(wanted and "ZS_image_encoder" not in name)
        self.model.to(self.device)
        self.optim = build_optimizer(self.model, self.cfg.OPTIM)
        self.sched = build_lr_scheduler(self.optim, self.cfg.OPTIM)
        self.register_model(self.registered, self.model, self.optim, self.sched)


@TRAINER_REGISTRY.register()
class MaPLeDouble(Whole):
    """Prompts in both towers, handed in at every call."""

    registered = "MultiModalPromptLearner"

    def make(self, model, names):
        node = self.cfg.TRAINER.MAPLE
        design = {"trainer": "MaPLe", "vision_depth": 0, "language_depth": 0, "vision_ctx": 0,
                  "language_ctx": 0, "maple_length": node.N_CTX}
        model = backbone_of(self.cfg, design)
        depth = min(node.PROMPT_DEPTH, model.transformer.layers)
        return Both(model, Coupled(names, model, node.N_CTX, self.cfg.INPUT.SIZE[0], depth))

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        loss = self.model(image, label)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return {"loss": loss.item()}


def design(vision=0, text=0, n_vision=0, n_text=0):
    return {"trainer": "IVLP", "vision_depth": vision, "language_depth": text,
            "vision_ctx": n_vision, "language_ctx": n_text}


class Regulated(Prompted):
    def forward(self, image, label=None):
        z, text = unit(self.image_encoder(image.type(self.dtype))), self.text()
        logits = self.logit_scale.exp() * z @ text.t()
        if not self.prompt_learner.training:
            return logits
        old = unit(self.prompt_learner.fixed_embeddings)
        with torch.no_grad():
            frozen = unit(self.prompt_learner.ZS_image_encoder(image.type(self.dtype)))
            zero_shot = self.logit_scale.exp() * frozen.cuda() @ old.half().cuda().t()
        return F.cross_entropy(logits, label), text, old, frozen, z, zero_shot, logits


@TRAINER_REGISTRY.register()
class PromptSRCDouble(Whole):
    """Prompts of its own in both towers, a frozen twin, and a weighted mean over the epochs."""

    registered = "VLPromptLearner"

    def make(self, model, names):
        node = self.cfg.TRAINER.PROMPTSRC
        model = backbone_of(self.cfg, design(
            node.PROMPT_DEPTH_VISION, node.PROMPT_DEPTH_TEXT, node.N_CTX_VISION, node.N_CTX_TEXT))
        learner = Context(names, model, node.N_CTX_TEXT, self.cfg.INPUT.SIZE[0])
        teacher = backbone_of(self.cfg, design()).float().cuda()
        learner.ZS_image_encoder = backbone_of(self.cfg, design()).visual
        with torch.no_grad():
            learner.fixed_embeddings = teacher.encode_text(learner.ids.cuda())
        return Regulated(model, learner)

    def build_model(self):
        super().build_model()
        node, n = self.cfg.TRAINER.PROMPTSRC, self.cfg.OPTIM.MAX_EPOCH
        bell = np.exp(-0.5 * ((np.arange(1, n + 1) - node.GPA_MEAN) / node.GPA_STD) ** 2)
        self.gauss, self.total, self.step_counter = bell / bell.sum(), n, 1
        self.previous = None

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        node = self.cfg.TRAINER.PROMPTSRC
        ce, text, old, frozen, z, zero_shot, logits = self.model(image, label)
        pull = F.kl_div(F.log_softmax(logits, 1), F.log_softmax(zero_shot, 1), reduction="sum",
                        log_target=True) / logits.numel()
        loss = (ce + pull + F.l1_loss(text, old.cuda()) * node.TEXT_LOSS_WEIGHT
                + F.l1_loss(z, frozen.cuda()) * node.IMAGE_LOSS_WEIGHT)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        if (self.batch_idx + 1) == self.num_batches:
            self.update_lr()
            self.step_counter += 1
            share = self.gauss[self.step_counter - 2]
            state = {n: v * share for n, v in copy.deepcopy(self.model.state_dict()).items()}
            if self.previous is not None:
                state = {n: v + self.previous[n] for n, v in state.items()}
            self.previous = state
        if self.step_counter == self.total + 1:
            self.model.load_state_dict(self.previous)
        return {"loss": loss.item()}


@TRAINER_REGISTRY.register()
class HookDouble(Base):
    """Tokens added by hooks inside both towers, trained with the context."""

    def make(self, model, names):
        made = super().make(model, names)
        width = model.ln_final.weight.shape[0]
        vision = model.visual.ln_post.weight.shape[0]
        learner = made.prompt_learner
        learner.text_shift = nn.Parameter(torch.zeros(width))
        learner.image_shift = nn.Parameter(torch.zeros(vision))
        model.transformer.resblocks[1].register_forward_pre_hook(
            lambda block, args: (args[0] + learner.text_shift,))
        model.visual.transformer.resblocks[-1].register_forward_hook(
            lambda block, args, out: out + learner.image_shift)
        return made


@TRAINER_REGISTRY.register()
class MeanTeacherDouble(Base):
    """A teacher that follows the student after each step, in place, across epochs."""

    def build_model(self):
        super().build_model()
        self.teacher = copy.deepcopy(self.model.prompt_learner)
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.seen = []

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        with torch.no_grad():
            z = unit(self.model.image_encoder(image.type(self.model.dtype)))
            text = unit(self.model.text_encoder(self.teacher(), self.teacher.ids))
            target = (self.model.logit_scale.exp() * z @ text.t()).softmax(1)
        output = self.model(image)
        loss = F.cross_entropy(output, label) + F.cross_entropy(output, target)
        self.model_backward_and_update(loss)
        with torch.no_grad():
            self.teacher.ctx.mul_(0.9).add_(self.model.prompt_learner.ctx, alpha=0.1)
        self.seen.append(loss.item())
        return {"loss": loss.item()}


@TRAINER_REGISTRY.register()
class NormDouble(Base):
    """Trains a norm of the text tower beside the context, with an optimiser of torch's own."""

    def build_model(self):
        super().build_model()
        self.twin = backbone_of(self.cfg)  # frozen: it must not move with the other
        norm = self.model.text_encoder.ln_final.requires_grad_(True)
        rate = self.cfg.OPTIM.LR
        self.optim = torch.optim.AdamW([
            {"params": [self.model.prompt_learner.ctx]},
            {"params": norm.parameters(), "lr": rate / 10},
        ], lr=rate)

    def forward_backward(self, batch):
        image, label = self.parse_batch_train(batch)
        loss = F.cross_entropy(self.model(image), label)
        assert not torch.equal(self.twin.ln_final.weight, self.model.text_encoder.ln_final.weight) \
            or self.batch_idx + self.epoch == 0
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return {"loss": loss.item()}
