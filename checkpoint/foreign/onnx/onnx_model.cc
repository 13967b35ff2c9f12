// SPDX-License-Identifier: Apache-2.0
//
// Only the fields that lead to tensors are followed. Their numbers are onnx.proto's:
//
//   Model: 2, 3 producer, 7 graph, 8 opset, 14 metadata, 20 training info, 25 functions       Graph: 1 nodes, 5, 15
//   initializers Node: 3 name, 4 op_type, 5 attributes       Attribute: 1 name, 5, 10, 22, 23 tensors, 6, 11 graphs
//   Function: 7 nodes       TrainingInfo: 1, 2 graphs
#include "fsdp/checkpoint/foreign/onnx/onnx_model.h"

#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"
#include "fsdp/checkpoint/foreign/onnx/protobuf_cursor.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

constexpr int64_t kFirstWithOpset = 3;  // ir_version since which each model has an opset_import
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxTextBytes = int64_t{1} << 20;  // of a name, and of a text of the metadata
constexpr size_t kMostNamed = 20;

// Memory for a tensor in model, source and state, besides its name, which is in each.
constexpr int64_t kBytesOfTensor = 900;
constexpr int64_t kAllowance = int64_t{48} << 20;

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

class ModelReader {
 public:
  ModelReader(const File& file, int64_t nbytes) : cursor_(file, nbytes), nbytes_(nbytes) {}

  absl::StatusOr<OnnxModel> Read() {
    const auto read = [&](const ProtobufField& field) { return ReadModelField(field); };
    while (cursor_.position() < nbytes_) FSDP_RETURN_IF_ERROR(ReadField(nbytes_, read));
    if (!has_graph_) return absl::InvalidArgumentError("it has no graph: it is no model of ONNX");
    if (!has_opset_ && model_.ir_version >= kFirstWithOpset) {
      return Damaged("it has no opset_import, which follows the graph: it is truncated");
    }
    if (!version_.empty()) absl::StrAppend(&model_.producer, model_.producer.empty() ? "" : " ", version_);
    return std::move(model_);
  }

 private:
  // Uses one field; what is not read of it is skipped.
  using FieldReader = std::function<absl::Status(const ProtobufField&)>;

  absl::Status ReadField(int64_t end, const FieldReader& read) {
    FSDP_ASSIGN_OR_RETURN(const ProtobufField field, cursor_.Next(end));
    FSDP_RETURN_IF_ERROR(read(field));
    return cursor_.Skip(field);
  }

