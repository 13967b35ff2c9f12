// SPDX-License-Identifier: Apache-2.0
//
// The cost of a pickle: the peak of all allocations while its values are parsed and turned into a tree, counted by this
// program's own operator new, for pickles that are designed to be expensive and for one that torch.save could have
// written. A separate program, because the operators apply to a whole program.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/honest_metadata.h"
#include "fsdp/checkpoint/foreign/torch/many_tensors.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int64_t> g_now = 0;
std::atomic<int64_t> g_peak = 0;

}  // namespace

void* operator new(size_t nbytes) {
  void* const memory = std::malloc(nbytes);
  if (memory == nullptr) std::abort();
  const int64_t now = g_now += static_cast<int64_t>(malloc_usable_size(memory));
  if (now > g_peak) g_peak = now;
  return memory;
}

void operator delete(void* memory) noexcept {
  g_now -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::AnyOf;
using testing::HasSubstr;

std::string Times(int64_t count, const std::string& opcodes) {
  std::string text;
  text.reserve(count * opcodes.size());
  for (int64_t i = 0; i < count; ++i) text += opcodes;
  return text;
}

std::string Long(int64_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

const std::string kTensor =
    "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"s
    "0X\x03\x00\x00\x00"s
    "cpuK\x04tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89"s
    "ccollections\nOrderedDict\n)RtR"s;

// {"w": a tensor, "x": the value that `value` pushes}.
std::string State(const std::string& value) {
  return "\x80\x02}(X\x01\x00\x00\x00w"s + kTensor + "X\x01\x00\x00\x00x"s + value + "u.";
}

struct Costly {
  const char* name;
  std::string (*make)(int64_t nbytes);  // a pickle of about that many bytes
};

const std::vector<Costly>& CostlyPickles() {
  static const auto* const all = new std::vector<Costly>{
      {"values that are dropped", [](int64_t n) { return "\x80\x02"s + Times(n / 2, "N0") + "}."; }},
      {"lists that are dropped", [](int64_t n) { return "\x80\x02"s + Times(n / 2, "]0") + "}."; }},
      {"a list of None", [](int64_t n) { return State("](" + Times(n, "N") + "e"); }},
      {"a tuple of ints", [](int64_t n) { return State("(" + Times(n / 2, "K\x07") + "t"); }},
      {"ints in decimal", [](int64_t n) { return State("(" + Times(n / 3, "I7\n") + "t"); }},
      {"empty tuples", [](int64_t n) { return State("](" + Times(n, ")") + "e"); }},
      {"empty lists", [](int64_t n) { return State("](" + Times(n, "]") + "e"); }},
      {"empty dicts", [](int64_t n) { return State("](" + Times(n, "}") + "e"); }},
      {"tuples in tuples", [](int64_t n) { return State("N" + Times(n, "\x85")); }},
      {"lists of one", [](int64_t n) { return State("](" + Times(n / 3, "]Na") + "e"); }},
      {"empty strings", [](int64_t n) { return State("](" + Times(n / 2, "U\0"s) + "e"); }},
      {"a long string many times",
       [](int64_t n) {
         return State("](X" + Long(n / 2) + std::string(n / 2, 'a') + "q\0"s + Times(n / 4, "h\0"s) + "e");
       }},
      {"control characters", [](int64_t n) { return State("](X" + Long(n) + std::string(n, '\1') + "e"); }},
      {"JSON in a string",
       [](int64_t n) {
         return State("X" + Long(n) + "[" + Times((n - 1) / 3, "[],") + std::string((n - 1) % 3, ' '));
       }},
      {"numbers of the memo",
       [](int64_t n) {
         std::string puts;
         for (int64_t i = 0; i < n / 5; ++i) puts += "r" + Long(i * 7919);
         return "\x80\x02N"s + puts + "0}.";
       }},
      {"the memo in order", [](int64_t n) { return "\x80\x04N"s + Times(n, "\x94") + "0}."; }},
      {"references", [](int64_t n) { return State("Nq\0"s + "0](" + Times(n / 2, "h\0"s) + "e"); }},
      {"open groups", [](int64_t n) { return State(Times(900, "(") + Times(n, "N") + Times(900, "1") + "N"); }},
      {"copies of a dict",
       [](int64_t n) {
         return "\x80\x02"s + "ccollections\nOrderedDict\nq\1"s + "0}(" + Times(n / 4, "NN") + "uq\0"s + "0" +
                Times(n / 12, "h\1h\0\x85R0"s) + "}.";
       }},
      {"calls", [](int64_t n) { return State("](ctorch\nSize\nq\0"s + Times(n / 4, "h\0)R"s) + "e"); }},
      {"objects", [](int64_t n) { return State("](cargparse\nNamespace\nq\0"s + Times(n / 4, "h\0)R"s) + "e"); }},
      {"bytearrays", [](int64_t n) { return State("](c__builtin__\nbytearray\nq\0"s + Times(n / 4, "h\0)R"s) + "e"); }},
      {"one long text as bytes many times",
       [](int64_t n) {
         return State("](c_codecs\nencode\nX" + Long(n / 2) + Times(n / 4, "\xc3\xbf") + "U\6latin1\x86Rq\0"s +
                      Times(n / 4, "h\0"s) + "e");
       }},
      {"one number of numpy many times",
       [](int64_t n) {
         return State(
             "](cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\nU\2i8\x89\x88\x87R(K\3U\1<NNNK\0K\0K\0tb"
             "C\x08"s +
             std::string(8, '\1') + "tRq\0"s + Times(n / 2, "h\0"s) + "e");
       }},
      {"one counter many times",
       [](int64_t n) { return State("](ccollections\nCounter\n}K\1K\1s\x85Rq\0"s + Times(n / 2, "h\0"s) + "e"); }},
      {"globals", [](int64_t n) { return State("](" + Times(n / 12, "ctorch\nSize\n") + "e"); }},
      {"storages", [](int64_t n) { return State("N" + Times(n / 3, "0NQ")); }},
      {"one tensor in a list many times",
       [](int64_t n) { return "\x80\x02"s + kTensor + "q\0"s + "0}U\1l](" + Times(n / 2, "h\0"s) + "es."; }},
      {"long names on the path of many tensors",
       [](int64_t n) {
         std::string members;
         for (int i = 0; i < 1000; ++i) members += absl::StrFormat("U\4%04dh", i) + "\0"s;
         std::string path = Times(10, "}X" + Long(n / 20) + std::string(n / 20, 'a'));
         return "\x80\x02"s + kTensor + "q\0"s + "0" + path + "}(" + members + "u" + Times(10, "s") + ".";
       }},
  };
  return *all;
}

// The two ways to a tree: tensors are taken while the pickle is parsed, or read from its values (as in old torch
// files).
absl::Status TakeTree(const std::string& bytes) { return ParseTorchTree(bytes).status(); }
absl::Status WalkTree(const std::string& bytes) {
  const auto pickle = Pickle::Parse(bytes, TorchPickleOptions());
  return pickle.ok() ? TreeOfPickle(**pickle).status() : pickle.status();
}

// The peak of parsing `bytes` and building the tree, including the bytes themselves; and the status.
std::pair<int64_t, absl::Status> Cost(const std::string& bytes, absl::Status (*read)(const std::string&) = TakeTree) {
  const int64_t before = g_now;
  g_peak = before;
  const absl::Status status = read(bytes);
  return {g_peak - before + static_cast<int64_t>(bytes.size()), status};
}

TEST(PickleMemoryTest, NoPickleCostsMoreThanTwiceItsSizeAnd64MiB) {
  for (const Costly& costly : CostlyPickles()) {
    for (const int64_t nbytes : {100'000, 1'500'000}) {
      const std::string bytes = costly.make(nbytes);
      const auto [walked, walk_status] = Cost(bytes, WalkTree);
      EXPECT_LE(walked, PickleMemoryLimit(static_cast<int64_t>(bytes.size()))) << costly.name << ": " << walk_status;
      const auto [peak, status] = Cost(bytes);
      EXPECT_LE(peak, PickleMemoryLimit(static_cast<int64_t>(bytes.size()))) << costly.name << ": " << status;
      if (status.ok()) continue;
      // The refusal names the byte and the limit, unless the values are refused for another reason.
      EXPECT_THAT(std::string(status.message()),
                  AnyOf(HasSubstr("bytes, which is what a pickle of "), HasSubstr("too large or too deep"),
                        HasSubstr("inside each other"), HasSubstr("a storage outside of a tensor")))
          << costly.name;
      EXPECT_THAT(std::string(status.message()), HasSubstr("byte "));
    }
  }
}

// Regression: when tensors were trees of values first, of 700 bytes each, more than 120,000 of them were refused.
TEST(PickleMemoryTest, AStateDictOf200000TensorsIsNotRefused) {
  for (const int tensors : {100'000, 200'000}) {
    const std::string bytes = ManyTensorsPickle(tensors, /*has_optimizer=*/false);
    const auto [peak, status] = Cost(bytes);
    EXPECT_OK(status);
    EXPECT_LT(peak, PickleMemoryLimit(static_cast<int64_t>(bytes.size())) * 7 / 10) << tensors;
  }
}

TEST(PickleMemoryTest, AModelOf70000ParametersWithAdamWIsNotRefused) {
  for (const int parameters : {40'000, 70'000}) {
    const std::string bytes = ManyTensorsPickle(parameters, /*has_optimizer=*/true);
    const auto [peak, status] = Cost(bytes);
    EXPECT_OK(status);
    EXPECT_LT(peak, PickleMemoryLimit(static_cast<int64_t>(bytes.size())) * 9 / 10) << parameters;
  }
}

// A chunk has 140 bytes of pickle, and took 800 as values: before chunks were taken while the pickle is parsed,
// .metadata had a limit of 8 times its size.
TEST(PickleMemoryTest, TheMetadataOf250000ChunksCostsTwiceItsSize) {
  for (const auto& [tensors, ranks] : {std::pair(1'000, 250), {100'000, 1}, {20'000, 8}}) {
    const std::string bytes = HonestMetadata::Of(tensors, ranks);
    const auto [peak, status] = Cost(bytes, [](const std::string& text) { return ParseDcpMetadata(text).status(); });
    EXPECT_OK(status);
    EXPECT_LE(peak, PickleMemoryLimit(static_cast<int64_t>(bytes.size()))) << tensors << " tensors, " << ranks;
    if (ranks == 1) continue;
    EXPECT_LE(peak, 2 * static_cast<int64_t>(bytes.size())) << tensors << " tensors, " << ranks;
  }
}

// Chunks that many tensors share are not taken as objects, so each tensor would have its own rows.
TEST(PickleMemoryTest, ChunksThatManyTensorsShareAreRefusedAndNotCopied) {
  const std::string object = "ctorch.distributed.checkpoint.metadata\n";
  const std::string size = "ctorch\nSize\n(K\1t\x85R"s;
  const std::string chunk = object + "ChunkStorageMetadata\n)\x81}(X\7\0\0\0offsets"s + "ctorch\nSize\n(K\0t\x85R"s +
                            "X\5\0\0\0sizes"s + size + "ub";
  const std::string tensor = object + "TensorStorageMetadata\n)\x81}(X\12\0\0\0properties"s + object +
                             "TensorProperties\n)\x81(ctorch\nfloat32\ntbX\4\0\0\0size"s + size +
                             "X\6\0\0\0chunksh\1ub"s;
  std::string tensors;
  for (int i = 0; i < 100'000; ++i) tensors += "X" + Long(6) + absl::StrFormat("%06d", i) + tensor;
  const std::string bytes = "\x80\2"s + chunk + "q\0000](" + Times(20'000, "h\0"s) + "eq\0010" + object +
                            "Metadata\n)\x81}(X\23\0\0\0state_dict_metadata}("s + tensors +
                            "uX\14\0\0\0storage_data}ub."s;
  const auto [peak, status] = Cost(bytes, [](const std::string& text) { return ParseDcpMetadata(text).status(); });
  EXPECT_FALSE(status.ok());
  EXPECT_LE(peak, PickleMemoryLimit(static_cast<int64_t>(bytes.size()))) << status;
}

// The tensor's sizes appear once more in the dict, by their number in the memo, so the tensor's values had to be kept.
TEST(PickleMemoryTest, AReferenceToAPartOfATensorIsReadAsWithoutTakingTensors) {
  const size_t sizes = kTensor.find("\x86");
  const std::string tensor = kTensor.substr(0, sizes + 1) + "q\0"s + kTensor.substr(sizes + 1);
  const std::string bytes = "\x80\x02}(X\x01\x00\x00\x00w"s + tensor + "X\x01\x00\x00\x00xh\0u."s;
  const auto pickle = Pickle::Parse(bytes, {.is_allowed = IsTorchGlobal});
  ASSERT_OK(pickle);
  ASSERT_OK_AND_ASSIGN(const TorchTree expected, TreeOfPickle(**pickle));
  ASSERT_OK_AND_ASSIGN(const TorchTree tree, ParseTorchTree(bytes));
  ASSERT_NE(tree.root.Find("x"), nullptr);
  EXPECT_EQ(tree.root.Find("x")->value(), expected.root.Find("x")->value());
  ASSERT_EQ(tree.tensors.size(), 1);
  EXPECT_EQ(tree.tensors[0].storage.key, "0");
  EXPECT_EQ(tree.tensors[0].shape, (Shape{2, 2}));
}

}  // namespace
}  // namespace fsdp
