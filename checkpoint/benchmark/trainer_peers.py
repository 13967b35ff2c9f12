# SPDX-License-Identifier: Apache-2.0
"""The converters of trainers' own libraries, for convert_benchmark:

usage: trainer_peers.py make FORMAT MODEL.safetensors SOURCE      writes the model as the library does, untimed
       trainer_peers.py convert FORMAT SOURCE TARGET              what a user of the library runs; ends with fsync

FORMAT is npz (numpy), gguf (a file in Q8_0, dequantised by gguf-py), orbax, tensorstore (what orbax wrote, by the
library below it), flax, onnx (external data), keras, zero2 or zero3 (ZeRO of four ranks, by DeepSpeed's zero_to_fp32),
or hf_to_gguf (a Hugging Face directory, by llama.cpp's convert_hf_to_gguf.py, which must be importable).
SOURCE and TARGET are paths; TARGET is a safetensors file, of zero2 and zero3 a torch file, of hf_to_gguf a GGUF file.
"""
import os
import subprocess
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


class Tensorstore(Orbax):
    def convert(self, source, target):
        import tensorstore
        from safetensors.numpy import save_file
        base = {"driver": "ocdbt", "base": "file://%s/" % source}
        keys = tensorstore.KvStore.open(base).result().list().result()
        names = [key.decode()[:-len("/.zarray")] for key in keys if key.endswith(b"/.zarray")]
        arrays = [tensorstore.open({"driver": "zarr", "kvstore": {**base, "path": name + "/"}}) for name in names]
        reads = [array.result().read() for array in arrays]
        save_file({name.removeprefix("params."): read.result() for name, read in zip(names, reads)}, target)


class Flax:
    def make(self, model, source):
        from flax import serialization
        with open(source, "wb") as file:
            file.write(serialization.msgpack_serialize(model))

    def convert(self, source, target):
        from flax import serialization
        from safetensors.numpy import save_file
        with open(source, "rb") as file:
            save_file(serialization.msgpack_restore(file.read()), target)


class Onnx:
    def make(self, model, source):
        import onnx
        from onnx import helper, numpy_helper
        tensors = [numpy_helper.from_array(array, name) for name, array in model.items()]
        graph = helper.make_graph([], "main", [], [], initializer=tensors)
        os.mkdir(source)
        onnx.save_model(helper.make_model(graph), os.path.join(source, "model.onnx"), save_as_external_data=True,
                        location="model.onnx.data")

    def convert(self, source, target):
        import onnx
        from onnx import numpy_helper
        from safetensors.numpy import save_file
        model = onnx.load(os.path.join(source, "model.onnx"))
        save_file({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}, target)


class Keras:
    """Dense layers, which the benchmark's matrices and vectors are."""

    def of(self, arrays):
        import keras
        layers = [keras.layers.Dense(array.shape[1]) for array in arrays if array.ndim > 1]
        return keras.Sequential([keras.Input((arrays[0].shape[0],)), *layers])

    def make(self, model, source):
        names = sorted(model, key=lambda name: (int(name.split(".")[1]), name.endswith("bias")))
        arrays = [model[name] for name in names]
        layers = self.of(arrays)
        layers.set_weights(arrays)
        layers.save_weights(source)
        with open(source + ".shape", "w") as file:
            file.write("%d %d %d" % (*arrays[0].shape, len(layers.layers)))

    def convert(self, source, target):
        import keras
        from safetensors.numpy import save_file
        with open(source + ".shape") as file:
            rows, columns, count = map(int, file.read().split())
        layers = keras.Sequential([keras.Input((rows,)), *(keras.layers.Dense(columns) for _ in range(count))])
        layers.load_weights(source)
        save_file({v.path: keras.ops.convert_to_numpy(v.value) for v in layers.weights}, target)


