// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/onnx/onnx_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// Fields of TensorProto.
constexpr int kDims = 1;
constexpr int kDataType = 2;
constexpr int kSegment = 3;
constexpr int kFloatData = 4;
constexpr int kInt32Data = 5;
constexpr int kStringData = 6;
constexpr int kInt64Data = 7;
constexpr int kName = 8;
constexpr int kRawData = 9;
constexpr int kDoubleData = 10;
constexpr int kUInt64Data = 11;
constexpr int kExternalData = 13;
constexpr int kDataLocation = 14;

constexpr size_t kMaxDims = 64;
constexpr int64_t kMaxEntryBytes = 8192;  // of a key and a value of external_data

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

std::string FieldName(int field) {
  switch (field) {
    case kFloatData:
      return "float_data";
    case kInt32Data:
      return "int32_data";
    case kStringData:
      return "string_data";
    case kInt64Data:
      return "int64_data";
    case kRawData:
      return "raw_data";
    case kDoubleData:
      return "double_data";
    default:
      return "uint64_data";
  }
}

class TensorReader {
 public:
  explicit TensorReader(ProtobufCursor& cursor) : cursor_(cursor) {}

  absl::StatusOr<OnnxTensor> Read(int64_t end) {
    while (cursor_.position() < end) {
      FSDP_ASSIGN_OR_RETURN(const ProtobufField field, cursor_.Next(end));
      const absl::Status status = ReadField(field);
      if (!status.ok()) return Named(status);
    }
    const absl::Status status = Finish();
    if (!status.ok()) return Named(status);
    return std::move(tensor_);
  }

 private:
  absl::Status Named(const absl::Status& status) const {
    if (tensor_.name.empty()) return Annotate(status, absl::StrCat("the tensor before byte ", cursor_.position()));
    return Annotate(status, absl::StrCat("tensor ", Quote(tensor_.name)));
  }

