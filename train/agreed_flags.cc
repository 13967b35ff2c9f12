// SPDX-License-Identifier: Apache-2.0
//
// The flags come from Abseil's table of flags, so that a new one is compared unless it is listed here.
#include "fsdp/train/agreed_flags.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr absl::string_view kOfOneHost[] = {"nproc",  "run_id",    "join_timeout", "grace",
                                            "device", "share_gpu", "backend"};

// AgreeOnAttributes and ModelLayout compare what is in them.
constexpr absl::string_view kComparedByContents[] = {"config", "data", "tokens", "flat_layout"};

// LoadCheckpoint and CheckSharedRoot compare what is at the first two; rank 0 writes the others.
constexpr absl::string_view kPaths[] = {"init_from", "checkpoint_dir", "metrics", "tensorboard", "export", "trace"};

template <size_t kSize>
bool IsIn(const absl::string_view (&names)[kSize], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

std::vector<RankFact> AgreedFlags() {
  std::map<std::string, std::string> values;  // sorted: the table has no order
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::EndsWith(flag->Filename(), "train/train_flags.cc")) continue;
    if (IsIn(kOfOneHost, name) || IsIn(kComparedByContents, name)) continue;
    std::string value = flag->CurrentValue();
    if (IsIn(kPaths, name)) value = value.empty() ? "" : "a path";
    values.emplace(absl::StrCat("--", name), value.empty() ? "not given" : std::move(value));
  }
  std::vector<RankFact> facts;
  for (auto& [name, value] : values) facts.push_back({name, std::move(value)});
  return facts;
}

}  // namespace fsdp
