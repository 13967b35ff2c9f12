// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;  // NOLINT: literals

// Modules and functions that act on the machine, or give access to others that do; each between two spaces.
constexpr std::string_view kActing =
    " _codecs _ctypes _operator _pickle _posixsubprocess _socket _thread aiohttp asyncio bdb cPickle cProfile"
    " cloudpickle code codecs codeop commands copyreg.add_extension ctypes dill distutils doctest ftplib gc"
    " http httplib imp importlib inspect joblib lib2to3 linecache marshal mmap multiprocessing nt operator os"
    " pdb pickle pip pkgutil platform posix posixpath profile pty pydoc requests runpy shutil signal site"
    " smtplib socket ssl subprocess sys tempfile threading timeit torch._dynamo torch._inductor torch.classes"
    " torch.hub torch.jit torch.load torch.ops torch.serialization torch.storage torch.utils.cpp_extension trace"
    " types.CodeType types.FunctionType urllib venv webbrowser xmlrpc zipimport ";

// Tensors in forms that are not read, and their parts. Other libraries call theirs FloatTensor, Float8Tensor, ...
constexpr std::array kTensorPrefixes = {"torch._tensor"sv,
                                        "torch._utils._rebuild"sv,
                                        "torch.distributed._shard"sv,
                                        "torch.distributed._tensor"sv,
                                        "torch.distributed.device_mesh"sv,
                                        "torch.distributed.tensor"sv,
                                        "torch.nested"sv,
                                        "torch.nn.parameter"sv,
                                        "torch.sparse"sv};

// Of the builtins, only types of values, constants and functions of values: the others evaluate, import, open or look
// up.
constexpr std::array kBuiltinValues = {
    "Ellipsis"sv, "NotImplemented"sv, "abs"sv,    "bool"sv, "bytes"sv, "dict"sv,   "float"sv,   "int"sv,
    "len"sv,      "list"sv,           "long"sv,   "max"sv,  "min"sv,   "object"sv, "pow"sv,     "range"sv,
    "round"sv,    "slice"sv,          "sorted"sv, "str"sv,  "sum"sv,   "tuple"sv,  "unicode"sv, "xrange"sv};

// The first entry whose prefix matches is used, so longer prefixes come first.
struct Advice {
  std::string_view prefix;
  std::string_view text;
};

constexpr std::string_view kOneRanksShard =
    "a tensor subclass, such as the ShardedTensor (LOCAL_STATE_DICT, SHARDED_STATE_DICT) or the DTensor that is one "
    "rank's shard: let all ranks save to one directory with torch.distributed.checkpoint.save, or save whole tensors, "
    "of torch.distributed.checkpoint.state_dict.get_state_dict with StateDictOptions(full_state_dict=True)";

