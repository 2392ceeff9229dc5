"""A shared and a personal prompt in one tensor, matched to patches: FedOTP's shape."""

import torch
import torch.nn as nn
from clip import clip
from clip.simple_tokenizer import SimpleTokenizer as _Tokenizer
from Dassl.dassl.engine.trainer import TrainerX
from Dassl.dassl.optim import build_lr_scheduler, build_optimizer
from torch.nn import functional as F
from utils.rows import transport, unit

from trainers.words import FILLER

_tokenizer = _Tokenizer()


def backbone(cfg):
    path = clip._download(clip._MODELS[cfg.MODEL.BACKBONE.NAME])
    try:
        state = torch.jit.load(path, map_location="cpu").state_dict()
    except RuntimeError:
        state = torch.load(path, map_location="cpu")
    return clip.build_model(state).float()


class Prompts(nn.Module):
    def __init__(self, cfg, names, model):
        super().__init__()
        node = cfg.TRAINER.PAIRDOUBLE
        self.n, width = node.N, model.ln_final.weight.shape[0]
        ctx = torch.empty(node.N, node.N_CTX, width, dtype=model.dtype)
        self.ctx = nn.Parameter(nn.init.normal_(ctx, std=0.02))
        start = " ".join([FILLER] * node.N_CTX)
        self.lengths = [len(_tokenizer.encode(name)) for name in names]
        self.ids = torch.cat([clip.tokenize(f"{start} {name}.") for name in names])
        with torch.no_grad():
            rows = model.token_embedding(self.ids).type(model.dtype)
        self.register_buffer("first", rows[:, :1])
        self.register_buffer("rest", rows[:, 1 + node.N_CTX:])

    def forward(self):
        ctx = self.ctx.unsqueeze(1).expand(-1, len(self.ids), -1, -1).flatten(0, 1)
        return torch.cat([self.first.repeat(self.n, 1, 1), ctx, self.rest.repeat(self.n, 1, 1)], 1)


class Matched(nn.Module):
    def __init__(self, cfg, names, model):
        super().__init__()
        self.prompt_learner, self.clip = Prompts(cfg, names, model), model
        node = cfg.TRAINER.PAIRDOUBLE
        self.how = node.eps, node.Mass, cfg.rounds_of_transport
        self.device = torch.device("cuda:0")

    def text(self):
        m, learner = self.clip, self.prompt_learner
        x = (learner() + m.positional_embedding).permute(1, 0, 2)
        x = m.ln_final(m.transformer(x).permute(1, 0, 2))
        ends = learner.ids.argmax(-1).repeat(learner.n)
        x = x[torch.arange(len(x)), ends] @ m.text_projection
        return unit(x).unflatten(0, (learner.n, -1))

    def forward(self, image):
        patches = unit(self.clip.visual(image.type(self.clip.dtype))[1:])
        score = torch.einsum("mbd,ncd->bcmn", patches, self.text().to(self.device))
        with torch.no_grad():
            plan = transport(score, *self.how)
        return self.clip.logit_scale.exp() * (plan * score).sum((-2, -1))


class PairDouble(TrainerX):
    """FedOTP's shape."""

    def check_cfg(self, cfg):
        assert cfg.TRAINER.PAIRDOUBLE.PREC in ["fp16", "fp32", "amp"]

    def build_model(self):
        cfg = self.cfg
        self.model = Matched(cfg, self.dm.dataset.classnames, backbone(cfg))
        for name, p in self.model.named_parameters():
            p.requires_grad_("prompt_learner" in name)
        self.model.to(self.device)
        learner = self.model.prompt_learner
        self.optim = build_optimizer(learner, cfg.OPTIM)
        self.sched = build_lr_scheduler(self.optim, cfg.OPTIM)
        self.register_model("prompt_learner", learner, self.optim, self.sched)

    def forward_backward(self, batch):
        image, label = batch["img"].to(self.device), batch["label"].to(self.device)
        loss = F.cross_entropy(self.model(image), label)
        self.model_backward_and_update(loss)
        if (self.batch_idx + 1) == self.num_batches:
            self.update_lr()
        return {"loss": loss.item()}
