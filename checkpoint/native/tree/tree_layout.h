// SPDX-License-Identifier: Apache-2.0
//
// TreeFile: the values of one HDF5 file of a checkpoint. LayOutTree: the places of their bytes in it. The tree of the
// format is /model/<fqn>, /optim/state/<fqn>/<state>, /optim/param_groups, /extra/<name>; in rank files also
// /fsdp/record, and /flat/<unit>/... if the rank's shards are flat.
//
// The forms that a tensor takes on its way to disk:
//
//   ShardedTensor             tensor/state_dict.h       the caller's shards in memory
//        |  PlanSave          native/save/save_plan.h          names and shards are checked
//   TreeFile::TensorPart      this file                 one interval, its reader, and the place of its elements
//        |  LayOutTree        HDF5 lays the file out in memory, without payload
//   ByteRange                 TreeRanges::tensors       the bytes of its dataset in the file
//        |  LaidOutFile       tree_file.h
//   PayloadExtent             payload_writer.h          a byte range and a reader of blocks
//        |  WritePayload      blocks are written and digested
//   StoredTensor              native/format/manifest.h         intervals at offsets of files: records, manifests
//        |  EncodeRecord, MergeRecords, EncodeManifest
//   JSON in the rank file and in manifest.json
#ifndef FSDP_CHECKPOINT_NATIVE_TREE_TREE_LAYOUT_H_
#define FSDP_CHECKPOINT_NATIVE_TREE_TREE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/hdf5/hdf5_file.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/memory_file.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The length of a record is a multiple of this. HDF5 then aligns the record to it too, so that FindRecord finds it
// without HDF5. Part of the format.
inline constexpr int64_t kRecordAlignment = 4096;

// See TreeFile::is_for_all_programs.
inline constexpr size_t kMaxDescribedTensors = 10'000;

// Returns the address of the elements `interval` of a tensor: their own memory, or `scratch` after copying them there.
// Called from several threads, for at most kBlockBytes.
using ElementReader = std::function<absl::StatusOr<const std::byte*>(const Interval& interval, std::byte* scratch)>;

struct TreeFile {
  // The place of the elements of a tensor. In the tensor's own dataset:
  struct Own {};
  // in flats[flat], from element `begin` of it:
  struct InFlat {
    int flat = 0;
    int64_t begin = 0;
  };
  // in links[link], which an earlier save wrote, from byte `offset`:
  struct Linked {
    int link = 0;
    int64_t offset = 0;
  };
  // or in other files, which a virtual dataset shows:
  struct Shown {
    std::vector<VirtualPart> parts;  // at least one
  };

  struct TensorPart {
    StateKey key = {};
    std::vector<std::string> aliases = {};
    DType dtype = DType::kFloat32;
    Shape shape = {};
    Interval interval = {};   // the elements in this file; may be empty
    ElementReader read = {};  // of elements of `interval`; not called for Shown or if is_shared
    std::variant<Own, InFlat, Linked, Shown> place = Own();

    const InFlat* in_flat() const { return std::get_if<InFlat>(&place); }
    const Linked* linked() const { return std::get_if<Linked>(&place); }
    const Shown* shown() const { return std::get_if<Shown>(&place); }
  };
  // A long dataset that several tensors share; elements between them are zero.
  struct FlatPart {
    std::string path;
    std::string unit;  // attribute of the group of the unit
    DType dtype = DType::kFloat32;
    int64_t numel = 0;

    int64_t nbytes() const { return numel * SizeOf(dtype); }
  };
  struct Text {
    StateKey key;
    std::string text;

    // Bytes of its dataset: an empty text has one byte, the string's NUL.
    int64_t dataset_bytes() const { return text.empty() ? 1 : static_cast<int64_t>(text.size()); }
  };

  // True when the file has a dataset only for `tensor`. A rank file names tensors of which it has no elements, without
  // a dataset.
  bool HasDataset(const TensorPart& tensor) const {
    return tensor.in_flat() == nullptr && tensor.linked() == nullptr && !IsOnlyNamed(tensor);
  }
  bool IsOnlyNamed(const TensorPart& tensor) const { return record.has_value() && tensor.interval.empty(); }

  std::string name;
  std::vector<TensorPart> tensors;
  std::vector<FlatPart> flats;
  std::vector<Text> texts;
  std::vector<StoredFile> links;       // files of earlier saves
  std::optional<RecordHeader> record;  // of a rank file, which describes itself
  bool is_shared = false;  // WriteTreeParts writes the elements of tensors later; their extents are not described
  RunMetadata attributes;  // of the root group
  // For people and programs that do not read the manifest: aliases are hard links, tensors are laid out and listed in
  // the order of people ("h.2" before "h.10"), and each has its dtype and name as attributes if they are at most
  // kMaxDescribedTensors, which HDF5 writes in a tenth of a second.
  bool is_for_all_programs = false;
  bool stands_alone = false;  // a file for all programs without a manifest: tensors have the attributes, however many

  // Called after each tensor is laid out, whether or not it has a dataset; may be empty.
  std::function<void()> laid_out = {};
};

// The attributes of the root group of a file for other programs: those of the run ("model.n_head"), and format,
// producer and, if it is known, step.
RunMetadata RootAttributes(const SaveIdentity& save);

// The places of the values of a TreeFile in the file.
struct TreeRanges {
  int64_t nbytes = 0;              // of the file
  std::vector<ByteRange> tensors;  // by index of TreeFile::tensors; empty without payload of the tensor in the file
  std::vector<ByteRange> flats;
  std::vector<ByteRange> texts;  // whole datasets, at least one byte each
  std::optional<ByteRange> record;
};

struct TreeLayout {
  MemoryFile image;  // every byte that is not payload
  TreeRanges ranges;
};

// Lays `tree` out, with `record_bytes` for the record of a rank file and 0 for other files. kResourceExhausted when the
// file may exceed the size that the process may write.
absl::StatusOr<TreeLayout> LayOutTree(const TreeFile& tree, int64_t record_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_TREE_TREE_LAYOUT_H_