  // The fields of the message that is the value of `field`.
  absl::Status ReadMessage(const ProtobufField& field, const char* what, const FieldReader& read) {
    FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kBytes, what));
    while (cursor_.position() < field.range.end()) FSDP_RETURN_IF_ERROR(ReadField(field.range.end(), read));
    return absl::OkStatus();
  }

  absl::Status ReadText(const ProtobufField& field, const char* what, std::string& text) {
    FSDP_ASSIGN_OR_RETURN(text, cursor_.Text(field, kMaxTextBytes, what));
    if (!IsUtf8(text)) return Damaged(absl::StrCat(what, " is ", Quote(text), ", expected UTF-8"));
    return Take(2 * std::ssize(text));
  }

  absl::Status ReadModelField(const ProtobufField& field) {
    switch (field.number) {
      case kOnnxIrVersion:
        FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kVarint, "ir_version"));
        model_.ir_version = static_cast<int64_t>(field.integer);
        return absl::OkStatus();
      case kOnnxProducerName:
        return ReadText(field, "producer_name", model_.producer);
      case 3:
        return ReadText(field, "producer_version", version_);
      case kOnnxGraph:
        if (has_graph_) return Damaged("it has two graphs: the file is damaged, or two files are joined");
        has_graph_ = true;
        return ReadGraph(field, "", 0);
      case 8:
        has_opset_ = true;
        return absl::OkStatus();
      case 14:
        return ReadMetadata(field);
      case 20:
        return ReadTraining(field);
      case 25:
        return ReadFunction(field);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status ReadMetadata(const ProtobufField& field) {
    std::string key, value;
    FSDP_RETURN_IF_ERROR(ReadMessage(field, "metadata_props", [&](const ProtobufField& part) {
      if (part.number == 1) return ReadText(part, "a key of metadata_props", key);
      return part.number == 2 ? ReadText(part, "a value of metadata_props", value) : absl::OkStatus();
    }));
    FSDP_RETURN_IF_ERROR(Take(128));
    if (!model_.metadata.try_emplace(key, std::move(value)).second) {
      return Damaged(absl::StrCat("the key ", Quote(key), " of metadata_props is there twice"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTraining(const ProtobufField& field) {
    const std::string prefix = absl::StrCat("training_info.", training_++);
    return ReadMessage(field, "training_info", [&](const ProtobufField& part) {
      if (part.number == 1) return ReadGraph(part, Join(prefix, "initialization"), 1);
      return part.number == 2 ? ReadGraph(part, Join(prefix, "algorithm"), 1) : absl::OkStatus();
    });
  }

  absl::Status ReadFunction(const ProtobufField& field) {
    std::string name = absl::StrCat("function_", functions_++);
    return ReadMessage(field, "a function", [&](const ProtobufField& part) {
      if (part.number == 1) return ReadText(part, "the name of a function", name);
      return part.number == 7 ? ReadNode(part, name, 1) : absl::OkStatus();
    });
  }

  absl::Status ReadGraph(const ProtobufField& field, const std::string& prefix, int depth) {
    if (depth == kMaxDepth) return Damaged(absl::StrCat("it has graphs in more than ", kMaxDepth, " graphs"));
    FSDP_RETURN_IF_ERROR(Take(std::ssize(prefix)));
    return ReadMessage(field, "a graph", [&](const ProtobufField& part) -> absl::Status {
      switch (part.number) {
        case 1:
          return ReadNode(part, prefix, depth);
        case 2:
          return depth == 0 ? ReadText(part, "the name of the graph", model_.graph_name) : absl::OkStatus();
        case 5:
          return ReadInitializer(part, prefix);
        case 15:
          return LeaveOutSparse(part, prefix);
        default:
          return absl::OkStatus();
      }
    });
  }

  absl::Status ReadNode(const ProtobufField& field, const std::string& prefix, int depth) {
    std::string name = absl::StrCat("node_", model_.nodes++);
    return ReadMessage(field, "a node", [&](const ProtobufField& part) {
      if (part.number == 5) return ReadAttribute(part, prefix, name, depth);
      if (part.number != 3) return absl::OkStatus();
      std::string given;
      const absl::Status status = ReadText(part, "the name of a node", given);
      if (!given.empty()) name = std::move(given);
      return status;
    });
  }

  // Names are joined only for a graph: a node may have any number of other attributes.
  absl::Status ReadAttribute(const ProtobufField& field, const std::string& prefix, const std::string& node,
                             int depth) {
    std::string name = "graph";
    int graphs = 0;
    const auto path = [&] { return Join(Join(prefix, node), name); };
    return ReadMessage(field, "an attribute", [&](const ProtobufField& part) -> absl::Status {
      switch (part.number) {
        case 1:
          return ReadText(part, "the name of an attribute", name);
        case 5:
        case 10:
        case 22:
        case 23:
          ++model_.node_tensors;
          skipped_bytes_ += part.range.nbytes;
          return absl::OkStatus();
        case 6:
          return ReadGraph(part, path(), depth + 1);
        case 11:
          return ReadGraph(part, absl::StrCat(path(), ".", graphs++), depth + 1);
        default:
          return absl::OkStatus();
      }
    });
  }

  absl::Status ReadInitializer(const ProtobufField& field, const std::string& prefix) {
    FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kBytes, "an initializer"));
    FSDP_ASSIGN_OR_RETURN(OnnxTensor tensor, ReadOnnxTensor(cursor_, field.range.end()));
    for (const ByteRange& range : tensor.ranges) skipped_bytes_ += range.nbytes;
    if (tensor.name.empty()) {
      return Damaged(absl::StrCat("the initializer before byte ", cursor_.position(), " has no name"));
    }
    tensor.name = Join(prefix, tensor.name);
    FSDP_RETURN_IF_ERROR(Take(kBytesOfTensor + 4 * std::ssize(tensor.name) + tensor.varints.memory() +
                              static_cast<int64_t>(2 * sizeof(ByteRange) * tensor.ranges.size())));
    if (const absl::Status named = CheckTensorName(tensor.name); !named.ok()) {
      return Damaged(std::string(named.message()));
    }
    if (!names_.insert(tensor.name).second) {
      return Damaged(absl::StrCat("the initializer ", Quote(tensor.name), " is there twice"));
    }
    model_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Its values are a tensor, whose name is the initializer's.
  absl::Status LeaveOutSparse(const ProtobufField& field, const std::string& prefix) {
    std::string name;
    FSDP_RETURN_IF_ERROR(ReadMessage(field, "a sparse initializer", [&](const ProtobufField& part) -> absl::Status {
      if (part.number != 1) return absl::OkStatus();
      FSDP_RETURN_IF_ERROR(CheckWire(part, ProtobufWire::kBytes, "the values of a sparse initializer"));
      FSDP_ASSIGN_OR_RETURN(const OnnxTensor values, ReadOnnxTensor(cursor_, part.range.end()));
      name = Join(prefix, values.name);
      return absl::OkStatus();
    }));
    skipped_bytes_ += field.range.nbytes;
    ++model_.left_out_count;
    if (model_.left_out.size() < kMostNamed) model_.left_out.push_back(absl::StrCat(Quote(name), " (sparse)"));
    return absl::OkStatus();
  }

  // Counts memory that may grow faster than what was read of the file, without elements.
  absl::Status Take(int64_t nbytes) {
    taken_ += nbytes;
    const int64_t read = cursor_.position() - skipped_bytes_;
    if (taken_ <= kAllowance + 3 * read) return absl::OkStatus();
    return Damaged(absl::StrCat("the names and tensors in ", read, " bytes would take ", taken_, " bytes of memory"));
  }

  ProtobufCursor cursor_;
  const int64_t nbytes_;
  OnnxModel model_;
  std::string version_;
  bool has_graph_ = false;
  bool has_opset_ = false;
  int training_ = 0;
  int functions_ = 0;
  absl::flat_hash_set<std::string> names_;
  int64_t taken_ = 0;
  int64_t skipped_bytes_ = 0;
};

}  // namespace

absl::StatusOr<OnnxModel> ReadOnnxModel(const File& file) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  if (nbytes > kMaxProtobufBytes) {
    return Damaged(absl::StrCat("it has ", nbytes, " bytes, but a model of ONNX has at most ", kMaxProtobufBytes,
                                ", and larger ones have their elements in other files: it is damaged, or several "
                                "files are joined"));
  }
  return ModelReader(file, nbytes).Read();
}

}  // namespace fsdp
