# SPDX-License-Identifier: Apache-2.0
"""The tables at the end of gpu_check.py: pure functions of its results. The last one compares ratios of this run on
this card with the goals; a value that was not measured has no line there."""

import statistics

FLOPS_PER_TOKEN = {"gpt2-124m": 855e6}  # PaLM's count: 6 N + 12 L C T
PEAK_FLOPS = 989e12  # of an H100 SXM and an H200, bfloat16 without sparsity
ELEMENTWISE = ("add", "gelu", "gelu backward", "swiglu", "swiglu backward", "rotation", "rotation backward",
               "cast to float32 and divide", "cast of float32", "accumulate", "adamw",
               "adamw, scaled, with bfloat16 copy")


def rate(runs):
    return statistics.median(statistics.median(run["tokens_per_second"]) for run in runs)


def spread(runs):
    rates = [statistics.median(run["tokens_per_second"]) for run in runs]
    return (max(rates) - min(rates)) / statistics.median(rates)


def peak(runs):
    return max(run["peak_bytes"] for run in runs) / 2**30


def best(group, beginning):
    """(name, runs) of the fastest whose name begins so, or None."""
    names = [name for name in group if name.startswith(beginning)]
    return max(((name, group[name]) for name in names), key=lambda pair: rate(pair[1]), default=None)


def training_lines(results):
    lines = []
    for group, runs in sorted(results["training"].items()):
        model, rows = group.split()
        fastest = best(runs, "torch")
        for name, of in sorted(runs.items(), key=lambda pair: -rate(pair[1])):
            share = f" {rate(of) / rate(fastest[1]):5.2f} of torch's best" if fastest else ""
            flops = FLOPS_PER_TOKEN.get(model)
            mfu = f" MFU {rate(of) * flops / PEAK_FLOPS:.3f}" if flops else ""
            lines.append(f"{model} {rows:>2} rows  {name:32} {rate(of):8.0f} tokens/s{share}{mfu} {peak(of):6.2f} GiB, "
                         f"spread {spread(of):.1%} of {len(of)}")
    return lines


def kernel_lines(results):
    lines = []
    for key, measured in results["kernels"].items():
        columns = [f"{key.removesuffix(', bfloat16'):48}"]
        for who in ("ours", "own", "torch"):
            line = measured.get(who)
            if line is None:
                continue
            speed = f"{line['of_copy']:.2f}" if "of_copy" in line else ""
            speed = f"{line['tflop_per_s']:.0f} TF" if "tflop_per_s" in line else speed
            columns.append(f"{who} {line['microseconds']:.1f} {speed}".strip())
        if "torch" in measured and "ours" in measured:
            columns.append(f"torch/ours {measured['torch']['microseconds'] / measured['ours']['microseconds']:.2f}")
        lines.append("  ".join(columns))
    return lines


# Goals: (what, measured, text of the goal, whether it is met).

def training_goals(results, gpu_name):
    goals = []
    wanted = {"gpt2-124m 8": 1.2, "gpt2-124m 32": None, "gpt2-124m 64": 1.05, "llama-3.2-1b 4": 1.0}
    for group, goal in wanted.items():
        runs = results["training"].get(group, {})
        mine, theirs = best(runs, "ours"), best(runs, "torch")
        if mine and theirs:
            ratio = rate(mine[1]) / rate(theirs[1])
            goals.append((f"{group} rows, {mine[0]} / {theirs[0]}", ratio, f">= {goal}" if goal else "",
                          goal is None or ratio >= goal))
        if "ours" in runs and "ours, graph" in runs:
            ratio = rate(runs["ours"]) / rate(runs["ours, graph"])
            goals.append((f"{group} rows, eager / graph", ratio, ">= 0.9", ratio >= 0.9))
        if "ours, graph" in runs and "torch, compiled" in runs and peak(runs["torch, compiled"]):
            ratio = peak(runs["ours, graph"]) / peak(runs["torch, compiled"])
            goals.append((f"{group} rows, peak / compiled torch's", ratio, "<= 1.1", ratio <= 1.1))
    mine = best(results["training"].get("gpt2-124m 8", {}), "ours")
    if mine:
        goal = 0.38 if "H200" in gpu_name else 0.35
        mfu = rate(mine[1]) * FLOPS_PER_TOKEN["gpt2-124m"] / PEAK_FLOPS
        goals.append(("gpt2-124m 8 rows, MFU", mfu, f">= {goal}", mfu >= goal))
    return goals


