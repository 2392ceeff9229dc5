"""A federated fork's main script: its keys, its arguments, and which rows of a tensor it shares."""

import argparse
import copy

from utils.rows import average_weights

raise RuntimeError("this script must never run: it is read as text")


def extend_cfg(cfg, args):
    from yacs.config import CfgNode as CN

    cfg.TRAINER.PAIRDOUBLE = CN()
    cfg.TRAINER.PAIRDOUBLE.N_CTX = args.n_ctx
    cfg.TRAINER.PAIRDOUBLE.N = args.num_prompt
    cfg.TRAINER.PAIRDOUBLE.eps = args.eps
    cfg.TRAINER.PAIRDOUBLE.Mass = 0.8
    cfg.TRAINER.PAIRDOUBLE.PREC = "fp16"
    cfg.TRAINER.PAIRDOUBLE.CTX_INIT = False
    cfg.TRAINER.OTHER = CN()
    cfg.TRAINER.OTHER.DEPTH = 9
    cfg.rounds_of_transport = 20
    cfg.OPTIM.ROUND = args.round


def main(args, trainer, clients, sizes):
    kept, sent = {}, {}
    if args.model == "fedavg":
        for idx in clients:
            sent[idx] = copy.deepcopy(trainer.model.state_dict())
        average_weights(sent, sizes)
    elif args.model == "fedpair":
        for idx in clients:
            weight = trainer.model.state_dict()
            sent[idx] = copy.deepcopy(weight["prompt_learner.ctx"][:args.avg_prompt])
            kept[idx] = copy.deepcopy(weight["prompt_learner.ctx"][args.avg_prompt:args.num_prompt])
        average_weights(sent, sizes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=str, default="fedpair")
    parser.add_argument("--trainer", type=str, default="PairDouble")
    parser.add_argument("--n_ctx", type=int, default=16)
    parser.add_argument("--num_prompt", type=int, default=2)
    parser.add_argument("--avg_prompt", type=int, default=1)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--round", type=int, default=3)
