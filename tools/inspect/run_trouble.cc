// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/run_trouble.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// More names would not be read.
constexpr size_t kNamed = 4;

// "a, b, c, d and 12 more".
std::string Listed(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.begin() + std::min(kNamed, names.size()));
  const std::string text = absl::StrJoin(first, ", ");
  return names.size() <= kNamed ? text : absl::StrCat(text, " and ", names.size() - kNamed, " more");
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void AddUnread(const RunHistory& history, std::vector<std::string>& sentences) {
  std::vector<std::string> names;
  for (const RunStep& step : history.steps) {
    if (!step.problem.empty()) names.push_back(Printable(step.name));
  }
  if (names.empty()) return;
  sentences.push_back(absl::StrCat(names.size(), names.size() == 1 ? " step is" : " steps are",
                                   " damaged or could not be read: ", Listed(names), "."));
}

void AddNonFinite(const RunHistory& history, std::vector<std::string>& sentences) {
  for (const RunStep& step : history.steps) {
    std::vector<std::string> names;
    for (size_t i = 0; i < step.layers.size(); ++i) {
      const NonFinite& nonfinite = step.layers[i].nonfinite;
      if (!nonfinite.any()) continue;
      names.push_back(
          absl::StrCat(Printable(history.layers[i]), " (", nonfinite.nan, " NaN, ", nonfinite.inf, " infinite)"));
    }
    if (names.empty()) continue;
    sentences.push_back(
        absl::StrCat("Step ", step.step, " has the first values that are not finite, in ", Listed(names), "."));
    return;
  }
}

struct Jump {
  size_t layer = 0;
  int64_t step = 0;
  double change = 0;
  double times = 0;  // the median before
};

// Of one layer, oldest first.
std::vector<Jump> JumpsOf(const RunHistory& history, size_t layer) {
  std::vector<Jump> jumps;
  std::vector<double> before;
  for (const RunStep& step : history.steps) {
    if (step.layers.empty()) continue;
    const std::optional<double> change = step.layers[layer].change();
    if (!change || !std::isfinite(*change)) continue;
    if (before.size() >= kMinChangesBefore) {
      const double median = Median(before);
      if (median > 0 && *change >= kJump * median) jumps.push_back({layer, step.step, *change, *change / median});
    }
    before.push_back(*change);
  }
  return jumps;
}

std::string JumpText(const RunHistory& history, const Jump& jump) {
  return absl::StrFormat("at step %d %s changed by %.3g of its norm, %.3g times the median of its changes before",
                         jump.step, Printable(history.layers[jump.layer]), jump.change, jump.times);
}

void AddJumps(const RunHistory& history, std::vector<std::string>& sentences) {
  std::vector<Jump> jumps;
  for (size_t layer = 0; layer < history.layers.size(); ++layer) {
    for (const Jump& jump : JumpsOf(history, layer)) jumps.push_back(jump);
  }
  if (jumps.empty()) return;
  const auto is_smaller = [](const Jump& a, const Jump& b) { return a.times < b.times; };
  const auto largest = std::max_element(jumps.begin(), jumps.end(), is_smaller);
  const auto first = std::min_element(jumps.begin(), jumps.end(), [](const Jump& a, const Jump& b) {
    return a.step != b.step ? a.step < b.step : a.times > b.times;
  });
  std::string text = absl::StrCat("The first jump: ", JumpText(history, *first), ".");
  if (largest != first) absl::StrAppend(&text, " The largest: ", JumpText(history, *largest), ".");
  sentences.push_back(text);
}

void AddFrozen(const RunHistory& history, std::vector<std::string>& sentences) {
  std::vector<std::string> frozen;
  bool any_changed = false;
  for (size_t layer = 0; layer < history.layers.size(); ++layer) {
    bool is_compared = false;
    double largest = 0;
    for (const RunStep& step : history.steps) {
      if (step.layers.empty() || !step.layers[layer].has_change) continue;
      is_compared = true;
      largest = std::max(largest, step.layers[layer].squares_changed);
    }
    if (is_compared && largest == 0) frozen.push_back(Printable(history.layers[layer]));
    any_changed = any_changed || largest > 0;
  }
  if (frozen.empty()) return;
  sentences.push_back(any_changed ? absl::StrCat("Never changed: ", Listed(frozen), ".")
                                  : "No value of the model ever changed.");
}

}  // namespace

std::vector<std::string> FindTrouble(const RunHistory& history) {
  std::vector<std::string> sentences;
  AddUnread(history, sentences);
  AddNonFinite(history, sentences);
  AddJumps(history, sentences);
  AddFrozen(history, sentences);
  return sentences;
}

}  // namespace fsdp
