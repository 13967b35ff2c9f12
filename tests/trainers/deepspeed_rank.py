# SPDX-License-Identifier: Apache-2.0
"""One rank of a run of DeepSpeed on CPUs (gloo): deepspeed_rank.py ACTION JSON

ACTION is `save`: trains three steps, saves to "root", and keeps in "live" the parameters and moments that the engine
then has; or `load`: loads the universal checkpoint "root" into an engine of other random numbers. Both then train two
more steps, whose losses rank 0 writes to "losses".
"""

import json
import sys

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

STEPS, MORE = 3, 2


class Net(nn.Module):
    def __init__(self, vocabulary, dim, hidden, layers, tied):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.norm = nn.LayerNorm(dim)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, dim, bias=False)) for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        for block in self.body:
            x = x + block(x)
        return self.head(x)


def tokens_of(step, case):
    """The same for every rank, so that a mean over ranks is what one rank has."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, case["vocabulary"], (2, 5), generator=generator)


def groups_of(model, count=2):
    """Weights decay, vectors do not; as one group, all do."""
    if count == 1:
        return [{"params": list(model.parameters()), "weight_decay": 0.1}]
    decay = [p for n, p in model.named_parameters() if "norm" not in n and "bias" not in n]
    other = [p for n, p in model.named_parameters() if "norm" in n or "bias" in n]
    return [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]


def engine_of(case, load_universal):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10}},
        "zero_optimization": {"stage": case["stage"]},
        "gradient_clipping": 0.0,  # the default is 1
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
        "checkpoint": {"load_universal": load_universal},
    }
    if not case.get("scheduler", True):
        del config["scheduler"]
    if case.get("elastic"):  # it cuts every tensor of the state, so none may be without dimensions
        config["zero_optimization"]["elastic_checkpoint"] = True
        config["optimizer"] = {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}}
    if case["dtype"] == "bfloat16":
        config["bf16"] = {"enabled": True}
        if case.get("grad_accum_dtype"):  # BF16_Optimizer
            config["data_types"] = {"grad_accum_dtype": case["grad_accum_dtype"]}
    torch.manual_seed(case["seed"])
    sizes = [case[name] for name in ("vocabulary", "dim", "hidden", "layers", "tied")]
    if case["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Net(*sizes)
    else:
        model = Net(*sizes)
    return deepspeed.initialize(model=model, model_parameters=groups_of(model, case["groups"]), config=config)[0]


def train(engine, case, steps):
    losses = []
    for step in steps:
        loss = engine(tokens_of(step, case).to(engine.device)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def live_of(engine, case):
    """What the engine itself says that it has, by the names of the model."""
    states = ("momentum_buffer",) if case.get("elastic") else ("exp_avg", "exp_avg_sq")
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        # It links the optimizer's state in the step of the first group, before later groups have any.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    live = {"fp32": {}, **{state: {} for state in states}}
    for name, parameter in engine.module.named_parameters():
        live["fp32"][name] = safe_get_full_fp32_param(parameter).clone()
        for state in states:
            live[state][name] = safe_get_full_optimizer_state(parameter, state).clone()
    return live


def main(action, case):
    deepspeed.init_distributed(dist_backend="gloo")
    engine = engine_of(case, load_universal=action == "load")
    if action == "save":
        train(engine, case, range(STEPS))
        engine.save_checkpoint(case["root"], client_state={"consumed_samples": 42, "note": "fresh"})
        live = live_of(engine, case)
    else:
        path, client = engine.load_checkpoint(case["root"], load_lr_scheduler_states=case.get("scheduler", True))
        assert path is not None
        assert engine.global_steps == STEPS, engine.global_steps
        if "note" in case:
            assert client["note"] == case["note"], client
        live = live_of(engine, case)
    losses = train(engine, case, range(STEPS, STEPS + MORE))
    if torch.distributed.get_rank() == 0:
        torch.save(live, case["live"])
        with open(case["losses"], "w", encoding="utf-8") as file:
            json.dump(losses, file)
    torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
