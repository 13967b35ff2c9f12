// SPDX-License-Identifier: Apache-2.0
//
// How a rank obeys signals. Schedulers send SIGTERM, and some SIGUSR1 before it, when they take a machine back.
//
//   the rank is          SIGTERM                                   SIGINT     SIGUSR1
//   outside of training  ends the process, by its default action   ends it    asks for a stop after the next step
//   in a step            asks for a stop; the step has the grace   ends it    asks for a stop
//   between steps        asks for a stop                           ends it    asks for a stop
//
// Outside of training there is nothing to finish, and no wait of the rank - for peers, a file, a name server - needs to
// notice a handler. A request is part of the rank's report at the end of a step (rank_report.h), so all ranks stop
// after the same step and save. A second SIGTERM ends the process; one that comes within a second of the first counts
// as the same request, since some schedulers signal both the launcher and its ranks.
//
// A step that does not end within the grace waits for a rank that is stuck: the process then ends by SIGTERM. A save is
// not timed here. The sender of the signal may time it: //tools:launch sends SIGKILL after its own --grace, a scheduler
// after its own.
#ifndef FSDP_TRAIN_STOP_SIGNAL_H_
#define FSDP_TRAIN_STOP_SIGNAL_H_

#include "absl/time/time.h"

namespace fsdp {

// From now on SIGTERM and SIGINT end this process, even if its parent had them blocked or ignored, as shells do for
// commands in the background; SIGUSR1 asks for a stop. For the beginning of main.
void ObeyStopSignals();

// True once a signal has requested a stop of this process. Any thread.
bool StopRequested();

// While one of these exists this process trains: SIGTERM requests a stop. Any thread; several may exist at a time.
class GracefulStop {
 public:
  // `grace` is rounded up to seconds; the step has three times the longest step so far if that is more.
  explicit GracefulStop(absl::Duration grace);
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
};

// A step is in progress while one of these exists.
class StepUnderWay {
 public:
  StepUnderWay();
  ~StepUnderWay();
  StepUnderWay(const StepUnderWay&) = delete;
  StepUnderWay& operator=(const StepUnderWay&) = delete;

 private:
  const absl::Time began_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_STOP_SIGNAL_H_
