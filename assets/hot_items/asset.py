"""The hot items in Dagster."""

from assets.hot_items.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "The three items with the most views of the last hour, every five minutes.", "team:shop")
