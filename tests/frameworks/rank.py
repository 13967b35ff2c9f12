# SPDX-License-Identifier: Apache-2.0
"""The program of each rank: rank.py EXAMPLE ARGUMENT...

Runs an example as it is, on CPUs, and kills its process by SIGKILL when it prints the line that begins with KILL_AT.
"""

import builtins
import os
import runpy
import signal
import sys
import traceback


def kill_at(beginning):
    show = builtins.print

    def show_and_die(*values, **options):
        show(*values, **options)
        if str(values[0] if values else "").startswith(beginning):
            os.kill(os.getpid(), signal.SIGKILL)

    builtins.print = show_and_die


def shard_on_cpus():
    """Accelerate has FSDP on accelerators only, although PyTorch has it on CPUs: ranks on CPUs pass for ranks on GPUs
    when they are set up. Their device stays the CPU."""
    from accelerate.state import DistributedType, PartialState

    set_up = PartialState.__init__

    def set_up_as_gpu(self, *args, **kwargs):
        set_up(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = set_up_as_gpu


def main():
    if "KILL_AT" in os.environ:
        kill_at(os.environ["KILL_AT"])
    if "ACCELERATE_USE_CPU" in os.environ:
        shard_on_cpus()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Not by Python's own exit, in which ranks of PyTorch were seen to abort, with this package and without it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
