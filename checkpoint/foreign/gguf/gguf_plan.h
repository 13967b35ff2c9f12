// SPDX-License-Identifier: Apache-2.0
//
// GgufPlan: what a GGUF file will have, computed before an element is read: the order, types and places of its tensors,
// and the bytes before them. Two kinds of file:
//
//   with a template     keys (architecture, vocabulary, ...) and the list of tensors are a GGUF model's, which the
//                       contents must match by name and shape: the result takes the template's place in llama.cpp
//   without             the tensors of the contents, in their dtypes and order; keys of another GGUF file, or metadata
//                       as texts
//
// Blocks that a source carries (block_types.h) are written as they are, as the type that the metadata has for them.
// `type` replaces all types but F32 of a template; without one, the types of floats with two dimensions or more.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_PLAN_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/gguf/ggml_type.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"
#include "fsdp/checkpoint/source/block_types.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// GgufTarget's fields.
struct GgufPlanOptions {
  std::string template_path = {};  // a GGUF model whose keys and list of tensors the file gets; empty: none
  std::string keys_path = {};      // without a template: a GGUF model whose keys the file gets; empty: none
  std::string type = {};  // ggml's name of a type that is written: "Q8_0"; empty: the template's, or the dtypes
};

// The type that GgufPlanOptions::type names. kInvalidArgument for any other name lists those that are written.
absl::StatusOr<const GgmlType*> ParseGgufType(std::string_view name);

struct GgufPlannedTensor {
  std::string name;
  DType dtype = DType::kFloat32;  // of the contents
  bool is_carried = false;        // the contents are its blocks
  GgufTensor stored;              // its type and place in the file
};

class GgufPlan {
 public:
  // kInvalidArgument, before anything is written: an unknown type; contents and template that do not match, with the
  // first names on each side; a dtype that GGUF does not have; more than 4 dimensions; a type to replace the types of a
  // template that has only F32, and so does not show which of its tensors must stay; blocks of another type than the
  // template's. kDataLoss: metadata with types of blocks that do not fit. Errors of opening the template.
  static absl::StatusOr<GgufPlan> Create(const GgufPlanOptions& options, const StateDict& contents,
                                         const std::map<std::string, std::string>& metadata);

  const std::vector<GgufPlannedTensor>& tensors() const { return tensors_; }
  int64_t nbytes() const { return nbytes_; }                        // of the file
  int64_t header_bytes() const { return header_bytes_; }            // before the first tensor, without zeros
  const std::vector<std::string>& notes() const { return notes_; }  // a sentence for each kind of change

  // Bytes of the file from `begin`, all of them inside of header_bytes(). Reads the template's keys.
  absl::Status ReadHeader(int64_t begin, absl::Span<std::byte> out) const;

 private:
  // Bytes of the header: a text, or a range of the template.
  struct Piece {
    std::string text;
    ByteRange range;
    int64_t nbytes() const { return range.nbytes > 0 ? range.nbytes : static_cast<int64_t>(text.size()); }
  };

  absl::Status ReadTemplate(const std::string& path);
  absl::Status ReadKeys(const std::string& path);
  absl::Status MatchTemplate(const StateDict& contents);
  absl::Status AddContents(const StateDict& contents);
  absl::Status Add(const std::string& name, const ShardedTensor& tensor, const GgmlType* type);
  absl::Status AddBlocks(const std::string& name, const ShardedTensor& tensor, const std::string& type_name);
  void Append(GgufPlannedTensor planned);
  void AddKeys(const std::map<std::string, std::string>& metadata);
  bool HasTypesOfTemplate() const;
  void AddTemplateKeys();
  void AddKey(const std::string& key, uint32_t type, const std::string& value);
  void Place();

  const GgmlType* type_ = nullptr;  // of GgufPlanOptions::type
  BlockTypes block_types_;          // of the metadata
  std::shared_ptr<File> template_;  // its first part
  std::vector<GgufEntry> entries_;  // of the template
  std::vector<GgufTensor> listed_;  // of the template, all parts
  int64_t alignment_ = kGgufAlignment;
  std::vector<GgufPlannedTensor> tensors_;
  std::vector<Piece> pieces_;
  uint64_t keys_ = 0;
  int64_t header_bytes_ = 0;
  int64_t nbytes_ = 0;
  std::vector<std::string> notes_;
  std::vector<std::string> kept_wider_;  // tensors whose rows are no multiple of the type's blocks
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_PLAN_H_
