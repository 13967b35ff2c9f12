// SPDX-License-Identifier: Apache-2.0
//
// A conversion is a pipeline that the target pulls; only blocks in flight are in memory:
//
//   TensorSource::Read  ->  dtype conversion  ->  FormatWriter::Write  ->  hidden sibling  ->  rename
//        VerifiedReads::Read: one call for each block, on the writer's threads
//
// Every possible refusal comes before the first byte is read: options, the destination, names (PlanConversion), memory
// (PayloadMemory), what the target's format cannot hold (FormatWriter::Fit). After that only damage of the source and
// file system errors remain, and both leave no target.
#include "fsdp/checkpoint/convert/convert.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/carried_blocks.h"
#include "fsdp/checkpoint/convert/carried_files.h"
#include "fsdp/checkpoint/convert/convert_destination.h"
#include "fsdp/checkpoint/convert/convert_memory.h"
#include "fsdp/checkpoint/convert/convert_plan.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/source_notes.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/storage/disk_room.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// Reads elements of the source's tensor `origin` to `out` in the dtype of `written`. Converts by the source's own
// pieces, so that the scratch memory holds one block and not a whole tensor.
absl::Status ReadConverted(const TensorSource& source, const StateKey& origin, const ShardedTensor& written,
                           const Interval& interval, std::byte* out) {
  const DType from = source.contents().FindTensor(origin)->dtype;
  const DType to = written.dtype;
  if (from == to) return source.Read(origin, interval, out);
  std::vector<std::byte> scratch;
  for (const Interval& piece : source.Pieces(origin, interval)) {
    scratch.resize(piece.size() * SizeOf(from));
    FSDP_RETURN_IF_ERROR(source.Read(origin, piece, scratch.data()));
    FSDP_RETURN_IF_ERROR(
        Convert(from, scratch.data(), to, out + (piece.begin - interval.begin) * SizeOf(to), piece.size()));
  }
  return absl::OkStatus();
}

// Reports the tensors that are read, and the work on names that the writer counts. Thread-safe.
class TensorCount {
 public:
  TensorCount(int64_t total, const std::function<void(int64_t, int64_t)>& report) : total_(total), report_(report) {}

  // A report takes longer than a small tensor, so only every 256th is one.
  void Add(int64_t tensors) {
    constexpr int64_t kStep = 256;
    if (!report_) return;
    const int64_t before = done_.fetch_add(tensors);
    const int64_t done = std::min(before + tensors, total_);
    if (before / kStep != done / kStep) report_(done, total_);
  }

  // All is done, whatever was counted: a tensor without elements is never read.
  void Finish() const {
    if (report_) report_(total_, total_);
  }

 private:
  const int64_t total_;
  const std::function<void(int64_t, int64_t)>& report_;
  std::atomic<int64_t> done_ = 0;
};

// Reads each element for the target once. With the last element the source also compares the checksums that still cover
// unread bytes, so that damage is known before the target appears.
class VerifiedReads {
 public:
  // `written`: the tensors of the target, all of which will be read. `changes_dtypes`: some of them have another dtype
  // than in the source; if not, their dtypes are not looked up for each read, of a million tensors.
  VerifiedReads(const TensorSource& source, const ConvertPlan& plan, const StateDict& written, bool changes_dtypes)
      : source_(source),
        plan_(plan),
        written_(written),
        changes_dtypes_(changes_dtypes),
        has_checksums_(source.covering_checksums() != nullptr) {
    for (const auto& [key, value] : written.entries()) {
      if (const auto* tensor = std::get_if<ShardedTensor>(&value)) unread_ += tensor->shape.numel();
    }
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) {
    const StateKey& origin = plan_.OriginOf(key);
    FSDP_RETURN_IF_ERROR(changes_dtypes_ ? ReadConverted(source_, origin, *written_.FindTensor(key), interval,
                                                         static_cast<std::byte*>(out))
                                         : source_.Read(origin, interval, out));
    if (!has_checksums_) return absl::OkStatus();
    // Writer threads call this concurrently; the one that takes the count to 0 runs after all other reads have ended.
    if (unread_.fetch_sub(interval.size()) != interval.size()) return absl::OkStatus();
    return VerifyRest(source_);
  }

 private:
  const TensorSource& source_;
  const ConvertPlan& plan_;  // its names; `written` may be the moved `contents` of the plan
  const StateDict& written_;
  const bool changes_dtypes_;
  const bool has_checksums_;
  std::atomic<int64_t> unread_ = 0;  // elements; counted down by any thread
};

