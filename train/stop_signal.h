// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM and SIGUSR1 ask a run to finish its step, save and exit: schedulers send them before they take a machine
// back. The handler only sets a flag. A rank's flag is part of its report at the end of each step (rank_report.h), so
// all ranks stop after the same step.
#ifndef FSDP_TRAIN_STOP_SIGNAL_H_
#define FSDP_TRAIN_STOP_SIGNAL_H_

namespace fsdp {

// From now on the two signals set the flag instead of ending the process.
void CatchStopSignals();

// True once one of them arrived. Any thread.
bool StopRequested();

}  // namespace fsdp

#endif  // FSDP_TRAIN_STOP_SIGNAL_H_
