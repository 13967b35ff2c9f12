// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tied_head.h"

// Filled on opening and never changed, so every function may read it on any thread.
struct fsdp_reader {
  struct Tensor {
    fsdp::StateKey key;
    std::string name;
    fsdp::DType dtype;
    std::vector<int64_t> dims;
    int64_t numel;
  };

  std::unique_ptr<fsdp::TensorSource> source;
  std::string path;
  std::vector<std::string> skipped;  // newer steps of a ROOT
  std::string format;
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, std::string>> aliases;
  std::unordered_map<std::string, int64_t> numbers;  // by name, including aliases
};

namespace fsdp {
namespace {

constexpr int kDefaultThreads = 4;
constexpr OptionNames kOptionNames = {{"TensorSourceOptions::", "options->"}};
constexpr int kMostThreads = 1024;
constexpr int64_t kMostReads = int64_t{1} << 31;  // of one call: an array of 80 GiB

// A reader is opened once; after that every function only reads it. Arrays and strings that C functions return point
// into it.
// Other formats may have names that a C string cannot hold: a NUL would end the name. Names that are not UTF-8 are
// refused too, since the header promises UTF-8.
absl::Status CheckName(const std::string& name) {
  const bool has_nul = name.find('\0') != std::string::npos;
  if (!has_nul && CheckUtf8(name, "").ok()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("name ", Quote(name), has_nul ? " has a NUL" : " is not UTF-8",
                                               ", so it is not a C string; ckpt convert --rename gives another"));
}

// Of a Hugging Face directory also the output layer that config.json ties to the embedding.
absl::Status AddAliases(fsdp_reader& reader) {
  std::map<std::string, std::string> aliases = reader.source->contents().aliases;
  if (reader.format == SafetensorsDriver().traits().name) {
    TiedHead head = TiedHead::Of(reader.path);
    for (const fsdp_reader::Tensor& tensor : reader.tensors) head.Add(tensor.key.fqn);
    for (const auto& [alias, name] : aliases) head.Add(alias);
    if (std::pair<std::string, std::string> tied = head.names(); !tied.first.empty()) aliases.insert(std::move(tied));
  }
  for (const auto& [alias, name] : aliases) {
    FSDP_RETURN_IF_ERROR(CheckName(alias));
    FSDP_RETURN_IF_ERROR(CheckName(name));
    reader.aliases.emplace_back(alias, name);
    const auto found = reader.numbers.find(StateKey::Model(name).ToString());
    // An alias of a tensor that contents() does not have stays in the list, but has no number.
    if (found != reader.numbers.end()) reader.numbers.emplace(StateKey::Model(alias).ToString(), found->second);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<fsdp_reader>> Open(const char* path, const fsdp_open_options* given) {
  fsdp_open_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  auto reader = std::make_unique<fsdp_reader>();
  // Strings that the C functions return must live as long as the reader, so all names are copied into it here.
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  FSDP_ASSIGN_OR_RETURN(reader->path, driver->Resolve(path, &reader->skipped));
  TensorSourceOptions source = {
      .verify = options.no_verify == 0, .model_only = options.model_only != 0, .skip_links = options.skip_links != 0};
  FSDP_ASSIGN_OR_RETURN(source.map, RolesOf(options.map));
  FSDP_ASSIGN_OR_RETURN(reader->source, OpenTensorSource(reader->path, source));
  // A copy, since string_view has no NUL at its end that C requires.
  reader->format = std::string(reader->source->format());
  for (const auto& [key, value] : reader->source->contents().entries()) {
    FSDP_RETURN_IF_ERROR(CheckName(key.ToString()));
    if (const auto* text = std::get_if<std::string>(&value)) {
      reader->texts.emplace_back(key.ToString(), *text);
      continue;
    }
    const auto& tensor = std::get<ShardedTensor>(value);
    reader->numbers.emplace(key.ToString(), static_cast<int64_t>(reader->tensors.size()));
    const auto dims = tensor.shape.dims();
    reader->tensors.push_back(
        {key, key.ToString(), tensor.dtype, std::vector<int64_t>(dims.begin(), dims.end()), tensor.shape.numel()});
  }
  FSDP_RETURN_IF_ERROR(AddAliases(*reader));
  return reader;
}

std::string Notes(const fsdp_reader& reader) {
  const TensorSource& source = *reader.source;
  const SourceLayout& layout = source.layout();
  std::vector<std::string> notes = reader.skipped;
  if (!layout.text.empty()) notes.push_back(layout.text);
  notes.insert(notes.end(), layout.notes.begin(), layout.notes.end());
  for (const std::string& name : source.left_out()) notes.push_back(absl::StrCat("left out: ", name));
  return NameOptionsOfC(absl::StrJoin(notes, "\n"), kOptionNames);
}

absl::Status CheckIndex(int64_t index, size_t count, const char* what) {
  if (index >= 0 && index < static_cast<int64_t>(count)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(what, " ", index, " of a reader that has ", count));
}

absl::StatusOr<TensorRead> ReadOf(const fsdp_reader& reader, const fsdp_read& read) {
  FSDP_RETURN_IF_ERROR(CheckIndex(read.tensor, reader.tensors.size(), "tensor"));
  const fsdp_reader::Tensor& tensor = reader.tensors[read.tensor];
  if (read.begin < 0 || read.end < read.begin || read.end > tensor.numel) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", tensor.name, "\": elements [", read.begin, ", ", read.end, ") of ", tensor.numel));
  }
  if (fsdp_dtype_size(read.dtype) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", tensor.name, "\": ", read.dtype, " is not an fsdp_dtype"));
  }
  // An empty read may come from an empty array of the caller, whose address can be NULL.
  if (read.begin != read.end) FSDP_RETURN_IF_ERROR(CheckPointer(read.out, "fsdp_read.out"));
  return TensorRead{
      tensor.key, {read.begin, read.end}, static_cast<DType>(read.dtype), static_cast<std::byte*>(read.out)};
}

