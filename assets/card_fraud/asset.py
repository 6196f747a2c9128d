"""The card fraud in Dagster."""

from assets.card_fraud.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "Payments of more than 500 directly after one of less than 1, by card.", "team:risk")
