// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/training_testutil.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/train/trainer.h"

namespace fsdp {
namespace {

// A prime, so that no number of ranks divides it.
constexpr int kVocabulary = 61;

constexpr char kConfig[] = R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 16, "n_embd": 24, "n_layer": 1,
                               "n_head": 3})";

}  // namespace

void TrainingFixture::SetUp() {
  directory_ = absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::remove_all(directory_);  // leftovers of an earlier process
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/config.json") << kConfig;
  std::ofstream tokens(directory_ + "/tokens.u16", std::ios::binary);
  for (int i = 0; i < 900; ++i) tokens << static_cast<char>((i * i + i / 7) % kVocabulary) << '\0';
}

TrainOptions TrainingFixture::Options(int64_t steps) const {
  TrainOptions options;
  options.config = directory_ + "/config.json";
  options.tokens = directory_ + "/tokens.u16";
  options.batch_size = 2;
  options.seq_len = 13;
  options.fsdp.auto_wrap_policy = LambdaWrapPolicy(IsTransformerBlock);
  options.learning_rate = {.lr = 1e-2, .min_lr = 1e-2, .warmup_steps = 0, .steps = steps};
  options.adamw = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  options.max_grad_norm = 1;
  return options;
}

absl::Status TrainingFixture::TrainRank(const TrainOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(options, group));
  const absl::Status status = trainer->Train();
  // Ranks are threads: the others would wait for this one until their timeout.
  if (!status.ok()) group->Abort(status);
  return status;
}

std::string TrainingFixture::NewRunPath() { return absl::StrCat(directory_, "/run", ++runs_); }

}  // namespace fsdp
