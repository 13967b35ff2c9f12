// SPDX-License-Identifier: Apache-2.0
//
// The collectives of MPI between hosts, timed as collective_timing.cc times ours: batches of about 20 ms, the slowest
// rank's time, the median batch. Rank 0 prints a line of JSON for each size.
//
//   mpi_benchmark ROUNDS BYTES...      BYTES: all_gather's output, reduce_scatter's input, per rank
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum Op { kAllGather, kReduceScatter, kOps };
static const char* const kNames[kOps] = {"all_gather", "reduce_scatter"};

static float* whole;  // [size * count]
static float* part;   // [count]
static int count;

static void Run(enum Op op) {
  if (op == kAllGather) {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, count, MPI_FLOAT, MPI_COMM_WORLD);
  } else {
    MPI_Reduce_scatter_block(whole, part, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

// Seconds of one of `repeat` collectives, on the slowest rank.
static double Batch(enum Op op, int repeat) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < repeat; ++i) Run(op);
  double seconds = (MPI_Wtime() - begin) / repeat;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

static int Compare(const void* a, const void* b) {
  const double difference = *(const double*)a - *(const double*)b;
  return (difference > 0) - (difference < 0);
}

static double Measure(enum Op op, int rounds) {
  Batch(op, 1);
  const double warm = Batch(op, 1);
  const int repeat = warm > 0.02 ? 1 : warm < 0.00001 ? 2000 : (int)(0.02 / warm);
  double* const seconds = malloc(rounds * sizeof(double));
  for (int i = 0; i < rounds; ++i) seconds[i] = Batch(op, repeat);
  qsort(seconds, rounds, sizeof(double), Compare);
  const double median = seconds[rounds / 2];
  free(seconds);
  return median;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 2; i < argc; ++i) {
    count = (int)(atoll(argv[i]) / 4 / size);
    whole = calloc((size_t)count * size, sizeof(float));
    part = calloc(count, sizeof(float));
    for (enum Op op = kAllGather; op < kOps; ++op) {
      const double seconds = Measure(op, atoi(argv[1]));
      if (rank == 0) {
        printf("{\"op\": \"%s\", \"bytes\": %s, \"time_us\": %.3f}\n", kNames[op], argv[i], seconds * 1e6);
        fflush(stdout);
      }
    }
    free(part);
    free(whole);
  }
  MPI_Finalize();
  return 0;
}
