"""`ScalableJob`: a job as it was written, from which its graph can be made at any parallelism.

Invariant: the JobMaster and every slot hold the same ScalableJob, so they make the same graph at the same scaling; they
compare its fingerprint. No code of the job's author runs again for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.errors import JobError
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.graph.stream_graph import StreamGraph
from engine.protocol.config import CheckpointConfig
from engine.protocol.messages import Deploy
from engine.protocol.restart import RestartStrategy
from engine.protocol.scaling import Scaling
from engine.runtime.plan import SlotPlan


@dataclass(frozen=True)
class ScalableJob:
    stream_graph: StreamGraph
    name: str
    checkpoints: CheckpointConfig
    restart: RestartStrategy
    max_parallelism: int
    code: str = ""

    def at(self, scaling: Scaling) -> JobGraph:
        """Returns the graph at this scaling. Raises a `JobError` if the job can't run so."""
        scaled = self.stream_graph.scaled(scaling)
        return scaled.translate(self.name, self.checkpoints, self.restart, self.max_parallelism, self.code)


@dataclass
class SlotPlans:
    """Makes the plan of a slot for a deployment, at the deployment's scaling."""

    job: ScalableJob
    _executions: dict[bytes, ExecutionGraph] = field(default_factory=dict)

    def __call__(self, deploy: Deploy) -> SlotPlan:
        key = deploy.scaling.key
        if key not in self._executions:
            self._executions = {key: ExecutionGraph(self.job.at(deploy.scaling))}
        execution = self._executions[key]
        if execution.graph.fingerprint != deploy.plan:
            raise JobError(
                f"this slot makes the plan {execution.graph.fingerprint} at {deploy.scaling}, the JobMaster made "
                f"{deploy.plan}: ship the same version of the job everywhere"
            )
        return execution.plan(deploy.slot)
