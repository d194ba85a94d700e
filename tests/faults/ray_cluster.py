"""A real Ray cluster of several nodes on this machine, in a process of its own; it ends when its input does.

`python -m tests.faults.ray_cluster NODES` prints its address, then reads lines "kill PID" with the process of a raylet.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any


def pid(node: Any) -> int:
    """The process of the raylet of a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def main() -> None:
    """Start the cluster, and kill nodes on request until the input ends."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        os.environ["RAY_TMPDIR"] = place  # read on import; Ray writes the cluster's address to the folder `ray` in it
        os.mkdir(f"{place}/ray")
        from ray.cluster_utils import Cluster

        size = {"num_cpus": 1, "memory": 4_000_000_000, "object_store_memory": 80_000_000}
        cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        try:
            for _ in range(int(sys.argv[1]) - 1):
                cluster.add_node(**size)
            nodes = [pid(node) for node in cluster.list_all_nodes()]
            print(json.dumps({"address": cluster.address, "nodes": nodes}), flush=True)
            for line in sys.stdin:
                (node,) = [node for node in cluster.worker_nodes if pid(node) == int(line.split()[1])]
                cluster.remove_node(node, allow_graceful=False)
                print(json.dumps({"killed": int(line.split()[1])}), flush=True)
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
