import torch


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def transport(score, eps, mass, rounds):
    """Unbalanced transport from patches to prompts: rows hold at most 1/M, columns mass/N."""
    m, n = score.shape[-2:]
    kernel = torch.exp((score - 1) / eps)
    u, v = torch.ones_like(score[..., 0]), torch.ones_like(score[..., 0, :])
    for _ in range(rounds):
        u = ((1 / m) / (kernel @ v.unsqueeze(-1)).squeeze(-1)).clamp(max=1)
        v = (mass / n) / (kernel.transpose(-1, -2) @ u.unsqueeze(-1)).squeeze(-1)
    return u.unsqueeze(-1) * kernel * v.unsqueeze(-2)