absl::Status Read(const fsdp_reader& reader, const fsdp_read* reads, int64_t count, int32_t threads) {
  if (count < 0 || count > kMostReads || threads < 0 || threads > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat("count is ", count, " and threads is ", threads,
                                                   ", wanted at least 0, and at most ", kMostReads, " reads and ",
                                                   kMostThreads, " threads"));
  }
  if (count > 0) FSDP_RETURN_IF_ERROR(CheckPointer(reads, "reads"));
  std::vector<TensorRead> all;
  // Not reserved: entries are checked first, and the first that is wrong ends the call.
  for (int64_t i = 0; i < count; ++i) {
    FSDP_ASSIGN_OR_RETURN(TensorRead read, ReadOf(reader, reads[i]));
    // All reads are checked before the first byte is read, so a wrong argument leaves every `out` unchanged.
    if (!read.interval.empty()) all.push_back(std::move(read));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(threads == 0 ? kDefaultThreads : threads, "fsdp_reader"));
  return reader.source->ReadAll(all, *pool);
}

}  // namespace
}  // namespace fsdp

int32_t fsdp_reader_open(const char* path, const fsdp_open_options* options, fsdp_reader** reader) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(path, "path"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    absl::StatusOr<std::unique_ptr<fsdp_reader>> opened = fsdp::Open(path, options);
    if (!opened.ok()) return fsdp::NameOptionsOfC(opened.status(), fsdp::kOptionNames);
    // Set only on success: a failure leaves the caller's pointer unchanged.
    *reader = opened->release();
    return absl::OkStatus();
  });
}

void fsdp_reader_close(fsdp_reader* reader) { delete reader; }

