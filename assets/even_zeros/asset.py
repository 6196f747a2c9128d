"""The even zeros in Dagster."""

from assets.even_zeros.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "Whether a text has an even number of zeros.", "team:examples")
