"""Fork a process into ranks, with the variables that torchrun sets."""

from __future__ import annotations

import os
import signal
import socket
import sys


def fork_ranks(count: int) -> None:
    """Return in the ranks alone; this process waits for them, and ends as torchrun would.

    It serves their store, on a port that it has before they need it.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=16)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listening.getsockname()[1]),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    ranks = set[int]()
    for rank in range(count):
        child = os.fork()
        if child == 0:
            listening.close()
            os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
            return
        ranks.add(child)
    import torch.distributed as dist

    port = listening.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    while ranks:
        child, status = os.wait()
        ranks.discard(child)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)
    del store
    sys.exit(0)
