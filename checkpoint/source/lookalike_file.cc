// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/lookalike_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr std::string_view kJson = "JSON";
constexpr size_t kShownBytes = 40;
constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
constexpr int64_t kMaxPointerBytes = 1023;  // by the specification of Git LFS

bool StartsWith(const FileHead& head, std::string_view start) { return head.bytes.substr(0, start.size()) == start; }

// A safetensors file begins with the length of its header, whose upper half is 0, and its byte 8 opens JSON. Any eight
// bytes can be the start of such a file otherwise.
bool MayBeSafetensors(const FileHead& head) {
  constexpr std::string_view kOpens = "{ \t\r\n";
  return head.bytes.size() > 8 && head.bytes.substr(4, 4) == std::string_view("\0\0\0\0", 4) &&
         kOpens.find(head.bytes[8]) != kOpens.npos;
}

// The bytes after white space and a byte order mark.
std::string_view Text(const FileHead& head) {
  std::string_view text = head.bytes;
  if (StartsWith(head, "\xEF\xBB\xBF")) text.remove_prefix(3);
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

bool IsPage(const FileHead& head) {
  const std::string start = absl::AsciiStrToLower(std::string(Text(head).substr(0, 5)));
  return start == "<html" || start == "<!doc" || start == "<head" || start == "<?xml" || start == "<erro";
}

bool IsJson(const FileHead& head) {
  const std::string_view text = Text(head);
  return !text.empty() && (text[0] == '{' || text[0] == '[') && !MayBeSafetensors(head);
}

// "Not Found". No binary format has only letters and the like at its start; fewer bytes say nothing.
bool IsText(const FileHead& head) {
  return head.bytes.size() > 8 && !IsJson(head) && std::all_of(head.bytes.begin(), head.bytes.end(), [](char c) {
           return absl::ascii_isprint(c) || absl::ascii_isspace(c);
         });
}

struct Packer {
  std::string_view magic;
  std::string_view name;
  std::string_view command;  // unpacks FILE
};

// Bytes 0 to 3 of .tar are a name, so it is recognised by its byte 257.
constexpr std::array kPackers = {
    Packer{"\x1F\x8B\x08", "gzip", "gunzip"}, Packer{"BZh", "bzip2", "bunzip2"},
    Packer{{"\xFD\x37zXZ", 5}, "xz", "unxz"}, Packer{"\x28\xB5\x2F\xFD", "zstd", "unzstd"},
    Packer{"7z\xBC\xAF", "7-Zip", "7z x"},    Packer{"Rar!", "RAR", "unrar x"},
};

const Packer* PackerOf(const FileHead& head) {
  const auto at =
      std::find_if(kPackers.begin(), kPackers.end(), [&](const Packer& p) { return StartsWith(head, p.magic); });
  return at == kPackers.end() || MayBeSafetensors(head) ? nullptr : &*at;
}

bool IsTar(const FileHead& head) {
  return head.bytes.size() >= 262 && head.bytes.substr(257, 5) == "ustar" && !MayBeSafetensors(head);
}

// torch.save of 0.1 made an archive of these four.
bool IsOfTorch(const FileHead& head) {
  const std::string_view name = head.bytes.substr(0, head.bytes.find('\0'));
  return IsTar(head) && (name == "sys_info" || name == "pickle" || name == "storages" || name == "tensors");
}

std::string PointerText(const FileHead& head) {
  constexpr std::string_view kSize = "\nsize ";
  std::string size;
  if (const size_t at = head.bytes.find(kSize); at != head.bytes.npos) {
    const std::string_view rest = head.bytes.substr(at + kSize.size());
    const std::string digits(rest.substr(0, rest.find_first_not_of("0123456789")));
    int64_t nbytes = 0;
    if (absl::SimpleAtoi(digits, &nbytes)) size = absl::StrCat(" of ", nbytes, " bytes");
  }
  return absl::StrCat("is a Git LFS pointer to a file", size,
                      ", which was not downloaded: run `git lfs pull` in its repository, or download the file");
}

// The first bytes and the size of `file`; nullopt if it cannot be read. `bytes` has the bytes.
std::optional<FileHead> HeadOf(const File& file, std::string& bytes) {
  const absl::StatusOr<int64_t> nbytes = file.Size();
  if (!nbytes.ok()) return std::nullopt;
  bytes.resize(static_cast<size_t>(std::min(*nbytes, kLookalikeBytes)));
  const auto out = absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  if (!file.Read(0, out).ok()) return std::nullopt;
  return FileHead{bytes, *nbytes};
}

}  // namespace

