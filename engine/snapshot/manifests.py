"""Decodes manifests. One that another version of Weir wrote is refused by its format, before anything of it is used."""

from __future__ import annotations

import msgspec

from engine.core.errors import ForeignSnapshot
from engine.protocol.manifest import FORMAT, Manifest


class _Version(msgspec.Struct):
    format: int = 1


def decode_manifest(data: bytes, place: str) -> Manifest:
    """Decodes a manifest that is as it was written. `place` says where it was read."""
    written = msgspec.json.decode(data, type=_Version).format
    if written != FORMAT:
        raise ForeignSnapshot(
            f"the snapshot {place} has format {written}, and this version of Weir reads {FORMAT}: use the version that "
            "wrote it"
        )
    return msgspec.json.decode(data, type=Manifest)
