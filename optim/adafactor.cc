// SPDX-License-Identifier: Apache-2.0
//
// A step has two sums over ranks, since each needs what the one before gives:
//
//   1. of each parameter the sum of p^2, of a matrix the sums of g^2 over each row and column: every rank adds up its
//      slice. From the totals every rank computes the same new factors.
//   2. the sum of u^2, for the limit d. Then each rank updates its slice.
//
// Sums are in float64: float32 elements in whatever slices then have the same total but for about 2^-53. u is computed
// twice rather than kept. Each parameter is computed on one thread, so results do not depend on the number of threads.
#include "fsdp/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/host_floats.h"
#include "fsdp/optim/host_step.h"
#include "fsdp/optim/param_groups.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/optim/state_buffers.h"
#include "fsdp/optim/update_ops.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

constexpr char kName[] = "Adafactor";

// torch.finfo(dtype).eps.
double EpsilonOf(DType dtype) {
  if (dtype == DType::kBFloat16) return 0x1p-7;
  return dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-23;
}

constexpr NumberField<AdafactorOptions> kFields[] = {
    {"lr", &AdafactorOptions::lr}, {"beta2_decay", &AdafactorOptions::beta2_decay},   {"eps2", &AdafactorOptions::eps2},
    {"d", &AdafactorOptions::d},   {"weight_decay", &AdafactorOptions::weight_decay},
};

// The factors are small and whole on every rank; a variance is sharded like the vector.
// Matrices have factors, vectors a variance.
bool HasState(const ShardedParameter& parameter, std::string_view state) {
  return (parameter.shape.rank() > 1) == (state == kRowVar || state == kColVar);
}

// The last two dimensions of a shape, and the number of such matrices; no rows if it has fewer dimensions.
struct Matrices {
  int64_t rows = 0, columns = 0, count = 0;

  explicit Matrices(const Shape& shape) {
    if (shape.rank() < 2) return;
    rows = shape.dim(shape.rank() - 2);
    columns = shape.dim(shape.rank() - 1);
    count = rows * columns == 0 ? 0 : shape.numel() / (rows * columns);
  }
};

}  // namespace

// A step needs two sums over the whole parameter: squares of values and of gradients by row and column, then the square
// of the update. Each rank adds up its slice, the exchange adds the ranks, and every rank computes the same factors
// from the totals. All parameters share each exchange, so a step has two of them, however many parameters there are.
// One parameter in a step.
struct Adafactor::Work {
  ShardedParameter* parameter;
  const AdafactorOptions* options;
  double step;
  Matrices matrices;
  std::vector<float> gradient;  // of the slice
  HostFloats data;              // likewise
  HostFloats row_var;           // null of a vector
  HostFloats col_var;
  HostFloats variance;                   // null of a matrix
  std::vector<float> mean_row_var = {};  // by matrix, at least eps1
  double alpha = 0;                      // the step's size

  bool is_matrix() const { return parameter->shape.rank() > 1; }
  int64_t first() const { return parameter->interval.begin; }
  double eps1() const { return options->eps1.value_or(EpsilonOf(parameter->data.dtype())); }
  double numel() const { return static_cast<double>(parameter->shape.numel()); }

  // Calls f(i, row, column) for element i of the slice, in rows and columns counted over all matrices.
  template <typename F>
  void ForEach(F f) const {
    const auto size = static_cast<int64_t>(gradient.size());
    for (int64_t i = 0; i < size;) {
      const int64_t row = (first() + i) / matrices.columns, column = (first() + i) % matrices.columns;
      const int64_t first_column = row / matrices.rows * matrices.columns;
      const int64_t end = std::min(size, i + matrices.columns - column);
      for (int64_t c = column; i < end; ++i, ++c) f(i, row, first_column + c);
    }
  }

  // Step 1: the sum of p^2, then of a matrix the sums of g^2 by row and by column.
  std::vector<double> Squares() const {
    const float* const p = data.data();
    std::vector<double> sums(1 + (matrices.rows + matrices.columns) * matrices.count, 0);
    for (size_t i = 0; i < gradient.size(); ++i) sums[0] += static_cast<double>(p[i]) * p[i];
    if (!is_matrix()) return sums;
    double* const rows = sums.data() + 1;
    double* const columns = rows + matrices.rows * matrices.count;
    ForEach([&](int64_t i, int64_t row, int64_t column) {
      const double square = static_cast<double>(gradient[i]) * gradient[i];
      rows[row] += square;
      columns[column] += square;
    });
    return sums;
  }

