"""The even and odd sums in Dagster."""

from assets.even_odd_sums.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "The sums of all even and of all odd numbers so far, every ten seconds.", "team:examples")
