// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/cold_rows.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/benchmark/page_cache.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Measurement MeasureProcess(const std::function<int()>& body) {
  const absl::Time start = absl::Now();
  const pid_t child = fork();
  Check(child >= 0, "fork");
  if (child == 0) _exit(body());
  int status = 0;
  struct rusage usage = {};
  Check(wait4(child, &status, 0, &usage) == child, "wait4");
  return {absl::ToDoubleSeconds(absl::Now() - start), static_cast<double>(usage.ru_maxrss) * 1024,
          WIFEXITED(status) && WEXITSTATUS(status) == 0};
}

int RunShell(const std::string& command) {
  execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  return 127;
}

void ColdRows::PrintHeader() {
  std::printf("%-26s %8s %6s %6s %6s %6s %7s %8s\n", "", "seconds", "GB/s", "cp", "of cp", "lowest", "highest",
              "peak MB");
}

bool ColdRows::IsWanted(const std::string& name) const {
  return options_.names.empty() ||
         std::any_of(options_.names.begin(), options_.names.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

bool ColdRows::NoNumber(const std::string& name, const std::string& why) {
  std::printf("%-26s not measured: %s\n", name.c_str(), why.c_str());
  return true;
}

std::string ColdRows::LastLine() const {
  std::ifstream file(Log());
  std::string last = "it printed nothing";
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

bool ColdRows::Prepare(const std::string& path) const {
  sync();
  if (options_.cold) return DropFromPageCache(options_.directory).ok();
  const std::string read = absl::StrCat("find ", path, " -type f -exec cat {} + >/dev/null");
  return MeasureProcess([&] { return RunShell(read); }).done;
}

double ColdRows::CopySeconds(const std::string& model) const {
  const std::string target = options_.directory + "/copy";
  if (!Prepare(model)) return -1;
  const Measurement cp =
      MeasureProcess([&] { return RunShell(absl::StrCat("cp ", model, " ", target, " && sync ", target)); });
  fs::remove(target);
  return cp.done ? cp.seconds : -1;
}

bool ColdRows::Row(const std::string& name, const std::string& model, const std::string& source,
                   const std::string& target, const std::function<int()>& body) const {
  if (!IsWanted(name)) return true;
  fs::remove(Log());
  std::vector<double> seconds;
  std::vector<double> copies = {CopySeconds(model)};
  std::vector<double> ratios;
  double peak = 0;
  for (int i = 0; i < options_.repetitions; ++i) {
    const bool is_prepared = Prepare(source);
    const Measurement row = MeasureProcess(body);
    if (!target.empty()) fs::remove_all(target);
    copies.push_back(CopySeconds(model));
    if (std::min(copies[i], copies[i + 1]) < 0 || !is_prepared || !row.done) {
      std::printf("%-26s failed: %s\n", name.c_str(), row.done ? "cp, or the page cache" : LastLine().c_str());
      return false;
    }
    seconds.push_back(row.seconds);
    ratios.push_back(row.seconds / ((copies[i] + copies[i + 1]) / 2));
    peak = std::max(peak, row.peak_bytes);
  }
  const double median = Median(seconds);
  const double ratio = Median(ratios);
  const double rate = static_cast<double>(fs::file_size(model)) / 1e9 / median;
  std::printf("%-26s %8.2f %6.2f %6.2f %6.2f %6.2f %7.2f %8.0f\n", name.c_str(), median, rate, Median(copies), ratio,
              ratios.front(), ratios.back(), peak / 1e6);
  std::fflush(stdout);
  return true;
}

}  // namespace fsdp