class Zero2:
    stage = 2

    def flat(self, arrays):
        """The flat tensor of each rank."""
        import numpy
        import torch
        flat = numpy.concatenate([array.reshape(-1) for array in arrays])
        return torch.from_numpy(numpy.pad(flat, (0, -len(flat) % (2 * RANKS)))).chunk(RANKS)

    def optimizer(self, part, state):
        groups = [{"lr": 0.1, "params": [0]}]
        return {"single_partition_of_fp32_groups": [part], "partition_count": [RANKS], "group_paddings": [0],
                "base_optimizer_state": {"state": {0: state}, "param_groups": groups}}

    def make(self, model, source):
        """The files that ZeRO writes, of a model that was trained in float32, with the state of Adam."""
        import collections
        import torch
        tag = os.path.join(source, "global_step1")
        os.makedirs(tag)
        shapes = collections.OrderedDict((name, torch.Size(array.shape)) for name, array in model.items())
        empty = self.stage == 3
        tensors = {name: torch.empty(0) if empty else torch.from_numpy(array) for name, array in model.items()}
        states = {"module": tensors, "buffer_names": [], "param_shapes": [shapes], "frozen_param_shapes": None,
                  "frozen_param_fragments": None, "shared_params": {}, "ds_version": "0.19.8", "global_steps": 1,
                  "dp_world_size": RANKS, "mp_world_size": 1}
        for rank in range(RANKS if self.stage == 3 else 1):
            prefix = "zero_pp_rank_%d_" % rank if self.stage == 3 else ""
            torch.save(states, os.path.join(tag, prefix + "mp_rank_00_model_states.pt"))
        for rank, part in enumerate(self.flat(list(model.values()))):
            state = {"exp_avg": part.clone(), "exp_avg_sq": part.clone(), "step": torch.tensor(1.0)}
            optimizer = {"zero_stage": self.stage, "ds_version": "0.19.8", **self.optimizer(part.clone(), state)}
            name = "zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank
            torch.save({"optimizer_state_dict": optimizer}, os.path.join(tag, name))
        with open(os.path.join(source, "latest"), "w") as latest:
            latest.write("global_step1")

    def convert(self, source, target):
        import torch
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        torch.save(get_fp32_state_dict_from_zero_checkpoint(source), target)


class Zero3(Zero2):
    stage = 3

    def flat(self, arrays):
        import numpy
        import torch
        pieces = [numpy.pad(array.reshape(-1), (0, -array.size % RANKS)).reshape(RANKS, -1) for array in arrays]
        return [torch.from_numpy(numpy.concatenate([piece[rank] for piece in pieces])) for rank in range(RANKS)]

    def optimizer(self, part, state):
        groups = [{"lr": 0.1, "params": [0]}]
        return {"fp32_flat_groups": [part], "partition_count": RANKS,
                "optimizer_state_dict": {"state": {0: state}, "param_groups": groups}}


class HfToGguf:
    """A Llama of as many bytes as the model: the converter knows only models by name."""
    HIDDEN = 1024
    FFN = 2816

    def make(self, model, source):
        import json
        import numpy
        import sentencepiece
        from safetensors.numpy import save_file
        os.makedirs(source)
        words = ["the %s of word %d" % (chr(97 + i % 26) * (1 + i % 7), i) for i in range(2000)]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words), model_prefix=os.path.join(source, "tokenizer"), vocab_size=256,
            hard_vocab_limit=False, minloglevel=2)
        vocabulary = sentencepiece.SentencePieceProcessor(os.path.join(source, "tokenizer.model")).vocab_size()
        hidden, ffn = self.HIDDEN, self.FFN
        shapes = {"self_attn.%s_proj" % part: (hidden, hidden) for part in "qkvo"}
        shapes.update({"mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
                       "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)})
        wanted = sum(array.nbytes for array in model.values())
        layers = max(1, round(wanted / (4 * sum(int(numpy.prod(shape)) for shape in shapes.values()))))
        random = numpy.random.default_rng(1)
        tensors = {"model.layers.%d.%s.weight" % (layer, name): random.standard_normal(shape, numpy.float32)
                   for layer in range(layers) for name, shape in shapes.items()}
        for name, shape in {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden),
                            "model.norm": (hidden,)}.items():
            tensors[name + ".weight"] = random.standard_normal(shape, numpy.float32)
        save_file(tensors, os.path.join(source, "model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(source, "config.json"), "w") as config:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
                       "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
                       "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048,
                       "rms_norm_eps": 1e-5, "tie_word_embeddings": False}, config)

    def convert(self, source, target):
        subprocess.run([sys.executable, "-m", "convert_hf_to_gguf", source, "--outfile", target, "--outtype", "f32"],
                       check=True)


PEERS = {"npz": Npz, "gguf": Gguf, "orbax": Orbax, "tensorstore": Tensorstore, "flax": Flax, "onnx": Onnx,
         "keras": Keras, "zero2": Zero2, "zero3": Zero3, "hf_to_gguf": HfToGguf}


def main(action, name, source, target):
    peer = PEERS[name]()
    if action == "make":
        from safetensors.numpy import load_file
        peer.make(load_file(source), target)
    else:
        peer.convert(source, target)
        sync(target)


main(*sys.argv[1:])
