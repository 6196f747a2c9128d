"""What commands and options that people know from Flink and other tools are called here: hints for wrong commands."""

from __future__ import annotations

_FROM = "Here it is --from SAVEPOINT"
_TO = "Here it is --savepoint, with --to FOLDER"
_BACKGROUND = "`weir submit` starts a job in the background"
_LISTED = "`weir jobs` lists the jobs of a store"

_COMMANDS = {
    "list": _LISTED,
    "ls": _LISTED,
    "ps": _LISTED,
    "kill": "`weir cancel JOB` ends a job at once; `weir stop JOB` ends it behind a last epoch",
    "start": "`weir submit MODULE:FUNCTION` starts a job",
    "restart": "`weir resume JOB` starts a job again that should be running; `weir submit` one that you ended",
    "restore": "`weir submit MODULE:FUNCTION --from SAVEPOINT` begins a job from a savepoint",
    "scale": "`weir rescale JOB --parallelism N` gives a job another parallelism",
    "info": "`weir describe MODULE:FUNCTION` shows a job without running it",
}
_OPTIONS = {
    "-s": _FROM,
    "--fromSavepoint": _FROM,
    "--from-savepoint": _FROM,
    "--savepointPath": _TO,
    "--targetDirectory": _TO,
    "stop -p": _TO,
    "-d": _BACKGROUND,
    "--detached": _BACKGROUND,
    "--detach": _BACKGROUND,
    "savepoint -d": "`weir savepoint delete JOB/NAME` deletes a savepoint",
    "savepoint --dispose": "`weir savepoint delete JOB/NAME` deletes a savepoint",
    "--claimMode": "Here it is --claim; without it the savepoint stays yours",
    "--restoreMode": "Here it is --claim; without it the savepoint stays yours",
}
"""By option, or by command and option where other commands mean something else by it."""
_ARGUMENTS = {
    "rescale": "The number is an option: weir rescale JOB --parallelism N",
    "upgrade": "The new version is an option: weir upgrade JOB --to MODULE:FUNCTION",
    "stop": "The folder is an option: weir stop JOB --savepoint --to FOLDER",
}
"""By command, for an argument too many."""


def hint(said: str, command: str, option: str) -> str:
    """Returns what to write instead, or nothing. `option` is the unknown one, or empty if that is not what is wrong."""
    if option:
        return _OPTIONS.get(f"{command} {option}") or _OPTIONS.get(option, "")
    if said.startswith("No such command"):
        return _COMMANDS.get(command, "")
    return _ARGUMENTS.get(command, "") if said.startswith("Got unexpected extra argument") else ""
