"""The failed logins in Dagster."""

from assets.failed_logins.drill import DRILL
from assets.streamed import streamed

STREAM = streamed(DRILL, "Three failed logins of a user in a row.", "team:security")
