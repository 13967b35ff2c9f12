# SPDX-License-Identifier: Apache-2.0
"""What is attacked: small checkpoints of every kind and format, made by the programs themselves before the first attack
or by the libraries of other formats, and the values of their tensors. Also readers and writers of the formats that
need no library, which do not share a line with the programs: safetensors, and the seal of a manifest."""

import ctypes
import hashlib
import json
import os
import shutil
import struct
import subprocess

FOREIGN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../checkpoint/foreign")
CONFIG = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3,
          "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
          "initializer_range": 0.02}
NEWEST = "step-00000006"

# Checkpoints that other programs' libraries wrote, in checkpoint/foreign/.
GOLDENS = {"deepspeed": "deepspeed/testdata/z2_w2_aligned", "split": "gguf/testdata/split",
           "model.keras": "keras/testdata/functional_adamw/model.keras",
           "orbax": "orbax/testdata/pytree_ocdbt_sharded_w4/ckpt",
           "items": "torch_checkpointing/testdata/fsdp2_w2/ckpt"}

# Every byte has a digest; formats whose payload at least has a CRC-32 for each tensor; and the others.
DIGESTS = ("full", "sharded", "local", "parity", "linked")
CHECKSUMS = ("model.pt", "model.npz", "deepspeed", "model.keras")
PLAIN = ("model.safetensors", "hub", "dcp", "plain.h5", "model.gguf", "megatron", "orbax", "split", "items")


def training(inputs, *flags, nproc=2, steps=6, backend="shm"):
    """The flags of a run on `inputs`. Runs of the same flags compute the same bits."""
    return ["--device=cpu", f"--config={inputs['config.json']}", f"--tokens={inputs['tokens.u16']}", "--seq_len=16",
            "--batch_size=2", f"--nproc={nproc}", f"--steps={steps}", f"--backend={backend}", *flags]


def make(programs, directory, tokens):
    """{name: path}. Each is in its own folder: a folder of files of several formats is a checkpoint of one of them."""
    inputs = {name: os.path.join(directory, name.split(".")[0] + str(i), name) for i, name in
              enumerate(("run", "other", "config.json", "tokens.u16", "metrics.jsonl", *DIGESTS, *CHECKSUMS, *PLAIN))}
    for path in inputs.values():
        os.makedirs(os.path.dirname(path))

    def run(program, *arguments):
        done = subprocess.run([programs[program], *arguments], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"attacks: {program} {' '.join(arguments)}: {done.stdout}{done.stderr}")

    with open(tokens, "rb") as source, open(inputs["tokens.u16"], "wb") as file:
        file.write(source.read(8192))
    with open(inputs["config.json"], "w") as file:
        json.dump(CONFIG, file)
    run("train_gpt", *training(inputs, f"--checkpoint_dir={inputs['run']}", "--checkpoint_every=2",
                               f"--metrics={inputs['metrics.jsonl']}"))
    run("train_gpt", *training(inputs, f"--checkpoint_dir={inputs['other']}", "--seed=9"))
    linked = os.path.join(directory, "incremental")
    run("train_gpt", *training(inputs, f"--checkpoint_dir={linked}", "--checkpoint_every=3", "--incremental",
                               "--freeze=wte|wpe|h[.]0|mlp", "--use_orig_params"))
    os.rename(f"{linked}/{NEWEST}", inputs["linked"])
    for name, flags in {"full": ["--state_dict_type=full"],
                        "sharded": ["--state_dict_type=sharded", "--world_size=3"],
                        "local": ["--state_dict_type=local", "--world_size=3"],
                        "parity": ["--state_dict_type=sharded", "--world_size=4", "--parity=2"],
                        "model.pt": [], "model.npz": [], "model.safetensors": [], "dcp": ["--to=dcp"],
                        "model.gguf": [], "megatron": ["--to=megatron"],
                        "hub": ["--to=safetensors", "--max_shard_size=64KiB"]}.items():
        run("ckpt", "convert", inputs["run"], inputs[name], *flags)
    with open(f"{inputs['full']}/checkpoint.h5", "rb") as source, open(inputs["plain.h5"], "wb") as file:
        file.write(source.read())
    for name, golden in GOLDENS.items():
        golden = os.path.join(FOREIGN, golden)
        (shutil.copytree if os.path.isdir(golden) else shutil.copy2)(golden, inputs[name])
    for name in DIGESTS + CHECKSUMS + PLAIN:
        truth = os.path.join(directory, f"truth-{name}", "model.safetensors")
        os.makedirs(os.path.dirname(truth))
        run("ckpt", "convert", inputs[name], truth, "--model_only")
        inputs[name + ".truth"] = truth
    return inputs


def read_safetensors(path):
    """{name: (dtype, shape, digest of the bytes)}."""
    with open(path, "rb") as file:
        data = file.read()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    payload = memoryview(data)[8 + length:]
    return {name: (entry["dtype"], tuple(entry["shape"]),
                   hashlib.sha256(payload[slice(*entry["data_offsets"])]).hexdigest())
            for name, entry in header.items()}


def write_safetensors(path, names, metadata=None):
    """A tensor of two numbers for each name; names may hold lone surrogates."""
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, name in enumerate(names)}
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + struct.pack("<2f", 1, 2) * len(names))


class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def sealer():
    """The function that gives a manifest its digest, or None without libxxhash: a stranger can do that too."""
    try:
        xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    except OSError:
        return None
    xxh3.restype, xxh3.argtypes = _Hash, [ctypes.c_char_p, ctypes.c_size_t]

    def seal(manifest):
        text = json.dumps({name: value for name, value in manifest.items() if name != "digest"})
        text = text.encode("utf-8", "surrogatepass")[:-1] + b',"digest": "'
        digest = xxh3(text, len(text))
        return text + b'%016x%016x"}\n' % (digest.high, digest.low)

    return seal
