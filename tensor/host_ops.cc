// SPDX-License-Identifier: Apache-2.0
//
// TensorOps on the host: each function puts one closure on the stream, which checks its operands (check_operands.h) and
// calls a loop of float_kernels.h. Scalars and elements are read through memcpy, because a view of a flat buffer may be
// at any address.

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/check_operands.h"
#include "fsdp/tensor/float_kernels.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

ConstElements Read(const Tensor& t) { return {t.dtype(), t.data()}; }
MutableElements Write(const Tensor& t) { return {t.dtype(), t.data()}; }

absl::Status RunCastDivide(const Tensor& source, const Tensor& destination, double divisor) {
  FSDP_RETURN_IF_ERROR(CheckPair("cast_divide", source, destination));
  // Three cases, the cheapest that gives the bits: divide, convert, copy.
  if (divisor != 1) {
    CastDivideFloats(Read(source), Write(destination), source.numel(), divisor);
  } else if (source.dtype() != destination.dtype()) {
    ConvertFloats(source.dtype(), source.data(), destination.dtype(), destination.data(), source.numel());
  } else if (source.nbytes() > 0 && source.data() != destination.data()) {
    std::memcpy(destination.data(), source.data(), source.nbytes());
  }
  return absl::OkStatus();
}

absl::Status RunCastDivideIntervals(const Tensor& source, const Tensor& destination,
                                    const std::vector<IntervalCopy>& intervals, double divisor) {
  FSDP_RETURN_IF_ERROR(CheckIntervals("cast_divide_intervals", source, destination, intervals));
  for (const IntervalCopy& i : intervals) {
    FSDP_RETURN_IF_ERROR(
        // CheckIntervals has found every interval inside its tensor, so Slice cannot CHECK-fail.
        RunCastDivide(source.Slice({i.from, i.from + i.numel}), destination.Slice({i.to, i.to + i.numel}), divisor));
  }
  return absl::OkStatus();
}

// May be at any address, so it is read as bytes.
float ReadScalar(const Tensor& t) {
  float value;
  std::memcpy(&value, t.data(), sizeof(value));
  return value;
}

absl::Status RunClipCoefficient(const Tensor& squared_norms, float max_norm, const Tensor& result) {
  FSDP_RETURN_IF_ERROR(CheckClipOperands(squared_norms, result));
  float total = 0;
  for (int64_t i = 0; i < squared_norms.numel(); ++i) total += ReadScalar(squared_norms.Slice({i, i + 1}));
  const float norm = std::sqrt(total);
  const float results[] = {norm, ClipFactor(norm, max_norm)};
  std::memcpy(result.data(), results, sizeof(results));
  return absl::OkStatus();
}

class HostOps final : public TensorOps {
 public:
  void Zero(const Tensor& t, Stream& stream) const override {
    // Every closure owns its tensors by value: the caller may drop its own before the stream runs the closure.
    stream.Run([t]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckDefined("zero", "tensor", t));
      if (t.nbytes() > 0) std::memset(t.data(), 0, t.nbytes());
      return absl::OkStatus();
    });
  }

  void CastDivide(const Tensor& source, const Tensor& destination, double divisor, Stream& stream) const override {
    stream.Run([source, destination, divisor] { return RunCastDivide(source, destination, divisor); });
  }

  void CastDivideIntervals(const Tensor& source, const Tensor& destination, std::vector<IntervalCopy> intervals,
                           double divisor, Stream& stream) const override {
    stream.Run([source, destination, intervals = std::move(intervals), divisor] {
      return RunCastDivideIntervals(source, destination, intervals, divisor);
    });
  }

  void Accumulate(const Tensor& source, const Tensor& destination, Stream& stream) const override {
    stream.Run([source, destination]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckPair("accumulate", source, destination));
      AccumulateFloats(Read(source), Write(destination), source.numel());
      return absl::OkStatus();
    });
  }

  void ScaleBy(std::vector<Tensor> tensors, const Tensor& factor, Stream& stream) const override {
    stream.Run([tensors = std::move(tensors), factor]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckScalar("scale_by", "factor", factor));
      for (const Tensor& t : tensors) FSDP_RETURN_IF_ERROR(CheckFloats("scale_by", "tensor", t));
      for (const Tensor& t : tensors) ScaleFloats(Write(t), t.numel(), ReadScalar(factor));
      return absl::OkStatus();
    });
  }

  // Each source is rounded into the result before the next, as by calls for one source each.
  void AccumulateSquaredNorm(std::vector<Tensor> sources, const Tensor& result, Stream& stream) const override {
    stream.Run([sources = std::move(sources), result]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckScalar("accumulate_squared_norm", "result", result));
      for (const Tensor& source : sources) {
        FSDP_RETURN_IF_ERROR(CheckFloats("accumulate_squared_norm", "source", source));
        const double sum = double{ReadScalar(result)} + SquaredNormOfFloats(Read(source), source.numel());
        const float rounded = static_cast<float>(sum);
        std::memcpy(result.data(), &rounded, sizeof(rounded));
      }
      return absl::OkStatus();
    });
  }

  void CheckFinite(std::vector<Tensor> tensors, const Tensor& found_inf, Stream& stream) const override {
    stream.Run([tensors = std::move(tensors), found_inf]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckScalar("check_finite", "found_inf", found_inf));
      const float one = 1;
      for (const Tensor& t : tensors) {
        FSDP_RETURN_IF_ERROR(CheckFloats("check_finite", "tensor", t));
        // Never writes 0: found_inf collects the results of several calls.
        if (!AllFinite(Read(t), t.numel())) std::memcpy(found_inf.data(), &one, sizeof(one));
      }
      return absl::OkStatus();
    });
  }

  void CopyTensors(std::vector<TensorCopy> copies, Stream& stream) const override {
    stream.Run([copies = std::move(copies)]() -> absl::Status {
      for (const TensorCopy& copy : copies) FSDP_RETURN_IF_ERROR(CheckCopy(copy.source, copy.destination));
      for (const TensorCopy& copy : copies) {
        if (copy.source.nbytes() > 0) std::memcpy(copy.destination.data(), copy.source.data(), copy.source.nbytes());
      }
      return absl::OkStatus();
    });
  }

  void ClipCoefficient(const Tensor& squared_norms, float max_norm, const Tensor& result,
                       Stream& stream) const override {
    stream.Run([squared_norms, max_norm, result] { return RunClipCoefficient(squared_norms, max_norm, result); });
  }
};

}  // namespace

const TensorOps& HostTensorOps() {
  static const HostOps ops;
  return ops;
}

}  // namespace fsdp
