"""From a record to the lines that are printed: ratios, bounds, targets and their verdicts."""

from __future__ import annotations

from statistics import median

from evidence.bench.machine import Measurements

LABELS = {
    "torch_one": "one, torch's kernels",
    "one": "one client", "stacked": "{k} stacked", "bf16_one": "bf16, one client",
    "bf16_stacked": "bf16, {k} stacked",
}
# How many times as fast as the reference recipe; stated for this setting only.
TARGET_SETTING = {"backbone": "ViT-B/16", "classes": 50, "batch": 32, "threads": 1}
TARGETS = (
    ("step", "training step, fp32", 28.0), ("step_bf16", "training step, bf16", 55.0),
    ("round", "round with its evaluation", 50.0), ("cold", "ten rounds, cold cache", 12.0),
    ("share", "share of the matmul peak", 0.7),
)
BF16_LOSS, FP32_LOSS = 5e-2, 1e-4


def summary(record: Measurements) -> Measurements:
    """Return the numbers that the targets speak of; None where one was not measured."""
    step, flops = record["step"], record["flops"]
    sides = [n for n in LABELS if n in step["pairs"][0]]
    out: Measurements = {"sides": {}}
    for name in sides:
        ratios = [p["reference"]["cpu"] / p[name]["cpu"] for p in step["pairs"]]
        kind = {"bf16": "bf16", "torch": "torch_fp32"}.get(name.partition("_")[0], "fp32")
        shares = [flops["fast_step"] / p[name]["cpu"] / p[f"peak_{kind}"] for p in step["pairs"]]
        gaps = [abs(a - b) for a, b in
                zip(step["losses"][name], step["reference_losses"], strict=True)]
        out["sides"][name] = {
            "cpu": median(p[name]["cpu"] for p in step["pairs"]),
            "wall": median(p[name]["wall"] for p in step["pairs"]),
            "rss": max(p[name]["rss"] for p in step["pairs"]),
            "ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios),
            "wall_ratio": median(p["reference"]["wall"] / p[name]["wall"] for p in step["pairs"]),
            "share": median(shares), "loss_first": gaps[0], "loss_worst": max(gaps),
        }
    out["reference"] = {
        k: median(p["reference"][k] for p in step["pairs"]) for k in ("cpu", "wall")
    } | {"rss": max(p["reference"]["rss"] for p in step["pairs"]),
         "image_cpu": median(p["reference_image_cpu"] for p in step["pairs"])}
    out["step"] = _best(out["sides"], "", "ratio")
    out["share"] = _best(out["sides"], "", "share")
    out["step_bf16"] = _best(out["sides"], "bf16_", "ratio") if "bf16_one" in sides else None
    out["round"] = _round_ratio(record["round"]) if "round" in record else None
    out["cold"] = record["cold"]["ratio"] if "cold" in record else None
    return out


def _best(sides: Measurements, prefix: str, what: str) -> float:
    """Return the stacked or the single client's number, whichever is higher."""
    return max(float(sides[f"{prefix}{n}"][what]) for n in ("one", "stacked"))


def _round_ratio(work: Measurements) -> float:
    ours = median(s["cpu"] for s in work["ours"])
    return float(work["clients"] * work["reference_client"]["cpu"] / ours)


def lines(record: Measurements) -> list[str]:
    """Return the report."""
    totals = summary(record)
    parts = [_head(record), _step(record, totals), _bounds(record, totals)]
    if "round" in record:
        parts.append(_round(record["round"]))
    if "cold" in record:
        parts.append(_cold(record["cold"]))
    if "profile" in record:
        parts.append(_profile(record["profile"]))
    parts.append(_verdicts(record, totals))
    return [line for part in parts for line in [*part, ""]][:-1]


def _head(record: Measurements) -> list[str]:
    s, cpu, f, load = (record[k] for k in ("setting", "cpu", "flops", "load"))
    wide = [n for n in ("avx512", "avx512_bf16", "amx") if cpu[n]]
    return [
        f"FedTV, {s['backbone']} (random weights), C={s['classes']}, batch {s['batch']}, "
        f"{s['n_ctx']} context tokens, {s['dtype']}, {s['threads']} thread(s), torch {s['torch']}",
        f"processor {cpu['name']} (family/model {cpu['family']}), {cpu['cores']} core(s); "
        f"{', '.join(wide) or 'no AVX-512'}; AMX {'present' if cpu['amx'] else 'absent'}",
        f"load average {load['before']:.1f} at the start, {load['highest']:.1f} at its highest, "
        f"on {load['cores']} core(s)",
        f"text tokens per prompt set: reference {f['reference_tokens']}, ours {f['fast_tokens']} "
        f"({f['reference_tokens'] / f['fast_tokens']:.1f}x fewer)",
        "reference: modelled on the published recipe (images encoded in every step, three "
        "full-length text passes, torch's own products)",
    ]


