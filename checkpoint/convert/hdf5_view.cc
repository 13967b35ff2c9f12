// SPDX-License-Identifier: Apache-2.0
//
// Shows a tensor in the simplest way that its places allow:
//
//   places that are intervals of the row-major elements   one dataset with external segments, in the order of elements
//   boxes that cut rows                                    a dataset with one external segment per box, in /pieces, and
//                                                          a virtual dataset over them
//   no place: a number inside a pickle, no elements        a dataset with a copy of the value
//   no place for another reason                            not shown; the report says why
#include "fsdp/checkpoint/convert/hdf5_view.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/natural_order.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/hdf5/hdf5_file.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

constexpr char kPiecesGroup[] = "/pieces";

// The file's own name may be a link; a directory above it may be one to a place of another depth.
std::filesystem::path RealPath(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path directory = std::filesystem::weakly_canonical(path.parent_path(), ignored);
  return directory / path.filename();
}

// How the view at `view` names `file`.
std::string NameInView(const std::string& view, const std::string& file, bool relative) {
  const std::filesystem::path path = std::filesystem::absolute(file);
  if (!relative) return path.lexically_normal();
  return RealPath(path).lexically_relative(RealPath(std::filesystem::absolute(view)).parent_path());
}

std::string MovesSentence(bool relative) {
  if (!relative) {
    return "the view names the checkpoint's files by absolute paths: if they are moved it cannot read them, and a copy "
           "of all in another place still shows these";
  }
  return "the view names the checkpoint's files relative to itself, so all may be moved together; HDF5 looks for them "
         "there if HDF5_EXTFILE_PREFIX='${ORIGIN}' is set, and in the working directory if not";
}

std::string IfEscaped(const std::string& name) { return EscapeLinkName(name) == name ? "" : name; }

// The elements of `box` as an interval of the row-major elements; nullopt when they are not consecutive. They are
// consecutive if the box has one index in every dimension before the last one that it cuts.
std::optional<Interval> IntervalOf(const Shape& shape, const Box& box) {
  Interval interval = {0, 1};
  int64_t stride = 1;
  bool is_cut = false;  // a dimension after this one is not whole
  for (int d = shape.rank(); d-- > 0;) {
    if (is_cut && box.count[d] != 1) return std::nullopt;
    interval.begin += box.start[d] * stride;
    interval.end += box.start[d] * stride + (box.count[d] - 1) * stride;
    is_cut = is_cut || box.count[d] != shape.dim(d);
    stride *= shape.dim(d);
  }
  return interval;
}

class ViewWriter {
 public:
  using NameFile = std::function<std::string(const std::string& file)>;

  // `name_file` gives the name that a file of the source has in the view.
  ViewWriter(const TensorSource& source, Hdf5File& file, NameFile name_file)
      : source_(source), file_(file), name_file_(std::move(name_file)) {}

