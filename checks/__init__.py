"""Failure drills and audits: proof, with Great Expectations on Spark, that nothing was lost or doubled."""
