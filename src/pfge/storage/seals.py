"""JSON values that state the SHA-256 of their own content, so that damage is noticed."""

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

KEY = "content_sha256"


class BrokenSealError(ValueError):
    """A value that is not what it was when it was sealed."""


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object that states the SHA-256 of everything else in it, under its last key."""
    return {**value, KEY: content_digest(value)}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object states a SHA-256; older versions of pfge wrote none."""
    return KEY in value


def unseal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without the SHA-256 that it may state.

    Raises:
        BrokenSealError: It states another one than that of its content.
    """
    content = {key: item for key, item in value.items() if key != KEY}
    # A key that is nearly the right one was damaged: it must not pass for the lack of one.
    nearly = get_close_matches(KEY, content, cutoff=0.8)
    if nearly or (is_sealed(value) and value[KEY] != content_digest(content)):
        raise BrokenSealError(
            f"its content does not have the SHA-256 that it states, so it is damaged or was edited; after an "
            f"edit of your own, remove {KEY}"
        )
    return content


def content_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything in a JSON object but the one that it may state."""
    # Of the values, not of the text: spaces and the spelling of a number may change, and mean the same.
    content = {key: item for key, item in value.items() if key != KEY}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
