// SPDX-License-Identifier: Apache-2.0
//
// Calls fsdp_checkpoint.h to save, like a careless program: an input is a sequence of calls, each a byte that selects
// the function and the bytes of its arguments. A checkpoint that a save accepts must open, verify, and have the given
// bytes.
//
// Arguments that C cannot check are always valid here: arrays have as many entries as their count, and the memory of a
// shard has its elements.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/fuzz/arguments.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

namespace fsdp {
namespace {

constexpr int kMostCalls = 32;
constexpr int64_t kMemoryBytes = 4096;

// The first names are valid. Several calls can use the same name.
const std::vector<std::string>& Names() {
  static const auto* names = new std::vector<std::string>{
      "model/a",
      "model/b",
      "model/c/d",
      "optim/state/a/m",
      "optim/state/c/d/v",
      "optim/param_groups",
      "extra/x",
      "extra/..",
      "model/\xC3\xBC",
      "model/.",
      "a",
      "b",
      "c/d",
      "",
      "model/",
      "optim/state/a",
      "optim/state//m",
      "optim",
      "model/\xFF",
      "/",
      std::string(300, 'n'),
      "model/" + std::string(70'000, 'n'),
      "optim/state/a/..",
  };
  return *names;
}

const char* NameOf(Arguments& arguments) {
  if (!arguments.Mostly()) return nullptr;
  return Names()[arguments.Byte() % Names().size()].c_str();
}

std::string Members(int count) {
  std::string json = "{";
  for (int i = 0; i < count; ++i) json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":" + std::to_string(i);
  return json + "}";
}

// The first six can be saved.
const std::vector<std::string>& Attributes() {
  static const auto* attributes = new std::vector<std::string>{
      R"({"model.n_head": 4, "options.lr": 1e-3, "name": "\u00fc\n", "is": true, "no": null})",
      "{}",
      R"({"least": -9223372036854775808, "most": 9223372036854775807, "small": 5e-324, "zero": -0.0})",
      "{\"\xC3\xBC\": \"\xF0\x9F\x98\x80\"}",
      "{\"" + std::string(256, 'n') + "\": \"" + std::string(4'000, 't') + "\"}",
      Members(4'096),
      Members(4'097),
      "{\"" + std::string(257, 'n') + "\": 1}",
      "{\"a\": \"" + std::string(1 << 20, 't') + "\"}",
      R"({"a": 9223372036854775808})",
      R"({"a": 1e400})",
      R"({"a": [1]})",
      R"({"a": {"b": 1}})",
      R"({"a": 1, "a": 2})",
      R"({"a": "\u0000"})",
      R"({"a": "\ud800"})",
      R"({"": 1})",
      "{\"a\": \"\xFF\"}",
      "[1]",
      "",
  };
  return *attributes;
}

const std::byte* Memory() {
  static const auto* memory = [] {
    auto* bytes = new std::array<std::byte, kMemoryBytes>;
    for (size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(i * 7);
    return bytes;
  }();
  return memory->data();
}

bool IsOk(int32_t code) {
  Check(code >= FSDP_OK && code <= FSDP_DATA_LOSS, "a code that the header does not have");
  Check(code == FSDP_OK || fsdp_error_message()[0] != '\0', "an error has no text");
  return code == FSDP_OK;
}

// The program's gather function: correct, or with one of several faults.
struct Gather {
  int32_t world_size = 1;
  uint8_t fault = 0;

  // `context` is null if the size of fsdp_group ended before it.
  static int32_t Call(void* context, const void* blob, int64_t bytes, fsdp_blob_sink take, void* sink) {
    if (context == nullptr) return -1;
    const auto& gather = *static_cast<const Gather*>(context);
    for (int32_t rank = 0; rank < gather.world_size; ++rank) {
      if (gather.fault == 1 && rank == 1) continue;
      take(sink, rank, blob, bytes);
    }
    if (gather.fault == 2) take(sink, 0, blob, bytes);
    if (gather.fault == 3) take(sink, gather.world_size, blob, bytes);
    if (gather.fault == 4) take(sink, -1, nullptr, -1);
    if (gather.fault == 5) take(sink, 0, "what no rank says", 17);
    return gather.fault == 6 ? -1 : 0;
  }
};

// A program: the state that it fills, and the bytes of each of its tensors.
class Program {
 public:
  explicit Program(std::string_view bytes) : arguments_(bytes) {
    const int32_t kind = arguments_.Byte() % 3;
    const bool is_kind = IsOk(fsdp_state_create(arguments_.Mostly() ? kind : arguments_.Number32(3), &state_));
    Check(is_kind == (state_ != nullptr), "a failure has a state, or success lacks one");
  }
  ~Program() { fsdp_state_free(state_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Returns true if every call, with a save at the end, was accepted.
  bool Run() {
    for (int call = 0; call < kMostCalls && !arguments_.empty(); ++call) {
      switch (arguments_.Byte() % 9) {
        case 0:
          AddText();
          break;
        case 1:
          AddAlias();
          break;
        case 2:
          AddUnit();
          break;
        case 3:
          Save();
          break;
        case 4:
          SaveInBackground();
          break;
        case 8:
          SetAttributes();
          break;
        default:
          AddTensor();
      }
    }
    Save();
    return is_taken_;
  }

 private:
  // Records in is_taken_ that a call was refused.
  bool IsTaken(int32_t code) {
    const bool is_ok = IsOk(code);
    is_taken_ = is_taken_ && is_ok;
    return is_ok;
  }

  // Seldom null. Callers evaluate each argument in its own statement: compilers differ in the order in which they
  // evaluate the arguments of a call, and equal inputs must give equal calls.
  template <typename T>
  T* MostlyGiven(T* pointer) {
    return arguments_.Mostly() ? pointer : nullptr;
  }

  void AddText() {
    static constexpr char kText[] = "text \xC3\xBC\xFF";
    const char* const name = NameOf(arguments_);
    const char* const text = MostlyGiven(kText);
    const int64_t bytes = std::min<int64_t>(arguments_.Number(8), sizeof(kText) - 1);
    (void)IsTaken(fsdp_state_add_text(state_, name, text, bytes));
  }

  void AddAlias() {
    const char* const alias = NameOf(arguments_);
    const char* const name = NameOf(arguments_);
    (void)IsTaken(fsdp_state_add_alias(state_, alias, name));
  }

  void SetAttributes() {
    const bool is_known = arguments_.Mostly();
    const uint8_t number = arguments_.Byte();
    std::string json = is_known ? Attributes()[number % Attributes().size()] : std::string(number % 64, ' ');
    // A text of the input itself.
    for (size_t i = 0; !is_known && i < json.size(); ++i) json[i] = static_cast<char>(arguments_.Byte());
    const char* const given = MostlyGiven(json.c_str());
    if (!IsTaken(fsdp_state_set_attributes(state_, given))) return;
    Check(given != nullptr, "a wrong argument is not refused");
    attributes_ = given;
  }

  void AddUnit() {
    std::array<const char*, 3> fqns;
    std::array<int64_t, 3> offsets;
    std::array<int64_t, 3> numels;
    for (size_t i = 0; i < fqns.size(); ++i) {
      fqns[i] = NameOf(arguments_);
      offsets[i] = arguments_.Number(8);
      numels[i] = arguments_.Number(8);
    }
    const char* const name = NameOf(arguments_);
    const int64_t unsharded_numel = arguments_.Number(16);
    const int64_t count = std::min<int64_t>(arguments_.Number(3), fqns.size());
    const auto* const given_fqns = MostlyGiven(fqns.data());
    const int64_t* const given_offsets = MostlyGiven(offsets.data());
    (void)IsTaken(fsdp_state_add_unit(state_, name, unsharded_numel, count, given_fqns, given_offsets, numels.data()));
  }

  void AddTensor() {
    const char* const name = NameOf(arguments_);
    const bool is_dtype = arguments_.Mostly();
    const int32_t dtype = is_dtype ? arguments_.Byte() % (FSDP_FLOAT4_E2M1FN_X2 + 1) : arguments_.Number32(22);
    std::array<int64_t, 80> dims;
    dims.fill(1);
    for (size_t i = 0; i < 3; ++i) dims[i] = arguments_.Mostly() ? arguments_.Byte() % 8 : arguments_.Number(8);
    const int32_t ndim = std::min(arguments_.Number32(4), static_cast<int32_t>(dims.size()));

    // The whole tensor, or up to three shards that are valid only by chance.
    int64_t numel = 1;
    for (int32_t d = 0; d < ndim; ++d) numel = dims[d] < 0 || dims[d] > kMemoryBytes ? 0 : numel * dims[d];
    std::vector<fsdp_shard> shards = {Shard(0, numel, dtype)};
    if (!arguments_.Mostly()) shards.resize(1 + arguments_.Byte() % 3);
    for (size_t i = 1; i < shards.size(); ++i) shards[i - 1] = RandomShard(numel, dtype);
    int64_t count = numel == 0 ? 0 : static_cast<int64_t>(shards.size());
    if (!arguments_.Mostly()) count = std::min(arguments_.Number(2), count);
    const int64_t* const given_dims = MostlyGiven(dims.data());
    const fsdp_shard* const given_shards = MostlyGiven(shards.data());
    if (!IsTaken(fsdp_state_add_tensor(state_, name, dtype, ndim, given_dims, given_shards, count))) return;
    Check(name != nullptr && fsdp_dtype_size(dtype) != 0, "a wrong argument is not refused");
    tensors_[name] = numel * fsdp_dtype_size(dtype);
  }

  // Cuts the shard to the elements that Memory() has.
  static fsdp_shard Shard(int64_t begin, int64_t end, int32_t dtype) {
    const int64_t most = kMemoryBytes / std::max<int64_t>(fsdp_dtype_size(dtype), 1);
    const bool is_too_long = begin >= 0 && end > begin && end - begin > most;
    return {begin, is_too_long ? begin + most : end, Memory()};
  }

  fsdp_shard RandomShard(int64_t numel, int32_t dtype) {
    const int64_t begin = arguments_.Number(numel);
    fsdp_shard shard = Shard(begin, arguments_.Number(numel), dtype);
    if (!arguments_.Mostly()) shard.data = nullptr;
    return shard;
  }

  fsdp_group Group() {
    fsdp_group group = {};
    group.struct_size = arguments_.StructSize(sizeof(group));
    const bool is_alone = arguments_.Mostly();
    gather_.world_size = is_alone ? 1 : 1 + arguments_.Byte() % 3;
    gather_.fault = arguments_.Byte() % 8;
    group.world_size = gather_.world_size;
    group.rank = is_alone ? 0 : arguments_.Number32(gather_.world_size);
    // Up to INT32_MAX ranks: without a function they are refused.
    if (!arguments_.Mostly()) group.world_size = arguments_.Number32(1);
    if (group.world_size == gather_.world_size) group.gather = Gather::Call;
    group.context = &gather_;
    return group;
  }

  fsdp_save_options Options() {
    fsdp_save_options options = {};
    options.struct_size = arguments_.StructSize(sizeof(options));
    options.overwrite = arguments_.Byte() % 2;
    if (!arguments_.Mostly()) options.parity = arguments_.Number32(2);
    options.io_threads = std::min(arguments_.Number32(3), 2'000);
    return options;
  }

  // Usually a valid step, seldom an invalid number.
  int64_t Step() { return arguments_.Mostly() ? arguments_.Byte() : arguments_.Number(2); }

  void Save() {
    fsdp_group group = Group();
    fsdp_save_options options = Options();
    const int64_t step = Step();
    const std::string root = scratch_ / (arguments_.Mostly() ? "root" : "no/such/\xFF/root");
    const char* const given_root = MostlyGiven(root.c_str());
    const fsdp_group* const given_group = MostlyGiven(&group);
    const fsdp_save_options* const given_options = MostlyGiven(&options);
    char* path = nullptr;
    const absl::Cleanup free = [&] { fsdp_free(path); };
    const bool is_saved = IsTaken(fsdp_save(state_, given_root, step, given_group, given_options, &path));
    // In a group of several ranks only this one has written.
    if (is_saved && (given_group == nullptr || group.world_size == 1)) CheckSaved(path);
  }

  void SaveInBackground() {
    const fsdp_group group = Group();
    const fsdp_save_options options = Options();
    const int64_t step = Step();
    const bool waits = arguments_.Mostly();
    fsdp_saver* saver = nullptr;
    const std::string root = scratch_ / "background";
    const bool is_made = IsTaken(fsdp_saver_create(root.c_str(), &group, &options, &saver));
    Check(is_made == (saver != nullptr), "a failure has a saver, or success lacks one");
    const absl::Cleanup free_saver = [&] { fsdp_saver_free(saver); };
    if (!is_made) return;
    const bool is_started = IsTaken(fsdp_saver_save(saver, state_, step));
    if (!waits) return;
    char* path = nullptr;
    const absl::Cleanup free = [&] { fsdp_free(path); };
    const bool is_saved = IsTaken(fsdp_saver_wait(saver, &path)) && is_started;
    if (is_saved && group.world_size == 1) CheckSaved(path);
  }

  void CheckSaved(const char* path) {
    Check(path != nullptr, "what was saved has no path");
    char* report = nullptr;
    Check(IsOk(fsdp_verify(path, nullptr, &report)), "what was saved does not verify");
    fsdp_free(report);
    fsdp_reader* reader = nullptr;
    Check(IsOk(fsdp_reader_open(path, nullptr, &reader)), "what was saved does not open");
    Check(fsdp_reader_tensor_count(reader) == static_cast<int64_t>(tensors_.size()), "a tensor is missing");
    for (const auto& [name, nbytes] : tensors_) CheckTensor(reader, name, nbytes);
    CheckAttributes(reader);
    fsdp_reader_close(reader);
  }

  void CheckAttributes(const fsdp_reader* reader) {
    char* json = nullptr;
    const absl::Cleanup free = [&] { fsdp_free(json); };
    Check(IsOk(fsdp_reader_attributes(reader, &json)), "attributes that were saved are not read");
    Check(nlohmann::json::parse(json) == nlohmann::json::parse(attributes_), "attributes have other values");
  }

  // Every element was given, since a save refuses a tensor with a gap. All shards use the same memory, so only the
  // first element has known bytes.
  void CheckTensor(const fsdp_reader* reader, const std::string& name, int64_t nbytes) {
    const int64_t number = fsdp_reader_find(reader, name.c_str());
    fsdp_tensor tensor = {};
    Check(IsOk(fsdp_reader_tensor(reader, number, &tensor)), "a tensor that was saved is not there");
    Check(tensor.numel * fsdp_dtype_size(tensor.dtype) == nbytes, "a tensor has another size");
    std::vector<std::byte> out(nbytes);
    const fsdp_read read = {number, 0, tensor.numel, tensor.dtype, out.data()};
    Check(IsOk(fsdp_reader_read(reader, &read, 1, 1)), "a tensor that was saved is not read");
    const auto size = static_cast<size_t>(fsdp_dtype_size(tensor.dtype));
    Check(out.empty() || std::memcmp(out.data(), Memory(), size) == 0, "a tensor has other bytes");
  }

  Arguments arguments_;
  const ScratchDirectory scratch_;
  fsdp_state* state_ = nullptr;
  Gather gather_;
  bool is_taken_ = true;
  std::map<std::string, int64_t> tensors_;  // name to size in bytes
  std::string attributes_ = "{}";
};

}  // namespace

bool FuzzCApiSave(std::string_view bytes) { return Program(bytes).Run(); }

}  // namespace fsdp