  // The totals of all ranks: the new state, the same on every rank, and the size of the step.
  void TakeSquares(const std::vector<double>& totals) {
    const double rho = std::min(options->lr, 1 / std::sqrt(step));
    alpha = std::max(options->eps2, std::sqrt(totals[0] / numel())) * rho;
    const auto weight = static_cast<float>(std::pow(step, options->beta2_decay));
    if (!is_matrix()) {
      float* const v = variance.data();
      for (size_t i = 0; i < gradient.size(); ++i) v[i] = Lerp(v[i], gradient[i] * gradient[i], weight);
      return;
    }
    float* const r = row_var.data();
    float* const c = col_var.data();
    const double* const rows = totals.data() + 1;
    const double* const columns = rows + matrices.rows * matrices.count;
    mean_row_var.assign(matrices.count, 0);
    for (int64_t m = 0; m < matrices.count; ++m) {
      double sum = 0;
      for (int64_t i = m * matrices.rows; i < (m + 1) * matrices.rows; ++i) {
        r[i] = Lerp(r[i], static_cast<float>(rows[i] / static_cast<double>(matrices.columns)), weight);
        sum += r[i];
      }
      mean_row_var[m] =
          std::max(static_cast<float>(sum / static_cast<double>(matrices.rows)), static_cast<float>(eps1()));
    }
    for (int64_t i = 0; i < matrices.columns * matrices.count; ++i) {
      c[i] = Lerp(c[i], static_cast<float>(columns[i] / static_cast<double>(matrices.rows)), weight);
    }
  }

  // Calls f(i, u) for element i of the slice.
  template <typename F>
  void ForEachUpdate(F f) const {
    const auto least = static_cast<float>(eps1() * eps1());
    const auto update = [&](int64_t i, float v) { f(i, gradient[i] * (1 / std::sqrt(std::max(v, least)))); };
    if (!is_matrix()) {
      for (size_t i = 0; i < gradient.size(); ++i) update(static_cast<int64_t>(i), variance.data()[i]);
      return;
    }
    const float* const r = row_var.data();
    const float* const c = col_var.data();
    ForEach([&](int64_t i, int64_t row, int64_t column) {
      update(i, r[row] * c[column] / mean_row_var[row / matrices.rows]);
    });
  }

  // Step 2.
  std::vector<double> SquareOfUpdate() const {
    double sum = 0;
    ForEachUpdate([&](int64_t, float u) { sum += static_cast<double>(u) * u; });
    return {sum};
  }

  void TakeUpdate(double total) {
    const double size = std::max(1.0, std::sqrt(total / numel()) / options->d);
    const auto scale = static_cast<float>(-alpha / size);
    const auto keep = static_cast<float>(1 - options->lr * options->weight_decay);
    float* const p = data.data();
    ForEachUpdate([&](int64_t i, float u) { p[i] = p[i] * keep + scale * u; });
  }

  // Rounds the results to the parameter's dtype. A parameter has a variance or both factors.
  absl::Status Store(const std::optional<StochasticRounding>& rounding) const {
    FSDP_RETURN_IF_ERROR(data.Store(rounding, {.number = 0}));
    if (!is_matrix()) return variance.Store(rounding, {.number = 1});
    FSDP_RETURN_IF_ERROR(row_var.Store(rounding, {.number = 1, .is_whole = true}));
    return col_var.Store(rounding, {.number = 2, .is_whole = true});
  }
};

absl::Status Validate(const AdafactorOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckNotNegative("lr", options.lr));
  FSDP_RETURN_IF_ERROR(CheckFiniteOption("beta2_decay", options.beta2_decay));
  if (options.beta2_decay > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("beta2_decay is ", options.beta2_decay, ": expected a finite number of at most 0"));
  }
  FSDP_RETURN_IF_ERROR(CheckNotNegative("eps1", options.eps1.value_or(0)));
  FSDP_RETURN_IF_ERROR(CheckNotNegative("eps2", options.eps2));
  FSDP_RETURN_IF_ERROR(CheckFiniteOption("d", options.d));
  if (options.d < 1) {
    return absl::InvalidArgumentError(absl::StrCat("d is ", options.d, ": expected a finite number of at least 1"));
  }
  return CheckNotNegative("weight_decay", options.weight_decay);
}

Adafactor::Adafactor(std::vector<ShardedParameter*> parameters, const AdafactorOptions& options,
                     std::shared_ptr<ShardExchange> exchange)
    : Adafactor(std::vector<Group>{{std::move(parameters), options}}, std::move(exchange)) {}

Adafactor::Adafactor(std::vector<Group> groups, std::shared_ptr<ShardExchange> exchange)
    : Optimizer(ParametersOf(groups), {std::string(kRowVar), std::string(kColVar), "variance"}),
      groups_(std::move(groups)),
      exchange_(std::move(exchange)) {
  for (size_t g = 0; g < groups_.size(); ++g) LimitStates(g, HasState);
}

