"""LSF: a job whose processes `jsrun` started."""

import os
import socket

from gpulayer.fabric.environments.environment import ClusterEnvironment
from gpulayer.fabric.utilities.exceptions import InvalidValueError

JOB = ("LSB_JOBID", "LSB_DJOB_RANKFILE")  # set by LSF
PLACE = ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")  # set by jsrun


class LSFEnvironment(ClusterEnvironment):
    """Places from the variables of LSF and jsrun, and the job's hosts from the file LSB_DJOB_RANKFILE.

    The first line of that file is the host that runs the job's script, the others are those of the processes.

    Raises:
        InvalidValueError: a variable is missing, or the file does not name this host.
    """

    def __init__(self) -> None:
        missing = [name for name in JOB + PLACE if name not in os.environ]
        if missing:
            raise InvalidValueError(
                f"LSFEnvironment needs the variables {', '.join(missing)}: submit the job with `bsub`, and start its "
                "program with `jsrun`."
            )
        path = os.environ["LSB_DJOB_RANKFILE"]
        with open(path) as lines:
            hosts = [line.strip() for line in lines if line.strip()]
        self._hosts = list(dict.fromkeys(hosts[1:]))
        host = socket.gethostname()
        if host not in self._hosts:
            raise InvalidValueError(
                f"LSB_DJOB_RANKFILE={path!r} names the hosts {self._hosts}, and not this one, {host!r}."
            )
        self._node_rank = self._hosts.index(host)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._hosts[0]

    @property
    def main_port(self) -> int:
        # The same in all processes of a job, and likely another in another job.
        return int(os.environ.get("MASTER_PORT") or 10000 + int(os.environ["LSB_JOBID"]) % 1000)

    @staticmethod
    def detect() -> bool:
        return {*JOB, *PLACE} <= os.environ.keys()

    def world_size(self) -> int:
        return int(os.environ["JSM_NAMESPACE_SIZE"])

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return int(os.environ["JSM_NAMESPACE_RANK"])

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return int(os.environ["JSM_NAMESPACE_LOCAL_RANK"])

    def node_rank(self) -> int:
        return self._node_rank

    def local_world_size(self) -> int:
        return self.world_size() // len(self._hosts)

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        if num_devices * num_nodes != self.world_size():
            raise InvalidValueError(
                f"`devices={num_devices}, num_nodes={num_nodes}` are {num_devices * num_nodes} processes, but jsrun "
                f"started {self.world_size()} on {len(self._hosts)} host(s): use `devices={self.local_world_size()}, "
                f"num_nodes={len(self._hosts)}`, or change `jsrun --nrs` and `--tasks_per_rs`."
            )
