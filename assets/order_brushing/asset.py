"""The order brushing in Dagster."""

from assets.order_brushing.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "A login, an order and a payment of a user with nothing between them.", "team:risk")
