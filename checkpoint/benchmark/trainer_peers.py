# SPDX-License-Identifier: Apache-2.0
"""The converters of trainers' own libraries, for convert_benchmark:

usage: trainer_peers.py make FORMAT MODEL.safetensors SOURCE      writes the model as the library does, untimed
       trainer_peers.py convert FORMAT SOURCE TARGET              what a user of the library runs; ends with fsync

FORMAT is npz (numpy), gguf (a file in Q8_0, dequantised by gguf-py), orbax, or zero (ZeRO 2 of four ranks, by
DeepSpeed's zero_to_fp32). SOURCE and TARGET are paths; TARGET is a safetensors file, of zero a torch file.
"""
import os
import sys
import warnings

warnings.simplefilter("ignore")

RANKS = 4


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class Npz:
    def make(self, model, source):
        import numpy
        numpy.savez(source, **model)

    def convert(self, source, target):
        import numpy
        from safetensors.numpy import save_file
        with numpy.load(source) as arrays:
            save_file(dict(arrays), target)


class Gguf:
    def make(self, model, source):
        import gguf
        from gguf.quants import quantize
        writer = gguf.GGUFWriter(source, "llama")
        kind = gguf.GGMLQuantizationType.Q8_0
        for name, array in model.items():
            quantised = array.ndim > 1
            writer.add_tensor(name, quantize(array, kind) if quantised else array, raw_dtype=kind if quantised else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def convert(self, source, target):
        import gguf
        from gguf.quants import dequantize
        from safetensors.numpy import save_file
        tensors = gguf.GGUFReader(source).tensors
        save_file({t.name: dequantize(t.data, t.tensor_type).reshape(list(reversed(t.shape))) for t in tensors}, target)


class Orbax:
    def make(self, model, source):
        import orbax.checkpoint as ocp
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(source, {"params": model})

    def convert(self, source, target):
        import orbax.checkpoint as ocp
        from safetensors.numpy import save_file
        with ocp.PyTreeCheckpointer() as checkpointer:
            save_file({name: value for name, value in checkpointer.restore(source)["params"].items()}, target)


class Zero:
    def make(self, model, source):
        """The files that ZeRO 2 writes, of a model that was trained in float32, with the state of Adam."""
        import collections
        import numpy
        import torch
        tag = os.path.join(source, "global_step1")
        os.makedirs(tag)
        tensors = {name: torch.from_numpy(array) for name, array in model.items()}
        shapes = collections.OrderedDict((name, tensor.shape) for name, tensor in tensors.items())
        states = {"module": tensors, "buffer_names": [], "param_shapes": [shapes], "frozen_param_shapes": None,
                  "frozen_param_fragments": None, "shared_params": {}, "ds_version": "0.19.8", "global_steps": 1,
                  "dp_world_size": RANKS, "mp_world_size": 1}
        torch.save(states, os.path.join(tag, "mp_rank_00_model_states.pt"))
        flat = numpy.concatenate([array.reshape(-1) for array in model.values()])
        flat = torch.from_numpy(numpy.pad(flat, (0, -len(flat) % (2 * RANKS))))
        for rank, part in enumerate(flat.chunk(RANKS)):
            state = {"exp_avg": part.clone(), "exp_avg_sq": part.clone(), "step": torch.tensor(1.0)}
            groups = [{"lr": 0.1, "params": [0]}]
            optimizer = {"zero_stage": 2, "partition_count": [RANKS], "group_paddings": [0], "ds_version": "0.19.8",
                         "single_partition_of_fp32_groups": [part.clone()],
                         "base_optimizer_state": {"state": {0: state}, "param_groups": groups}}
            name = "zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank
            torch.save({"optimizer_state_dict": optimizer}, os.path.join(tag, name))
        with open(os.path.join(source, "latest"), "w") as latest:
            latest.write("global_step1")

    def convert(self, source, target):
        import torch
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        torch.save(get_fp32_state_dict_from_zero_checkpoint(source), target)


def main(action, name, source, target):
    peer = {"npz": Npz, "gguf": Gguf, "orbax": Orbax, "zero": Zero}[name]()
    if action == "make":
        from safetensors.numpy import load_file
        peer.make(load_file(source), target)
    else:
        peer.convert(source, target)
        sync(target)


main(*sys.argv[1:])