  absl::Status AddAll() {
    std::vector<std::pair<std::string, const StateKey*>> tensors;  // HDF5 lists them in the order in which they come
    for (const auto& [key, value] : source_.contents().entries()) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        FSDP_RETURN_IF_ERROR(AddText(key, *text));
      } else {
        tensors.emplace_back(key.ToString(), &key);
      }
    }
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const auto& a, const auto& b) { return IsNaturallyBefore(a.first, b.first); });
    for (const auto& [name, key] : tensors) {
      FSDP_RETURN_IF_ERROR(AddTensor(*key, *source_.contents().FindTensor(*key)));
    }
    for (const auto& [alias, target] : source_.contents().aliases) FSDP_RETURN_IF_ERROR(AddAlias(alias, target));
    return absl::OkStatus();
  }

  Hdf5ViewReport report;
  std::vector<std::pair<int64_t, std::string>> copies;  // by offset in the file

 private:
  // Adds the missing groups above the object at `path`. `groups_` records the ones that exist, because HDF5 refuses a
  // second creation.
  absl::Status AddGroups(const std::string& path, const StateKey& key) {
    for (size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1)) {
      const std::string group = path.substr(0, slash);
      const bool is_parameter = key.section == StateKey::Section::kOptimState &&
                                group == absl::StrCat("/optim/state/", EscapeLinkName(key.fqn));
      if (groups_.insert(group).second)
        FSDP_RETURN_IF_ERROR(file_.AddGroup(group, is_parameter ? IfEscaped(key.fqn) : ""));
    }
    return absl::OkStatus();
  }

  absl::Status AddText(const StateKey& key, const std::string& text) {
    const std::string path = DatasetPath(key);
    FSDP_RETURN_IF_ERROR(AddGroups(path, key));
    FSDP_ASSIGN_OR_RETURN(const int64_t offset,
                          file_.AddText(path, IfEscaped(key.fqn), static_cast<int64_t>(text.size())));
    if (!text.empty()) copies.emplace_back(offset, text);
    return absl::OkStatus();
  }

  // A further name of a tensor; not shown if the tensor is not.
  absl::Status AddAlias(const std::string& alias, const std::string& target) {
    const StateKey key = StateKey::Model(alias);
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    const auto is_target = [&](const auto& one) { return one.name == StateKey::Model(target).ToString(); };
    const auto unshown = std::find_if(report.not_shown.begin(), report.not_shown.end(), is_target);
    if (unshown != report.not_shown.end()) {
      report.not_shown.push_back({key.ToString(), unshown->reason});
      return absl::OkStatus();
    }
    ++report.tensors;
    return file_.AddHardLink(DatasetPath(key), DatasetPath(StateKey::Model(target)));
  }

  absl::Status AddTensor(const StateKey& key, const ShardedTensor& tensor) {
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    const std::string path = DatasetPath(key);
    const std::string& fqn = key.state.empty() ? key.fqn : key.state;
    absl::StatusOr<std::vector<TensorPlace>> places = source_.Places(key);
    const bool is_shown = places.ok() && tensor.shape.numel() > 0;
    if (tensor.shape.rank() > kMaxHdf5Rank) {
      places = absl::UnimplementedError(absl::StrCat("HDF5 has at most ", kMaxHdf5Rank, " dimensions"));
    }
    // Only Unimplemented means "no place", for which a scalar is copied instead; any other error ends the view.
    if (!places.ok() && (tensor.shape.rank() != 0 || !absl::IsUnimplemented(places.status()))) {
      if (!absl::IsUnimplemented(places.status())) return places.status();
      report.not_shown.push_back({key.ToString(), std::string(places.status().message())});
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(AddGroups(path, key));
    ++report.tensors;
    if (!is_shown) return AddCopy(path, fqn, key, tensor);
    return AddPlaces(path, fqn, tensor, *places);
  }

  // For a tensor without elements, or a scalar that has no place, such as a number inside a pickle.
  absl::Status AddCopy(const std::string& path, const std::string& fqn, const StateKey& key,
                       const ShardedTensor& tensor) {
    const std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file_.AddDataset(path, fqn, tensor.dtype, dims));
    if (tensor.shape.numel() == 0) return absl::OkStatus();
    std::string bytes(SizeOf(tensor.dtype), '\0');
    FSDP_RETURN_IF_ERROR(source_.Read(key, {0, 1}, bytes.data()));
    copies.emplace_back(offset, std::move(bytes));
    return absl::OkStatus();
  }

  absl::Status AddPlaces(const std::string& path, const std::string& fqn, const ShardedTensor& tensor,
                         const std::vector<TensorPlace>& places) {
    const Shape& shape = tensor.shape;
    std::vector<std::pair<Interval, ExternalPart>> parts;
    for (const TensorPlace& place : places) {
      const std::optional<Interval> interval = IntervalOf(shape, place.box);
      if (!interval) return AddBoxes(path, fqn, tensor, places);
      parts.push_back({*interval, {name_file_(place.file), place.offset, interval->size() * SizeOf(tensor.dtype)}});
    }
    // Sorted by element, because HDF5 concatenates external segments in the order in which they are added.
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    std::vector<ExternalPart> external;
    for (auto& [interval, part] : parts) external.push_back(std::move(part));
    return file_.AddExternal(path, fqn, tensor.dtype, {shape.dims().begin(), shape.dims().end()}, external);
  }

  // Makes each box a dataset of its own, and the tensor a virtual dataset over them.
  absl::Status AddBoxes(const std::string& path, const std::string& fqn, const ShardedTensor& tensor,
                        const std::vector<TensorPlace>& places) {
    if (groups_.insert(kPiecesGroup).second) FSDP_RETURN_IF_ERROR(file_.AddGroup(kPiecesGroup, ""));
    std::vector<VirtualBox> boxes;
    for (const TensorPlace& place : places) {
      FSDP_ASSIGN_OR_RETURN(const Shape shape, Shape::Create(place.box.count));
      const std::string piece = absl::StrCat(kPiecesGroup, "/", pieces_++);
      const ExternalPart part = {name_file_(place.file), place.offset, shape.numel() * SizeOf(tensor.dtype)};
      FSDP_RETURN_IF_ERROR(file_.AddExternal(piece, "", tensor.dtype, place.box.count, {part}));
      boxes.push_back({place.box, piece});
    }
    return file_.AddVirtualBoxes(path, fqn, tensor.dtype, tensor.shape, boxes);
  }

  const TensorSource& source_;
  Hdf5File& file_;
  const NameFile name_file_;
  std::set<std::string> groups_;
  int64_t pieces_ = 0;
};

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// Writes the image with the copied values inserted to `path`, and sets `*nbytes` to its size. A view is small, so it is
// assembled in memory.
absl::Status WriteImage(const MemoryFile& image, const std::vector<std::pair<int64_t, std::string>>& copies,
                        const std::string& path, const Hdf5ViewOptions& options, int64_t* nbytes) {
  FSDP_ASSIGN_OR_RETURN(*nbytes, image.Size());
  std::string bytes(*nbytes, '\0');
  FSDP_RETURN_IF_ERROR(image.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  for (const auto& [offset, text] : copies) bytes.replace(offset, text.size(), text);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(PosixFileSystem(), path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(staged->file().Write(0, Bytes(bytes)));
  FSDP_RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

// Returns errors of the source as a whole without its name, which the caller adds.
absl::StatusOr<Hdf5ViewReport> WriteViewOf(const TensorSource& source, const std::string& path,
                                           const Hdf5ViewOptions& options) {
  if (source.traits().is_hdf5) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is HDF5 already: open ", source.is_ours() ? "its checkpoint.h5" : "it as it is"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Hdf5File> file,
                        Hdf5File::Create({.virtual_datasets = true, .describes_all = true, .keeps_order = true}));
  FSDP_RETURN_IF_ERROR(file->SetRootAttribute("warning", MovesSentence(options.relative)));
  ViewWriter writer(source, *file, [&](const std::string& name) { return NameInView(path, name, options.relative); });
  writer.report.moves = MovesSentence(options.relative);
  FSDP_RETURN_IF_ERROR(writer.AddAll());
  for (const std::string& left_out : source.left_out())
    writer.report.not_shown.push_back({left_out, "it is not a tensor"});
  FSDP_ASSIGN_OR_RETURN(const MemoryFile image, file->Close());
  FSDP_RETURN_IF_ERROR(WriteImage(image, writer.copies, path, options, &writer.report.nbytes));
  return std::move(writer.report);
}

}  // namespace

// Adds the source's name to errors of the whole view, because the view's writer knows only tensors.
absl::StatusOr<Hdf5ViewReport> WriteHdf5View(const std::string& source, const std::string& path,
                                             const Hdf5ViewOptions& options) {
  InputPaths inputs = options.also_read;
  AddCheckpoint(source, inputs);
  FSDP_RETURN_IF_ERROR(CheckOutput(path, inputs, {.kind = OutputKind::kFile}));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> opened, OpenTensorSource(source, options.source));
  AddSource(*opened, inputs);
  FSDP_RETURN_IF_ERROR(CheckOutput(path, inputs, {.kind = OutputKind::kFile}));
  absl::StatusOr<Hdf5ViewReport> report = WriteViewOf(*opened, path, options);
  if (report.ok() || !absl::IsInvalidArgument(report.status())) return report;
  return Annotate(report.status(), source);
}

}  // namespace fsdp