  absl::Status ReadField(const ProtobufField& field) {
    switch (field.number) {
      case kDims:
        return ReadDims(field);
      case kDataType:
        FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kVarint, "data_type"));
        type_id_ = field.integer;
        return absl::OkStatus();
      case kName: {
        FSDP_ASSIGN_OR_RETURN(tensor_.name, cursor_.Text(field, kMaxTensorNameBytes, "the name"));
        return absl::OkStatus();
      }
      case kSegment:
        has_segment_ = true;
        return cursor_.Skip(field);
      case kFloatData:
      case kInt32Data:
      case kInt64Data:
      case kRawData:
      case kDoubleData:
      case kUInt64Data:
        return ReadData(field);
      case kStringData:
        FSDP_RETURN_IF_ERROR(SetDataField(field));
        return cursor_.Skip(field);
      case kExternalData:
        return ReadExternal(field);
      case kDataLocation:
        FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kVarint, "data_location"));
        if (field.integer > 1) return Damaged(absl::StrCat("data_location is ", field.integer, ", expected 0 or 1"));
        is_external_ = field.integer == 1;
        return absl::OkStatus();
      default:
        return cursor_.Skip(field);  // texts for people, and fields of later releases
    }
  }

  // Packed or one by one: both are allowed.
  absl::Status ReadDims(const ProtobufField& field) {
    const auto add = [&](uint64_t dim) {
      if (dims_.size() == kMaxDims) return Damaged(absl::StrCat("it has more than ", kMaxDims, " dimensions"));
      dims_.push_back(static_cast<int64_t>(dim));  // Shape refuses a negative number
      return absl::OkStatus();
    };
    if (field.wire != ProtobufWire::kBytes) {
      FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kVarint, "dims"));
      return add(field.integer);
    }
    while (cursor_.position() < field.range.end()) {
      FSDP_ASSIGN_OR_RETURN(const uint64_t dim, cursor_.Varint());
      FSDP_RETURN_IF_ERROR(add(dim));
    }
    if (cursor_.position() == field.range.end()) return absl::OkStatus();
    return Damaged("dims end in a number");
  }

  // The elements are in one field only.
  absl::Status SetDataField(const ProtobufField& field) {
    if (data_field_ != 0 && data_field_ != field.number) {
      return Damaged(absl::StrCat("it has elements in ", FieldName(data_field_), " and in ", FieldName(field.number)));
    }
    if (data_field_ == kRawData) return Damaged("it has raw_data twice");
    data_field_ = field.number;
    return absl::OkStatus();
  }

  absl::Status ReadData(const ProtobufField& field) {
    FSDP_RETURN_IF_ERROR(SetDataField(field));
    const bool is_packed = field.wire == ProtobufWire::kBytes;
    const std::string name = FieldName(field.number);
    const bool is_fixed = field.number == kFloatData || field.number == kDoubleData;
    if (field.number == kRawData || is_fixed) {
      const ProtobufWire one = field.number == kRawData     ? ProtobufWire::kBytes
                               : field.number == kFloatData ? ProtobufWire::kFixed32
                                                            : ProtobufWire::kFixed64;
      if (!is_packed) FSDP_RETURN_IF_ERROR(CheckWire(field, one, name.c_str()));
      tensor_.ranges.push_back(field.range);
      return cursor_.Skip(field);
    }
    if (is_packed) return tensor_.varints.AddRun(cursor_, field.range);
    // A number that is not packed was read with its field.
    FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kVarint, name.c_str()));
    tensor_.varints.AddNumber(field.range);
    return absl::OkStatus();
  }

  // {key, value}, both texts.
  absl::Status ReadExternal(const ProtobufField& field) {
    FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kBytes, "external_data"));
    std::string key, value;
    while (cursor_.position() < field.range.end()) {
      FSDP_ASSIGN_OR_RETURN(const ProtobufField part, cursor_.Next(field.range.end()));
      if (part.number == 1 || part.number == 2) {
        FSDP_ASSIGN_OR_RETURN((part.number == 1 ? key : value), cursor_.Text(part, kMaxEntryBytes, "external_data"));
      } else {
        FSDP_RETURN_IF_ERROR(cursor_.Skip(part));
      }
    }
    if (!external_) external_.emplace();
    int64_t number = 0;
    if (key == "location") external_->location = value;
    if (key == "checksum") external_->has_checksum = true;
    if (key != "offset" && key != "length") return absl::OkStatus();
    if (!absl::SimpleAtoi(value, &number) || number < 0) {
      return Damaged(absl::StrCat(key, " of its external data is ", Quote(value), ", expected a number"));
    }
    if (key == "offset") external_->offset = number;
    if (key == "length") external_->length = number;
    return absl::OkStatus();
  }

  absl::Status Finish() {
    tensor_.type = type_id_ > 1000 ? nullptr : FindOnnxType(static_cast<int>(type_id_));
    if (tensor_.type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("its data_type is ", type_id_, ", which is none that this release knows"));
    }
    absl::StatusOr<Shape> shape = Shape::Create(dims_);
    if (!shape.ok()) return Damaged(std::string(shape.status().message()));
    tensor_.shape = *std::move(shape);
    if (tensor_.name.size() > static_cast<size_t>(kMaxTensorNameBytes)) return Damaged("its name is too long");
    tensor_.why_not = WhyNotRead();
    if (!tensor_.why_not.empty()) return absl::OkStatus();
    if (!is_external_) return CheckSize();
    if (data_field_ != 0) return Damaged(absl::StrCat("its elements are external, and in ", FieldName(data_field_)));
    if (!external_ || external_->location.empty()) return Damaged("its external data has no location");
    tensor_.external = std::move(external_);
    return absl::OkStatus();
  }

  std::string WhyNotRead() const {
    if (!tensor_.type->dtype) return "texts";
    if (has_segment_) return "in segments, which no program writes";
    if (!IsPacked(*tensor_.type->dtype) || tensor_.shape.numel() == 0) return "";
    const int rank = tensor_.shape.rank();
    if (rank > 0 && tensor_.shape.dim(rank - 1) % 2 == 0) return "";
    return absl::StrCat(std::string(tensor_.type->name), " of shape ", tensor_.shape.ToString(),
                        ", whose rows are no whole bytes");
  }

  absl::Status CheckSize() const {
    const OnnxType& type = *tensor_.type;
    if (data_field_ != 0 && data_field_ != kRawData && data_field_ != type.field) {
      return Damaged(absl::StrCat("its elements are in ", FieldName(data_field_), ", expected raw_data or ",
                                  FieldName(type.field), " for ", std::string(type.name)));
    }
    int64_t stored = tensor_.varints.count() * type.unit_bytes;
    for (const ByteRange& range : tensor_.ranges) stored += range.nbytes;
    // A file has at most 2^31 bytes, so no sum overflows; the product of a shape is below 2^63.
    const int64_t numel = tensor_.shape.numel();
    if (numel / (8 / std::min(type.bits, 8)) <= stored && tensor_.nbytes() == stored) return absl::OkStatus();
    return Damaged(absl::StrCat("it has ", stored, " bytes of elements, which is not the size of ",
                                tensor_.shape.ToString(), " ", std::string(type.name)));
  }

  ProtobufCursor& cursor_;
  OnnxTensor tensor_;
  std::vector<int64_t> dims_;
  uint64_t type_id_ = 0;
  int data_field_ = 0;  // that has elements; 0: none so far
  bool is_external_ = false;
  bool has_segment_ = false;
  std::optional<OnnxExternalData> external_;
};

}  // namespace

int64_t OnnxTensor::nbytes() const {
  const int64_t numel = shape.numel();
  if (type->bits >= 8) return numel * (type->bits / 8);
  const int per_byte = 8 / type->bits;
  return numel / per_byte + (numel % per_byte == 0 ? 0 : 1);
}

Shape OnnxTensor::read_shape() const {
  if (!IsPacked(*type->dtype) || shape.rank() == 0) return shape;
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims.back() = (dims.back() + 1) / 2;
  return *Shape::Create(dims);
}

absl::StatusOr<OnnxTensor> ReadOnnxTensor(ProtobufCursor& cursor, int64_t end) {
  return TensorReader(cursor).Read(end);
}

}  // namespace fsdp