// Bytes of payload in the target's buffers: a quarter, because the source's buffers and the conversion in between may
// each hold as much again.
absl::StatusOr<int64_t> BufferBytes(const TensorSource& source, const FormatContents& contents,
                                    const FormatTraits& target_traits, const FormatMemory& target, int64_t max_memory) {
  const ConvertShape shape = {.source_ranks = source.traits().has_writers ? source.world_size() : 0,
                              .target_ranks = target.rank_files,
                              .is_plain = target_traits.is_plain,
                              .is_hdf5 = target_traits.is_hdf5,
                              .parity_bytes = target.parity_bytes};
  FSDP_ASSIGN_OR_RETURN(const int64_t payload, PayloadMemory(contents.state, shape, max_memory));
  return payload / 4;
}

absl::Status CheckOptions(const ConvertOptions& options) {
  if (options.dtype && !IsFloatingPoint(*options.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("ConvertOptions::dtype=", std::string(DTypeName(*options.dtype)),
                                                   ", expected a floating-point dtype"));
  }
  if (options.step.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("ConvertOptions::step=", *options.step, ", expected 0 or more"));
  }
  if (options.max_memory < kMinConvertMemory) {
    return absl::InvalidArgumentError(absl::StrCat("ConvertOptions::max_memory=", options.max_memory,
                                                   ", expected at least ", kMinConvertMemory >> 20, "MiB"));
  }
  return absl::OkStatus();
}

// Applies whether or not the destination may be replaced.
absl::Status CheckIsNoInput(const InputPaths& inputs, const std::string& destination, const FormatTarget& target) {
  const bool is_ours = DriverOf(target).traits().is_ours;
  const bool is_directory = MakeWriter(target)->MakesDirectory(destination);
  return CheckOutput(destination, inputs,
                     {.kind = is_ours        ? OutputKind::kCheckpoint
                              : is_directory ? OutputKind::kDirectory
                                             : OutputKind::kFile});
}

// Only our own format stores attributes.
void RecordAttributes(const StateDict& source, const FormatTarget& target, std::vector<std::string>& notes) {
  if (source.attributes.empty() || DriverOf(target).traits().is_ours) return;
  const size_t count = source.attributes.size();
  notes.push_back(absl::StrCat(Counted(std::ssize(source.attributes), "attribute"),
                               " of the run that saved it (its config, data and options) ", count == 1 ? "is" : "are",
                               " left out: ", DriverOf(target).name(), " has no place for ",
                               count == 1 ? "it" : "them"));
}

// Other formats keep a step only as an extra value, which a source has if its step is one.
void RecordStep(const TensorSource& source, const FormatTarget& target, const ConvertOptions& options,
                std::vector<std::string>& notes) {
  const FormatTraits& traits = DriverOf(target).traits();
  if (source.step() < 0 || options.model_only || traits.is_ours || traits.keeps_step) return;
  const auto& entries = source.contents().entries();
  const bool is_a_value = std::any_of(entries.begin(), entries.end(), [&](const StateDict::Entry& entry) {
    const std::string& name = entry.first.fqn;
    if (entry.first.section != StateKey::Section::kExtra) return false;
    const auto* const text = std::get_if<std::string>(&entry.second);
    return StepCounterOrder(name.substr(name.rfind('.') + 1)) ||
           (text != nullptr && HasStepCounter(*text, source.step()));
  });
  if (is_a_value) return;
  notes.push_back(absl::StrCat("step ", source.step(), " is left out: ", DriverOf(target).name(),
                               " has no place for a step that is not among the values of the source; hdf5 has one"));
}

// Lets `target` carry the source's files, if both are Hugging Face directories. Returns them, for notes. GGUF has keys
// for what they say (CarryGgufKeys).
CarriedFiles CarryFiles(const std::string& source, const std::string& destination, const ConvertOptions& options,
                        FormatTarget& target) {
  if (std::holds_alternative<GgufTarget>(target)) return {};
  CarriedFiles carried = FindCarriedFiles(source, options.dtype);
  auto* const safetensors = std::get_if<SafetensorsTarget>(&target);
  if (safetensors == nullptr || !MakeWriter(target)->MakesDirectory(destination)) return carried.LeftBehind();
  safetensors->carried = carried.files;
  return carried;
}

