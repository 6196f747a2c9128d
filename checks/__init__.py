"""Drills and audits: they prove, with Great Expectations on Spark, that a failure lost and doubled nothing."""