const char* fsdp_reader_path(const fsdp_reader* reader) { return reader == nullptr ? "" : reader->path.c_str(); }
const char* fsdp_reader_format(const fsdp_reader* reader) { return reader == nullptr ? "" : reader->format.c_str(); }
int64_t fsdp_reader_step(const fsdp_reader* reader) { return reader == nullptr ? -1 : reader->source->step(); }
int32_t fsdp_reader_world_size(const fsdp_reader* reader) {
  return reader == nullptr ? 1 : reader->source->world_size();
}
int64_t fsdp_reader_tensor_count(const fsdp_reader* reader) {
  return reader == nullptr ? 0 : static_cast<int64_t>(reader->tensors.size());
}
int64_t fsdp_reader_text_count(const fsdp_reader* reader) {
  return reader == nullptr ? 0 : static_cast<int64_t>(reader->texts.size());
}
int64_t fsdp_reader_alias_count(const fsdp_reader* reader) {
  return reader == nullptr ? 0 : static_cast<int64_t>(reader->aliases.size());
}

int64_t fsdp_reader_find(const fsdp_reader* reader, const char* name) {
  // Functions without a status cannot report NULL, so they treat it as a reader without contents.
  if (reader == nullptr || name == nullptr) return -1;
  const auto found = reader->numbers.find(name);
  return found == reader->numbers.end() ? -1 : found->second;
}

int32_t fsdp_reader_identity(const fsdp_reader* reader, char** identity) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(identity, "identity"));
    FSDP_ASSIGN_OR_RETURN(const std::string text, reader->source->Identity());
    return fsdp::GiveString(text, identity);
  });
}

int32_t fsdp_reader_notes(const fsdp_reader* reader, char** notes) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(notes, "notes"));
    return fsdp::GiveString(fsdp::Notes(*reader), notes);
  });
}

int32_t fsdp_reader_attributes(const fsdp_reader* reader, char** json) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(json, "json"));
    const fsdp::RunMetadata& attributes = reader->source->contents().attributes;
    return fsdp::GiveString(attributes.empty() ? "{}" : fsdp::EncodeAttributes(attributes, ""), json);
  });
}

int32_t fsdp_reader_tensor(const fsdp_reader* reader, int64_t index, fsdp_tensor* tensor) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(tensor, "tensor"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckIndex(index, reader->tensors.size(), "tensor"));
    const fsdp_reader::Tensor& found = reader->tensors[index];
    *tensor = {found.name.c_str(), static_cast<int32_t>(found.dtype), static_cast<int32_t>(found.dims.size()),
               found.dims.data(), found.numel};
    return absl::OkStatus();
  });
}

int32_t fsdp_reader_text(const fsdp_reader* reader, int64_t index, const char** name, const char** text,
                         int64_t* bytes) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    for (const void* out : {static_cast<const void*>(name), static_cast<const void*>(text)}) {
      FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(out, "name or text"));
    }
    FSDP_RETURN_IF_ERROR(fsdp::CheckIndex(index, reader->texts.size(), "text"));
    *name = reader->texts[index].first.c_str();
    *text = reader->texts[index].second.c_str();
    if (bytes != nullptr) *bytes = static_cast<int64_t>(reader->texts[index].second.size());
    return absl::OkStatus();
  });
}

int32_t fsdp_reader_alias(const fsdp_reader* reader, int64_t index, const char** alias, const char** name) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    for (const void* out : {static_cast<const void*>(alias), static_cast<const void*>(name)}) {
      FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(out, "alias or name"));
    }
    FSDP_RETURN_IF_ERROR(fsdp::CheckIndex(index, reader->aliases.size(), "alias"));
    *alias = reader->aliases[index].first.c_str();
    *name = reader->aliases[index].second.c_str();
    return absl::OkStatus();
  });
}

int32_t fsdp_reader_read(const fsdp_reader* reader, const fsdp_read* reads, int64_t count, int32_t threads) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(reader, "reader"));
    return fsdp::Read(*reader, reads, count, threads);
  });
}
