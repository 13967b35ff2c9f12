// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/commands/ckpt_runner.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// In the child: turns descriptor `to` into the file `path`.
void Redirect(const std::string& path, int to) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || dup2(fd, to) < 0) _exit(127);
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

CkptTest::CkptTest()
    : directory_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
  fs::remove_all(directory_);
  fs::create_directories(directory_);
}

CkptTest::~CkptTest() { fs::remove_all(directory_); }

std::string CkptTest::TestData(const std::string& name) { return fs::absolute("checkpoint/testdata/" + name); }

Outcome CkptTest::Ckpt(const std::vector<std::string>& arguments) const {
  std::vector<std::string> words = {fs::absolute("tools/ckpt")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string out = directory_ + ".out";
  const std::string err = directory_ + ".err";
  const pid_t child = fork();
  if (child == 0) {
    Redirect(out, STDOUT_FILENO);
    Redirect(err, STDERR_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  int status = 0;
  struct rusage usage = {};
  wait4(child, &status, 0, &usage);
  Outcome outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(out), ReadFile(err),
                     usage.ru_maxrss * 1024};
  fs::remove(out);
  fs::remove(err);
  return outcome;
}

std::string CkptTest::MustCkpt(const std::vector<std::string>& arguments) const {
  const Outcome outcome = Ckpt(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

}  // namespace fsdp
