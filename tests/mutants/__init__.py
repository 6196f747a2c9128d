"""Mutation tests: small changes of the engine that some test has to notice (docs/mutants.md)."""
