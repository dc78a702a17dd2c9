"""JSON values that state the SHA-256 of their own content, so that damage is noticed."""

import hashlib
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

KEY = "content_sha256"
DIGEST_KEYS = ("sha256", "members")
"""Other keys that may come last in an object without a seal, and have digests of other things."""
MOST_OF_A_DIGEST = re.compile("[0-9a-f]{24}")


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
    is_broken = value[KEY] != content_digest(content) if is_sealed(value) else _has_a_damaged_key(content)
    if is_broken:
        raise BrokenSealError(
            f"its content does not have the SHA-256 that it states, so it is damaged or was edited; after an "
            f"edit of your own, remove {KEY}"
        )
    return content


def _has_a_damaged_key(content: Mapping[str, Any]) -> bool:
    """Return whether the key of a seal seems to be damaged, which must not pass for the lack of one."""
    if get_close_matches(KEY, content, cutoff=0.8):
        return True
    last, item = list(content.items())[-1] if content else ("", None)  # a seal is written last
    return last not in DIGEST_KEYS and isinstance(item, str) and MOST_OF_A_DIGEST.search(item) is not None


def content_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything in a JSON object but the one that it may state."""
    # Of the values, not of the text: spaces and the spelling of a number may change, and mean the same.
    content = {key: item for key, item in value.items() if key != KEY}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
