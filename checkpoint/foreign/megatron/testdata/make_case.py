#!/usr/bin/env python3
"""CASE.json for a golden checkpoint that Megatron-Core wrote: make_case.py GOLDEN/CASE OUT/CASE.json [CASE/ckpt]

Reads the files with the standard library only (nothing in a pickle is imported), checks stacked tensors against the
digests of expected.json, which torch computed, and divides and joins them: an oracle that shares no code with the
reader. Without a third argument, the checkpoint is copied to OUT/CASE.
"""
import hashlib, io, json, math, pathlib, pickle, re, shutil, struct, sys, zipfile

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "uint8": 1, "float64": 8}


class Object:
    """A call or an object of any class."""

    state = None

    def __init__(self, *arguments):
        self.arguments = arguments

    def __setstate__(self, state):
        self.state = state

    def __hash__(self):
        return id(self)


class Dict(dict):
    """An OrderedDict, which may have attributes."""


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return Dict
        return type(name, (Object,), {})

    def persistent_load(self, pid):
        return pid


def archive(data):
    """The value in a torch archive, and its storages by key."""
    z = zipfile.ZipFile(io.BytesIO(data))
    root = next(n for n in z.namelist() if n.endswith("/data.pkl"))[: -len("data.pkl")]
    value = Unpickler(io.BytesIO(z.read(root + "data.pkl"))).load()
    return value, {n[len(root) + 5 :]: z.read(n) for n in z.namelist() if n.startswith(root + "data/")}


class Array:
    """Row-major elements of `size` bytes."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data
        assert len(data) == math.prod(self.shape) * SIZES[dtype]

    def digest(self):
        return {"dtype": self.dtype, "shape": self.shape, "sha256": hashlib.sha256(self.data).hexdigest()}

    def part(self, i):
        n = len(self.data) // self.shape[0]
        return Array(self.dtype, self.shape[1:], self.data[i * n : (i + 1) * n])


def tensor(value, storages):
    storage, offset, shape, strides = value.arguments[:4]
    shape = shape.arguments[0] if isinstance(shape, Object) else shape
    dtype = {"FloatStorage": "float32", "BFloat16Storage": "bfloat16", "HalfStorage": "float16", "LongStorage": "int64",
             "ByteStorage": "uint8", "DoubleStorage": "float64"}[storage[1].__name__]
    size, data, out = SIZES[dtype], storages[storage[2]], bytearray()
    for i in range(math.prod(shape)):
        at, rest = offset, i
        for d in range(len(shape) - 1, -1, -1):
            at += rest % shape[d] * strides[d]
            rest //= shape[d]
        out += data[at * size : at * size + size]
    return Array(dtype, shape, bytes(out))


def put(whole, shape, start, part):
    """Copies `part` to the place `start` of `whole`."""
    size = SIZES[part.dtype]
    for i in range(math.prod(part.shape)):
        at, rest, stride = 0, i, 1
        for d in range(len(shape) - 1, -1, -1):
            at += (start[d] + rest % part.shape[d]) * stride
            rest //= part.shape[d]
            stride *= shape[d]
        whole[at * size : at * size + size] = part.data[i * size : i * size + size]


def torch_dist(step):
    """{key: Array} of all tensors of .metadata, and its values' names."""
    meta = Unpickler((step / ".metadata").open("rb")).load().state
    places = {}
    for index, info in meta["storage_data"].items():
        offset = index.state.get("offset")
        places[index.state["fqn"], tuple(offset.arguments[0]) if offset else None] = info.state
    arrays, objects = {}, []
    for key, stored in meta["state_dict_metadata"].items():
        if type(stored).__name__ != "TensorStorageMetadata":
            objects.append(key)
            continue
        shape = list(stored.state["size"].arguments[0])
        whole, dtype = None, None
        for chunk in stored.state["chunks"]:
            start = chunk.state["offsets"].arguments[0]
            info = places[key, tuple(start)]
            data = (step / info["relative_path"]).read_bytes()[info["offset"] : info["offset"] + info["length"]]
            part = tensor(*archive(data))
            dtype = part.dtype
            whole = whole or bytearray(math.prod(shape) * SIZES[dtype])
            put(whole, shape, start, part)
        arrays[key] = Array(dtype, shape, bytes(whole))
    return arrays, objects, len(meta["all_local_plans"])


def divided(key, array):
    """(name, Array) of each layer and expert."""
    match = re.search(r"(^|\.)layers\.(?!\d+\.)", key)
    if match:
        for i in range(array.shape[0]):
            yield from divided(f"{key[: match.end()]}{i}.{key[match.end() :]}", array.part(i))
        return
    match = re.search(r"(^|\.)experts\.experts\.(?!\d+\.)", key)
    if match:
        for i in range(array.shape[0]):
            yield f"{key[: match.end()]}{i}.{key[match.end() :]}", array.part(i)
        return
    yield key, array


