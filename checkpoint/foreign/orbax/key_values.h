// SPDX-License-Identifier: Apache-2.0
//
// KeyValues: the files of zarr arrays by key, wherever they are: "params.layers_0.kernel/.zarray" is a file of a
// directory (directory_values.h) or a key of an OCDBT database (ocdbt_values.h). Read-only. Thread-safe once it is
// open.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_KEY_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_KEY_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

// Where a value is: in memory, or a range of a file.
struct ValuePlace {
  std::string_view bytes;  // if `file` is empty; lives as long as the KeyValues
  std::string file;        // relative to the directory
  int64_t offset = 0;
  int64_t nbytes = 0;
};

class KeyValues {
 public:
  virtual ~KeyValues() = default;

  // nullopt: there is no such key.
  virtual absl::StatusOr<std::optional<ValuePlace>> Find(const std::string& key) const = 0;

  // Fills `out` with the bytes of a value from its byte `offset` on. kDataLoss when the file is shorter.
  virtual absl::Status Read(const ValuePlace& place, int64_t offset, absl::Span<std::byte> out) const = 0;

  // Calls `visit` with what follows "`name`/" in each key that begins so, in any order.
  virtual absl::Status VisitKeys(const std::string& name,
                                 const std::function<void(std::string_view rest)>& visit) const = 0;

  // The names of all arrays, sorted: NAME of the keys NAME/.zarray and NAME/zarr.json.
  virtual const std::vector<std::string>& arrays() const = 0;

  // The files that the keys were found in, and that values may be in, relative to the directory.
  virtual std::vector<std::string> files() const = 0;

  // For messages: `d/0f3a..., bytes 10 to 20`.
  static std::string Describe(const ValuePlace& place);

  // A whole value of at most `most` bytes, else kResourceExhausted.
  absl::StatusOr<std::string> ReadWhole(const ValuePlace& place, int64_t most) const;
};

// NAME of a key NAME/.zarray or NAME/zarr.json; nullopt for any other key.
std::optional<std::string_view> ArrayOfMetadataKey(std::string_view key);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_KEY_VALUES_H_
