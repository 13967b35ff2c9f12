# SPDX-License-Identifier: Apache-2.0
"""One rank of a run of Megatron-Core on CPUs (gloo): megatron_rank.py ACTION JSON

ACTION is `save`: a GPTModel with the distributed optimizer makes two steps and is saved with dist_checkpointing to
"directory"; or `load`: another one loads it. Both then keep what the rank has in "live", make one more step, and keep
the parameters after it in "next".
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist


def use_cpu():
    """Megatron-Core asks for the current CUDA device and synchronises it, with or without one: here that is the CPU."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    for name in ("synchronize", "set_device", "empty_cache"):
        setattr(torch.cuda, name, lambda *arguments, **options: None)

    def on_cpu(function):
        def call(*arguments, **options):
            if str(options.get("device", "")).startswith("cuda"):
                options["device"] = "cpu"
            return function(*arguments, **options)

        return call

    for name in ("tensor", "zeros", "ones", "empty", "empty_like", "zeros_like", "full", "arange"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    # The distributed optimizer asks whether a parameter is a "torch.cuda.BFloat16Tensor".
    type_of = torch.Tensor.type

    def type_on_cuda(self, *arguments, **options):
        found = type_of(self, *arguments, **options)
        return found if arguments or options else found.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_on_cuda
    torch.Tensor.cuda = lambda self, *arguments, **options: self
    torch.nn.Module.cuda = lambda self, *arguments, **options: self


use_cpu()

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

STEPS = 2

_set_states = DistributedOptimizer._set_main_param_and_optimizer_states


def _set_states_with_step(self, parameter, tensors):
    """Without Transformer Engine the optimizer is PyTorch's, with a state "step". 0.16.1 has loaded it before, as one
    tensor of all parameters, which each of them would then count on; and it does not find it among those that it reads
    here."""
    group, order = self.model_param_group_index_map[parameter]
    state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
    state["step"] = state["step"].clone()
    _set_states(self, parameter, {"step": state["step"], **tensors})


DistributedOptimizer._set_main_param_and_optimizer_states = _set_states_with_step


def model_of(case):
    dtype = getattr(torch, case["dtype"])
    config = TransformerConfig(
        num_layers=case["layers"],
        hidden_size=case["dim"],
        num_attention_heads=case["heads"],
        ffn_hidden_size=case["hidden"],
        use_cpu_initialization=True,
        params_dtype=dtype,
        bf16=case["dtype"] == "bfloat16",
        tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"],
        pipeline_dtype=dtype,
        gated_linear_unit=case["swiglu"],
        gradient_accumulation_fusion=False,
        sequence_parallel=False,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=case["vocabulary"],
        max_sequence_length=16,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
        position_embedding_type="learned_absolute",
        parallel_output=True,
    )
    if case["dtype"] == "bfloat16":
        model.bfloat16()  # as Float16Module does
    return model


def fill(model, seed):
    """Parameters that are replicated over tensor parallel ranks are equal on them."""
    own = torch.Generator().manual_seed(seed * 100 + dist.get_rank())
    common = torch.Generator().manual_seed(seed * 100 + 99)
    with torch.no_grad():
        for parameter in model.parameters():
            is_own = getattr(parameter, "tensor_model_parallel", False)
            values = torch.randn(parameter.shape, generator=own if is_own else common)
            parameter.copy_(values.to(parameter.dtype))


def optimizer_of(case, model):
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False)
    ddp = DistributedDataParallel(model.config, ddp_config, model)
    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        weight_decay=0.1,
        clip_grad=0.0,
        bf16=case["dtype"] == "bfloat16",
        params_dtype=getattr(torch, case["dtype"]),
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(config, [ddp])
    optimizer.reload_model_params()
    return ddp, optimizer


def step(ddp, optimizer, number):
    """Gradients that follow from the name of the parameter, whatever buffer it is in."""
    for name, parameter in ddp.module.named_parameters():
        generator = torch.Generator().manual_seed(number * 1000 + sum(name.encode()))
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.main_grad.copy_(gradient.to(parameter.main_grad.dtype))
    optimizer.step()


def state_of(model, optimizer, is_loading):
    sharded = model.sharded_state_dict(metadata={"singleton_local_shards": False})
    state = {"model": sharded, "checkpoint_version": 3.0, "iteration": 7}
    if optimizer is not None:
        metadata = {"distrib_optim_sharding_type": "fully_reshardable"}
        state["optimizer"] = optimizer.sharded_state_dict(sharded, is_loading=is_loading, metadata=metadata)
    return state


def parameters_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def main(action, case):
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"]
    )
    try:
        tensor_parallel.model_parallel_cuda_manual_seed(1)
    except Exception as error:  # it wants a CUDA generator, which nothing here uses
        print("no generator:", error)
    model = model_of(case)
    fill(model, case["seed"])
    ddp, optimizer = optimizer_of(case, model) if case["optimizer"] else (None, None)
    directory = pathlib.Path(case["directory"])
    if action == "save":
        for number in range(STEPS if optimizer else 0):
            step(ddp, optimizer, number)
        if dist.get_rank() == 0:
            directory.mkdir(parents=True)
            (directory.parent / "latest_checkpointed_iteration.txt").write_text("7")
        dist.barrier()
        dist_checkpointing.save(state_of(model, optimizer, False), str(directory))
    else:
        if optimizer is not None:
            step(ddp, optimizer, 0)  # PyTorch's Adam has no state before, and Megatron-Core asks for it
        loaded = dist_checkpointing.load(state_of(model, optimizer, True), str(directory))
        assert loaded["iteration"] == 7, loaded["iteration"]
        model.load_state_dict(loaded["model"])
        if optimizer is not None:
            optimizer.load_state_dict(loaded["optimizer"])
    live = parameters_of(model)
    if optimizer is not None:
        step(ddp, optimizer, STEPS)
    rank = dist.get_rank()
    torch.save(live, f"{case['live']}.{rank}")
    torch.save(parameters_of(model), f"{case['next']}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
