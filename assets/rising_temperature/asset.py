"""The rising temperature in Dagster."""

from assets.rising_temperature.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "Sensors whose temperature rises for a second.", "team:devices")
