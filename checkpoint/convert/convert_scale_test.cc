// SPDX-License-Identifier: Apache-2.0
//
// Conversions of thousands of small tensors, between all pairs of formats: their time grows as their number, and they
// count their work.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A format, and the name of its files.
struct Form {
  std::string name;
  FormatTarget target;
  int work = 1;  // how often each tensor is counted: FormatWriter::NameWork, and once
};

std::vector<Form> Forms() {
  return {{"model.safetensors", SafetensorsTarget()},
          {"model.pt", TorchTarget()},
          {"dcp", DcpTarget{.world_size = 1}, 3},
          {"hdf5", Hdf5Target(), 5},
          {"model.npz", NpzTarget()}};
}

// Vectors of 64 numbers and more, of `shapes` lengths, as a router's, norms or scales of many experts.
StateDict ManyTensors(int count, int shapes) {
  StateDict state;
  for (int i = 0; i < count; ++i) {
    ShardedTensor tensor;
    tensor.shape = *Shape::Create({64 + i * 37 % shapes});
    state.Set(StateKey::Model(absl::StrCat("model.layers.", i / 2048, ".mlp.experts.", i % 2048, ".scale")), tensor);
  }
  return state;
}

// Elements that depend on the name.
absl::Status ReadNumbers(const StateKey& key, const Interval& interval, void* out) {
  const auto first = static_cast<int64_t>(std::hash<std::string>()(key.fqn) % 1000);
  auto* const numbers = static_cast<float*>(out);
  for (int64_t i = 0; i < interval.size(); ++i) numbers[i] = static_cast<float>(first + interval.begin + i);
  return absl::OkStatus();
}

// Processor time of all threads of this process.
double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class ConvertScaleTest : public testing::Test {
 protected:
  // The model of `count` tensors, in each format by the name of its form.
  std::string Path(int count, const std::string& name) const { return absl::StrCat(root_, "/", count, "/", name); }

  void MakeModels(int count, int shapes = 59) {
    std::filesystem::create_directories(absl::StrCat(root_, "/", count));
    FormatContents contents = {.state = ManyTensors(count, shapes)};
    const std::unique_ptr<FormatWriter> writer = MakeWriter(SafetensorsTarget());
    ASSERT_OK(writer->Fit(contents).status());
    ASSERT_OK(writer->Write(Path(count, "model.safetensors"), contents, ReadNumbers, {}));
    for (const Form& form : Forms()) {
      if (form.name == "model.safetensors") continue;
      ASSERT_OK(Convert(count, Forms()[0], form.name, form.target).status()) << form.name;
    }
  }

  absl::StatusOr<ConvertReport> Convert(int count, const Form& from, const std::string& to,
                                        const FormatTarget& target) const {
    ConvertOptions options;
    options.target = target;
    options.force = true;
    return ConvertCheckpoint(Path(count, from.name), Path(count, to), options);
  }

  // The least processor time of two conversions.
  double SecondsOf(int count, const Form& from, const Form& to) const {
    double least = 1e9;
    for (int i = 0; i < 2; ++i) {
      const double start = ProcessorSeconds();
      const absl::StatusOr<ConvertReport> report = Convert(count, from, absl::StrCat("to.", to.name), to.target);
      least = std::min(least, ProcessorSeconds() - start);
      EXPECT_OK(report.status());
      EXPECT_EQ(report.ok() ? report->tensors : 0, count);
    }
    return least;
  }

  const std::string root_ = NewTestDirectory();
};

// Linear time is 4 times as long, quadratic time 16 times. The larger model leaves the processor's caches, and other
// programs run next to this one, so linear time has been 7 times.
TEST_F(ConvertScaleTest, FourTimesTheTensorsTakeLessThanTenTimesTheTime) {
  for (const int count : {5'000, 20'000}) MakeModels(count);
  for (const Form& from : Forms()) {
    for (const Form& to : Forms()) {
      if (from.name == to.name) continue;
      EXPECT_LT(SecondsOf(20'000, from, to), 10 * SecondsOf(5'000, from, to)) << from.name << " to " << to.name;
    }
  }
}

// Few shapes, and more than a writer may keep what it made for.
TEST_F(ConvertScaleTest, ThousandsOfTensorsKeepTheirElements) {
  for (const auto& [count, shapes] : {std::pair(5'000, 59), {2'500, 2'503}}) {
    MakeModels(count, shapes);
    ASSERT_OK_AND_ASSIGN(const auto model, OpenTensorSource(Path(count, "model.safetensors")));
    for (const Form& form : Forms()) {
      ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path(count, form.name)));
      ASSERT_OK_AND_ASSIGN(const DiffReport report, DiffCheckpoints(*model, *source, DiffOptions()));
      EXPECT_TRUE(report.equal()) << form.name;
      EXPECT_EQ(report.compared, count) << form.name;
    }
  }
}

TEST_F(ConvertScaleTest, EachTensorIsCountedAsOftenAsItTakesTime) {
  constexpr int kTensors = 2'000;
  MakeModels(kTensors);
  for (const Form& form : Forms()) {
    std::atomic<int64_t> reports = 0;
    std::atomic<int64_t> last = 0;
    ConvertOptions options;
    options.target = form.target;
    options.tensor_progress = [&](int64_t done, int64_t total) {
      EXPECT_LE(done, total);
      EXPECT_EQ(total, form.work * kTensors) << form.name;
      ++reports;
      last = done;
    };
    int64_t first_bytes = -1;
    int64_t bytes_total = 0;
    options.progress = [&](int64_t done, int64_t total) {
      if (first_bytes < 0) first_bytes = done;
      bytes_total = total;
    };
    ASSERT_OK_AND_ASSIGN(
        const ConvertReport report,
        ConvertCheckpoint(Path(kTensors, "model.pt"), Path(kTensors, absl::StrCat("to.", form.name)), options));
    EXPECT_EQ(last.load(), form.work * kTensors) << form.name;
    EXPECT_GE(reports.load(), kTensors / 256) << form.name;
    EXPECT_EQ(first_bytes, 0) << form.name;
    EXPECT_GE(bytes_total, report.bytes) << form.name;
  }
}

}  // namespace
}  // namespace fsdp
