// SPDX-License-Identifier: Apache-2.0
//
// Calls fsdp_checkpoint.h like a careless program, on a hostile checkpoint. An input is 64 bytes of arguments, the
// first of which selects the kind of checkpoint, then the checkpoint's files, with kNextFile between them.
//
// Arguments that C cannot check are always valid here: handles, and the size of `out`. Both halves of the contract are
// tested: invalid arguments are refused, and every part of a checkpoint that verifies can be read.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/fuzz/arguments.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/reseal.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

constexpr size_t kArgumentBytes = 64;
constexpr char kNextFile[] = "\n--next file--\n";

// A hostile file of a few bytes can show one element as a tensor of 2^40. Reading that is slow but correct, so a
// request has at most this many elements.
constexpr int64_t kMostElements = 1 << 16;

std::vector<std::string_view> SplitFiles(std::string_view bytes) {
  std::vector<std::string_view> files;
  for (size_t next = bytes.find(kNextFile); next != bytes.npos; next = bytes.find(kNextFile)) {
    files.push_back(bytes.substr(0, next));
    bytes.remove_prefix(next + std::strlen(kNextFile));
  }
  files.push_back(bytes);
  return files;
}

// The names of the files of a checkpoint of each kind. The first component of the first name is the path to open.
const std::vector<std::vector<std::string>>& Layouts() {
  static const auto* layouts = new std::vector<std::vector<std::string>>{
      {"model.safetensors"},
      {"model.pt"},
      {"model.h5"},
      {"model"},
      {"step/manifest.json", "step/checkpoint.h5"},
      {"step/manifest.json", "step/checkpoint.h5", "step/rank-00000-of-00002.h5", "step/rank-00001-of-00002.h5"},
      {"root/step-00000001/manifest.json", "root/step-00000001/checkpoint.h5"},
      {"dcp/.metadata", "dcp/__0_0.distcp", "dcp/__1_0.distcp"},
      {"hf/model.safetensors.index.json", "hf/model-00001-of-00002.safetensors", "hf/model-00002-of-00002.safetensors"},
  };
  return *layouts;
}

// Writes the files, and returns the path that opens them.
std::string WriteCheckpoint(const std::vector<std::string>& names, std::string_view bytes,
                            const ScratchDirectory& scratch) {
  const std::vector<std::string_view> files = SplitFiles(bytes);
  for (size_t i = 0; i < std::min(files.size(), names.size()); ++i) {
    const bool is_sealed = names[i].ends_with("manifest.json");
    scratch.Write(names[i], is_sealed ? Resealed(files[i]) : std::string(files[i]));
  }
  return scratch / names[0].substr(0, names[0].find('/'));
}

// Checks that an error has a known code and a text.
bool IsOk(int32_t code) {
  Check(code >= FSDP_OK && code <= FSDP_DATA_LOSS, "a code that the header does not have");
  Check(code == FSDP_OK || fsdp_error_message()[0] != '\0', "an error has no text");
  return code == FSDP_OK;
}

bool IsUtf8(const char* text) { return CheckUtf8(text, "").ok(); }

fsdp_tensor TensorOf(const fsdp_reader* reader, int64_t index) {
  fsdp_tensor tensor = {};
  Check(IsOk(fsdp_reader_tensor(reader, index, &tensor)), "a tensor of the reader is not shown");
  return tensor;
}

void CheckTensors(const fsdp_reader* reader) {
  for (int64_t i = 0; i < fsdp_reader_tensor_count(reader); ++i) {
    const fsdp_tensor tensor = TensorOf(reader, i);
    Check(fsdp_reader_find(reader, tensor.name) == i, "a tensor is not found by its name");
    Check(IsUtf8(tensor.name), "a name is not UTF-8");
    Check(fsdp_dtype_name(tensor.dtype) != nullptr, "a tensor has no dtype");
    // Unsigned: with a 0 among the sizes the product of the others may overflow.
    uint64_t numel = 1;
    for (int32_t d = 0; d < tensor.ndim; ++d) numel *= static_cast<uint64_t>(tensor.dims[d]);
    Check(tensor.ndim >= 0 && tensor.numel == static_cast<int64_t>(numel), "a tensor has not its shape's elements");
  }
}

void CheckTextsAndAliases(const fsdp_reader* reader) {
  const char* name = nullptr;
  const char* text = nullptr;
  for (int64_t i = 0; i < fsdp_reader_text_count(reader); ++i) {
    int64_t nbytes = -1;
    Check(IsOk(fsdp_reader_text(reader, i, &name, &text, &nbytes)), "a text of the reader is not shown");
    Check(nbytes >= 0 && text[nbytes] == '\0', "a text does not end");
    Check(IsUtf8(name) && CheckUtf8(std::string(text, nbytes), "").ok(), "a text is not UTF-8");
  }
  for (int64_t i = 0; i < fsdp_reader_alias_count(reader); ++i) {
    Check(IsOk(fsdp_reader_alias(reader, i, &text, &name)), "an alias of the reader is not shown");
    Check(IsUtf8(name) && IsUtf8(text), "an alias is not UTF-8");
  }
}

