"""Loads the job of a start, in its JobMasters and slots, with the code that the start began with."""

from __future__ import annotations

from engine.graph.scalable import ScalableJob
from engine.host.launch import LaunchOptions
from engine.process.loading import load_scalable, look_in_current_folder
from engine.spark.code import as_kept


def load_kept(options: LaunchOptions, archive: str) -> ScalableJob:
    """`archive` holds the code of the start; empty: there is none, and the files are what they were."""
    look_in_current_folder()
    return load_scalable(as_kept(options, archive))