def attention_goals(results):
    """The worst shape of each."""
    goals = []
    for who, forward, backward in (("ours", 0.95, 0.8), ("own", 0.7, 0.45)):
        for suffix, goal in (("", forward), (" backward", backward)):
            ratios = {}
            for key, measured in results["kernels"].items():
                name, shape = key.split(", ")[:2]
                torch = results["kernels"].get(key.replace("attention online", "attention"), {}).get("torch")
                if name == f"attention online{suffix}" and who in measured and torch:
                    ratios[shape] = torch["microseconds"] / measured[who]["microseconds"]
            if ratios:
                worst = min(ratios, key=ratios.get)
                what = "without cuDNN" if who == "own" else "as chosen"
                goals.append((f"attention online{suffix}, {what}, of torch's ({worst})", ratios[worst], f">= {goal}",
                              ratios[worst] >= goal))
    return goals


def head_goals(results):
    """TFLOP/s of the three products, with rows of logits padded as in training, divided by the blocks' products."""
    def speed(wanted):
        lines = [measured["ours"] for key, measured in results["kernels"].items() if wanted(key) and "ours" in measured]
        seconds = sum(line["microseconds"] for line in lines)
        return sum(line["tflop_per_s"] * line["microseconds"] for line in lines) / seconds if seconds else None

    head = speed(lambda key: key.startswith("head") and key.endswith("x50257 stride 50304, bfloat16"))
    blocks = speed(lambda key: key.startswith("product") and ", gpt2 " in key)
    if not head or not blocks:
        return []
    return [("head's products of the blocks'", head / blocks, ">= 0.9", head / blocks >= 0.9)]


def memory_goals(results):
    goals = []
    for what, goal, wanted in (("elementwise kernels", 0.9, lambda name: name in ELEMENTWISE),
                               ("other kernels", 0.85, lambda name: name not in ELEMENTWISE)):
        shares = {}
        for key, measured in results["kernels"].items():
            line = measured.get("ours", {})
            if "of_copy" in line and line["dtype"] == "bfloat16" and wanted(line["kernel"]):
                shares[key.removesuffix(", bfloat16")] = line["of_copy"]
        if shares:
            below = sorted((name for name in shares if shares[name] < goal), key=shares.get)
            worst = "; ".join(f"{name} {shares[name]:.2f}" for name in below[:6])
            goals.append((f"least of {len(shares)} {what} of a copy; below: {len(below)}{': ' if below else ''}{worst}",
                          min(shares.values()), f">= {goal}", not below))
    return goals


def copy_goals(results):
    goals = []
    for beginning, goal in (("checkpoint staging", 0.95), ("checkpoint load", 0.7)):
        shares = {line["copy"]: line["of_copy"] for line in results["copies"] if line["copy"].startswith(beginning)}
        if shares:
            name = max(shares, key=shares.get)
            goals.append((f"{name}, of one copy", shares[name], f">= {goal}", shares[name] >= goal))
    return goals


def goals_of(results, gpu_name):
    return [*training_goals(results, gpu_name), *attention_goals(results), *head_goals(results), *memory_goals(results),
            *copy_goals(results)]


def goal_lines(results, gpu_name):
    return [f"{'met   ' if met else 'MISSED'} {measured:6.3f} {goal:8} {what}"
            for what, measured, goal, met in goals_of(results, gpu_name)]