def _step(record: Measurements, totals: Measurements) -> list[str]:
    k, ref = record["setting"]["stack"], totals["reference"]
    out = [
        f"training step, per client; median of {len(record['step']['pairs'])} interleaved pairs",
        f"  {'':<21}{'CPU s':>9}{'wall s':>9}{'ratio':>8}  {'range':<13}{'wall':>6}"
        f"{'|dloss| 1st':>13}{'worst':>9}{'RSS MiB':>9}",
        f"  {'reference':<21}{ref['cpu']:>9.3f}{ref['wall']:>9.3f}{1:>8.1f}  {'':<13}{'':>6}"
        f"{'':>13}{'':>9}{ref['rss'] / 2**20:>9.0f}",
    ]
    for name, side in totals["sides"].items():
        spread = f"{side['lowest']:.1f}-{side['highest']:.1f}"
        out.append(
            f"  {LABELS[name].format(k=k):<21}{side['cpu']:>9.3f}{side['wall']:>9.3f}"
            f"{side['ratio']:>8.1f}  {spread:<13}{side['wall_ratio']:>6.1f}"
            f"{side['loss_first']:>13.1e}{side['loss_worst']:>9.1e}{side['rss'] / 2**20:>9.0f}"
        )
    share = ref["image_cpu"] / ref["cpu"]
    out.append(f"  of the reference's CPU time its image tower takes {share:.0%}")
    if record["step"]["tensors_rel"] is not None:
        steps = len(record["step"]["pairs"])
        error = record["step"]["tensors_rel"]
        out.append(f"  trained tensors after {steps} steps: largest relative distance {error:.1e}")
    return out


def _bounds(record: Measurements, totals: Measurements) -> list[str]:
    f, peak, ref = record["flops"], record["peaks"], totals["reference"]
    floor = f["fast_step"] / peak["fp32"]
    reached = f["reference_step"] / ref["cpu"] / peak["torch_fp32"]
    out = [
        f"FLOPs per step by formula: reference {f['reference_step'] / 1e9:.4g} G, ours "
        f"{f['fast_step'] / 1e9:.3g} G: {f['ratio']:.1f}x fewer",
        f"matmul peak, {record['setting']['threads']} thread(s), fp32: {peak['fp32'] / 1e9:.0f} "
        f"GF/s; torch's own products (the reference's) {peak['torch_fp32'] / 1e9:.0f} GF/s"
        + (f"; bf16 {peak['bf16'] / 1e9:.0f} GF/s" if "bf16" in peak else ""),
        f"bound for ours: {floor:.3g} s per step at the fp32 peak = {ref['cpu'] / floor:.1f}x the "
        "reference as measured",
        f"the reference reaches {reached:.2f} of the peak of its products",
    ]
    k = record["setting"]["stack"]
    out += [
        f"ours, {LABELS[n].format(k=k)}: {side['share']:.2f} of the peak of its products"
        for n, side in totals["sides"].items()
    ]
    return out


def _round(work: Measurements) -> list[str]:
    ours = median(s["cpu"] for s in work["ours"])
    client, k = work["reference_client"]["cpu"], work["clients"]
    return [
        f"steady round: {k} clients x {work['steps']} steps, {work['test_images']} test images "
        "each; reference evaluates every client twice, as published",
        f"  reference {k * client:.1f} CPU s (extrapolated from 1 client: {client:.1f} s, of which "
        f"evaluation {sum(work['reference_eval_cpu']):.1f} s)",
        f"  ours {ours:.2f} CPU s (training, aggregation, evaluation; measured whole): "
        f"{_round_ratio(work):.1f}x",
        f"  test logits of one client differ by {work['logits_difference']:.1e} at most "
        f"(largest logit {work['logits_largest']:.1f})",
    ]


def _cold(cold: Measurements) -> list[str]:
    return [
        f"ten rounds with a cold cache, composed: {cold['images']} images once, one view each",
        f"  ours {cold['ours_cpu']:.1f} CPU s, of which {cold['fill_cpu']:.1f} s to fill the "
        f"cache; reference {cold['reference_cpu']:.1f} s: {cold['ratio']:.1f}x",
    ]


def _profile(profile: Measurements) -> list[str]:
    head = ["where our time goes (stacked step, torch.profiler, own CPU time): "
            f"{profile['products']:.0%} in matrix products"]
    return head + [
        f"  {r['share']:>6.1%} {r['seconds']:>8.3f} s {r['calls']:>6} x  {r['op']}"
        for r in profile["rows"]
    ]


def _verdicts(record: Measurements, totals: Measurements) -> list[str]:
    load, s = record["load"], record["setting"]
    out = ["targets"]
    other = [f"{k} {v}" for k, v in TARGET_SETTING.items() if s[k] != v]
    if other:
        return [f"targets are stated for {', '.join(other)}: no verdict here"]
    withheld = load["highest"] > load["cores"]
    for key, text, wanted in TARGETS:
        value = totals[key]
        if value is None:
            continue
        verdict = "met" if value >= wanted else "not met"
        if key == "step_bf16" and not record["cpu"]["amx"]:
            verdict = "stated for processors with AMX only: no verdict"
        elif withheld:
            verdict = (f"verdict withheld: load {load['highest']:.1f} is above "
                       f"{load['cores']} core(s)")
        out.append(f"  {text}: {value:.2f}, target {wanted:g}: {verdict}")
    worst = totals["sides"]["stacked"]["loss_worst"]
    fine = "within" if worst <= FP32_LOSS else "ABOVE"
    out.append(f"  fp32 loss difference {worst:.1e}: {fine} {FP32_LOSS:g}")
    if "bf16_one" in totals["sides"]:
        worst = totals["sides"]["bf16_stacked"]["loss_worst"]
        fine = "within" if worst <= BF16_LOSS else "ABOVE"
        out.append(f"  bf16 loss difference {worst:.1e}: {fine} {BF16_LOSS:g}")
    return out
