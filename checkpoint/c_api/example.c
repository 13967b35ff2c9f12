/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the name, dtype, shape and mean of every floating-point weight of a model, for any format of its checkpoint.
 *
 *   cc -std=c99 example.c -I DIRECTORY_OF_THE_HEADER -L DIRECTORY_OF_THE_LIBRARY -lfsdp_checkpoint -o example
 *   ./example checkpoints
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp_checkpoint.h"

/* Elements in memory at a time: a tensor may be larger than memory. */
enum { PIECE = 1 << 20 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, fsdp_error_message());
  return 1;
}

/* Any floating-point dtype is read as float64: the library converts. */
static int mean_of(const fsdp_reader* reader, int64_t number, const fsdp_tensor* tensor, double* buffer, double* mean) {
  double sum = 0;
  int64_t begin;
  for (begin = 0; begin < tensor->numel; begin += PIECE) {
    const int64_t end = tensor->numel - begin < PIECE ? tensor->numel : begin + PIECE;
    const fsdp_read read = {number, begin, end, FSDP_FLOAT64, buffer};
    int64_t i;
    if (fsdp_reader_read(reader, &read, 1, 0) != FSDP_OK) return fail(tensor->name);
    for (i = 0; i < end - begin; ++i) sum += buffer[i];
  }
  *mean = tensor->numel == 0 ? 0 : sum / (double)tensor->numel;
  return 0;
}

static int print_weights(const fsdp_reader* reader, double* buffer) {
  int64_t number;
  for (number = 0; number < fsdp_reader_tensor_count(reader); ++number) {
    fsdp_tensor tensor;
    double mean;
    int32_t axis;
    if (fsdp_reader_tensor(reader, number, &tensor) != FSDP_OK) return fail("fsdp_reader_tensor");
    if (strncmp(tensor.name, "model/", 6) != 0) continue;
    if (strstr(fsdp_dtype_name(tensor.dtype), "float") == NULL) continue;
    if (mean_of(reader, number, &tensor, buffer, &mean) != 0) return 1;
    printf("%s %s [", tensor.name + 6, fsdp_dtype_name(tensor.dtype));
    for (axis = 0; axis < tensor.ndim; ++axis) printf(axis == 0 ? "%" PRId64 : ", %" PRId64, tensor.dims[axis]);
    printf("] mean %g\n", mean);
  }
  return 0;
}

int main(int argc, char** argv) {
  fsdp_reader* reader = NULL;
  double* buffer;
  int status;
  if (argc != 2) {
    fprintf(stderr, "usage: %s CHECKPOINT\n", argv[0]);
    return 2;
  }
  if (fsdp_checkpoint_abi_version() != FSDP_CHECKPOINT_ABI_VERSION) {
    fprintf(stderr, "the library has another ABI than the header that this program was compiled with\n");
    return 1;
  }
  if (fsdp_reader_open(argv[1], NULL, &reader) != FSDP_OK) return fail(argv[1]);
  buffer = malloc(PIECE * sizeof(double));
  status = buffer == NULL ? fail("malloc") : print_weights(reader, buffer);
  free(buffer);
  fsdp_reader_close(reader);
  return status;
}