// What is read can be saved.
void CheckAttributes(const fsdp_reader* reader) {
  char* json = nullptr;
  const absl::Cleanup free = [&] { fsdp_free(json); };
  Check(IsOk(fsdp_reader_attributes(reader, &json)), "the attributes of the reader are not shown");
  Check(IsUtf8(json), "an attribute is not UTF-8");
  fsdp_state* state = nullptr;
  Check(IsOk(fsdp_state_create(FSDP_FULL, &state)), "a state is not created");
  const absl::Cleanup free_state = [&] { fsdp_state_free(state); };
  Check(IsOk(fsdp_state_set_attributes(state, json)), "attributes that were read cannot be saved");
}

void CheckNumbersOutside(const fsdp_reader* reader, int64_t number) {
  fsdp_tensor tensor = {};
  const char* text = nullptr;
  const auto is_inside = [&](int64_t count) { return number >= 0 && number < count; };
  Check(IsOk(fsdp_reader_tensor(reader, number, &tensor)) == is_inside(fsdp_reader_tensor_count(reader)), "a tensor");
  Check(IsOk(fsdp_reader_text(reader, number, &text, &text, nullptr)) == is_inside(fsdp_reader_text_count(reader)),
        "a text");
  Check(IsOk(fsdp_reader_alias(reader, number, &text, &text)) == is_inside(fsdp_reader_alias_count(reader)),
        "an alias");
}

// A read, its memory, and true if the header allows it.
struct Request {
  fsdp_read read = {};
  std::vector<std::byte> out;
  bool is_allowed = false;
  bool is_as_stored = false;
};

Request MakeRequest(const fsdp_reader* reader, Arguments& arguments) {
  const int64_t count = fsdp_reader_tensor_count(reader);
  Request request;
  fsdp_read& read = request.read;
  read.tensor = arguments.Number(count);
  const bool is_tensor = read.tensor >= 0 && read.tensor < count;
  const fsdp_tensor tensor = is_tensor ? TensorOf(reader, read.tensor) : fsdp_tensor{};
  read.begin = arguments.Number(tensor.numel);
  read.end = arguments.Number(tensor.numel);
  const bool keeps_dtype = arguments.Byte() % 2 == 0;
  read.dtype = keeps_dtype ? tensor.dtype : arguments.Number32(FSDP_FLOAT4_E2M1FN_X2 + 1);
  const bool is_inside = is_tensor && read.begin >= 0 && read.begin <= read.end && read.end <= tensor.numel;
  if (is_inside) read.end = std::min(read.end, read.begin + kMostElements);
  const int64_t size = fsdp_dtype_size(read.dtype);
  request.out.resize(is_inside ? (read.end - read.begin) * size : 1);
  if (arguments.Mostly()) read.out = request.out.data();
  request.is_allowed = is_inside && size != 0 && (read.out != nullptr || read.begin == read.end);
  request.is_as_stored = read.dtype == tensor.dtype;
  return request;
}

// Checks that reading elements in two parts gives the same bytes as one read.
void CheckParts(const fsdp_reader* reader, const Request& whole) {
  const int64_t middle = whole.read.begin + (whole.read.end - whole.read.begin) / 3;
  std::vector<std::byte> out(whole.out.size());
  std::array<fsdp_read, 2> parts = {whole.read, whole.read};
  parts[0].end = parts[1].begin = middle;
  parts[0].out = out.data();
  parts[1].out = out.data() + (middle - whole.read.begin) * fsdp_dtype_size(whole.read.dtype);
  Check(IsOk(fsdp_reader_read(reader, parts.data(), parts.size(), 2)), "a part of what was read is not read");
  Check(out == whole.out, "parts are not the whole");
}

// Returns true if every read was allowed and succeeded.
bool Read(const fsdp_reader* reader, Arguments& arguments, bool is_verified) {
  std::vector<Request> requests(1 + arguments.Byte() % 4);
  std::vector<fsdp_read> reads;
  bool is_allowed = true;
  bool is_as_stored = true;
  for (Request& request : requests) {
    request = MakeRequest(reader, arguments);
    reads.push_back(request.read);
    is_allowed = is_allowed && request.is_allowed;
    is_as_stored = is_as_stored && request.is_as_stored;
  }
  const int32_t threads = arguments.Number32(4);
  is_allowed = is_allowed && threads >= 0 && threads <= 1024;
  const bool is_read = IsOk(fsdp_reader_read(reader, reads.data(), static_cast<int64_t>(reads.size()), threads));
  Check(is_allowed || !is_read, "a wrong argument is not refused");
  // Only a conversion of the dtype may fail for bytes that verify.
  Check(is_read || !is_allowed || !is_as_stored || !is_verified, "what verifies is not read");
  if (is_read) CheckParts(reader, requests[0]);
  return is_read;
}