absl::Status Adafactor::AddParamGroup(Group group) {
  FSDP_RETURN_IF_ERROR(ValidateGroup(kName, groups_.size(), group.options));
  FSDP_RETURN_IF_ERROR(Annotate(AddParameters(group.parameters, HasState), kName));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status Adafactor::Step(Stream& stream) {
  FSDP_RETURN_IF_ERROR(ValidateGroups(kName, groups_));
  FSDP_ASSIGN_OR_RETURN(const std::vector<size_t> indices, ParametersToUpdate());
  if (indices.empty()) {
    FinishStep(indices);
    return absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(CheckOnHost(kName, indices));
  for (const size_t i : indices) FSDP_RETURN_IF_ERROR(CheckWhole(kName, *parameters()[i], exchange_.get()));
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  if (!Skips(ExtrasOf(indices[0]))) {
    FSDP_ASSIGN_OR_RETURN(std::vector<Work> works, Prepare(indices));
    FSDP_RETURN_IF_ERROR(Update(works, KernelThreads(*parameters()[indices[0]]->device)));
    for (size_t k = 0; k < works.size(); ++k) FSDP_RETURN_IF_ERROR(works[k].Store(ExtrasOf(indices[k]).rounding));
  }
  for (const size_t i : indices) {
    FSDP_RETURN_IF_ERROR(RefreshCopy(parameters()[i]->data, parameters()[i]->compute_copy));
  }
  FinishStep(indices);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Adafactor::Work>> Adafactor::Prepare(const std::vector<size_t>& indices) {
  const auto memory = [this](size_t number, size_t i) -> absl::StatusOr<HostFloats> {
    if (!state().has(number, i)) return HostFloats();
    return HostFloats::Of(state().slice(number, i));
  };
  std::vector<Work> works;
  for (const size_t i : indices) {
    FSDP_RETURN_IF_ERROR(state().Create(i));
    ShardedParameter* const parameter = parameters()[i];
    FSDP_ASSIGN_OR_RETURN(std::vector<float> gradient, GradientOf(*parameter, ExtrasOf(i)));
    FSDP_ASSIGN_OR_RETURN(HostFloats data, HostFloats::Of(parameter->data));
    FSDP_ASSIGN_OR_RETURN(HostFloats row_var, memory(0, i));
    FSDP_ASSIGN_OR_RETURN(HostFloats col_var, memory(1, i));
    FSDP_ASSIGN_OR_RETURN(HostFloats variance, memory(2, i));
    works.push_back({.parameter = parameter,
                     .options = &groups_[group_of(i)].options,
                     .step = static_cast<double>(step_count(i) + 1),
                     .matrices = Matrices(parameter->shape),
                     .gradient = std::move(gradient),
                     .data = std::move(data),
                     .row_var = std::move(row_var),
                     .col_var = std::move(col_var),
                     .variance = std::move(variance)});
  }
  return works;
}

absl::Status Adafactor::Sum(const std::vector<Work>& works, std::vector<std::vector<double>>& values) const {
  if (exchange_ == nullptr) return absl::OkStatus();
  std::vector<const ShardedParameter*> parameters;
  for (const Work& work : works) parameters.push_back(work.parameter);
  return Annotate(exchange_->Sum(parameters, absl::MakeSpan(values)), kName);
}

absl::Status Adafactor::Update(std::vector<Work>& works, int threads) const {
  std::vector<std::vector<double>> sums(works.size());
  const auto for_each = [&](auto f) {
    return ParallelForEach(threads, static_cast<int64_t>(works.size()), [&](int, int64_t k) {
      f(works[k], sums[k]);
      return absl::OkStatus();
    });
  };
  FSDP_RETURN_IF_ERROR(for_each([](const Work& work, std::vector<double>& sum) { sum = work.Squares(); }));
  FSDP_RETURN_IF_ERROR(Sum(works, sums));
  FSDP_RETURN_IF_ERROR(for_each([](Work& work, std::vector<double>& sum) {
    work.TakeSquares(sum);
    sum = work.SquareOfUpdate();
  }));
  FSDP_RETURN_IF_ERROR(Sum(works, sums));
  return for_each([](Work& work, const std::vector<double>& sum) { work.TakeUpdate(sum[0]); });
}

std::vector<ParamGroupState> Adafactor::FormulaGroups() const {
  std::vector<ParamGroupState> states;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const AdafactorOptions& o = groups_[g].options;
    states.push_back({GroupNames(g),
                      {{"lr", o.lr},
                       {"beta2_decay", o.beta2_decay},
                       {"eps1", o.eps1.value_or(std::numeric_limits<double>::quiet_NaN())},
                       {"eps2", o.eps2},
                       {"d", o.d},
                       {"weight_decay", o.weight_decay}}});
  }
  return states;
}

absl::Status Adafactor::CheckFormula(size_t group, std::string_view name, double value) const {
  FSDP_RETURN_IF_ERROR(CheckGroup(kName, group));
  AdafactorOptions options = groups_[group].options;
  if (double* const field = FieldOf(kFields, options, name); field != nullptr) {
    *field = value;
  } else if (name == "eps1") {
    options.eps1 = std::isnan(value) ? std::nullopt : std::optional<double>(value);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("Adafactor has no hyperparameter \"", std::string(name),
                                                   "\"; it has lr, beta2_decay, eps1, eps2, d, weight_decay"));
  }
  return ValidateGroup(kName, group, options);
}

void Adafactor::AssignFormula(size_t group, std::string_view name, double value) {
  AdafactorOptions& options = groups_[group].options;
  if (double* const field = FieldOf(kFields, options, name); field != nullptr) {
    *field = value;
  } else {
    options.eps1 = std::isnan(value) ? std::nullopt : std::optional<double>(value);
  }
}

}  // namespace fsdp
