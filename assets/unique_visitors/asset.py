"""The unique visitors in Dagster."""

from assets.streamed import streamed
from assets.unique_visitors.drill import DRILL

STREAM = streamed(DRILL, "Unique visitors of each site, every hour of event time.", "team:web-analytics")