fsdp_reader* Open(const std::string& path, Arguments& arguments) {
  // On the heap, so that AddressSanitizer finds a read beyond the struct.
  const auto options = std::make_unique<fsdp_open_options>();
  options->struct_size = arguments.StructSize(sizeof(fsdp_open_options));
  options->no_verify = arguments.Byte() % 2;
  options->model_only = arguments.Byte() % 2;
  options->skip_links = arguments.Byte() % 2;
  const bool has_size = options->struct_size >= sizeof(size_t) && options->struct_size <= sizeof(fsdp_open_options);
  fsdp_reader* reader = nullptr;
  const bool is_open = IsOk(fsdp_reader_open(path.c_str(), options.get(), &reader));
  Check(is_open == (reader != nullptr), "a failure has a reader, or success lacks one");
  Check(has_size || !is_open, "a struct of a wrong size is taken");
  return reader;
}

bool IsSmall(const fsdp_reader* reader) {
  int64_t numel = 0;
  for (int64_t i = 0; i < fsdp_reader_tensor_count(reader); ++i) {
    if (TensorOf(reader, i).numel > kMostElements) return false;
    numel += TensorOf(reader, i).numel;
  }
  return numel <= kMostElements;
}

bool Verify(const std::string& path) {
  char* report = nullptr;
  const bool is_whole = IsOk(fsdp_verify(path.c_str(), nullptr, &report));
  Check(!is_whole || (report != nullptr && report[0] == '\0'), "a sound checkpoint has problems");
  fsdp_free(report);
  return is_whole;
}

void CheckEqual(const std::string& a, const std::string& b) {
  int32_t equal = -1;
  char* report = nullptr;
  if (IsOk(fsdp_diff(a.c_str(), b.c_str(), nullptr, &equal, &report))) Check(equal == 1, "a checkpoint is not itself");
  fsdp_free(report);
}

// The result of any conversion must verify.
void Convert(const std::string& path, const ScratchDirectory& scratch, Arguments& arguments) {
  // Includes an empty and an unknown name, and a destination whose directory does not exist.
  static constexpr const char* kFormats[] = {nullptr, "hdf5", "safetensors", "torch", "dcp", "npz", "", "x"};
  static constexpr const char* kNames[] = {"made", "made.safetensors", "made.pt", "nowhere/made", "made.h5"};
  const auto options = std::make_unique<fsdp_convert_options>();
  options->struct_size = arguments.StructSize(sizeof(fsdp_convert_options));
  options->to = kFormats[arguments.Byte() % std::size(kFormats)];
  options->kind = arguments.Number32(FSDP_SHARDED + 1);
  // Each rank has a file, so more would be slow.
  options->world_size = std::min(arguments.Number32(4), 8);
  options->parity = arguments.Number32(3);
  options->dtype_given = arguments.Byte() % 2;
  options->dtype = arguments.Number32(FSDP_FLOAT4_E2M1FN_X2 + 1);
  options->model_only = arguments.Byte() % 2;
  options->force = arguments.Byte() % 2;
  const std::string made = scratch / kNames[arguments.Byte() % std::size(kNames)];
  char* report = nullptr;
  const bool is_made = IsOk(fsdp_convert(path.c_str(), made.c_str(), options.get(), &report));
  fsdp_free(report);
  if (!is_made) return;
  Check(Verify(made), "what was made does not verify");
  CheckEqual(made, made);
}

}  // namespace

bool FuzzCApi(std::string_view bytes) {
  if (bytes.size() < kArgumentBytes) return false;
  Arguments arguments(bytes.substr(0, kArgumentBytes));
  bytes.remove_prefix(kArgumentBytes);
  const ScratchDirectory scratch;
  const std::string path = WriteCheckpoint(Layouts()[arguments.Byte() % Layouts().size()], bytes, scratch);
  fsdp_reader* const reader = Open(path, arguments);
  if (reader == nullptr) return false;
  const absl::Cleanup close = [&] { fsdp_reader_close(reader); };
  CheckTensors(reader);
  CheckTextsAndAliases(reader);
  CheckAttributes(reader);
  CheckNumbersOutside(reader, arguments.Number(fsdp_reader_tensor_count(reader)));
  // Verifying and converting read every element, which would take too long for an expanded tensor.
  const bool is_small = IsSmall(reader);
  const bool is_verified = is_small && Verify(path);
  const bool is_read = Read(reader, arguments, is_verified);
  if (is_small) {
    CheckEqual(path, path);
    Convert(path, scratch, arguments);
  }
  return is_read && is_verified;
}

}  // namespace fsdp
