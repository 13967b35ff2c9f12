// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor/convert_kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_kernels.h"

namespace fsdp {
namespace {

// What a kernel must be given. The checks run on the stream, so that their errors come in stream order as all others
// do.
absl::Status CheckDefined(std::string_view op, std::string_view role, const Tensor& t) {
  if (t.defined()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(role), " is undefined"));
}

absl::Status CheckFloats(std::string_view op, std::string_view role, const Tensor& t) {
  RETURN_IF_ERROR(CheckDefined(op, role, t));
  switch (t.dtype()) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kBFloat16:
    case DType::kFloat16:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(role), " is ",
                                                     std::string(DTypeName(t.dtype())),
                                                     ", not float64, float32, bfloat16 or float16"));
  }
}

absl::Status CheckScalar(std::string_view op, std::string_view role, const Tensor& t) {
  RETURN_IF_ERROR(CheckDefined(op, role, t));
  if (t.dtype() == DType::kFloat32 && t.numel() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": ", std::string(role), " is ",
                                                 std::string(DTypeName(t.dtype())), " ", t.shape().ToString(),
                                                 ", not one float32 element"));
}

absl::Status CheckPair(std::string_view op, const Tensor& source, const Tensor& destination) {
  RETURN_IF_ERROR(CheckFloats(op, "source", source));
  RETURN_IF_ERROR(CheckFloats(op, "destination", destination));
  if (source.numel() == destination.numel()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": source has ", source.numel(),
                                                 " elements, destination has ", destination.numel()));
}

ConstElements Read(const Tensor& t) { return {t.dtype(), t.data()}; }
Elements Write(const Tensor& t) { return {t.dtype(), t.data()}; }

absl::Status RunCastDivide(const Tensor& source, const Tensor& destination, double divisor) {
  RETURN_IF_ERROR(CheckPair("cast_divide", source, destination));
  if (divisor != 1) {
    CastDivideFloats(Read(source), Write(destination), source.numel(), divisor);
  } else if (source.dtype() != destination.dtype()) {
    ConvertFloats(source.dtype(), source.data(), destination.dtype(), destination.data(), source.numel());
  } else if (source.nbytes() > 0 && source.data() != destination.data()) {
    std::memcpy(destination.data(), source.data(), source.nbytes());
  }
  return absl::OkStatus();
}

// A scalar may lie at any address, so it is read and written as bytes.
float ReadScalar(const Tensor& t) {
  float value;
  std::memcpy(&value, t.data(), sizeof(value));
  return value;
}

class HostOps final : public TensorOps {
 public:
  void Zero(const Tensor& t, Stream& stream) const override {
    stream.Run([t]() -> absl::Status {
      RETURN_IF_ERROR(CheckDefined("zero", "tensor", t));
      if (t.nbytes() > 0) std::memset(t.data(), 0, t.nbytes());
      return absl::OkStatus();
    });
  }

  void CastDivide(const Tensor& source, const Tensor& destination, double divisor, Stream& stream) const override {
    stream.Run([source, destination, divisor] { return RunCastDivide(source, destination, divisor); });
  }

  void Accumulate(const Tensor& source, const Tensor& destination, Stream& stream) const override {
    stream.Run([source, destination]() -> absl::Status {
      RETURN_IF_ERROR(CheckPair("accumulate", source, destination));
      AccumulateFloats(Read(source), Write(destination), source.numel());
      return absl::OkStatus();
    });
  }

  void ScaleBy(const Tensor& t, const Tensor& factor, Stream& stream) const override {
    stream.Run([t, factor]() -> absl::Status {
      RETURN_IF_ERROR(CheckFloats("scale_by", "tensor", t));
      RETURN_IF_ERROR(CheckScalar("scale_by", "factor", factor));
      ScaleFloats(Write(t), t.numel(), ReadScalar(factor));
      return absl::OkStatus();
    });
  }

  void AccumulateSquaredNorm(const Tensor& source, const Tensor& result, Stream& stream) const override {
    stream.Run([source, result]() -> absl::Status {
      RETURN_IF_ERROR(CheckFloats("accumulate_squared_norm", "source", source));
      RETURN_IF_ERROR(CheckScalar("accumulate_squared_norm", "result", result));
      const double sum = double{ReadScalar(result)} + SquaredNormOfFloats(Read(source), source.numel());
      const float rounded = static_cast<float>(sum);
      std::memcpy(result.data(), &rounded, sizeof(rounded));
      return absl::OkStatus();
    });
  }
};

}  // namespace

const TensorOps& HostTensorOps() {
  static const HostOps ops;
  return ops;
}

}  // namespace fsdp