def concatenate(arrays, axis):
    shape = list(arrays[0].shape)
    length = shape[axis]
    shape[axis] *= len(arrays)
    whole = bytearray(math.prod(shape) * SIZES[arrays[0].dtype])
    for i, array in enumerate(arrays):
        put(whole, shape, [i * length if d == axis else 0 for d in range(len(shape))], array)
    return Array(arrays[0].dtype, shape, bytes(whole))


def joined(name, parts, swiglu):
    if len(parts) == 1:
        return parts[0]
    if "linear_fc1." in name and "layer_norm" not in name:
        if not swiglu:
            return concatenate(parts, 0)
        halves = []
        for half in range(2):
            for p in parts:
                n = len(p.data) // 2
                halves.append(Array(p.dtype, [p.shape[0] // 2] + p.shape[1:], p.data[half * n : half * n + n]))
        return concatenate(halves, 0)
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return concatenate(parts, 1)
    if re.search(r"(word_embeddings|output_layer|linear_qkv)\.(weight|bias)$", name):
        return concatenate(parts, 0)
    assert all(p.data == parts[0].data for p in parts), name
    return parts[0]


def legacy(step, spec):
    """{name: Array} of the whole model."""
    tp, pp, ep = spec["tp"], spec["pp"], spec.get("ep", 1)
    files = {}
    for d in sorted(step.glob("mp_rank_*")):
        numbers = [int(n) for n in d.name.split("_")[2:]]
        t, rest = numbers[0], numbers[1:]
        p = rest.pop(0) if pp > 1 else 0
        value, storages = archive((d / "model_optim_rng.pt").read_bytes())
        model = {k: tensor(v, storages) for k, v in value["model"].items() if isinstance(v, Object)}
        files[t, p, rest[0] if rest else 0] = model
    assert len(files) == tp * pp * ep, sorted(files)
    whole, layers = {}, 0
    for p in range(pp):
        first = files[0, p, 0]
        number = lambda pattern, names: 1 + max((int(m.group(1)) for n in names if (m := re.search(pattern, n))), default=-1)
        own, experts = number(r"^decoder\.layers\.(\d+)\.", first), number(r"local_experts\.(\d+)\.", first)
        for name in first:
            for e in range(ep if "local_experts." in name else 1):
                array = joined(name, [files[t, p, e][name] for t in range(tp)], spec.get("swiglu", False))
                to = re.sub(r"^decoder\.layers\.(\d+)\.", lambda m: f"decoder.layers.{int(m.group(1)) + layers}.", name)
                to = re.sub(r"local_experts\.(\d+)\.", lambda m: f"local_experts.{int(m.group(1)) + e * experts}.", to)
                if to == "output_layer.weight" and spec.get("tied", True) and pp > 1:
                    continue  # the copy of the embedding that the last stage has
                whole[to] = array
        layers += own
    return whole


def main(golden, out, path=None):
    golden, out = pathlib.Path(golden), pathlib.Path(out)
    body = json.loads((golden / "expected.json").read_text())
    spec = body["spec"]
    latest = (golden / "latest_checkpointed_iteration.txt").read_text()
    step = golden / ("release" if latest == "release" else f"iter_{int(latest):07d}")
    tensors, left_out, world = {}, [], None
    if (step / "metadata.json").exists():
        arrays, objects, world = torch_dist(step)
        for key, array in arrays.items():
            assert array.digest() == body["tensors"][key], key
        groups = (((body["common_pt"].get("optimizer") or {}).get("optimizer") or {}).get("param_groups")) or []
        steps = {g["step"] for g in groups}
        for key, array in arrays.items():
            if key.startswith("optimizer.state."):
                state, parameter = key[len("optimizer.state.") :].split(".", 1)
                for name, part in divided(parameter, array):
                    tensors[f"optim/state/{name}/{state}"] = part.digest()
                    if len(steps) == 1:
                        tensors[f"optim/state/{name}/step"] = Array("float32", [], struct.pack("<f", *steps)).digest()
            elif not key.startswith("optimizer."):
                tensors.update({f"model/{name}": part.digest() for name, part in divided(key, array)})
        if any("_extra_state/" in o for o in objects):
            left_out.append(f"{sum('_extra_state/' in o for o in objects)} _extra_state of modules")
        if any(k.startswith("optimizer.distributed") for k in arrays):
            left_out.append("dp_reshardable")
        left_out += sorted({f'"{o.rsplit("/shard_", 1)[0]}"' for o in objects if "_extra_state/" not in o and not o.startswith("optimizer.distributed")})
    else:
        whole = legacy(step, spec)
        world = len(list(step.glob("mp_rank_*")))
        tensors = {f"model/{name}": array.digest() for name, array in whole.items()}
    case = out.stem
    if path is None:
        path = case
        shutil.rmtree(out.parent / case, ignore_errors=True)
        shutil.copytree(golden, out.parent / case, ignore=shutil.ignore_patterns("expected.json"))
    out.write_text(json.dumps({"path": path, "format": "megatron", "step": -1 if latest == "release" else int(latest),
                               "world_size": world, "tensors": tensors, "left_out": left_out}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
