// SPDX-License-Identifier: Apache-2.0
//
// StopSignal: SIGTERM and SIGUSR1 ask a run to finish its step, save and exit, as schedulers do before they take a
// machine back. The handler only sets a flag; the ranks agree on it with each step's reports.
#ifndef FSDP_TRAIN_STOP_SIGNAL_H_
#define FSDP_TRAIN_STOP_SIGNAL_H_

namespace fsdp {

// From now on the two signals set the flag instead of ending the process.
void CatchStopSignals();

// True once one of them arrived. Any thread.
bool StopRequested();

}  // namespace fsdp

#endif  // FSDP_TRAIN_STOP_SIGNAL_H_