constexpr std::array kAdvice = {
    Advice{"torch._utils._rebuild_wrapper_subclass", kOneRanksShard},
    Advice{"torch.distributed._shard", kOneRanksShard},
    Advice{"torch.distributed._tensor", kOneRanksShard},
    Advice{"torch.distributed.device_mesh", kOneRanksShard},
    Advice{"torch.distributed.tensor", kOneRanksShard},
    Advice{"torch._utils._rebuild_qtensor", "a quantized tensor: save its int_repr() and what it is scaled by"},
    Advice{"torch._utils._rebuild_sparse_tensor", "a sparse tensor: save its to_dense()"},
    Advice{"torch._utils._rebuild_meta_tensor", "a tensor on the device meta, which has no elements: load it first"},
    Advice{"torch._utils._rebuild_nested_tensor", "a nested tensor: save its unbind(), a list"},
    Advice{"torch.storage._load_from_bytes", "a tensor in a file of pickle: save it with torch.save"},
    Advice{"torch.torch_version.", "the version of torch: save str(version)"},
    Advice{"torch.optim.", "an optimizer or a scheduler: save its state_dict()"},
    Advice{"torch.nn.parameter.Uninitialized", "a parameter of a lazy module, without a shape: run the module once"},
    Advice{"torch.nn.parameter.", "a parameter in a form that is not read: save its data"},
    Advice{"torch.nn.", "a whole module: save its state_dict()"},
    Advice{"torch._C.Generator", "a generator of torch: save its get_state()"},
    Advice{"torch.Generator", "a generator of torch: save its get_state()"},
    Advice{"numpy.random.",
           "a generator of numpy: save its bit_generator.state, or tolist() of the arrays of get_state()"},
    Advice{"numpy.", "something of numpy: save torch.from_numpy() of arrays, and item() of numbers"},
    Advice{"argparse.", "the arguments of a command line: save vars(args)"},
    Advice{"types.SimpleNamespace", "named values: save vars(value)"},
    Advice{"pathlib.", "a path: save str(path)"},
    Advice{"_io.", "a file or bytes in memory: save getvalue()"},
    Advice{"io.", "a file or bytes in memory: save getvalue()"},
    Advice{"datetime.", "a date, a time or a duration: save isoformat(), or total_seconds()"},
    Advice{"collections.defaultdict", "a dict with a default: save dict(value)"},
    Advice{"collections.", "a container: save list(value) or dict(value)"},
    Advice{"decimal.", "a decimal number: save str(number)"},
    Advice{"fractions.", "a fraction: save its numerator and denominator"},
    Advice{"uuid.", "an identifier: save str(value)"},
    Advice{"random.", "a generator of random: save its getstate()"},
    Advice{"functools.partial", "a function with arguments: save the arguments"},
    Advice{"omegaconf.", "a configuration of OmegaConf: save OmegaConf.to_container(config)"},
    Advice{"transformers.", "an object of transformers: save its to_dict()"},
    Advice{"builtins.", "a type or an object of Python: save plain values of it, such as list(value)"},
    Advice{"__builtin__.", "a type or an object of Python: save plain values of it, such as list(value)"},
    Advice{"__main__.", "an object of the program's own: save the state_dict() of a module, and plain values"},
};

bool StartsWith(std::string_view name, std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; }

// True for a name in kActing, and for everything inside it: "os" and "os.system", not "osmium".
bool Acts(std::string_view name) {
  for (size_t end = name.find('.');; end = name.find('.', end + 1)) {
    const std::string prefix = absl::StrCat(" ", std::string(name.substr(0, end)), " ");
    if (kActing.find(prefix) != kActing.npos) return true;
    if (end == name.npos) return false;
  }
}

// True if `has` is true for a part of `name` after the first, which may be __main__ or __builtin__.
bool AnyPart(std::string_view name, bool (*has)(std::string_view part)) {
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    if (has(name.substr(dot + 1, name.find('.', dot + 1) - dot - 1))) return true;
  }
  return false;
}

bool EndsWith(std::string_view part, std::string_view suffix) {
  return part.size() >= suffix.size() && part.substr(part.size() - suffix.size()) == suffix;
}

// "__globals__" and the like, which lead from any function to all modules.
bool IsSpecial(std::string_view part) { return part.size() > 4 && StartsWith(part, "__") && EndsWith(part, "__"); }

bool IsTensorClass(std::string_view part) { return EndsWith(part, "Tensor") || EndsWith(part, "Parameter"); }

}  // namespace

bool IsInertGlobal(std::string_view name) {
  for (const std::string_view builtins : {"builtins."sv, "__builtin__."sv}) {
    if (!StartsWith(name, builtins)) continue;
    return std::find(kBuiltinValues.begin(), kBuiltinValues.end(), name.substr(builtins.size())) !=
           kBuiltinValues.end();
  }
  return !Acts(name) && !AnyPart(name, IsSpecial);
}

bool IsTensorGlobal(std::string_view name) {
  return AnyPart(name, IsTensorClass) || std::any_of(kTensorPrefixes.begin(), kTensorPrefixes.end(),
                                                     [&](std::string_view prefix) { return StartsWith(name, prefix); });
}

std::string_view AdviceOnGlobal(std::string_view name) {
  const auto* const advice =
      std::find_if(kAdvice.begin(), kAdvice.end(), [&](const Advice& entry) { return StartsWith(name, entry.prefix); });
  return advice == kAdvice.end() ? "" : advice->text;
}

PickleOptions TorchPickleOptions() {
  const auto is_allowed = [](std::string_view name) {
    return IsTorchGlobal(name) || IsNumpyGlobal(name) || IsDTensorGlobal(name) || IsPlainObject(name);
  };
  return {.is_allowed = is_allowed, .is_inert = IsInertGlobal, .advice = AdviceOnGlobal};
}

}  // namespace fsdp