bool HoldsModel(const StateDict& contents) {
  return std::any_of(contents.entries().begin(), contents.entries().end(),
                     [](const StateDict::Entry& entry) { return entry.first.section == StateKey::Section::kModel; });
}

// "no model tensor, only 12 optimizer values and 3 extra values, the first being "extra/app.w"".
std::string WithoutModelText(const StateDict& contents) {
  int64_t extra = 0;
  for (const auto& [key, value] : contents.entries()) extra += key.section == StateKey::Section::kExtra ? 1 : 0;
  const int64_t optimizer = std::ssize(contents.entries()) - extra;
  if (contents.empty()) return "no model tensor, and no other value";
  const auto count = [](int64_t number, const char* what) {
    return number == 0 ? "" : Counted(number, absl::StrCat(what, " value"));
  };
  return absl::StrCat("no model tensor, only ", count(optimizer, "optimizer"),
                      optimizer > 0 && extra > 0 ? " and " : "", count(extra, "extra"), ", the first being ",
                      Quote(contents.entries().front().first.ToString()));
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSourceOf(const std::string& path, const ConvertOptions& options,
                                                           const TensorSourceOptions& source) {
  return options.open ? options.open(source) : OpenTensorSource(path, source);
}

// A result without a model is an error, unless the source does not have one either and is converted whole: then it is a
// note.
absl::Status CheckHoldsModel(const TensorSource& source, const std::string& source_path, const FormatTarget& target,
                             const ConvertOptions& options, std::vector<std::string>& notes) {
  if (HoldsModel(source.contents())) return absl::OkStatus();
  std::string what = WithoutModelText(source.contents());
  if (options.model_only) {
    // It was opened without its optimizer, which is perhaps all that it has.
    const auto whole = OpenSourceOf(source_path, options, {.flat_layout = options.flat_layout, .skip_links = true});
    if (whole.ok()) what = WithoutModelText((*whole)->contents());
  }
  const std::string text = absl::StrCat("the source holds ", what);
  const FormatTraits& traits = DriverOf(target).traits();
  if (options.model_only) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_path, ": ", text,
                     "; ConvertOptions::model_only leaves all others out: convert it without, to torch or hdf5"));
  }
  if (traits.model_only) {
    return absl::InvalidArgumentError(absl::StrCat(source_path, ": ", text, ", and ", std::string(traits.name),
                                                   " holds the model only: convert it to torch or hdf5"));
  }
  if (source.contents().empty()) return absl::InvalidArgumentError(absl::StrCat(source_path, ": ", text));
  notes.push_back(text);
  return absl::OkStatus();
}

ConvertReport ReportOf(const StateDict& written, std::vector<std::string> notes) {
  ConvertReport report;
  for (const auto& [key, value] : written.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    ++report.tensors;
    report.bytes += tensor->shape.numel() * SizeOf(tensor->dtype);
  }
  report.notes = std::move(notes);
  return report;
}

// The source's size bounds the bytes that a conversion writes, unless the caller allows more.
absl::Status CheckExpansion(const TensorSource& source, const std::string& source_path, const ConvertPlan& plan,
                            const std::string& destination, const ConvertOptions& options) {
  const StateDict& contents = source.contents();
  // The bound concerns only the tensors that names and model_only keep. If these are all, which is usual, there is no
  // need to look up a million names.
  std::vector<bool> wanted;  // by entry of the source
  if (plan.contents.entries().size() < contents.entries().size()) {
    wanted.resize(contents.entries().size());
    for (const auto& [key, value] : plan.contents.entries()) {
      if (std::holds_alternative<ShardedTensor>(value)) wanted[*contents.IndexOf(plan.OriginOf(key))] = true;
    }
  }
  const Expansion expansion =
      ExpansionOf(source, [&](const StateKey& key) { return wanted.empty() || wanted[*contents.IndexOf(key)]; });
  if (!expansion.expands()) return absl::OkStatus();
  if (!options.allow_expanded) {
    return absl::FailedPreconditionError(absl::StrCat(source_path, ": ", expansion.ToString(),
                                                      "; ConvertOptions::allow_expanded writes them all the same"));
  }
  const int64_t bytes = ReportOf(plan.contents, {}).bytes;  // in the dtypes that are written
  return CheckRoom(destination, "its tensors", bytes);
}

}  // namespace

absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source_path, const std::string& destination,
                                                const ConvertOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckOptions(options));
  FSDP_ASSIGN_OR_RETURN(const NameFilter filter, NameFilter::Create(options.names));
  FormatTarget target = options.target.value_or(DefaultTarget(destination));
  if (options.keep_quantized) FSDP_RETURN_IF_ERROR(CheckKeepsBlocks(target));
  const CarriedFiles carried = CarryFiles(source_path, destination, options, target);
  if (!options.open && !options.transform) CarryGgufKeys(source_path, target);
  const std::unique_ptr<FormatWriter> writer = MakeWriter(target);
  // Comes before CheckDestination, whose message would suggest `force`, which must not replace a file that is read.
  InputPaths inputs = options.also_read;
  AddCheckpoint(source_path, inputs);
  FSDP_RETURN_IF_ERROR(CheckIsNoInput(inputs, destination, target));
  FSDP_RETURN_IF_ERROR(CheckDestination(
      destination,
      {.is_directory = writer->MakesDirectory(destination), .force = options.force, .replaced = carried.files}));
  FSDP_RETURN_IF_ERROR(CheckSuffix(destination, target));
  absl::StatusOr<std::unique_ptr<TensorSource>> opened = OpenSourceOf(source_path, options,
                                                                      {.flat_layout = options.flat_layout,
                                                                       .model_only = options.model_only,
                                                                       .skip_links = options.skip_links,
                                                                       .keep_quantized = options.keep_quantized,
                                                                       .map = options.map});
  if (!opened.ok()) return NameOptions(opened.status(), "ConvertOptions");
  if (options.transform) {
    FSDP_ASSIGN_OR_RETURN(*opened, options.transform(*std::move(opened)));
  }
  const std::unique_ptr<TensorSource>& source = *opened;
  AddSource(*source, inputs);
  FSDP_RETURN_IF_ERROR(CheckIsNoInput(inputs, destination, target));
  FSDP_ASSIGN_OR_RETURN(ConvertPlan plan,
                        PlanConversion(source->contents(), filter, options.dtype, options.model_only));
  FSDP_RETURN_IF_ERROR(CheckHoldsModel(*source, source_path, target, options, plan.notes));
  FSDP_RETURN_IF_ERROR(CheckExpansion(*source, source_path, plan, destination, options));
  std::map<std::string, std::string> metadata = source->metadata();
  FSDP_RETURN_IF_ERROR(CarryBlockTypes(plan, metadata));
  if (source->is_ours()) plan.contents = WithValuesInPlace(std::move(plan.contents));
  FormatContents contents = {.state = std::move(plan.contents),
                             .step = options.step.value_or(source->step()),
                             .world_size = source->world_size(),
                             .metadata = std::move(metadata),
                             .origin = &source->contents()};
  // Fit removes from `contents` what the format cannot hold, so sizes and reads below use contents.state, not the plan.
  absl::StatusOr<std::vector<std::string>> notes = writer->Fit(contents);
  if (!notes.ok()) return Annotate(notes.status(), source_path);
  notes->insert(notes->begin(), plan.notes.begin(), plan.notes.end());
  for (std::string& note : SourceNotes(*source, "ConvertOptions")) notes->push_back(std::move(note));
  RecordAttributes(source->contents(), target, *notes);
  RecordStep(*source, target, options, *notes);
  notes->insert(notes->end(), carried.notes.begin(), carried.notes.end());
  const FormatMemory memory = writer->Memory(contents, options.io_threads);
  FormatWriteOptions write = {.overwrite = options.force,
                              .io_threads = options.io_threads,
                              .progress = options.progress,
                              .file_system = options.file_system};
  FSDP_ASSIGN_OR_RETURN(write.buffer_bytes,
                        BufferBytes(*source, contents, DriverOf(target).traits(), memory, options.max_memory));
  VerifiedReads reads(*source, plan, contents.state, /*changes_dtypes=*/options.dtype.has_value());
  ConvertReport report = ReportOf(contents.state, *std::move(notes));
  TensorCount count(report.tensors * (1 + writer->NameWork(contents)), options.tensor_progress);
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    if (interval.begin == 0) count.Add(1);
    return reads.Read(key, interval, out);
  };
  write.count_names = [&](int64_t tensors) { count.Add(tensors); };
  if (options.progress) options.progress(0, report.bytes);  // a writer may count names for long before it has bytes
  FSDP_RETURN_IF_ERROR(writer->Write(destination, contents, read, write));
  count.Finish();
  report.step = contents.step;
  return report;
}

}  // namespace fsdp
