"""The unpaid orders in Dagster."""

from assets.streamed import streamed
from assets.unpaid_orders.drill import DRILL

STREAM = streamed(DRILL, "Orders that are not paid in 15 minutes.", "team:shop")
