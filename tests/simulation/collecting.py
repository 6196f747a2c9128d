"""`weir gc` at random moments of a run, from a process of its own. `Checker` sees whatever it deletes."""

from __future__ import annotations

from engine.core.errors import StoreError
from engine.jobmaster.collecting import collect
from tests.simulation.cluster import Cluster
from tests.simulation.store import StoreView
from tests.simulation.world import Process


class Collector(Process):
    """One process that collects garbage a number of times. It may die at any call of the store."""

    def __init__(self, cluster: Cluster, times: int) -> None:
        super().__init__(cluster.world, "gc")
        self._cluster = cluster
        self._times = times

    def begin(self) -> None:
        self._times -= 1
        world = self.world

        def work() -> None:
            try:
                found = collect(StoreView(self._cluster.store, self), self._cluster.paths.job, dry_run=False)
            except StoreError as error:
                world.log(f"  gc fails: {error}")
                return
            world.log(f"  gc: {found}")
            world.hits.update(f"gc: {one.why}" for one in found.collected)

        def again(_: None) -> None:
            if self._times > 0 and not self._cluster.finished:
                world.after(10 * world.random.random(), self, "collects again", self.begin)

        world.off_loop(self, "gc", work, again)

    def crashed(self) -> None:
        self._cluster.store.forget(self)


def collect_garbage(cluster: Cluster, times: int) -> None:
    collector = Collector(cluster, times)
    cluster.world.after(0.0, collector, "collects garbage", collector.begin)