// What people give in place of weights, by the first bytes. A file of weights must never match, so a test asks this of
// every format's files.
const std::vector<LookalikeFile>& LookalikeFiles() {
  static const auto* const files = new std::vector<LookalikeFile>{
      {"empty", absl::StatusCode::kDataLoss, [](const FileHead& head) { return head.nbytes == 0; },
       [](const FileHead&) {
         return std::string("has 0 bytes: its save, download or copy did not finish; get it again");
       }},
      {"Git LFS pointer", kInvalid, [](const FileHead& head) { return StartsWith(head, kPointer); }, PointerText, true},
      {"page", kInvalid, IsPage,
       [](const FileHead&) {
         return std::string(
             "is a page of HTML or XML: the server answered a download with a page (a login, an error); download the "
             "file again, with the access it asks for, and compare its size");
       },
       true},
      {kJson, kInvalid, IsJson,
       [](const FileHead&) {
         return std::string("is a text of JSON, not weights: give the directory or the file with the weights");
       }},
      {"packed", kInvalid, [](const FileHead& head) { return PackerOf(head) != nullptr; },
       [](const FileHead& head) {
         const Packer& packer = *PackerOf(head);
         return absl::StrCat("is packed by ", std::string(packer.name), ": unpack it first, `",
                             std::string(packer.command), " FILE`, or `tar xf FILE` if it holds several files");
       }},
      {"tar of torch", kInvalid, IsOfTorch,
       [](const FileHead&) {
         return std::string("was written by torch 0.1: load it with torch.load and save it again");
       }},
      {"tar", kInvalid, IsTar,
       [](const FileHead&) {
         return std::string("is a tar archive: unpack it first, `tar xf FILE`, and give what is in it");
       }},
      {"text", kInvalid, IsText,
       [](const FileHead& head) {
         return absl::StrCat("is a text that begins with ", Quote(head.bytes.substr(0, kShownBytes)),
                             ", not weights: a server's answer or a note has this name; download the file again and "
                             "compare its size");
       }},
      {"zeros", absl::StatusCode::kDataLoss,
       [](const FileHead& head) {
         return head.bytes.size() >= 8 && head.bytes.find_first_not_of('\0') == head.bytes.npos;
       },
       [](const FileHead& head) {
         return absl::StrCat("begins with ", head.bytes.size(),
                             " zeros: its download or copy reserved the space and did not finish; get it again");
       }},
  };
  return *files;
}

absl::Status CheckIsNoLookalike(const std::string& path, const FileHead& head) {
  for (const LookalikeFile& file : LookalikeFiles()) {
    if (!file.matches(head) || (file.name == kJson && absl::EndsWith(path, ".json"))) continue;
    return absl::Status(file.code, absl::StrCat(path, " ", file.text(head)));
  }
  return absl::OkStatus();
}

// Called with an error at hand: a file that cannot be read here keeps that error.
absl::Status CheckIsNoLookalike(const File& file) {
  std::string bytes;
  const std::optional<FileHead> head = HeadOf(file, bytes);
  return head ? CheckIsNoLookalike(file.path(), *head) : absl::OkStatus();
}

absl::Status CheckIsNoLookalike(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path);
  return file.ok() ? CheckIsNoLookalike(**file) : absl::OkStatus();
}

absl::Status ErrorOfText(const absl::Status& error, const std::string& path, std::string_view contents) {
  if (error.ok()) return error;
  const FileHead head = {contents.substr(0, kLookalikeBytes), static_cast<int64_t>(contents.size())};
  const absl::Status lookalike = contents.empty() ? CheckIsNoLookalike(path, head) : CheckIsDownloaded(path, head);
  return lookalike.ok() ? error : lookalike;
}

absl::Status CheckIsDownloaded(const std::string& path, const FileHead& head) {
  for (const LookalikeFile& file : LookalikeFiles()) {
    if (!file.stands_for_another || !file.matches(head)) continue;
    return absl::Status(file.code, absl::StrCat(path, " ", file.text(head)));
  }
  return absl::OkStatus();
}

absl::Status CheckIsDownloaded(const File& file) {
  if (file.Size().value_or(0) > kMaxPointerBytes) return absl::OkStatus();
  std::string bytes;
  const std::optional<FileHead> head = HeadOf(file, bytes);
  return head ? CheckIsDownloaded(file.path(), *head) : absl::OkStatus();
}

absl::Status CheckIsDownloaded(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path);
  return file.ok() ? CheckIsDownloaded(**file) : absl::OkStatus();
}

}  // namespace fsdp
